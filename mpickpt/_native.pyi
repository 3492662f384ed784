"""The C extension: commit primitives and byte kernels. Every call works without the interpreter lock.

A buffer is anything C-contiguous that speaks the buffer protocol. What ml_dtypes adds to NumPy (bfloat16, float8)
does not: pass ``array.view(numpy.uint8)``.
"""

import os
from typing import Any, TypeAlias

import numpy.typing as npt
from typing_extensions import Buffer

# NumPy says that its arrays are buffers only to those who check for Python 3.12 and newer.
_Buffer: TypeAlias = Buffer | npt.NDArray[Any]
_Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

have_renameat2: bool
"""Whether the kernel knows renameat2. What the file system does with it is another question."""

crc32c_kind: str
"""What `crc32c` runs on here: ``"sse4.2"``, ``"armv8"`` or ``"table"``."""

def rename_noreplace(source: _Path, target: _Path, /) -> None:
    """Rename in one step, never over another file: renameat2 with RENAME_NOREPLACE.

    Raises
    ------
    OSError
        With errno and both names. FileExistsError where `target` exists; EINVAL where the file system
        lacks the flag; ENOSYS where the kernel lacks the call.
    """

def link(source: _Path, target: _Path, /) -> None:
    """Give a file a second name, never over another file. Symbolic links are not followed.

    Raises
    ------
    OSError
        With errno and both names. FileExistsError where `target` exists.
    """

def fsync(fd: int, /) -> None:
    """Sync a file or a directory, by one call that is repeated after no error, EINTR included.

    Raises
    ------
    OSError
        The file is then to be abandoned: a second fsync may answer ok and the data is gone.
    """

def sync_range(fd: int, offset: int, size: int, wait: bool, /) -> None:
    """Start the write-back of bytes ``[offset, offset + size)``, or wait until it is done.

    A hint that shortens a later `fsync`: it makes nothing durable. Quiet where the kernel lacks the call.

    Raises
    ------
    OSError
        As final as one of `fsync`: it may have been reported to this call alone.
    """

def pwrite_all(fd: int, data: _Buffer, offset: int, /) -> None:
    """Write all of `data` at `offset` (bytes). Short and interrupted writes are resumed.

    Raises
    ------
    OSError
        Some of `data` may have been written.
    """

def pread_full(fd: int, into: _Buffer, offset: int, /) -> int:
    """Read at `offset` (bytes) until the writable buffer `into` is full or the file ends.

    Returns
    -------
    int
        Bytes read: the size of `into`, or fewer at the end of the file.

    Raises
    ------
    OSError
        `into` may be filled in part.
    """

def crc32c(data: _Buffer, /, crc: int = 0) -> int:
    """CRC-32C (Castagnoli, RFC 3720) of `data`, by the processor's instruction where it has one.

    ``crc32c(b, crc32c(a))`` equals ``crc32c(a + b)``.
    """

def crc32c_table(data: _Buffer, /, crc: int = 0) -> int:
    """Give the same number as `crc32c`, by table."""

def first_nonfinite(data: _Buffer, dtype: str, /) -> int:
    """Find the first element that is NaN or infinite.

    Parameters
    ----------
    data : bytes-like
        Little-endian elements, at any alignment.
    dtype : str
        A dtype name of mpickpt. A complex element counts as one. Booleans and integers are finite.

    Returns
    -------
    int
        Index of the element, or -1.

    Raises
    ------
    ValueError
        If the dtype is unknown, or `data` is no whole number of its elements.
    """

def first_nonfinite_portable(data: _Buffer, dtype: str, /) -> int:
    """Give the same index as `first_nonfinite`, without the instructions that only some processors have."""

def statfs_type(path: _Path, /) -> int:
    """Give the number (``f_type`` of statfs, cut to 32 bits) of the kind of file system that holds `path`."""

def preallocate(fd: int, size: int, /) -> None:
    """Grow a file to `size` bytes that are reserved on disk. Quiet where the file system cannot.

    Raises
    ------
    OSError
        ENOSPC or EDQUOT: there is no room, and it is known before the first byte is written.
    """
