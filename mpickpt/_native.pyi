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

def blake3_key(context: _Buffer, /) -> bytes:
    """Give the 32 bytes that stand for a context in BLAKE3's key derivation mode.

    Raises
    ------
    ValueError
        If the context has more than 1024 bytes.
    """

def blake3(key: _Buffer, data: _Buffer, /) -> bytes:
    """Give the digest (32 bytes) of `data` under a key of `blake3_key`.

    Source: the BLAKE3 specification, https://github.com/BLAKE3-team/BLAKE3-specs.
    """

def digest_sum(key: _Buffer, heads: _Buffer, inputs: _Buffer, /) -> bytes:
    """Add up the digests of many inputs under a key of `blake3_key`, each as a little-endian number, modulo 2**256.

    Parameters
    ----------
    key : bytes
    heads : bytes-like
        The first bytes of all inputs, one input's behind the other's.
    inputs : int64 buffer, rows of 3
        Bytes of its head, at most 4096; and the address and the bytes of the memory that follows it.

    Returns
    -------
    bytes
        32 bytes, little-endian.

    Raises
    ------
    ValueError
        If these do not fit each other.
    """

def scatter(data: _Buffer, start: int, pieces: _Buffer, /) -> int:
    """Bring the bytes of a payload from `start` on, which `data` holds, to the pieces that they belong to.

    Parameters
    ----------
    data : bytes-like
    start : int
        Where in the payload it begins.
    pieces : int64 buffer, rows of 4
        Offset in the payload, bytes, address, and the `scan_number` of what must be finite or -1; in any order, and
        with gaps. Of a piece that reaches beyond `data` only the part within is copied.

    Returns
    -------
    int
        -1; or where in the payload the first value lies that is not finite and must be: nothing of that piece, nor of
        those after it, was copied.

    Raises
    ------
    ValueError
        If a piece that must be finite is cut within an element.
    """

def blake3_limit(lanes: int, /) -> str:
    """Use BLAKE3 kernels of at most so many lanes (1, 4, 8, 16) from now on, for tests.

    Returns
    -------
    str
        The widest kernel that is used then: ``"avx512"``, ``"avx2"``, ``"vector"`` or ``"scalar"``.
    """

def scan_number(dtype: str, /) -> int:
    """Give the number by which `write_chunks` knows a dtype; -1 where its elements are always finite.

    Raises
    ------
    ValueError
        If the dtype is unknown.
    """

DONE: int
"""Outcome of a pass: nothing of the list is left."""
MORE: int
"""`most` chunks were done, and there may be more."""
STOPPED: int
"""The watcher cancelled the pass, or another thread that works on the list has failed."""
NONFINITE: int
"""A value is not finite where that is refused."""
DIFFERS: int
"""A chunk is not what its table says."""
CUT: int
"""The file ends within a chunk."""
BY_DIGEST: int
BY_CRC: int

def write_chunks(
    fd: int,
    direct: int,
    data_offset: int,
    payload: int,
    chunk: int,
    key: _Buffer,
    digests: _Buffer,
    crcs: _Buffer,
    watch: _Buffer,
    turn: _Buffer,
    most: int,
    chunks: _Buffer,
    pieces: _Buffer,
    /,
) -> tuple[int, int]:
    """Copy, scan, digest, sum and write chunks of a payload in one pass, and start their write-back.

    Several threads may work on one list, by calls that are alike.

    Parameters
    ----------
    fd : int
    direct : int
        A second descriptor of the file, opened with O_DIRECT: what begins and ends at multiples of 4096 bytes of the
        file is written through it. -1: nothing is.
    data_offset, payload, chunk : int
        Where the payload begins in the file, its bytes, and those of a chunk.
    key : bytes
        Of the chunk digests, from `blake3_key`.
    digests, crcs : writable buffers
        The tables of all chunks: 32 and 4 bytes each.
    watch : int64 buffer of 5
        Bytes done, which every call adds to; not 0 to end every call before its next chunk; and the nanoseconds that
        all threads together have spent in copies, in digests and sums, and in writes or reads.
    turn : int64 buffer of 2
        The state of the list, zeros at first, shared by the threads.
    most : int
        Chunks for this call; 0: until none is left.
    chunks : int64 buffer
        The list: chunk numbers, each once.
    pieces : int64 buffer, rows of 4
        The payload, without a gap: offset, bytes, address, and the `scan_number` of what must be finite or -1.

    Returns
    -------
    (int, int)
        Outcome; and after `NONFINITE` where the element lies in the payload.

    Raises
    ------
    OSError
        Of a write, or of the start of a write-back: both are final. EINVAL where pieces leave a gap.
    ValueError
        If sizes, tables and chunks do not fit each other.
    """

