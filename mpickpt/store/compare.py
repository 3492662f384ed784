"""What differs between two generations, region by region, in bounded memory.

Arrays are compared by their bits, in runs of at most 64 MiB of either side: a NaN equals a NaN of the same payload,
0.0 and -0.0 differ. Many small regions are read together, a large one in several runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mpickpt.state.dtypes import dtype_of, itemsize
from mpickpt.state.generators import GENERATORS
from mpickpt.state.region import Box, Region, flat_boxes
from mpickpt.state.values import decode
from mpickpt.store.generation import Generation, Want

RUN_BYTES: Final = 64 << 20
TEXT: Final = 60
ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two generations.

    Attributes
    ----------
    region : str
        The region's name, or the container's path.
    what : {"region", "kind", "dtype", "shape", "container", "content"}
        What differs; "region": only one of the two has it.
    first, second : str
        Both values, as their Python repr; of an array, the first element that differs.
    index : tuple of int or None
        Place of that element.
    role : int or None
        The owner, for per-owner data.
    count : int or None
        How many elements differ.
    size : int or None
        How many elements the array has.
    """

    region: str
    what: str
    first: str
    second: str
    index: tuple[int, ...] | None = None
    role: int | None = None
    count: int | None = None
    size: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        found = {field: getattr(self, field) for field in self.__slots__}
        return found | {"index": None if self.index is None else list(self.index)}


def compare(first: Generation, second: Generation) -> Iterator[Difference]:
    """Compare two generations: containers, then regions by name, then values and per-owner data.

    Parameters
    ----------
    first, second : mpickpt.store.generation.Generation
        Of one store or of two.

    Yields
    ------
    Difference

    Raises
    ------
    CheckpointError
        If what is read is not what the roots name.
    """
    yield from _containers(first, second)
    ours = {region.name: (ordinal, region) for ordinal, region in enumerate(first.schema)}
    theirs = {region.name: (ordinal, region) for ordinal, region in enumerate(second.schema)}
    arrays: list[tuple[int, int, Region]] = []
    values: list[tuple[int, int, Region]] = []
    per_owner: list[tuple[int, int, Region]] = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            yield Difference(
                name,
                "region",
                describe(ours[name][1]) if name in ours else ABSENT,
                describe(theirs[name][1]) if name in theirs else ABSENT,
            )
            continue
        (mine, region), (other, rival) = ours[name], theirs[name]
        unlike = [
            Difference(name, field, str(getattr(region, field)), str(getattr(rival, field)))
            for field in ("kind", "dtype", "shape")
            if getattr(region, field) != getattr(rival, field)
        ]
        yield from unlike
        if not unlike:
            {"array": arrays, "value": values}.get(region.kind, per_owner).append((mine, other, region))
    yield from _arrays(first, second, arrays)
    yield from _opaque(first, second, values, None)
    if per_owner:
        for role in range(max(first.root.owners, second.root.owners)):
            yield from _opaque(first, second, per_owner, role)


def describe(region: Region) -> str:
    """Write what a region is: ``float32 (8, 4)``, or its kind where that is opaque."""
    return region.kind if region.shape is None else f"{region.dtype} {region.shape}"


def _containers(first: Generation, second: Generation) -> Iterator[Difference]:
    ours, theirs = first.root.containers, second.root.containers
    for path in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(path, "dict or absent"), theirs.get(path, "dict or absent")
        if mine != other:
            yield Difference(path, "container", str(mine), str(other))


@dataclass(slots=True)
class _Found:
    """The first differing element of a region so far, and how many there are."""

    flat: int
    first: str
    second: str
    count: int


def _arrays(first: Generation, second: Generation, pairs: Sequence[tuple[int, int, Region]]) -> Iterator[Difference]:
    found: dict[str, _Found] = {}
    open_region: Region | None = None
    for run in _runs(pairs):
        wants_first = [Want(mine, box, _empty(region, box)) for mine, _, region, _, box in run]
        wants_second = [Want(other, box, _empty(region, box)) for _, other, region, _, box in run]
        first.read(wants_first, [])
        second.read(wants_second, [])
        for (_, _, region, start, _), left, right in zip(run, wants_first, wants_second, strict=True):
            if open_region is not None and open_region is not region and open_region.name in found:
                yield _told(open_region, found.pop(open_region.name))
            open_region = region
            assert left.out is not None
            assert right.out is not None
            _compare(left.out, right.out, start, region.name, found)
    if open_region is not None and open_region.name in found:
        yield _told(open_region, found.pop(open_region.name))


