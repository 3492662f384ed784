"""The search for NaN and infinities: in a payload while it is written, in values that were read."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from mpickpt.errors import NonFiniteError
from mpickpt.format.layout import Entry, Layout, PieceSpec
from mpickpt.native import _native
from mpickpt.state import dtypes, values
from mpickpt.state.capture import Capture
from mpickpt.state.region import Schema

if TYPE_CHECKING:
    from mpickpt.store.source import Source


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
        entry = self._entry(offset)
        dtype = dtypes.dtype_of(entry.spec.dtype)
        value = np.frombuffer(data[offset - start : offset - start + dtype.itemsize], dtype)[0]
        return nonfinite_error(entry.spec, (offset - entry.offset) // dtype.itemsize, value, self._layout.role)

    def _entry(self, offset: int) -> Entry:
        entries = self._layout.entries
        return entries[bisect.bisect_right([one.offset for one in entries], offset) - 1]

    def refusal(self, offset: int, source: Source) -> NonFiniteError:
        """Give the refusal of the element that lies at `offset` in the payload of local pieces."""
        entry = self._entry(offset)
        flat = (offset - entry.offset) // dtypes.itemsize(entry.spec.dtype)
        return nonfinite_error(entry.spec, flat, source.element(offset), self._layout.role)


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


def check_finite_values(schema: Schema, opaque: Mapping[int, bytes], refuses: Callable[[str], bool], path: str) -> None:
    """Look through values and per-owner values that were read, by ordinal.

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


def check_values(capture: Capture, refuses: Callable[[str], bool], role: int) -> None:
    """Refuse values that are not finite; arrays are scanned as they are written.

    Raises
    ------
    NonFiniteError
    """
    for holding in capture.holdings:
        if not holding.finite and refuses(holding.region.name):
            raise NonFiniteError(
                "a value is not finite",
                role=role,
                region=holding.region.name,
                expected="finite numbers",
                found="a NaN or an infinity in it",
                advice=allowing(holding.region.name),
            )
