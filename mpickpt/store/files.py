"""Opening and reading what may be anything: hostile, damaged, a FIFO, a directory, cut off while it is read.

Nothing here waits for ever or allocates more than a file's own size. Links are followed: files may be relocated.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from mpickpt.errors import IntegrityError
from mpickpt.format.records import MAX_BYTES
from mpickpt.native import _native
from mpickpt.store.commit import close_quietly
from mpickpt.store.refusal import store_error

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_regular(path: str, what: str) -> tuple[int, int]:
    """Open a file for reading.

    Parameters
    ----------
    path : str
    what : str
        What it should be, for messages.

    Returns
    -------
    (int, int)
        File descriptor and size in bytes.

    Raises
    ------
    FileNotFoundError
        If nothing is there: what that means, the caller knows.
    IntegrityError
        If it is no regular file, or a link to nothing. A FIFO is not waited for.
    StoreError
        If it cannot be opened.
    """
    try:
        fd = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.islink(path):
            raise IntegrityError(f"{what} is a link to nothing", path=path) from error
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, a device without a driver
            raise IntegrityError(f"{what} is no regular file", path=path) from error
        raise store_error(error, f"opening {what}", path) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise IntegrityError(
                f"{what} is no regular file", path=path, expected="a regular file", found=stat.filemode(found.st_mode)
            )
    except OSError as error:
        close_quietly(fd)
        raise store_error(error, f"opening {what}", path) from error
    except BaseException:
        close_quietly(fd)
        raise
    return fd, found.st_size


def read_exact(fd: int, offset: int, into: memoryview, path: str) -> None:
    """Fill `into` from `offset` on.

    Raises
    ------
    IntegrityError
        If the file ends before: it was cut while it was read.
    StoreError
        If the file system refuses.
    """
    try:
        count = _native.pread_full(fd, into, offset)
    except OSError as error:
        raise store_error(error, "read", path) from error
    if count != len(into):
        raise truncated(path, offset, len(into))


def truncated(path: str, offset: int, size: int) -> IntegrityError:
    """Say that a file was cut while it was read."""
    return IntegrityError("a file is truncated", path=path, expected=f"{size} bytes at {offset}", found="fewer")


def read_record(path: str, what: str, limit: int = MAX_BYTES) -> bytes:
    """Read a whole small file.

    Parameters
    ----------
    path : str
    what : str
        What it should be, for messages.
    limit : int
        No record is longer than so many bytes.

    Raises
    ------
    FileNotFoundError
        If nothing is there.
    IntegrityError
        If it is no regular file, is longer than `limit`, or is cut while it is read.
    StoreError
        If it cannot be opened or read.
    """
    fd, size = open_regular(path, what)
    try:
        if size > limit:
            raise IntegrityError(f"{what} is too long", path=path, expected=f"at most {limit} bytes", found=size)
        data = bytearray(size)
        read_exact(fd, 0, memoryview(data), path)
        return bytes(data)
    finally:
        close_quietly(fd)


def names_in(path: str) -> list[str]:
    """List a directory.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    StoreError
        If it cannot be read, or is no directory.
    """
    try:
        return os.listdir(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise store_error(error, "listing a directory", path) from error


def below(path: str) -> Iterator[str]:
    """Give the files below a directory, as names relative to it; links are not followed, faults are passed over."""
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            yield os.path.relpath(os.path.join(folder, name), path)
