"""The durable write: the only code of mpickpt that puts a file in place under a name that others look up.

`publish` has four stages, each with its failpoint (docs/protocol.md, "Durable write"):

1. sync the data                                   ``commit.written`` -> ``commit.synced``
2. close the file                                  ``commit.closed``
3. place it under its name, never replacing        ``commit.placed``
4. sync the directory                              ``commit.directory-synced``

An error of stages 1 to 3 is final: a second fsync can say "ok" after the data is lost, so none is ever retried, and
the temporary file is abandoned. After an error of stage 3 the file system is asked what is there: (device, inode) of
target and temporary file decide, since replies can be lost. An error of stage 4 leaves the file in place: the
StoreError then says "published, durability unknown" and has the attribute ``published = True``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from enum import Enum

from mpickpt.errors import StoreError
from mpickpt.failpoints import reach
from mpickpt.native import _native
from mpickpt.store.refusal import store_error

TEMPORARY = ".tmp-"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Way(Enum):
    """How a file is placed without replacing: both are first-class, and every test runs both."""

    RENAME = "renameat2"
    LINK = "link"


def temporary(directory: str) -> str:
    """Give the path of a new temporary file in `directory`; lists ignore such names."""
    return os.path.join(directory, TEMPORARY + uuid.uuid4().hex)


def remove_quietly(path: str) -> None:
    """Remove a file that is of no more use; where that fails it stays, which harms nobody."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def create(path: str) -> int:
    """Create a file that is not there yet, and open it for writing.

    Returns
    -------
    int
        The file descriptor; mode 0666 under the umask.

    Raises
    ------
    StoreError
        If it exists, or cannot be made.
    """
    try:
        return os.open(path, _CREATE, 0o666)
    except OSError as error:
        raise store_error(error, "creation of a file", path) from error


def close_quietly(fd: int) -> None:
    """Close a descriptor of which nothing is expected any more."""
    with contextlib.suppress(OSError):
        os.close(fd)


def _sync(fd: int, path: str, size: int | None) -> None:
    """Stage 1. Closes the descriptor when it fails: nothing may be done with this file any more."""
    try:
        _native.fsync(fd)
    except OSError as error:
        close_quietly(fd)
        raise store_error(error, "sync", path, size) from error


def _close(fd: int, path: str, size: int | None) -> None:
    """Stage 2. Also after an error of close the descriptor is gone; NFS reports lost writes here."""
    try:
        os.close(fd)
    except OSError as error:
        raise store_error(error, "close", path, size) from error


def sync_close(fd: int, path: str) -> None:
    """Stages 1 and 2 for a file with its final name; the descriptor is closed whatever happens.

    Raises
    ------
    StoreError
        If either fails. Neither is tried again.
    """
    _sync(fd, path, None)
    _close(fd, path, None)


def write_new(path: str, data: bytes) -> None:
    """Create `path`, write `data`, sync, close. For files in an attempt's own directory: the nonce makes the name ours.

    Raises
    ------
    StoreError
        If it exists or any step fails; what was written is removed again.
    """
    fd = create(path)
    try:
        _write_sync_close(fd, path, data)
    except BaseException:
        remove_quietly(path)
        raise


def _write_sync_close(fd: int, path: str, data: bytes) -> None:
    try:
        _native.pwrite_all(fd, data, 0)
        reach("commit.written")
    except OSError as error:
        close_quietly(fd)
        raise store_error(error, "write", path, len(data)) from error
    except BaseException:
        close_quietly(fd)
        raise
    _sync(fd, path, len(data))
    try:
        reach("commit.synced")
    except BaseException as error:
        close_quietly(fd)
        if isinstance(error, OSError):
            raise store_error(error, "sync", path, len(data)) from error
        raise
    _close(fd, path, len(data))
    try:
        reach("commit.closed")
    except OSError as error:
        raise store_error(error, "close", path, len(data)) from error