def read_chunks(
    fd: int,
    data_offset: int,
    payload: int,
    chunk: int,
    key: _Buffer,
    digests: _Buffer,
    crcs: _Buffer,
    watch: _Buffer,
    turn: _Buffer,
    most: int,
    targets: _Buffer,
    by: int,
    /,
) -> tuple[int, int, bytes, int]:
    """Read chunks of a payload and verify each in the same pass; parameters as those of `write_chunks`.

    Parameters
    ----------
    targets : int64 buffer, rows of 3
        Chunk; the address of the memory that it goes to, 0: it is only verified; the `scan_number` of what must be
        finite or -1.
    by : int
        `BY_DIGEST`, `BY_CRC`, or both.

    Returns
    -------
    (int, int, bytes, int)
        Outcome; after `DIFFERS` and `CUT` the chunk, after `NONFINITE` where the element lies in the payload; after
        `DIFFERS` the chunk's digest and CRC, of the kinds asked for.

    Raises
    ------
    OSError
        Of a read.
    ValueError
        If sizes, tables and chunks do not fit each other.
    """

def statfs_type(path: _Path, /) -> int:
    """Give the number (``f_type`` of statfs, cut to 32 bits) of the kind of file system that holds `path`."""

def preallocate(fd: int, size: int, /) -> None:
    """Grow a file to `size` bytes that are reserved on disk. Quiet where the file system cannot.

    Raises
    ------
    OSError
        ENOSPC or EDQUOT: there is no room, and it is known before the first byte is written.
    """

def places(arrays: tuple[Any, ...], /) -> bytes:
    """Say where each of many arrays lies in memory: what NumPy itself takes a microsecond to tell of one.

    Parameters
    ----------
    arrays : tuple of numpy.ndarray

    Returns
    -------
    bytes
        int64, rows of 3: address of the first element; bytes of all elements; NumPy's flags, as of the array interface
        (1: in C order without gaps, 0x200: in this machine's byte order, 0x400: writeable).

    Raises
    ------
    AttributeError, ValueError
        For anything else than an array.
    """

def copy_all(copies: _Buffer, next: _Buffer, /) -> None:
    """Make the copies of a list that are still to be made; threads may share it.

    Parameters
    ----------
    copies : int64 buffer, rows of 3
        Where to, where from, bytes: addresses of memory that is kept until this returns, and does not overlap.
    next : int64 buffer of 1
        The row that is taken next: 0 at first.

    Raises
    ------
    ValueError
        If these are no such rows.
    """

CREATE: int
DIRECT: int
IDENTIFY: int
RESERVE: int
WRITE: int
CHUNKS: int
CHECK: int
SYNC: int
CLOSE: int
LET_GO: int
RENAME: int
LINK: int
REMOVE: int
SYNC_DIRECTORY: int
LIST: int
APPEND: int
"""Kinds of steps; csrc/work.h says what each does. `mpickpt.store.steps.Steps` makes them."""

class Work:
    """Steps that follow each other, done in one go without the interpreter lock.

    Parameters
    ----------
    steps : list of tuple
        (kind, slot, slow, number, path, target, data, chunks); the last four may be None. `chunks` is (data_offset,
        payload, chunk, key, digests, crcs, watch, turn, chunks, pieces, owner, threads, most), as for `write_chunks`;
        `owner` has the memory of the pieces, and is kept.
    watch : int64 buffer
        As for `write_chunks`; a CHECK looks at its second number.
    syncing : int64 buffer of 1
        How many slow steps are in flight, for whoever watches: syncs, and what is taken for one.

    Raises
    ------
    ValueError, TypeError
        If a step is not complete, or its sizes do not fit each other.
    """

    def __new__(cls, steps: list[tuple[Any, ...]], watch: _Buffer, syncing: _Buffer, /) -> Work: ...
    def run(self, upto: int, /) -> tuple[int, int]:
        """Do the steps before `upto` in this thread; gives `state`.

        It ends early after as many chunks as their step asks for, and goes on with that step in the next call.
        """

    def begin(self) -> None:
        """Begin to do all of them in a thread of its own, which never takes the interpreter lock.

        Raises
        ------
        OSError
            If there is no such thread.
        """

    def wait(self, seconds: float, /) -> bool:
        """Wait for that thread's end; tell whether it has come."""

    def go_on(self) -> None:
        """Pass over the step that has failed."""

    def found(self, step: int, /) -> tuple[int, int, int, bytes]:
        """Give what came of a step: nanoseconds; device and inode, or a place in the payload, or 1 for open; names."""

    def close(self) -> None:
        """Let go of the files that are open."""

    def state(self) -> tuple[int, int]:
        """Give the step that comes and 0; or that failed, and a negative errno or an outcome of `write_chunks`."""

    def ended_at(self) -> float:
        """Tell when the last step had been done, by the monotonic clock."""
