"""Verified reads of a shard: only the chunks that are needed, each checked whole before its bytes count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpickpt.errors import NonFiniteError
from mpickpt.format.layout import Entry
from mpickpt.native import _native
from mpickpt.state import dtypes
from mpickpt.state.places import Places
from mpickpt.state.region import Box, flat_boxes
from mpickpt.store.bulk import Job, Numbers, Result, numbers, work_off
from mpickpt.store.destination import Want, check_destination
from mpickpt.store.finite import nonfinite_error
from mpickpt.store.progress import Progress
from mpickpt.store.shard import Shard, check_level
from mpickpt.store.threads import Buffers


class _Part:
    """Bytes of one piece that go to one destination, or nowhere; but for those of `_Flat`."""

    __slots__ = ("entry", "meet", "size", "start", "stop", "want")

    def __init__(self, entry: Entry, want: Want, meet: Box) -> None:
        self.entry = entry
        self.want = want
        self.meet = meet
        box = entry.spec.box
        self.size = entry.spec.nbytes
        self.start, self.stop = entry.offset, entry.offset + self.size  # of the payload, that may be needed
        if meet != box:
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
        return self.meet == self.entry.spec.box or next(self._parts(lo, hi), None) is not None

    def put(self, lo: int, hi: int, data: np.ndarray[Any, Any]) -> None:
        """Copy `data`, the piece's bytes [lo, hi), to where they go, if anywhere: no flat memory."""
        out = self.want.out
        if out is None:
            return
        dtype = dtypes.dtype_of(self.entry.spec.dtype)
        values = data.view(dtype)
        first = lo // dtype.itemsize
        for index, here, meet in self._parts(lo, hi):
            source = values[index - first : index - first + here.size].reshape(here.shape)
            out[meet.relative(self.want.box)] = source[meet.relative(here)]


def _meet(piece: Box, wanted: Box) -> Box | None:
    return None if piece.ndim != wanted.ndim or piece.ndim == 0 else piece.intersect(wanted)


