"""Signed corner sums: whether all pieces together tile every region exactly once, without anyone holding all.

The indicator of a box is the sum over its corners of (-1)^(number of hi coordinates) times the indicator of the
quadrant at that corner, and quadrant indicators are linearly independent. So boxes tile a region exactly once if
and only if their signed corners add up to the region's own. Each corner is replaced by a 256-bit digest, and all
is added modulo 2^256 (docs/format.md, "Coverage"). Three numbers: `cover` over the pieces in files, `held` over
what owners hold with a weight for each copy, `copies` over contents with weights that cancel where copies agree.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from mpickpt import digest
from mpickpt.errors import CoverageError
from mpickpt.state.fault import Claim, Fault, diagnose, find_fault
from mpickpt.state.region import MAX_CUTS, MAX_NDIM, Box, Region, Schema, Shape

if TYPE_CHECKING:
    from mpickpt.state.capture import Capture, Holding
    from mpickpt.state.declare import Declarations
    from mpickpt.state.declare import Entry as DeclaredEntry

MASK: Final = (1 << 256) - 1
POINT: Final = Box((), ())  # the one box of a value
_Corner: TypeAlias = tuple[int, tuple[int, ...]]  # a region's ordinal, and a point of it
_NUMBERS: Final = [struct.Struct(f"<{count}Q") for count in range(3 + 2 * MAX_NDIM)]


@lru_cache(maxsize=1 << 16)
def weight(k: int) -> int:
    """Give the weight of copy `k` (of role `k`, for a replicated region): bytes [32k, 32k + 32) of a fixed stream."""
    return int.from_bytes(digest.stream("weight", 32 * k, 32), "little")


@lru_cache(maxsize=1 << 12)
def weight_sum(start: int, stop: int) -> int:
    """Add the weights of copies ``[start, stop)``, modulo 2**256."""
    return sum(map(weight, range(start, stop))) & MASK


def corner(ordinal: int, coordinates: tuple[int, ...]) -> int:
    """Give the digest of one corner of a region as a 256-bit number."""
    return digest.total("corner", [_packed(ordinal, coordinates)])


def _packed(ordinal: int, coordinates: tuple[int, ...]) -> bytes:
    return _NUMBERS[1 + len(coordinates)].pack(ordinal, *coordinates)


class _Sum:
    """Corners that are added up, each times a number. There may be tens of thousands: all are hashed in few calls."""

    def __init__(self) -> None:
        self._points: defaultdict[int, list[bytes]] = defaultdict(list)
        self._origins: defaultdict[tuple[int, int], list[int]] = defaultdict(list)

    def add(self, times: int, ordinal: int, point: tuple[int, ...]) -> None:
        """Add one corner."""
        self._points[times].append(_packed(ordinal, point))

    def add_whole(self, times: int, ordinal: int, shape: tuple[int, ...]) -> None:
        """Add the corner of an uncut region; one without elements has none inside itself."""
        if 0 not in shape:
            self._origins[times, len(shape)].append(ordinal)

    def add_origins(self, ndim: int, ordinals: list[int]) -> None:
        """Add the corners of many uncut regions."""
        self._origins[1, ndim] += ordinals

    def total(self) -> int:
        """Give the sum, modulo 2**256."""
        found = sum(times * digest.total("corner", each) for times, each in self._points.items())
        for (times, ndim), ordinals in self._origins.items():
            heads = np.zeros((len(ordinals), 1 + ndim), "<u8")
            heads[:, 0] = ordinals
            found += times * digest.total_alike("corner", heads.tobytes(), 8 * (1 + ndim))
        return found & MASK


def _outside(ordinal: int, shape: tuple[int, ...], box: Box) -> CoverageError:
    return CoverageError(
        f"a box leaves its region (ordinal {ordinal})",
        expected=f"0 <= lo <= hi <= shape {shape}",
        found=f"lo {box.lo}, hi {box.hi}",
    )


def _is_whole(shape: Shape, box: tuple[Shape, Shape]) -> bool:
    """Tell whether a box is a whole region, of which there is something."""
    lo, hi = box
    return hi == shape and len(lo) == len(shape) and not any(lo) and 0 not in hi


def _signed(ordinal: int, shape: tuple[int, ...], box: Box) -> list[tuple[int, tuple[int, ...]]]:
    """Give the corners of a box that count, each with its sign; none of an empty box."""
    if _is_whole(shape, box):
        return [(1, box.lo)]
    lo, hi = box
    if not len(lo) == len(hi) == len(shape):
        raise _outside(ordinal, shape, box)
    cuts = []
    empty = False
    for axis, (start, stop, end) in enumerate(zip(lo, hi, shape, strict=True)):
        if not 0 <= start <= stop <= end:
            raise _outside(ordinal, shape, box)
        if start == stop:
            empty = True
        if stop < end:  # a corner at the region's end lies outside it
            cuts.append(axis)
    if len(cuts) > MAX_CUTS:
        raise CoverageError(
            f"a box has too many corners (ordinal {ordinal})",
            expected=f"at most 2**{MAX_CUTS}: cut along at most {MAX_CUTS} axes",
            found=f"lo {lo}, hi {hi} of {shape}",
        )
    if empty:
        return []  # its corners cancel
    signed = [(1, lo)]
    for axis in cuts:
        signed += [(-sign, (*point[:axis], hi[axis], *point[axis + 1 :])) for sign, point in signed]
    return signed


def corners(ordinal: int, shape: tuple[int, ...], boxes: Sequence[Box]) -> int:
    """Add the signed corners of boxes of one region.

    Parameters
    ----------
    ordinal : int
        The region's place in the schema.
    shape : tuple of int
        The region's shape; ``()`` for a value, whose one box is ``Box((), ())``.
    boxes : sequence of Box
        Boxes within the region, in any order; empty ones count nothing.

    Returns
    -------
    int
        The sum, modulo 2**256.

    Raises
    ------
    CoverageError
        If a box leaves its region or has more than 2**16 corners.

    Examples
    --------
    >>> parts = corners(3, (4, 4), [Box((0, 0), (4, 1)), Box((0, 1), (4, 4))])
    >>> parts == corners(3, (4, 4), [Box((0, 0), (4, 4))])
    True
    """
    found = _Sum()
    for box in boxes:
        for sign, point in _signed(ordinal, shape, box):
            found.add(sign, ordinal, point)
    return found.total()


def shape_of(region: Region) -> tuple[int, ...]:
    """Give the shape that a region has in the sums: its own, and ``()`` for a value."""
    return () if region.shape is None else region.shape


def cover_of(schema: Schema, pieces: Iterable[tuple[int, tuple[Shape, Shape]]]) -> int:
    """Add up `cover` over pieces in files, given as (ordinal, box or its corners); `per_owner` regions are left out.

    Raises
    ------
    CoverageError
        If a box leaves its region or has more than 2**16 corners; with the region's name.
    """
    found = _Sum()
    # Where two pieces meet, their corners cancel: counted first, most of them need not be hashed.
    counts: defaultdict[_Corner, int] = defaultdict(int)
    whole: defaultdict[int, list[int]] = defaultdict(list)  # by number of axes
    known: dict[tuple[Shape | None, tuple[Shape, Shape]], bool] = {}  # of thousands of pieces most are like others
    regions = schema.regions
    for ordinal, box in pieces:
        region = regions[ordinal]
        if region.kind == "per_owner":
            continue
        shape = region.shape
        is_whole = known.get((shape, box))
        if is_whole is None:
            is_whole = known[shape, box] = _is_whole(shape or (), box)
        if is_whole:
            whole[len(box[0])].append(ordinal)
            continue
        try:
            signed = _signed(ordinal, shape or (), Box(*box))
        except CoverageError as error:
            error.region = region.name
            raise
        for sign, point in signed:
            counts[ordinal, point] += sign
    for ndim, ordinals in whole.items():
        found.add_origins(ndim, ordinals)
    for (ordinal, point), count in counts.items():
        if count:
            found.add(count, ordinal, point)
    return found.total()


def expected_cover(schema: Schema) -> int:
    """Give the `cover` of a whole schema: what the root's must be."""
    found = _Sum()
    for ordinal, region in enumerate(schema):
        if region.kind != "per_owner":
            found.add_whole(1, ordinal, shape_of(region))
    return found.total()


