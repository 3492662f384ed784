"""Pieces -> shard file, in one pass.

Each chunk is scanned for non-finite values, digested, summed and written while it is warm, in threads; write-back
starts as the write goes. The tables come last, and then one sync:

1. create, reserve the space, write the head         ``writer.created``
2. chunks, in any order, from any thread             ``writer.chunk`` after each
3. the tables                                        ``writer.written``
4. sync                                              ``writer.synced``
5. close

The file is made under its final name in the attempt's own directory: the root manifest is what publishes it. A
writer that fails or is cancelled removes its file, for a full disk must not stay full.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mpickpt import digest
from mpickpt.errors import StateError
from mpickpt.failpoints import reach
from mpickpt.format.layout import Layout
from mpickpt.format.manifest import ShardRecord
from mpickpt.format.prefix import PieceBox
from mpickpt.format.shard import chunk_digest, shard_digest
from mpickpt.native import _native
from mpickpt.store import commit
from mpickpt.store.finite import Scan
from mpickpt.store.refusal import store_error
from mpickpt.store.source import GRAIN, Source, chunk_of, odd_chunk
from mpickpt.store.threads import Buffers, Pool, share

if TYPE_CHECKING:
    from mpickpt.state.plan import Piece

_BATCH_BYTES = 4 << 20
"""Small chunks are handed to a thread in batches of about so many bytes: handing over costs more than they do."""


class Cancelled(Exception):
    """The writer was told to stop, or has been abandoned. Never reaches a user: whoever cancels knows why."""


class Progress:
    """How far a writer or reader is: shared between its threads and whoever watches it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = 0
        self._syncing = 0
        self.cancelled = False

    @property
    def done(self) -> int:
        """Bytes of payload done."""
        return self._done

    @property
    def syncing(self) -> int:
        """How many syncs are in flight: several files may be at that at once."""
        return self._syncing

    @contextlib.contextmanager
    def sync(self) -> Iterator[None]:
        """Say, for the length of a with-block, that a sync is in flight, which may take long."""
        with self._lock:
            self._syncing += 1
        try:
            yield
        finally:
            with self._lock:
                self._syncing -= 1

    def add(self, count: int) -> None:
        """Count `count` bytes more."""
        with self._lock:
            self._done += count

    def cancel(self) -> None:
        """Ask the writer to stop before its next chunk."""
        self.cancelled = True

    def check(self) -> None:
        """Raise `Cancelled` where it was asked to stop."""
        if self.cancelled:
            raise Cancelled


class Written(NamedTuple):
    """What a manifest records of a shard that was written."""

    bytes: int
    digest: str
    pieces: tuple[PieceBox, ...]

    def record(self, role: int, file: str) -> ShardRecord:
        """Give the record for a manifest; `file` is the name in the attempt's directory."""
        return ShardRecord(role=role, file=file, bytes=self.bytes, digest=self.digest, pieces=self.pieces)


