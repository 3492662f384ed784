"""A shard file, opened: its header and tables checked, its chunks read and verified whole before their bytes count.

Opening checks, in this order: the size against the manifest's record, head and tables against the recorded digest,
then the header itself, then header against record. So damage is named as damage before a hostile header is looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from mpickpt import digest
from mpickpt.errors import FormatError, IntegrityError, StateError
from mpickpt.format.layout import CHUNK, CRC_BYTES, DIGEST_BYTES, Layout
from mpickpt.format.manifest import Prefix, ShardRecord
from mpickpt.format.shard import agree, chunk_digest, foreseen, head_size, locate_tables, parse, verify_tables
from mpickpt.native import _native
from mpickpt.state.region import Schema
from mpickpt.store.bulk import Job, Numbers, Result
from mpickpt.store.commit import close_quietly
from mpickpt.store.files import open_regular, read_exact, truncated
from mpickpt.store.progress import Progress
from mpickpt.store.refusal import store_error
from mpickpt.store.source import GRAIN

LEVELS = ("full", "fast")
_WHAT = "a shard"


def check_level(level: str) -> str:
    """Refuse a level that is none: "full" (digests) or "fast" (CRCs)."""
    if level not in LEVELS:
        raise StateError("unknown level of verification", expected=" or ".join(LEVELS), found=repr(level)[:100])
    return level


class Shard:
    """One shard, opened for verified reads.

    Parameters
    ----------
    path : str
        The file.
    record : ShardRecord
        What a manifest says of it.
    prefix : Prefix
        The manifest's.
    schema : Schema
        The capture's.

    Raises
    ------
    FileNotFoundError
        If nothing is there: what that means, the caller knows.
    IntegrityError
        If it has another size, or its header or tables are not what the record names.
    FormatError
        If it is malformed, or header and manifest disagree.
    StoreError
        If it cannot be read.
    """

    def __init__(self, path: str, record: ShardRecord, prefix: Prefix, schema: Schema) -> None:
        self.path = path
        self.record = record
        self._fd, size = open_regular(path, _WHAT)
        try:
            if size != record.bytes:
                raise IntegrityError(
                    "a shard is truncated" if size < record.bytes else "a shard is longer than its manifest says",
                    path=path,
                    role=record.role,
                    expected=f"{record.bytes} bytes",
                    found=f"{size} bytes",
                )
            head = self._bytes(0, head_size(self._bytes(0, min(8, size)), size, path))
            offset, chunks = locate_tables(head, size)
            self._take(head, self._bytes(offset, chunks * (DIGEST_BYTES + CRC_BYTES)), prefix, schema)
        except BaseException:
            self.close()
            raise

    @classmethod
    def received(cls, path: str, record: ShardRecord, prefix: Prefix, schema: Schema, top: memoryview) -> Shard:
        """Make a shard of which another owner passes on what it reads: `top` is its head and its tables.

        They are checked here as if they had been read here, and so is every chunk (`Reading.take`). Raises as the
        constructor, but for what concerns a file.
        """
        self = cls.__new__(cls)
        self.path, self.record, self._fd = path, record, -1
        size = head_size(bytes(top[:8]), record.bytes, path)
        self._take(bytes(top[:size]), bytes(top[size:]), prefix, schema)
        return self

    def _take(self, head: bytes, tables: bytes, prefix: Prefix, schema: Schema) -> None:
        """Check head and tables against the record, then what they say."""
        record, path = self.record, self.path
        offset, chunks = locate_tables(head, record.bytes)
        self._digests, self._crcs = tables[: chunks * DIGEST_BYTES], tables[chunks * DIGEST_BYTES :]
        verify_tables(head, self._digests, self._crcs, record.digest, path)
        layout = foreseen(head, record, prefix, schema, CHUNK)
        if layout is None:
            layout = parse(head, record.bytes, path, schema)
            agree(layout, record, prefix, path)
        if layout.chunk % GRAIN or layout.tables_offset != offset or layout.chunks != chunks:
            raise FormatError(
                "a shard's chunks are none that can be read",
                path=path,
                expected=f"chunks of a multiple of {GRAIN} bytes, tables behind them",
                found=f"{layout.chunks} chunks of {layout.chunk} bytes",
            )
        self.layout: Layout = layout

    @property
    def top(self) -> bytes:
        """Head and tables: what `received` makes the same shard of."""
        return self.layout.head + self._digests + self._crcs

    def _bytes(self, offset: int, size: int) -> bytes:
        data = bytearray(size)
        read_exact(self._fd, offset, memoryview(data), self.path)
        return bytes(data)

    def close(self) -> None:
        """Close the file; may be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_quietly(fd)

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect_all(self) -> None:
        """Tell the kernel that the whole file will be read, so that it reads further ahead; only a hint."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    # ------------------------------------------------------------------ chunks

    def span(self, index: int) -> tuple[int, int]:
        """Give (start, stop) of a chunk, in bytes from the start of the payload."""
        return self.layout.chunk_span(index)

    def read_chunk(self, index: int, into: memoryview, level: str) -> None:
        """Read a chunk and verify it.

        Parameters
        ----------
        index : int
        into : memoryview
            Of the chunk's size, writable; of no use when this raises.
        level : {"full", "fast", "both"}
            By digest, by CRC, or by both.

        Raises
        ------
        IntegrityError
            If it is not the bytes that the table names, or the file is cut.
        StoreError
            If it cannot be read.
        """
        read_exact(self._fd, self.layout.data_offset + self.span(index)[0], into, self.path)
        self.check_chunk(index, into, level)

    def peek(self, offset: int, size: int) -> bytes:
        """Read some bytes of the payload, unverified, for a message; raises as `read_chunk`."""
        return self._bytes(self.layout.data_offset + offset, size)

    def check_chunk(self, index: int, into: memoryview, level: str) -> None:
        """Verify a chunk that has been read; see `read_chunk`."""
        found = b"" if level == "fast" else chunk_digest(self.layout.algorithm, into)
        crc = 0 if level == "full" else _native.crc32c(into)
        self._check(index, level, found, crc)

    def _check(self, index: int, level: str, found: bytes, crc: int) -> None:
        """Compare what was found of a chunk with the tables."""
        layout = self.layout
        if level != "fast":
            expected = self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
            if found != expected:
                name = layout.algorithm
                raise self._damaged(index, digest.name(name, expected), digest.name(name, found))
        if level != "full":
            wanted = int.from_bytes(self._crcs[index * CRC_BYTES : (index + 1) * CRC_BYTES], "little")
            if crc != wanted:
                raise self._damaged(index, f"crc32c {wanted:08x}", f"crc32c {crc:08x}")

    def in_bulk(self, level: str) -> bool:
        """Tell whether `job` can verify this shard's chunks: the extension knows CRC and BLAKE3."""
        return level == "fast" or self.layout.algorithm == "blake3"

    def job(
        self,
        targets: Numbers,
        level: str,
        progress: Progress,
        nonfinite: Callable[[int], BaseException] | None = None,
    ) -> Job:
        """Make the job of reading whole chunks and verifying each, as `read_chunk` does.

        Parameters
        ----------
        targets : numpy.ndarray of int64, shape (n, 3)
            Chunk; the address where it goes: memory that is kept until the job is done, 0: it is only verified; the
            number of the dtype that must be finite, or -1.
        level : {"full", "fast", "both"}
        progress : Progress
            Counts the bytes, and may stop the job.
        nonfinite : callable, optional
            Gives the refusal of the element at a place in the payload.
        """
        layout = self.layout
        by = {"full": _native.BY_DIGEST, "fast": _native.BY_CRC, "both": _native.BY_DIGEST | _native.BY_CRC}[level]

        def call(turn: Numbers, most: int) -> Result:
            try:
                return _native.read_chunks(
                    self._fd, layout.data_offset, layout.payload, layout.chunk, digest.key("chunk"), self._digests,
                    self._crcs, progress.watch, turn, most, targets, by,
                )  # fmt: skip
            except OSError as error:
                raise store_error(error, "read", self.path) from error

        def refuse(result: Result) -> BaseException:
            outcome, index, found, crc = result
            if outcome == _native.NONFINITE:
                assert nonfinite is not None
                return nonfinite(index)
            start, stop = self.span(index)
            if outcome == _native.CUT:
                return truncated(self.path, layout.data_offset + start, stop - start)
            try:
                self._check(index, level, found, crc)
            except IntegrityError as error:
                return error
            raise AssertionError(f"chunk {index} of {self.path} is what its table says")

        return Job(len(targets), call, refuse)

    def _damaged(self, index: int, expected: str, found: str) -> IntegrityError:
        start, stop = self.span(index)
        regions = [
            entry.spec.region
            for entry in self.layout.entries
            if entry.offset < stop and entry.offset + entry.spec.nbytes > start
        ]
        more = f"; {len(regions) - 1} more region(s) lie in them" if len(regions) > 1 else ""
        at = self.layout.data_offset
        return IntegrityError(
            f"bytes {at + start} to {at + stop} of a shard are not what its table names{more}",
            path=self.path,
            role=self.record.role,
            region=regions[0] if regions else None,
            expected=expected,
            found=found,
        )
