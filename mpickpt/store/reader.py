"""Verified reads of a shard: only the chunks that are needed, each checked whole before its bytes count.

Opening checks, in this order: the size against the manifest's record, head and tables against the recorded digest,
then the header itself, then header against record. So damage is named as damage before a hostile header is looked at.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpickpt import digest
from mpickpt.errors import FormatError, IntegrityError, StateError, StoreError
from mpickpt.format.layout import CRC_BYTES, DIGEST_BYTES, Entry, Layout
from mpickpt.format.manifest import Prefix, ShardRecord
from mpickpt.format.shard import agree, chunk_digest, head_size, locate_tables, parse, verify_tables
from mpickpt.native import _native
from mpickpt.state import dtypes
from mpickpt.state.region import Box, Region, Schema, flat_boxes
from mpickpt.store.commit import close_quietly
from mpickpt.store.files import open_regular, read_exact
from mpickpt.store.source import GRAIN, flat_bytes
from mpickpt.store.threads import Buffers
from mpickpt.store.writer import Progress

LEVELS = ("full", "fast")
_WHAT = "a shard"


@dataclass(slots=True)
class Want:
    """A box that is wanted, and where it goes.

    Parameters
    ----------
    ordinal : int
        The region's place in the schema.
    box : Box
        Which part of it; not empty.
    out : numpy.ndarray
        Of the box's shape and the region's dtype, any strides and byte order; writeable. Private to the reader until
        all has been verified.
    """

    ordinal: int
    box: Box
    out: np.ndarray[Any, Any]


def memory_for(region: Region, box: Box) -> np.ndarray[Any, Any]:
    """Make a private destination: the memory for a box of an array region.

    Raises
    ------
    StoreError
        If there is no such memory (ENOMEM): the region is greater than this machine, or a forged schema says so.
    """
    dtype = dtypes.dtype_of(region.dtype)
    try:
        return np.empty(box.shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError: more bytes than an address can tell
        raise StoreError(
            "there is no memory for a region",
            errno=errno.ENOMEM,
            region=region.name,
            expected=f"{box.size * dtype.itemsize} bytes, for [{box.text()}] of {region.dtype}",
            unharmed="the store and all arrays",
            advice="read a part of it, or restore it on more owners",
        ) from error


def check_level(level: str) -> str:
    """Refuse a level that is none: "full" (digests) or "fast" (CRCs)."""
    if level not in LEVELS:
        raise StateError("unknown level of verification", expected=" or ".join(LEVELS), found=repr(level)[:100])
    return level


class _Job:
    """Bytes of one piece that go to one destination."""

    __slots__ = ("entry", "flat", "meet", "start", "stop", "want")

    def __init__(self, entry: Entry, want: Want, meet: Box) -> None:
        self.entry = entry
        self.want = want
        self.meet = meet
        box = entry.spec.box
        self.start, self.stop = entry.offset, entry.offset + entry.spec.nbytes  # of the payload, that may be needed
        self.flat: np.ndarray[Any, Any] | None = None
        if meet == box:
            self.flat = flat_bytes(want.out if box == want.box else want.out[box.relative(want.box)])
        else:
            shape = box.shape
            size = dtypes.itemsize(entry.spec.dtype)
            first = tuple(lo - at for lo, at in zip(meet.lo, box.lo, strict=True))
            last = tuple(hi - 1 - at for hi, at in zip(meet.hi, box.lo, strict=True))
            self.start = entry.offset + size * int(np.ravel_multi_index(first, shape))
            self.stop = entry.offset + size * (int(np.ravel_multi_index(last, shape)) + 1)

    def _parts(self, lo: int, hi: int) -> Iterator[tuple[int, Box, Box]]:
        """Give what bytes [lo, hi) of the piece hold: first element, box of the region, what is wanted of it."""
        spec = self.entry.spec
        size = dtypes.itemsize(spec.dtype)
        at = spec.box.lo
        for index, box in flat_boxes(spec.box.shape, lo // size, hi // size):
            here = Box(tuple(map(sum, zip(box.lo, at, strict=True))), tuple(map(sum, zip(box.hi, at, strict=True))))
            meet = here if here.ndim == 0 else here.intersect(self.meet)
            if meet is not None:
                yield index, here, meet

    def needs(self, lo: int, hi: int) -> bool:
        """Tell whether any of the bytes [lo, hi) of the piece is wanted."""
        return self.flat is not None or next(self._parts(lo, hi), None) is not None

    def put(self, lo: int, hi: int, data: np.ndarray[Any, Any]) -> None:
        """Copy `data`, the piece's bytes [lo, hi), to where they go."""
        if self.flat is not None:
            self.flat[lo:hi] = data
            return
        dtype = dtypes.dtype_of(self.entry.spec.dtype)
        values = data.view(dtype)
        first = lo // dtype.itemsize
        for index, here, meet in self._parts(lo, hi):
            source = values[index - first : index - first + here.size].reshape(here.shape)
            self.want.out[meet.relative(self.want.box)] = source[meet.relative(here)]


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
            self.layout = self._open(size, prefix, schema)
        except BaseException:
            self.close()
            raise

    def _open(self, size: int, prefix: Prefix, schema: Schema) -> Layout:
        record, path = self.record, self.path
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
        tables = self._bytes(offset, chunks * (DIGEST_BYTES + CRC_BYTES))
        self._digests = tables[: chunks * DIGEST_BYTES]
        self._crcs = tables[chunks * DIGEST_BYTES :]
        verify_tables(head, self._digests, self._crcs, record.digest, path)
        layout = parse(head, size, path, schema)
        agree(layout, record, prefix, path)
        if layout.chunk % GRAIN or layout.tables_offset != offset or layout.chunks != chunks:
            raise FormatError(
                "a shard's chunks are none that can be read",
                path=path,
                expected=f"chunks of a multiple of {GRAIN} bytes, tables behind them",
                found=f"{layout.chunks} chunks of {layout.chunk} bytes",
            )
        return layout

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

    # ------------------------------------------------------------------ planning

    def plan(self, wants: Iterable[Want], opaque: Iterable[int] = (), checked: bool = False) -> Reading:
        """Find out which chunks hold what is wanted.

        Parameters
        ----------
        wants : iterable of Want
            Boxes of arrays; parts that this shard does not hold are left alone.
        opaque : iterable of int
            Ordinals of opaque regions that this shard holds.
        checked : bool
            Whether the caller has checked already that the destinations fit.

        Raises
        ------
        StateError
            If a destination has another shape or dtype than its box.
        """
        by_ordinal: dict[int, list[Want]] = {}
        for want in wants:
            by_ordinal.setdefault(want.ordinal, []).append(want)
        ordinals = set(opaque)
        found: dict[int, np.ndarray[Any, Any]] = {}
        jobs: list[_Job] = []
        for entry in self.layout.entries:
            spec = entry.spec
            if spec.ordinal in ordinals and spec.opaque:
                out = found[spec.ordinal] = np.empty(spec.nbytes, np.uint8)
                jobs.append(_Job(entry, Want(spec.ordinal, spec.box, out), spec.box))
                continue
            for want in by_ordinal.get(spec.ordinal, ()):
                meet = spec.box if want.box == spec.box else _meet(spec.box, want.box)
                if meet is not None:
                    if not checked:
                        check_destination(want, spec.dtype, spec.region)
                    jobs.append(_Job(entry, want, meet))
        return Reading(self, jobs, found)

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
        layout = self.layout
        start, stop = self.span(index)
        read_exact(self._fd, layout.data_offset + start, into, self.path)
        if level != "fast":
            expected = self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
            found = chunk_digest(layout.algorithm, into)
            if found != expected:
                name = layout.algorithm
                raise self._damaged(start, stop, digest.name(name, expected), digest.name(name, found))
        if level != "full":
            wanted = int.from_bytes(self._crcs[index * CRC_BYTES : (index + 1) * CRC_BYTES], "little")
            crc = _native.crc32c(into)
            if crc != wanted:
                raise self._damaged(start, stop, f"crc32c {wanted:08x}", f"crc32c {crc:08x}")

    def _damaged(self, start: int, stop: int, expected: str, found: str) -> IntegrityError:
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


