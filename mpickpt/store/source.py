"""The payload of a shard, as it lies in the caller's memory: any stretch of it, copied into a buffer."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpickpt.errors import StateError
from mpickpt.native import _native
from mpickpt.state import dtypes
from mpickpt.state.places import lies_flat
from mpickpt.state.region import Box, flat_boxes
from mpickpt.store.bulk import Numbers, address, numbers

if TYPE_CHECKING:
    from mpickpt.format.layout import Layout
    from mpickpt.state.plan import Piece

GRAIN = 16
"""A chunk is a multiple of the largest element, so that no element lies in two chunks."""


def odd_chunk(chunk: int) -> StateError:
    """Say that a chunk size is none that a writer uses."""
    return StateError("a chunk is no whole number of elements", expected=f"a multiple of {GRAIN}", found=chunk)


def flat_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Give an array's memory as a 1-D uint8 array; None where that is not the array in C order, little-endian."""
    return array.reshape(-1).view(np.uint8) if lies_flat(array) else None


class Source:
    """Pieces in the order in which they lie in a shard's payload.

    Parameters
    ----------
    layout : Layout
        Where each piece goes.
    pieces : sequence of Piece
        The same pieces, in any order, with their data.

    Raises
    ------
    StateError
        If a piece of the layout is missing, or has another size or dtype than it has there.
    """

    def __init__(self, layout: Layout, pieces: Sequence[Piece]) -> None:
        if layout.chunk % GRAIN:
            raise odd_chunk(layout.chunk)
        found = {(piece.ordinal, piece.box): piece for piece in pieces}
        self._payload = layout.payload
        self._chunk = layout.chunk
        self._offsets = [entry.offset for entry in layout.entries]
        self._flat: list[np.ndarray[Any, Any] | None] = []
        self._arrays: list[np.ndarray[Any, Any]] = []
        self._dtypes = [entry.spec.dtype for entry in layout.entries]
        self._regions = [entry.spec.region for entry in layout.entries]
        for entry in layout.entries:
            spec = entry.spec
            piece = found.get((spec.ordinal, spec.box))
            if piece is None:
                raise StateError("a piece of the layout is not there", region=spec.region, expected=spec.name)
            data = piece.data
            array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
            if array.nbytes != spec.nbytes or dtypes.name_of(array.dtype, spec.region) != spec.dtype:
                raise StateError(
                    "a piece has another size or dtype than was declared",
                    region=spec.region,
                    expected=f"{spec.nbytes} bytes of {spec.dtype}",
                    found=f"{array.nbytes} bytes of {array.dtype}",
                )
            self._arrays.append(array)
            self._flat.append(flat_bytes(array))

    def plain(self) -> list[int]:
        """Give the chunks of which every byte lies in memory as it does in the payload."""
        bounds = [
            (number * self._chunk, (number + 1) * self._chunk) for number in range(-(-self._payload // self._chunk))
        ]
        if all(flat is not None for flat in self._flat):
            return list(range(len(bounds)))
        odd = np.array([0] + [flat is None for flat in self._flat]).cumsum()
        found = []
        for number, (start, stop) in enumerate(bounds):
            first = bisect.bisect_right(self._offsets, start) - 1
            last = bisect.bisect_left(self._offsets, stop)
            if odd[first] == odd[last]:
                found.append(number)
        return found

    def rows(self, refuses: Callable[[str], bool] | None) -> Numbers:
        """List the pieces as `_native.write_chunks` takes them: offset, bytes, address, what is refused in them.

        The addresses are good for as long as this object is kept. Of a piece that does not lie in memory as in the
        payload it is 0.
        """
        kinds = {dtype: _native.scan_number(dtype) for dtype in set(self._dtypes)}
        return numbers(
            (
                (
                    offset,
                    array.nbytes,
                    0 if flat is None else address(flat),
                    kinds[dtype] if refuses is not None and refuses(region) else -1,
                )
                for offset, array, flat, dtype, region in zip(
                    self._offsets, self._arrays, self._flat, self._dtypes, self._regions, strict=True
                )
            ),
            4,
        )

    def element(self, offset: int) -> Any:
        """Give the element of a piece in C order that lies at `offset` in the payload."""
        at = bisect.bisect_right(self._offsets, offset) - 1
        flat = self._flat[at]
        assert flat is not None
        dtype = dtypes.dtype_of(self._dtypes[at])
        inside = offset - self._offsets[at]
        return flat[inside : inside + dtype.itemsize].view(dtype)[0]

    def chunk(self, index: int, buffer: memoryview) -> memoryview:
        """Copy chunk `index` into `buffer`, and give what was filled of it.

        Always a copy: a digest of the caller's memory and a write of it are two reads, and a thread of the caller's
        that changes it between them would make a shard that no reader takes.
        """
        start = index * self._chunk
        stop = min(start + self._chunk, self._payload)
        at = bisect.bisect_right(self._offsets, start) - 1
        self._assemble(at, start, stop, np.frombuffer(buffer, np.uint8))
        return buffer[: stop - start]

    def _assemble(self, at: int, start: int, stop: int, out: np.ndarray[Any, Any]) -> None:
        """Copy the payload's bytes [start, stop) to `out`; `at` is the piece in which `start` lies."""
        offsets, arrays = self._offsets, self._arrays
        while at < len(offsets) and offsets[at] < stop:
            offset, flat = offsets[at], self._flat[at]
            lo = max(start - offset, 0)
            hi = min(stop - offset, arrays[at].nbytes)
            here = out[offset + lo - start : offset + hi - start]
            if flat is not None:
                here[:] = flat[lo:hi]
            else:
                _gather(arrays[at], dtypes.dtype_of(self._dtypes[at]), lo, hi, here)
            at += 1


def _gather(array: np.ndarray[Any, Any], dtype: np.dtype[Any], lo: int, hi: int, out: np.ndarray[Any, Any]) -> None:
    """Copy bytes [lo, hi) of an array's little-endian C order to `out`, from memory of any strides and byte order."""
    whole = Box.whole(array.shape)
    first = lo // dtype.itemsize
    values = out.view(dtype)
    for index, box in flat_boxes(array.shape, first, hi // dtype.itemsize):
        values[index - first : index - first + box.size].reshape(box.shape)[...] = array[box.relative(whole)]


def chunk_of(layout: Layout, pieces: Source | Sequence[Piece], index: int, buffer: memoryview) -> memoryview:
    """Give chunk `index` of a shard's payload.

    Parameters
    ----------
    layout : Layout
        The shard's.
    pieces : Source or sequence of Piece
        Its pieces; whoever asks for several chunks makes one `Source` of them first.
    index : int
        ``0 <= index < layout.chunks``.
    buffer : memoryview
        At least ``layout.chunk`` writable bytes.

    Returns
    -------
    memoryview
        The bytes of `buffer` that were filled.
    """
    source = pieces if isinstance(pieces, Source) else Source(layout, pieces)
    return source.chunk(index, buffer)