class ShardWriter:
    """One shard file that is being written.

    Parameters
    ----------
    path : str
        Its final name; nothing is there yet.
    layout : Layout
        What stands where.
    progress : Progress
        Counts the bytes of payload written; asked before each chunk whether to stop.
    nonfinite : callable, optional
        Tells for a region's name whether NaN and infinities are refused; default: in none.

    Raises
    ------
    StoreError
        If the file cannot be made, or there is no room for it: known before its first byte is written.
    """

    def __init__(
        self, path: str, layout: Layout, progress: Progress, nonfinite: Callable[[str], bool] | None = None
    ) -> None:
        if layout.chunk % GRAIN:
            raise odd_chunk(layout.chunk)
        self.path = path
        self.layout = layout
        self.progress = progress
        self._scan = None if nonfinite is None else Scan(layout, nonfinite)
        self._digests = bytearray(digest.SIZE * layout.chunks)
        self._crcs = bytearray(4 * layout.chunks)
        self._present = bytearray(layout.chunks)
        self._lock = threading.Lock()
        self._users = 0  # threads within `put`: the descriptor is not closed under them
        self._closed = False
        self._fd = commit.create(path)
        try:
            reach("writer.created")
            _native.preallocate(self._fd, layout.file_bytes)
            _native.pwrite_all(self._fd, layout.head, 0)
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise store_error(error, "write of a shard", path, layout.file_bytes) from error
            raise

    def put(self, index: int, data: digest.BytesLike) -> None:
        """Scan, digest and write chunk `index`; from any thread, in any order, each chunk once.

        Parameters
        ----------
        index : int
            ``0 <= index < layout.chunks``.
        data : bytes-like
            The chunk's bytes, C-contiguous; not changed before this returns.

        Raises
        ------
        NonFiniteError
            With region, index in the region and value.
        StoreError
            If the file system refuses.
        StateError
            If the chunk has another size than the layout says, or was put before.
        Cancelled
            If the writer was cancelled or abandoned.
        """
        self.progress.check()
        layout = self.layout
        view = memoryview(data).cast("B")
        start = index * layout.chunk
        if not 0 <= index < layout.chunks or len(view) != min(layout.chunk, layout.payload - start):
            raise StateError(
                "a chunk of another place or size than the layout has",
                expected=f"chunk 0 to {layout.chunks - 1}, of at most {layout.chunk} bytes",
                found=f"chunk {index}, of {len(view)} bytes",
            )
        self._enter()
        try:
            if self._scan is not None:
                self._scan.check(start, view)
            hashed = chunk_digest(layout.algorithm, view)
            crc = _native.crc32c(view)
            self._mark(index)
            self._digests[digest.SIZE * index : digest.SIZE * (index + 1)] = hashed
            self._crcs[4 * index : 4 * index + 4] = crc.to_bytes(4, "little")
            at = len(layout.head) + start
            _native.pwrite_all(self._fd, view, at)
            _native.sync_range(self._fd, at, len(view), False)  # starts write-back; its error is as final as fsync's
            reach("writer.chunk")
        except OSError as error:
            raise store_error(error, "write of a shard", self.path, layout.file_bytes) from error
        finally:
            self._leave()
        self.progress.add(len(view))

    def _mark(self, index: int) -> None:
        with self._lock:
            if self._present[index]:
                raise StateError("a chunk was put twice", path=self.path, found=index)
            self._present[index] = 1

    def _enter(self) -> None:
        with self._lock:
            if self._closed:
                raise Cancelled
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._closed and self._users == 0
        if last:
            self._release()

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            commit.close_quietly(fd)

    def finish(self) -> tuple[int, str]:
        """Write the tables, sync once, close.

        Returns
        -------
        (int, str)
            Bytes of the file, and its shard digest.

        Raises
        ------
        StoreError
            If the file system refuses; the file is then removed. A sync is never tried again.
        StateError
            If a chunk was never put.
        Cancelled
            If the writer was cancelled or abandoned.
        """
        layout = self.layout
        with self._lock:
            if self._closed:
                raise Cancelled
            missing = self._present.find(0)
            if missing >= 0 or self._users:
                raise StateError("a shard is not complete", path=self.path, expected=layout.chunks, found=missing)
        doing = "write of a shard"
        try:
            self.progress.check()
            _native.pwrite_all(self._fd, self._digests + self._crcs, layout.tables_offset)
            reach("writer.written")
            doing = "sync of a shard"
            with self.progress.sync():
                _native.fsync(self._fd)
                reach("writer.synced")
                doing = "close of a shard"
                with self._lock:
                    self._closed = True
                    fd, self._fd = self._fd, -1
                os.close(fd)
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise store_error(error, doing, self.path, layout.file_bytes) from error
            raise
        return layout.file_bytes, shard_digest(layout.algorithm, layout.head, self._digests, self._crcs)

    def abandon(self) -> None:
        """Remove the file and close it, as soon as no thread is within `put`. May be called twice."""
        with self._lock:
            self._closed = True
            idle = self._users == 0
        commit.remove_quietly(self.path)
        if idle:
            self._release()


def write_shard(writer: ShardWriter, pieces: Sequence[Piece], pool: Pool | None) -> Written:
    """Write all chunks of local pieces, and finish.

    Each chunk is copied into one of the pooled buffers, of at most 64 MiB together, and scanned, digested and written
    from there: what changes in the pieces meanwhile is saved in one state or the other, and never torn from its digest.

    Parameters
    ----------
    writer : ShardWriter
    pieces : sequence of Piece
        The layout's, in any order.
    pool : Pool or None
        Threads that help the caller's own.

    Returns
    -------
    Written

    Raises
    ------
    NonFiniteError, StoreError, StateError, Cancelled
        As `ShardWriter.put` and `ShardWriter.finish`; the file is then removed.
    """
    layout = writer.layout
    try:
        source = Source(layout, pieces)
        buffers = Buffers(min(layout.chunk, max(1, layout.payload)))

        def work(batch: range) -> None:
            with buffers.lend() as buffer:
                for index in batch:
                    writer.put(index, source.chunk(index, buffer))

        share(pool, work, batches(layout.chunks, layout.chunk))
        size, name = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return Written(size, name, pieces_of(layout))


def pieces_of(layout: Layout) -> tuple[PieceBox, ...]:
    """Give the pieces of a shard as a manifest records them: (ordinal, lo, hi), ascending."""
    return tuple(sorted((entry.spec.ordinal, entry.spec.box.lo, entry.spec.box.hi) for entry in layout.entries))


def batches(chunks: int, chunk: int) -> list[range]:
    """Cut the numbers of chunks into what one thread does at a time."""
    step = max(1, math.ceil(_BATCH_BYTES / chunk))
    return [range(at, min(at + step, chunks)) for at in range(0, chunks, step)]


__all__ = [
    "Cancelled",
    "Progress",
    "ShardWriter",
    "Written",
    "batches",
    "chunk_of",
    "pieces_of",
    "write_shard",
]
