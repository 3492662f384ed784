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
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpickpt import digest
from mpickpt.errors import StateError, StoreError
from mpickpt.failpoints import reach
from mpickpt.format.layout import Layout
from mpickpt.format.manifest import ShardRecord
from mpickpt.format.prefix import PieceBox
from mpickpt.format.shard import chunk_digest, shard_digest
from mpickpt.native import _native
from mpickpt.store import commit, direct
from mpickpt.store.bulk import Job, Numbers, Result, work_off
from mpickpt.store.finite import Scan
from mpickpt.store.progress import Cancelled, Progress
from mpickpt.store.refusal import store_error
from mpickpt.store.source import GRAIN, Source, chunk_of, odd_chunk
from mpickpt.store.threads import STAGING, Buffers, Pool, share

if TYPE_CHECKING:
    from mpickpt.state.plan import Piece


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
        self._nonfinite = nonfinite
        self._scan = None if nonfinite is None else Scan(layout, nonfinite)
        self._digests = bytearray(digest.SIZE * layout.chunks)
        self._crcs = bytearray(4 * layout.chunks)
        self._present = bytearray(layout.chunks)
        self._lock = threading.Lock()
        self._users = 0  # threads within `_using`: the descriptor is not closed under them
        self._closed = False
        self._fd = self._direct = -1
        with progress.work():
            began = time.monotonic()
            self._begin()
            progress.took(write=time.monotonic() - began)

    def _begin(self) -> None:
        """Make the file, with room for all of it, and write its head."""
        path, layout = self.path, self.layout
        self._fd = commit.create(path)
        try:
            reach("writer.created")
            _native.preallocate(self._fd, layout.file_bytes)
            _native.pwrite_all(self._fd, layout.head, 0)
            self._direct = direct.open_again(path, self._fd, layout.payload)
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
        try:
            with self._using():
                began = time.monotonic()
                if self._scan is not None:
                    self._scan.check(start, view)
                hashed = chunk_digest(layout.algorithm, view)
                crc = _native.crc32c(view)
                digested = time.monotonic()
                self._mark(index)
                self._digests[digest.SIZE * index : digest.SIZE * (index + 1)] = hashed
                self._crcs[4 * index : 4 * index + 4] = crc.to_bytes(4, "little")
                at = len(layout.head) + start
                _native.pwrite_all(self._fd, view, at)
                # Starts write-back; its error is as final as fsync's.
                _native.sync_range(self._fd, at, len(view), False)
                self.progress.took(digest=digested - began, write=time.monotonic() - digested)
                reach("writer.chunk")
        except OSError as error:
            raise store_error(error, "write of a shard", self.path, layout.file_bytes) from error
        self.progress.add(len(view))

    def put_plain(self, source: Source, chunks: Sequence[int], pool: Pool | None) -> None:
        """Do the same with many chunks of local pieces, in the threads of `pool` and in the caller's own.

        Each is copied, scanned, digested and written in stretches that stay in the processor's cache. Of blake3 only.

        Parameters
        ----------
        source : Source
            The layout's.
        chunks : sequence of int
            Some of ``source.plain()``, each once.
        pool : Pool or None

        Raises
        ------
        NonFiniteError, StoreError, Cancelled
            As `put`.
        """
        layout = self.layout
        todo = np.array(chunks, np.int64)
        rows = source.rows(self._nonfinite)

        def call(turn: Numbers, most: int) -> Result:
            watch = self.progress.watch
            if most:  # a chunk is done when the failpoint has been passed, and not before
                self.progress.check()
                watch = np.zeros(5, np.int64)
            with self._using():
                result = _native.write_chunks(
                    self._fd, self._direct, len(layout.head), layout.payload, layout.chunk, digest.key("chunk"),
                    self._digests, self._crcs, watch, turn, most, todo, rows,
                )  # fmt: skip
            if most and result[0] == _native.MORE:
                reach("writer.chunk")
                self.progress.add(int(watch[0]))
                copy, hashed, written = (watch[2:] / 1e9).tolist()
                self.progress.took(copy=copy, digest=hashed, write=written)
            return result

        def refuse(result: Result) -> BaseException:
            assert self._scan is not None
            return self._scan.refusal(result[1], source)

        for index in chunks:
            self._mark(index)
        try:
            work_off(pool, [Job(len(todo), call, refuse, failpoint=True)], self.progress)
        except StoreError:
            raise
        except OSError as error:
            raise store_error(error, "write of a shard", self.path, layout.file_bytes) from error

    def _mark(self, index: int) -> None:
        with self._lock:
            if self._present[index]:
                raise StateError("a chunk was put twice", path=self.path, found=index)
            self._present[index] = 1

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Keep the descriptor open for the length of a with-block, whose time counts as work."""
        self._enter()
        try:
            with self.progress.work():
                yield
        finally:
            self._leave()

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
        for fd in (self._direct, self._fd):
            if fd >= 0:
                commit.close_quietly(fd)
        self._fd = self._direct = -1

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
                    past, self._direct = self._direct, -1
                if past >= 0:
                    commit.close_quietly(past)
                os.close(fd)
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise store_error(error, doing, self.path, layout.file_bytes) from error
            raise
        return layout.file_bytes, shard_digest(layout.algorithm, layout.head, self._digests, self._crcs)

    def abandon(self) -> None:
        """Remove the file and close it, as soon as no thread uses it. May be called twice."""
        with self._lock:
            self._closed = True
            idle = self._users == 0
        commit.remove_quietly(self.path)
        if idle:
            self._release()


def write_shard(writer: ShardWriter, pieces: Sequence[Piece], pool: Pool | None, staging: int = STAGING) -> Written:
    """Write all chunks of local pieces, and finish.

    Each byte is copied once, into buffers of a bounded size, and scanned, digested and written from there: what
    changes in the pieces meanwhile is saved in one state or the other, and never torn from its digest.

    Parameters
    ----------
    writer : ShardWriter
    pieces : sequence of Piece
        The layout's, in any order.
    pool : Pool or None
        Threads that help the caller's own.
    staging : int
        Bytes of all buffers together, or of one where that is more.

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
        plain = source.plain() if layout.algorithm == "blake3" else []
        buffers = Buffers(min(layout.chunk, max(1, layout.payload)), staging)

        def work(index: int) -> None:
            with buffers.lend() as buffer:
                began = time.monotonic()
                chunk = source.chunk(index, buffer)
                writer.progress.took(copy=time.monotonic() - began)
                writer.put(index, chunk)

        with writer.progress.work():
            writer.put_plain(source, plain, pool)
            share(pool, work, sorted(set(range(layout.chunks)).difference(plain)))
        size, name = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return Written(size, name, pieces_of(layout))


def pieces_of(layout: Layout) -> tuple[PieceBox, ...]:
    """Give the pieces of a shard as a manifest records them: (ordinal, lo, hi), ascending."""
    return tuple(sorted((entry.spec.ordinal, entry.spec.box.lo, entry.spec.box.hi) for entry in layout.entries))


__all__ = [
    "Cancelled",
    "Progress",
    "ShardWriter",
    "Written",
    "chunk_of",
    "pieces_of",
    "write_shard",
]