def _runs(pairs: Sequence[tuple[int, int, Region]]) -> Iterator[list[tuple[int, int, Region, int, Box]]]:
    """Cut regions into runs of at most `RUN_BYTES`: (ordinal here, ordinal there, region, first element, box)."""
    run: list[tuple[int, int, Region, int, Box]] = []
    room = RUN_BYTES
    for mine, other, region in pairs:
        assert region.shape is not None
        width = itemsize(region.dtype)
        total = Box.whole(region.shape).size
        start = 0
        while start < total:
            if room < width:
                yield run
                run, room = [], RUN_BYTES
            stop = min(total, start + room // width)
            run.extend((mine, other, region, flat, box) for flat, box in flat_boxes(region.shape, start, stop))
            room -= (stop - start) * width
            start = stop
    if run:
        yield run


def _empty(region: Region, box: Box) -> np.ndarray[Any, Any]:
    return np.empty(box.shape, dtype_of(region.dtype))


def _compare(
    left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], start: int, name: str, found: dict[str, _Found]
) -> None:
    width = left.itemsize
    word = min(width, 8)
    mine = left.reshape(-1).view(f"u{word}").reshape(-1, width // word)
    other = right.reshape(-1).view(f"u{word}").reshape(-1, width // word)
    unequal = (mine != other).any(axis=1) if width > word else (mine != other)[:, 0]
    count = int(np.count_nonzero(unequal))
    if not count:
        return
    if name in found:
        found[name].count += count
        return
    at = int(np.argmax(unequal))
    texts = _element(left, at), _element(right, at)
    if texts[0] == texts[1]:  # two NaNs: their bits tell them apart
        texts = (
            f"{texts[0]} (0x{_bits(mine[at]):0{2 * width}x})",
            f"{texts[1]} (0x{_bits(other[at]):0{2 * width}x})",
        )
    found[name] = _Found(start + at, texts[0], texts[1], count)


def _element(array: np.ndarray[Any, Any], at: int) -> str:
    value = array.reshape(-1)[at]
    if array.dtype.kind == "c":
        return repr(complex(value))
    return repr(value.item()) if array.dtype.kind in "biu" else repr(float(value))


def _bits(words: np.ndarray[Any, Any]) -> int:
    return int.from_bytes(words.tobytes(), "little")


def _told(region: Region, found: _Found) -> Difference:
    assert region.shape is not None
    index = tuple(int(place) for place in np.unravel_index(found.flat, region.shape)) if region.shape else ()
    size = Box.whole(region.shape).size
    return Difference(region.name, "content", found.first, found.second, index, None, found.count, size)


def _opaque(
    first: Generation, second: Generation, pairs: Sequence[tuple[int, int, Region]], role: int | None
) -> Iterator[Difference]:
    if not pairs:
        return
    ours = _read_opaque(first, [mine for mine, _, _ in pairs], role)
    theirs = _read_opaque(second, [other for _, other, _ in pairs], role)
    for mine, other, region in pairs:
        left, right = ours.get(mine), theirs.get(other)
        if left != right:
            yield Difference(region.name, "content", *_texts(left, right, region.name), role=role)


def _read_opaque(generation: Generation, ordinals: list[int], role: int | None) -> dict[int, bytes]:
    if role is not None and role >= generation.root.owners:
        return {}
    return generation.read([], ordinals, role)


def _texts(left: bytes | None, right: bytes | None, name: str) -> tuple[str, str]:
    """Write two values, shortened around the first character that differs."""
    first, second = show(left, name), show(right, name)
    if first == second and left is not None and right is not None:  # NaNs of other bits, generators
        first, second = left.decode(), right.decode()
    if max(len(first), len(second)) > TEXT:
        at = next((place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
        begin = max(0, at - TEXT // 4)
        first, second = _cut(first, begin), _cut(second, begin)
    return first, second


def show(data: bytes | None, name: str) -> str:
    """Write an opaque region's value as its Python repr; what has no repr that says it, as its tagged JSON."""
    if data is None:
        return ABSENT
    value = decode(data, name)
    try:
        return data.decode() if isinstance(value, GENERATORS) else repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return data.decode()


def _cut(text: str, begin: int) -> str:
    return ("..." if begin else "") + text[begin : begin + TEXT] + ("..." if len(text) > begin + TEXT else "")
