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
from mpickpt.native import _native
from mpickpt.store.presence import is_directory
from mpickpt.store.refusal import store_error
from mpickpt.store.steps import Steps

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
    steps = Steps()
    add_new(steps, path, data)
    error = steps.run()
    if error is not None:
        if steps.went_behind(0):  # else it is another's
            remove_quietly(path)
        raise error


def add_new(steps: Steps, path: str, data: bytes, folder: str | None = None) -> None:
    """Add what `write_new` does to a list; `folder` is made where it is found missing."""
    _add_write_sync_close(steps, steps.create(path, folder), path, data)


def _add_write_sync_close(steps: Steps, slot: int, path: str, data: bytes) -> None:
    size = len(data)
    steps.write(slot, data, 0, "write", path, size)
    steps.reach("commit.written")
    steps.sync(slot, "sync", path, size)
    steps.reach("commit.synced")
    steps.close(slot, "close", path, size)
    steps.reach("commit.closed")


def _identity(path: str) -> tuple[int, int] | None:
    """Give (device, inode) of what stands at `path`, links not followed; None where nothing does."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class Publication:
    """A file that is put under a name that others look up: the four stages, as a list that is done in one go.

    Parameters
    ----------
    directory, name, data, way, fence
        As for `publish`.
    steps : Steps, optional
        The list that they are added to.
    """

    def __init__(
        self, directory: str, name: str, data: bytes, way: Way, fence: bool = False, steps: Steps | None = None
    ) -> None:
        self.steps = steps = Steps() if steps is None else steps
        self._target, self._source = os.path.join(directory, name), temporary(directory)
        slot = steps.create(self._source)
        self._made = steps.identify(slot, self._source)
        _add_write_sync_close(steps, slot, self._source, data)
        kind = _native.RENAME if way is Way.RENAME else _native.LINK
        self._placing = steps.place(kind, self._source, self._target)
        steps.reach("commit.placed")
        add_directory_sync(steps, directory, fence)
        steps.reach("commit.directory-synced")
        # Not before the directory's sync: until then the temporary name may be the only durable one. When the process
        # ends before this, both names stay, and that is as good as published.
        if way is Way.LINK:
            steps.remove(self._source)
        self._end = len(steps)

    def run(self) -> bool:
        """Do it in this thread; see `publish`."""
        return self.conclude(self.steps.run())

    def conclude(self, error: BaseException | None) -> bool:
        """Say what came of it. Where `error` is what the list failed with this asks the file system, and cleans up.

        An error of what was added to the list after this is not this one's.
        """
        steps = self.steps
        if error is None or steps.failed >= self._end:
            return True
        placed = steps.went_behind(self._placing)
        try:
            if not placed and steps.failed == self._placing and isinstance(error, OSError):
                if not self._ours(error):
                    remove_quietly(self._source)
                    return False
                placed = True
                error = steps.go_on()
        except StoreError as unknown:
            error = unknown
        if error is None or steps.failed >= self._end:
            if os.path.lexists(self._source):
                remove_quietly(self._source)
            return True
        steps.tidy()
        if not placed:
            remove_quietly(self._source)
            if isinstance(error, StoreError):
                error.path = self._target
            raise error
        raise _published(error, self._target) if isinstance(error, OSError) else error

    def _ours(self, error: OSError) -> bool:
        """Tell after an error of the third stage whether the target is our file, or the name was taken by another.

        The reply may be lost or wrong (a network file system that repeats a request): what is there decides.
        """
        try:
            ours = {self.steps.identity(self._made), _identity(self._source)}
            there = _identity(self._target)
        except OSError as unknown:
            doing = "placing the file, and finding out whether it was placed,"
            raise store_error(unknown, doing, self._target) from error
        if there is None:
            raise error
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
    return Publication(directory, name, data, way, fence).run()


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
    steps = Steps()
    add_directory_sync(steps, path, fence)
    _run(steps)


def add_directory_sync(steps: Steps, path: str, fence: bool = False, absent: bool = False) -> None:
    """Add what `sync_directory` does to a list; `absent`: the directory need not be there."""
    steps.sync_directory(path, absent)
    if fence:
        mark = temporary(path)
        steps.scrap.append(mark)
        slot = steps.create(mark, absent=absent)
        steps.sync(slot, "sync", mark, None, absent)
        steps.close(slot, "close", mark, None)
        steps.remove(mark)


def _run(steps: Steps) -> None:
    error = steps.run()
    if error is not None:
        steps.tidy()
        raise error


def refresh(path: str) -> None:
    """Create and remove a file in a directory: the next listing is then not one from a network file system's cache.

    Raises
    ------
    StoreError
        If the directory cannot be written.
    """
    steps = Steps()
    add_refresh(steps, path)
    _run(steps)


def add_refresh(steps: Steps, path: str) -> None:
    """Add what `refresh` does to a list."""
    mark = temporary(path)
    steps.scrap.append(mark)
    steps.close(steps.create(mark), "close", mark, None)
    steps.remove(mark)


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

    The parent is synced where the directory is there already, too: whoever made it may have been killed before that.

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
        if not is_directory(path):
            raise store_error(NotADirectoryError(errno.ENOTDIR, ""), "making a directory", path) from error
        if sync_parent:
            sync_directory(os.path.dirname(path) or ".", fence)
        return False
    except OSError as error:
        if ours:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        raise error if isinstance(error, StoreError) else store_error(error, "making a directory", path) from error
    return True