class _Flat:
    """Pieces that go whole into memory where they lie as in the payload: one table, since there may be thousands.

    Attributes
    ----------
    rows : numpy.ndarray of int64, shape (n, 4)
        As `_native.scatter` takes them, by offset: offset, bytes, address, the number of a dtype that must be finite or
        -1. The addresses are good for as long as this object is kept.
    """

    def __init__(
        self, entries: Sequence[Entry], targets: Sequence[np.ndarray[Any, Any]], addresses: Numbers, scans: Numbers
    ) -> None:
        self._entries = entries
        self._targets = targets
        offsets = np.array([entry.offset for entry in entries], np.int64)
        sizes = np.array([entry.spec.nbytes for entry in entries], np.int64)
        self.rows: Numbers = np.column_stack((offsets, sizes, addresses, scans))
        self._ends = offsets + sizes

    def chunks(self, chunk: int, count: int) -> Numbers:
        """Give the numbers of the chunks, of `count`, that hold any of them."""
        begun = np.zeros(count + 1, np.int64)
        np.add.at(begun, self.rows[:, 0] // chunk, 1)
        np.add.at(begun, (self._ends - 1) // chunk + 1, -1)
        return np.flatnonzero(begun.cumsum())

    def within(self, start: int, stop: int) -> Numbers:
        """Give the rows of the pieces that have bytes in [start, stop) of the payload."""
        first = self._ends.searchsorted(start, "right")
        return self.rows[first : self.rows[:, 0].searchsorted(stop, "left")]

    def at(self, offset: int) -> tuple[Entry, np.ndarray[Any, Any]] | None:
        """Find the piece of a byte of the payload, and what it goes into, as bytes."""
        number = int(self._ends.searchsorted(offset, "right"))
        if number == len(self._ends) or self.rows[number, 0] > offset:
            return None
        return self._entries[number], self._targets[number].reshape(-1).view(np.uint8)


class Reading:
    """What is read of one shard, chunk by chunk.

    Attributes
    ----------
    chunks : list of int
        The chunks that are needed, ascending.
    """

    def __init__(
        self,
        shard: Shard,
        flat: _Flat,
        parts: list[_Part],
        opaque: dict[int, np.ndarray[Any, Any]],
        refuses: Callable[[str], bool] | None,
    ) -> None:
        self.shard = shard
        self._refuses = refuses
        self._opaque = opaque
        self._flat = flat
        self._parts: dict[int, list[_Part]] = {}
        chunk = shard.layout.chunk
        for part in parts:
            offset = part.entry.offset
            for index in range(part.start // chunk, -(-part.stop // chunk)):
                start, stop = shard.span(index)
                lo, hi = max(start - offset, 0), min(stop - offset, part.entry.spec.nbytes)
                if part.needs(lo, hi):
                    self._parts.setdefault(index, []).append(part)
        self.chunks: list[int] = sorted({*self._parts, *flat.chunks(chunk, shard.layout.chunks).tolist()})
        if len(self.chunks) == shard.layout.chunks:
            shard.expect_all()

    @classmethod
    def of(
        cls,
        shard: Shard,
        wants: Iterable[Want],
        opaque: Iterable[int] = (),
        checked: bool = False,
        refuses: Callable[[str], bool] | None = None,
    ) -> Reading:
        """Find out which chunks hold what is wanted.

        Parameters
        ----------
        shard : Shard
        wants : iterable of Want
            Boxes of arrays; parts that the shard does not hold are left alone.
        opaque : iterable of int
            Ordinals of opaque regions that the shard holds.
        checked : bool
            Whether the caller has checked already that the destinations fit.
        refuses : callable, optional
            Tells for a region's name whether NaN and infinities are refused in what is read of it.

        Raises
        ------
        StateError
            If a destination has another shape or dtype than its box.
        """
        by_ordinal: dict[int, list[Want]] = {}
        for want in wants:
            known = by_ordinal.get(want.ordinal)
            if known is None:
                by_ordinal[want.ordinal] = [want]
            else:
                known.append(want)
        ordinals = set(opaque)
        found: dict[int, np.ndarray[Any, Any]] = {}
        whole: list[tuple[Entry, Want, np.ndarray[Any, Any]]] = []
        parts: list[_Part] = []
        for entry in shard.layout.entries:
            spec = entry.spec
            box = spec.box
            if spec.ordinal in ordinals and spec.opaque:
                out = found[spec.ordinal] = np.empty(spec.nbytes, np.uint8)
                whole.append((entry, Want(spec.ordinal, box, out), out))
                continue
            for want in by_ordinal.get(spec.ordinal, ()):
                same = want.box == box
                meet = box if same else _meet(box, want.box)
                if meet is None:
                    continue
                if not checked and want.out is not None:
                    check_destination(want.out, want.box.shape, spec.dtype, spec.region)
                if want.out is None or not (same or meet == box):
                    parts.append(_Part(entry, want, meet))
                else:
                    whole.append((entry, want, want.out if same else want.out[box.relative(want.box)]))
        places = Places.of([target for _, _, target in whole])
        flat = places.flat.tolist()
        parts += [
            _Part(entry, want, entry.spec.box) for (entry, want, _), lies in zip(whole, flat, strict=True) if not lies
        ]
        lying = [one for one, lies in zip(whole, flat, strict=True) if lies]
        entries = [entry for entry, _, _ in lying]
        scans = np.array([_scan(entry, refuses) for entry in entries], np.int64)
        table = _Flat(entries, [target for _, _, target in lying], places.addresses[places.flat], scans)
        return cls(shard, table, parts, found, refuses)

    def jobs(self, level: str, buffers: Buffers, progress: Progress) -> list[Job]:
        """Make the jobs of reading all chunks, verifying each, and bringing its bytes to where they are wanted.

        A chunk that belongs whole to one contiguous destination is read right into it, and one of a piece that is only
        verified goes nowhere.
        """
        direct: list[tuple[int, int, int]] = []
        staged: list[int] = []
        bulk = self.shard.in_bulk(level)
        for index in self.chunks:
            target = self._direct(index) if bulk else None
            if target is None:
                staged.append(index)
            else:
                direct.append((index, *target))
        made = [self.shard.job(numbers(direct, 3), level, progress, self._nonfinite)] if direct else []
        return [*made, *(self._job(index, level, buffers, progress) for index in staged)]

    def _direct(self, index: int) -> tuple[int, int] | None:
        """Give the address of the memory that is chunk `index` and nothing else, where there is such, and what to scan.

        0 for nowhere.
        """
        start, stop = self.shard.span(index)
        rows, parts = self._flat.within(start, stop), self._parts.get(index, ())
        if len(rows) + len(parts) != 1:
            return None
        if parts:
            part = parts[0]
            offset, size, place = part.entry.offset, part.size, 0
            if part.want.out is not None:
                return None
            scan = _scan(part.entry, self._refuses)
        else:
            offset, size, place, scan = rows[0].tolist()
            place += start - offset
        return (place, scan) if offset <= start and stop <= offset + size else None

    def _check_finite(self, entry: Entry, lo: int, part: np.ndarray[Any, Any]) -> None:
        """Look through the bytes of a piece from `lo` on."""
        index = _native.first_nonfinite(part, entry.spec.dtype)
        if index >= 0:
            dtype = dtypes.dtype_of(entry.spec.dtype)
            raise self._refusal(entry, lo // dtype.itemsize + index, part.view(dtype)[index])

    def _nonfinite(self, offset: int, data: np.ndarray[Any, Any] | None = None) -> NonFiniteError:
        """Give the refusal of the element at `offset` in the payload.

        `data` is its chunk; without, the element was read right to where it goes, or nowhere.
        """
        index = offset // self.shard.layout.chunk
        known = self._flat.at(offset)
        entry = (
            known[0] if known else next(p.entry for p in self._parts[index] if 0 <= offset - p.entry.offset < p.size)
        )
        dtype = dtypes.dtype_of(entry.spec.dtype)
        inside = offset - entry.offset
        if data is not None:
            at = offset - self.shard.span(index)[0]
            element = data[at : at + dtype.itemsize]
        elif known is not None:
            element = known[1][inside : inside + dtype.itemsize]
        else:
            element = np.frombuffer(self.shard.peek(offset, dtype.itemsize), np.uint8)
        return self._refusal(entry, inside // dtype.itemsize, element.view(dtype)[0])

    def _refusal(self, entry: Entry, flat: int, value: object) -> NonFiniteError:
        error = nonfinite_error(entry.spec, flat, value, None)
        error.path = self.shard.path
        return error

    def _job(self, index: int, level: str, buffers: Buffers, progress: Progress) -> Job:
        def call(turn: Numbers, most: int) -> Result:
            self._read(index, level, buffers, progress)
            return _native.DONE, index

        return Job(1, call, _refused_already)

    def _read(self, index: int, level: str, buffers: Buffers, progress: Progress) -> None:
        """Read one chunk and verify it; copy its bytes to where they are wanted."""
        progress.check()
        start, stop = self.shard.span(index)
        with room(buffers, stop - start) as buffer:
            self.fetch(index, level, buffer)
        progress.add(stop - start)

    def fetch(self, index: int, level: str, into: memoryview) -> None:
        """Read one chunk into memory of its size as well as to where it is wanted.

        Raises
        ------
        IntegrityError, StoreError, NonFiniteError
        """
        self.shard.read_chunk(index, into, level)
        self._put(index, into)

    def take(self, index: int, level: str, data: memoryview) -> None:
        """Verify one chunk that another owner has read, and bring its bytes to where they are wanted.

        Raises
        ------
        IntegrityError, NonFiniteError
        """
        self.shard.check_chunk(index, data, level)
        self._put(index, data)

    def _put(self, index: int, buffer: memoryview) -> None:
        data = np.frombuffer(buffer, np.uint8)
        start, stop = self.shard.span(index)
        place = _native.scatter(buffer, start, self._flat.within(start, stop))  # thousands of small pieces by one call
        if place >= 0:
            raise self._nonfinite(place, data)
        for part in self._parts.get(index, ()):
            offset = part.entry.offset
            lo, hi = max(start - offset, 0), min(stop - offset, part.size)
            content = data[offset + lo - start : offset + hi - start]
            if _scan(part.entry, self._refuses) >= 0:
                self._check_finite(part.entry, lo, content)
            part.put(lo, hi, content)

    def opaque(self) -> dict[int, bytes]:
        """Give the opaque bytes by ordinal, once all chunks have been read."""
        return {ordinal: out.tobytes() for ordinal, out in self._opaque.items()}


def _scan(entry: Entry, refuses: Callable[[str], bool] | None) -> int:
    """Give the number of a piece's dtype where NaN and infinities are refused in it, else -1."""
    spec = entry.spec
    return _native.scan_number(spec.dtype) if refuses is not None and refuses(spec.region) else -1


def _refused_already(result: Result) -> BaseException:
    raise AssertionError(result)


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
    """Read what is wanted of one shard in the caller's thread; see `Reading`."""
    reading = Reading.of(shard, wants, opaque)
    progress = Progress()
    work_off(None, reading.jobs(check_level(level), Buffers(shard.layout.chunk), progress), progress)
    return reading.opaque()
