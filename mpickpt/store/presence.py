"""Whether something stands under a name. A look that fails is no answer: unlike `os.path.exists`, it raises."""

from __future__ import annotations

import os
import stat

from mpickpt.store.refusal import store_error


def there(path: str) -> bool:
    """Tell whether anything stands under a name, be it a link to nothing.

    Raises
    ------
    StoreError
        If the file system does not say.
    """
    return _mode(path, follow=False) is not None


def is_directory(path: str) -> bool:
    """Tell whether a directory stands under a name, or a link to one.

    Raises
    ------
    StoreError
        If the file system does not say.
    """
    mode = _mode(path, follow=True)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: str, follow: bool) -> int | None:
    try:
        return os.stat(path, follow_symlinks=follow).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise store_error(error, "a look at a name", path) from error