def _meet(piece: Box, wanted: Box) -> Box | None:
    return None if piece.ndim != wanted.ndim or piece.ndim == 0 else piece.intersect(wanted)


def check_destination(want: Want, dtype: str, region: str) -> None:
    """Refuse a destination of another shape or dtype than its box has, or a read-only one: StateError."""
    out = want.out
    if out.shape != want.box.shape or dtypes.name_of(out.dtype, region) != dtype or not out.flags.writeable:
        raise StateError(
            "a destination has another shape or dtype than its box, or is read-only",
            region=region,
            expected=f"a writeable array of {dtype} and shape {want.box.shape}",
            found=f"{out.dtype} of shape {out.shape}",
        )


class Reading:
    """What is read of one shard, chunk by chunk; chunks may be read in any order, from any threads.

    Attributes
    ----------
    chunks : list of int
        The chunks that are needed, ascending.
    """

    def __init__(self, shard: Shard, jobs: list[_Job], opaque: dict[int, np.ndarray[Any, Any]]) -> None:
        self.shard = shard
        self._opaque = opaque
        self._jobs: dict[int, list[_Job]] = {}
        chunk = shard.layout.chunk
        for job in jobs:
            offset = job.entry.offset
            for index in range(job.start // chunk, -(-job.stop // chunk)):
                start, stop = shard.span(index)
                lo, hi = max(start - offset, 0), min(stop - offset, job.entry.spec.nbytes)
                if job.needs(lo, hi):
                    self._jobs.setdefault(index, []).append(job)
        self.chunks = sorted(self._jobs)
        if len(self.chunks) == shard.layout.chunks:
            shard.expect_all()

    def read(self, index: int, level: str, buffers: Buffers, progress: Progress | None = None) -> None:
        """Read one chunk, verify it, and bring its bytes to where they are wanted.

        A chunk that belongs whole to one contiguous destination is read right into it.

        Raises
        ------
        IntegrityError, StoreError, Cancelled
        """
        if progress is not None:
            progress.check()
        jobs = self._jobs[index]
        start, stop = self.shard.span(index)
        job = jobs[0]
        offset = job.entry.offset
        if job.flat is not None and offset <= start and stop <= offset + job.entry.spec.nbytes and len(jobs) == 1:
            self.shard.read_chunk(index, job.flat[start - offset : stop - offset].data, level)
        else:
            with room(buffers, stop - start) as buffer:
                self.shard.read_chunk(index, buffer, level)
                data = np.frombuffer(buffer, np.uint8)
                for job in jobs:
                    offset = job.entry.offset
                    lo, hi = max(start - offset, 0), min(stop - offset, job.entry.spec.nbytes)
                    job.put(lo, hi, data[offset + lo - start : offset + hi - start])
        if progress is not None:
            progress.add(stop - start)

    def opaque(self) -> dict[int, bytes]:
        """Give the opaque bytes by ordinal, once all chunks have been read."""
        return {ordinal: out.tobytes() for ordinal, out in self._opaque.items()}


@contextmanager
def room(buffers: Buffers, size: int) -> Iterator[memoryview]:
    """Lend a pooled buffer of `size` bytes; of a file with greater chunks than usual, one of its own."""
    if size <= buffers.size:
        with buffers.lend() as buffer:
            yield buffer[:size]
    else:
        yield np.empty(size, np.uint8).data


def read_shard(
    shard: Shard, wants: Sequence[Want], opaque: Sequence[int] = (), level: str = "full"
) -> dict[int, bytes]:
    """Read what is wanted of one shard in the caller's thread; see `Shard.plan` and `Reading.read`."""
    reading = shard.plan(wants, opaque)
    buffers = Buffers(shard.layout.chunk)
    for index in reading.chunks:
        reading.read(index, check_level(level), buffers)
    return reading.opaque()
