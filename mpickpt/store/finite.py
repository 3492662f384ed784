"""The search for NaN and infinities: in a payload while it is written, in arrays that were read."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpickpt.errors import NonFiniteError
from mpickpt.format.layout import Layout, PieceSpec
from mpickpt.native import _native
from mpickpt.state import dtypes, values
from mpickpt.state.region import Schema
from mpickpt.store.threads import Pool, share

if TYPE_CHECKING:
    from mpickpt.store.reader import Want

_TASK_BYTES = 8 << 20
"""Small arrays are scanned many at a time."""


class Scan:
    """Finds non-finite values: the stretches of a payload that refuse them, neighbours of one dtype as one."""

    def __init__(self, layout: Layout, refuses: Callable[[str], bool]) -> None:
        self._layout = layout
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._names: list[str] = []
        for entry in layout.entries:
            spec = entry.spec
            if not dtypes.is_floating(spec.dtype) or not refuses(spec.region):
                continue
            if self._stops and self._stops[-1] == entry.offset and self._names[-1] == spec.dtype:
                self._stops[-1] = entry.offset + spec.nbytes
            else:
                self._starts.append(entry.offset)
                self._stops.append(entry.offset + spec.nbytes)
                self._names.append(spec.dtype)

    def check(self, start: int, data: memoryview) -> None:
        """Raise NonFiniteError for the first such value in `data`, the payload's bytes from `start` on."""
        stop = start + len(data)
        at = bisect.bisect_right(self._stops, start)
        while at < len(self._starts) and self._starts[at] < stop:
            lo, hi = max(self._starts[at], start), min(self._stops[at], stop)
            index = _native.first_nonfinite(data[lo - start : hi - start], self._names[at])
            if index >= 0:
                raise self._refuse(lo + index * dtypes.itemsize(self._names[at]), data, start)
            at += 1

    def _refuse(self, offset: int, data: memoryview, start: int) -> NonFiniteError:
        entries = self._layout.entries
        entry = entries[bisect.bisect_right([one.offset for one in entries], offset) - 1]
        dtype = dtypes.dtype_of(entry.spec.dtype)
        value = np.frombuffer(data[offset - start : offset - start + dtype.itemsize], dtype)[0]
        return nonfinite_error(entry.spec, (offset - entry.offset) // dtype.itemsize, value, self._layout.role)


def allowing(region: str) -> str:
    """Say how NaN and infinities are allowed in a region."""
    return f"if it is meant, allow it with nonfinite={{{region!r}: 'allow'}}"


def nonfinite_error(spec: PieceSpec, flat: int, value: object, role: int | None) -> NonFiniteError:
    """Say where the first non-finite value of a piece is: `flat` is its place in the piece, in C order."""
    inside = np.unravel_index(flat, spec.box.shape) if spec.box.shape else ()
    index = tuple(int(lo + i) for lo, i in zip(spec.box.lo, inside, strict=True))
    return NonFiniteError(
        f"a value is not finite: {value} at index {index}",
        region=spec.region,
        role=role,
        expected="finite values",
        found=f"{value} at index {index}",
        advice=allowing(spec.region),
    )


def check_finite(
    schema: Schema, wants: Sequence[Want], refuses: Callable[[str], bool], pool: Pool | None, path: str
) -> None:
    """Scan what was read.

    Parameters
    ----------
    schema : Schema
    wants : sequence of Want
        Filled.
    refuses : callable
        Tells for a region's name whether NaN and infinities are refused.
    pool : Pool or None
    path : str
        The root, for messages.

    Raises
    ------
    NonFiniteError
        With region, index in the region and value.
    """

    def work(wants: list[Want]) -> None:
        for want in wants:
            region = schema[want.ordinal]
            plain: np.ndarray[Any, Any] = np.ascontiguousarray(want.out, dtypes.dtype_of(region.dtype)).reshape(-1)
            flat = _native.first_nonfinite(plain.view(np.uint8), region.dtype)
            if flat >= 0:
                spec = PieceSpec(want.ordinal, region.name, want.box, region.dtype, plain.nbytes)
                error = nonfinite_error(spec, flat, plain[flat], None)
                error.path = path
                raise error

    tasks: list[list[Want]] = [[]]
    size = 0
    for want in wants:
        region = schema[want.ordinal]
        if dtypes.is_floating(region.dtype) and refuses(region.name):
            tasks[-1].append(want)
            size += want.out.nbytes
            if size >= _TASK_BYTES:
                tasks.append([])
                size = 0
    share(pool, work, tasks)


def check_finite_values(schema: Schema, opaque: Mapping[int, bytes], refuses: Callable[[str], bool], path: str) -> None:
    """Look through values and per-owner values that were read, by ordinal, as `check_finite` does through arrays.

    Raises
    ------
    NonFiniteError
        With the region.
    FormatError
        If a value is malformed.
    """
    for ordinal, data in opaque.items():
        name = schema[ordinal].name
        if refuses(name) and values.nonfinite(values.decode(data, name, path)):
            raise NonFiniteError(
                "a value is not finite",
                region=name,
                path=path,
                expected="finite numbers",
                found="a NaN or an infinity in it",
                advice=allowing(name),
            )