def _identity(path: str) -> tuple[int, int] | None:
    """Give (device, inode) of what stands at `path`, links not followed; None where nothing does."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _place(source: str, target: str, made: tuple[int, int], way: Way) -> bool:
    """Stage 3. True: `target` is our file. False: the name was taken by another."""
    try:
        if way is Way.RENAME:
            _native.rename_noreplace(source, target)
        else:
            _native.link(source, target)
        return True
    except OSError as error:
        # The reply may be lost or wrong (a network file system that repeats a request): what is there decides.
        try:
            ours = {made, _identity(source)}
            there = _identity(target)
        except OSError as unknown:
            raise store_error(unknown, "placing the file, and finding out whether it was placed,", target) from error
        if there is None:
            raise store_error(error, "placing the file", target) from error
        return there in ours


def publish(directory: str, name: str, data: bytes, way: Way, fence: bool = False) -> bool:
    """Put a file under a name that others look up: whole and durable, or not at all; never in place of another.

    Parameters
    ----------
    directory : str
        Where; it exists.
    name : str
        The file's name in it.
    data : bytes
        Its whole content.
    way : Way
        How to place without replacing, as `filesystem.probe` found.
    fence : bool
        Also create, sync and remove a file after the directory's sync, where that alone may do nothing.

    Returns
    -------
    bool
        True: this call put it there. False: the name was taken, and what stood there is as it was.

    Raises
    ------
    StoreError
        If any stage failed. With ``published = True`` the file is in place, but perhaps not durable.
    """
    target = os.path.join(directory, name)
    source = temporary(directory)
    try:
        fd = create(source)
        try:
            found = os.fstat(fd)
        except OSError as error:
            close_quietly(fd)
            raise store_error(error, "a look at the new file", source) from error
        _write_sync_close(fd, source, data)
        won = _place(source, target, (found.st_dev, found.st_ino), way)
    except BaseException as error:
        remove_quietly(source)
        if isinstance(error, StoreError):
            error.path = target
        raise
    if not won:
        remove_quietly(source)
        return False
    try:
        reach("commit.placed")
        sync_directory(directory, fence)
        reach("commit.directory-synced")
    except OSError as error:
        raise _published(error, target) from error
    # Not before the directory's sync: until then the temporary name may be the only durable one. When the process
    # ends before this, both names stay, and that is as good as published.
    if way is Way.LINK or os.path.lexists(source):
        remove_quietly(source)
    return True


def _published(error: OSError, target: str) -> StoreError:
    number = error.errno or errno.EIO
    refusal = StoreError(
        f"published, durability unknown: the sync of the directory failed ({os.strerror(number)})",
        errno=number,
        path=target,
        unharmed="earlier generations",
        advice="the file is in place; the next resume syncs it before it is used",
    )
    vars(refusal)["published"] = True
    return refusal


def was_published(error: BaseException) -> bool:
    """Tell whether `error` is that of stage 4: the file is in place, its durability unknown."""
    return getattr(error, "published", False) is True


def sync_directory(path: str, fence: bool = False) -> None:
    """Stage 4: make the names in a directory durable.

    Parameters
    ----------
    path : str
        The directory.
    fence : bool
        Create, sync and remove a new file in it afterwards: on Lustre from 2.16, BeeGFS and GPFS a directory's own
        sync may send nothing, while that of a file in it carries the names before it along.

    Raises
    ------
    StoreError
        If either failed; it is not tried again. EINVAL alone (a directory that cannot be synced at all) is passed over.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _native.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(fd)
    except OSError as error:
        raise store_error(error, "sync of a directory", path) from error
    if fence:
        mark = temporary(path)
        try:
            sync_close(create(mark), mark)
        finally:
            remove_quietly(mark)


def refresh(path: str) -> None:
    """Create and remove a file in a directory: the next listing is then not one from a network file system's cache.

    Raises
    ------
    StoreError
        If the directory cannot be written.
    """
    mark = temporary(path)
    try:
        _close(create(mark), mark, None)
    finally:
        remove_quietly(mark)


def sync_file(path: str) -> None:
    """Sync a file that stands already, for whoever finds it there and has to rely on it.

    Raises
    ------
    StoreError
        If it cannot be opened or synced.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise store_error(error, "opening a file", path) from error
    sync_close(fd, path)


def make_directory(path: str, sync_parent: bool = True, fence: bool = False, ours: bool = False) -> bool:
    """Make a directory and make its name durable in its parent.

    Parameters
    ----------
    ours : bool
        The name is nobody else's: whatever an error leaves of it is removed again.

    Returns
    -------
    bool
        True: this call made it. False: it was there.

    Raises
    ------
    StoreError
        If it cannot be made, or something else has its name.
    """
    try:
        os.mkdir(path)
        if sync_parent:
            sync_directory(os.path.dirname(path) or ".", fence)
    except FileExistsError as error:
        if not os.path.isdir(path):
            raise store_error(NotADirectoryError(errno.ENOTDIR, ""), "making a directory", path) from error
        return False
    except OSError as error:
        if ours:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        raise error if isinstance(error, StoreError) else store_error(error, "making a directory", path) from error
    return True