def expected_held(declarations: Declarations, schema: Schema) -> int:
    """Give the `held` of all owners together, from the agreed declarations.

    A region in R copies counts ``W(0) + ... + W(R-1)`` times, a replicated one the sum of its declarers' weights.
    """
    found = _Sum()
    for ordinal, region in enumerate(schema):
        entry = declarations.entries[region.name]
        if entry.mode == "boxes":
            found.add_whole(weight_sum(0, entry.copies), ordinal, shape_of(region))
        elif entry.mode == "replicated":
            found.add_whole(entry.weights, ordinal, shape_of(region))
    return found.total()


def held_of(capture: Capture, declarations: Declarations, schema: Schema, role: int) -> int:
    """Give this owner's share of `held`: what it holds, each copy under its own weight.

    Parameters
    ----------
    capture : Capture
        What this owner holds.
    declarations : Declarations
        The agreed ones of all owners.
    schema : Schema
        Their schema.
    role : int
        This owner's role.

    Raises
    ------
    CoverageError
        If a box leaves its region, has more than 2**16 corners, or is held otherwise than was agreed.
    """
    found = _Sum()
    for holding in capture.holdings:
        name = holding.region.name
        entry = declarations.entries.get(name)
        if entry is None or entry.mode != holding.mode or (holding.mode == "boxes" and entry.copies != holding.copy[1]):
            raise CoverageError("an owner holds what was not agreed", role=role, region=name)
        if holding.mode == "per_owner":
            continue
        ordinal = schema.ordinal(name)
        shape = shape_of(holding.region)
        if holding.mode == "replicated":
            found.add_whole(weight(role), ordinal, shape)
            continue
        copy = weight(holding.copy[0])
        for part in holding.parts:
            try:
                signed = _signed(ordinal, shape, part.box)
            except CoverageError as error:
                error.region = name
                raise error.at(role) from None
            for sign, point in signed:
                found.add(sign * copy, ordinal, point)
    return found.total()


def copies_factor(holding: Holding, entry: DeclaredEntry, role: int) -> int:
    """Say by what this owner's content digests of a holding are multiplied in `copies`.

    Returns
    -------
    int
        Modulo 2**256; 0 where there is nothing to compare (one copy, `per_owner`), so that nothing is hashed.

    Notes
    -----
    Empty boxes are left out: copies need not agree on boxes without elements.
    Copy k > 0 has ``W(k)``, copy 0 has ``-(W(1) + ... + W(R-1))``: the whole is 0 when the copies are equal.
    A replicated region has weights by role over those who declare it, and the first of them is its copy 0.
    """
    if entry.mode == "boxes":
        k, count = holding.copy
        if count == 1:
            return 0
        return weight(k) if k else -weight_sum(1, count) & MASK
    if entry.mode == "replicated" and entry.count > 1:
        return weight(role) if role != entry.first else (weight(role) - entry.weights) & MASK
    return 0


def content_head(ordinal: int, box: Box) -> bytes:
    """Give what the digest of a box and its content begins with."""
    ndim = len(box.lo)
    return _NUMBERS[2 + 2 * ndim].pack(ordinal, ndim, *box.lo, *box.hi)


def content_total(heads: Sequence[bytes], memory: Iterable[tuple[int, int]]) -> int:
    """Add up the digests of boxes and their contents, modulo 2**256.

    Parameters
    ----------
    heads : sequence of bytes
        `content_head` of each box.
    memory : iterable of (int, int)
        Address and bytes of each content: little-endian, C order, C-contiguous.
    """
    return digest.total("content", heads, memory)


class ContentHash:
    """The digest of one box and its content, for `copies`: always BLAKE3, and never on disk.

    Parameters
    ----------
    ordinal : int
        The region's place in the schema.
    box : Box
        The box that is hashed; ``Box((), ())`` for a value.
    """

    def __init__(self, ordinal: int, box: Box) -> None:
        self._hasher = digest.hasher("content").copy()
        self._hasher.update(content_head(ordinal, box))

    def update(self, part: digest.BytesLike) -> None:
        """Add the next bytes of the box: little-endian, C order, C-contiguous."""
        self._hasher.update(part)

    def value(self) -> int:
        """Give the digest as a 256-bit number."""
        return int.from_bytes(self._hasher.digest(), "little")


def content(ordinal: int, box: Box, parts: Iterable[digest.BytesLike]) -> int:
    """Give the digest of one box and its content, whose bytes come in `parts`, as a 256-bit number."""
    hasher = ContentHash(ordinal, box)
    for part in parts:
        hasher.update(part)
    return hasher.value()


def claims_of(capture: Capture, schema: Schema, role: int) -> dict[int, list[Claim]]:
    """List what this owner holds, by ordinal, for `find_fault`; copy -1 stands for a replicated region's."""
    found: dict[int, list[Claim]] = {}
    for holding in capture.holdings:
        if holding.mode == "per_owner":
            continue
        ordinal = schema.ordinal(holding.region.name)
        if holding.mode == "replicated":
            found[ordinal] = [(role, -1, Box.whole(shape_of(holding.region)))]
        else:
            found[ordinal] = [(role, holding.copy[0], part.box) for part in holding.parts]
    return found


def copies_of(declarations: Declarations, schema: Schema) -> dict[int, int]:
    """Say for each ordinal in how many copies the region is held, for `find_fault`; `per_owner` ones are left out."""
    found: dict[int, int] = {}
    for ordinal, region in enumerate(schema):
        entry = declarations.entries[region.name]
        if entry.mode != "per_owner":
            found[ordinal] = entry.copies if entry.mode == "boxes" else entry.count
    return found


def find_differing(
    digests: Mapping[int, Sequence[tuple[int, Box, int]]],
) -> tuple[int, Box, tuple[int, ...], tuple[int, ...]] | None:
    """Find the first box of which the copies have different contents.

    Parameters
    ----------
    digests : mapping of int to sequence of (role, Box, int)
        By ordinal: who holds the box, and the `content` digest there.

    Returns
    -------
    (ordinal, box, roles, other roles) or None
        The roles of the lowest holder's content, and those whose content is another one.
    """
    for ordinal in sorted(digests):
        by_box: dict[Box, list[tuple[int, int]]] = {}
        for role, box, value in digests[ordinal]:
            by_box.setdefault(box, []).append((role, value))
        for box in sorted(by_box, key=lambda b: (b.lo, b.hi)):
            holders = sorted(by_box[box])
            differing = tuple(role for role, value in holders if value != holders[0][1])
            if differing:
                return ordinal, box, tuple(r for r, value in holders if value == holders[0][1]), differing
    return None


__all__ = [
    "Claim",
    "ContentHash",
    "Fault",
    "claims_of",
    "content",
    "content_head",
    "content_total",
    "copies_factor",
    "copies_of",
    "corner",
    "corners",
    "cover_of",
    "diagnose",
    "expected_cover",
    "expected_held",
    "find_differing",
    "find_fault",
    "held_of",
    "shape_of",
    "weight",
    "weight_sum",
]
