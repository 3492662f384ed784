"""What is wrong with the boxes of a region when the corner sums differ: the slow path that names the fault.

Boxes are gathered only then. Each copy is swept axis by axis: along one axis the signed corners of the boxes that
are open, projected on the axes behind it, either add up to the region's own (the slab is tiled) or do not; the
first slab that is not is entered, and so on to one index. The sums are exact here, not digests, and the cost is
linear in the boxes, never in the elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal, TypeAlias

from mpickpt.errors import CoverageError
from mpickpt.state.region import Box, Region, Schema

Claim: TypeAlias = tuple[int, int, Box]  # (role, copy, box); copy -1: a replicated region, a copy by role
Kind: TypeAlias = Literal["outside", "copy", "missing", "gap", "overlap", "doubled", "cut"]
Held: TypeAlias = tuple[int, Box]  # (role, box)
Corners: TypeAlias = dict[tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the boxes of one region.

    Parameters
    ----------
    kind : str
        ``outside`` (a box leaves its region), ``copy`` (no such copy), ``missing`` (a copy that nobody holds),
        ``gap``, ``overlap``, ``doubled`` (a copy tiled more than once), ``cut`` (copies have different boxes).
    copy : int
        The copy that has it.
    box : Box
        Where it is; ``box.lo`` is its first index in C order.
    roles : tuple of int
        The owners concerned: who holds `box`, or, of a gap, what lies beside it.
    text : str
        The fault in words.
    """

    kind: Kind
    copy: int
    box: Box
    roles: tuple[int, ...]
    text: str


def _roles(held: Iterable[Held]) -> tuple[int, ...]:
    return tuple(sorted({role for role, _ in held}))


def _named(roles: Sequence[int]) -> str:
    if not roles:
        return "no owner"
    shown = ", ".join(map(str, roles[:20])) + (f" and {len(roles) - 20} more" if len(roles) > 20 else "")
    return f"owner{'s' if len(roles) > 1 else ''} {shown}"


def _add(corners: Corners, box: Box, shape: tuple[int, ...], axis: int, sign: int) -> None:
    """Add the signed corners of a box, projected on the axes from `axis` on."""
    choices: list[tuple[tuple[int, int], ...]] = []
    for lo, hi, end in zip(box.lo[axis:], box.hi[axis:], shape[axis:], strict=True):
        choices.append(((lo, 1),) if hi >= end else ((lo, 1), (hi, -1)))
    for chosen in product(*choices):
        point = tuple(coordinate for coordinate, _ in chosen)
        signed = sign
        for _, factor in chosen:
            signed *= factor
        left = corners.get(point, 0) + signed
        if left:
            corners[point] = left
        else:
            del corners[point]


def _deviation(shape: tuple[int, ...], held: Sequence[Held]) -> Corners:
    """Give the signed corners by which boxes differ from the region: none if they tile it exactly once."""
    corners: Corners = {}
    _add(corners, Box.whole(shape), shape, 0, -1)
    for _, box in held:
        _add(corners, box, shape, 0, 1)
    return corners


def _first_fault(shape: tuple[int, ...], held: list[Held]) -> tuple[Box, list[Held]]:
    """Find the first index that is not covered once: a box of equal cover that begins there, and who covers it.

    The boxes must not tile the region; none is empty.
    """
    lows: list[int] = []
    highs: list[int] = []
    for axis, end in enumerate(shape):
        events: dict[int, list[tuple[Held, int]]] = {0: [], end: []}
        for one in held:
            events.setdefault(one[1].lo[axis], []).append((one, 1))
            events.setdefault(one[1].hi[axis], []).append((one, -1))
        corners: Corners = {}
        _add(corners, Box.whole(shape), shape, axis + 1, -1)
        places = sorted(events)
        for place, following in pairwise(places):
            for (_, box), sign in events[place]:
                _add(corners, box, shape, axis + 1, sign)
            if corners:
                lows.append(place)
                highs.append(following)
                held = [one for one in held if one[1].lo[axis] <= place < one[1].hi[axis]]
                break
    return Box(tuple(lows), tuple(highs)), held


def _beside(box: Box, held: Sequence[Held]) -> tuple[int, ...]:
    """List who holds a box that touches the given one, across one axis."""
    found = set()
    for role, other in held:
        apart = [max(a, c) - min(b, d) for a, b, c, d in zip(box.lo, box.hi, other.lo, other.hi, strict=True)]
        if all(distance <= 0 for distance in apart) and apart.count(0) <= 1:
            found.add(role)
    return tuple(sorted(found))


def _copy_fault(region: str, shape: tuple[int, ...], copy: int, what: str, held: list[Held]) -> Fault | None:
    deviation = _deviation(shape, held)
    if not deviation:
        return None
    origin = (0,) * len(shape)
    if list(deviation) == [origin] and deviation[origin] > 0:
        roles = _roles(held)
        text = f"{what} tiles the region {deviation[origin] + 1} times: held by {_named(roles)}"
        return Fault("doubled", copy, Box.whole(shape), roles, text)
    box, covering = _first_fault(shape, held)
    if covering:
        roles = _roles(covering)
        boxes = "; ".join(f"[{other.text()}] at owner {role}" for role, other in covering[:4])
        text = f"overlap in {what}: [{box.text()}] is held {len(covering)} times by {_named(roles)} ({boxes})"
        return Fault("overlap", copy, box, roles, text)
    roles = _beside(box, held)
    near = f"; beside it: {_named(roles)}" if roles else ""
    return Fault("gap", copy, box, roles, f"gap in {what}: no owner holds [{box.text()}]{near}")


def _cut_fault(copies: list[int], by_copy: Mapping[int, list[Held]]) -> Fault | None:
    """Find the first box that one copy has and another has not; all of them tile."""
    first = {box: role for role, box in by_copy[copies[0]]}
    for copy in copies[1:]:
        other = {box: role for role, box in by_copy[copy]}
        differing = sorted(first.keys() ^ other.keys(), key=lambda box: (box.lo, box.hi))
        if differing:
            box = differing[0]
            mine, theirs = (copies[0], copy) if box in first else (copy, copies[0])
            meeting = [one for one in by_copy[theirs] if one[1].intersect(box) is not None]
            holder = first[box] if box in first else other[box]
            roles = tuple(sorted({holder, *_roles(meeting)}))
            cut = ", ".join(f"[{part.text()}] at owner {role}" for role, part in meeting[:4])
            text = f"copies {mine} and {theirs} have different boxes: [{box.text()}] at owner {holder}, against {cut}"
            return Fault("cut", copy, box, roles, text)
    return None


def diagnose(region: Region, claims: Sequence[Claim], copies: int) -> Fault | None:
    """Find what is wrong with the boxes of one region.

    Parameters
    ----------
    region : Region
        The region; a value counts as one 0-d box.
    claims : sequence of (role, copy, Box)
        What all owners hold of it; copy -1 for a replicated one, of which every role holds its own copy.
    copies : int
        How many copies there must be (of a replicated one: how many owners declare it).

    Returns
    -------
    Fault or None
        The first fault, and None if each copy tiles the region exactly once with the same boxes.
    """
    shape = () if region.shape is None else region.shape
    whole = Box.whole(shape)
    by_copy: dict[int, list[Held]] = {}
    replicated = any(copy == -1 for _, copy, _ in claims)
    for role, copy, box in claims:
        inside = len(box.lo) == len(shape) and all(
            0 <= lo <= hi <= end for lo, hi, end in zip(box.lo, box.hi, shape, strict=True)
        )
        if not inside:
            return Fault("outside", copy, box, (role,), f"[{box.text()}] at owner {role} leaves the region {shape}")
        if not replicated and not 0 <= copy < copies:
            return Fault("copy", copy, box, (role,), f"owner {role} holds copy {copy}, and there are {copies}")
        if not box.empty:
            by_copy.setdefault(role if replicated else copy, []).append((role, box))
    if whole.empty:
        return None
    numbers = sorted(by_copy) if replicated else list(range(copies))
    faults: list[Fault] = []
    for copy in numbers:
        what = f"owner {copy}'s copy" if replicated else (f"copy {copy} of {copies}" if copies > 1 else "the region")
        held = by_copy.get(copy, [])
        if not held:
            faults.append(Fault("missing", copy, whole, (), f"{what} is missing: no owner holds a box of it"))
            continue
        fault = _copy_fault(region.name, shape, copy, what, held)
        if fault is not None:
            faults.append(fault)
    if replicated and len(numbers) != copies:
        roles = tuple(numbers)
        text = f"{copies} owners declared a copy, and {len(numbers)} hold one: {_named(roles)}"
        faults.append(Fault("missing", -1, whole, roles, text))
    if not faults:
        return _cut_fault(numbers, by_copy)
    # a copy that is missing and one that is doubled explain each other: say both
    first = faults[0]
    roles = tuple(sorted({role for fault in faults for role in fault.roles}))
    more = f"; and {len(faults) - 4} more copies" if len(faults) > 4 else ""
    return Fault(first.kind, first.copy, first.box, roles, "; ".join(fault.text for fault in faults[:4]) + more)


def find_fault(schema: Schema, boxes: Mapping[int, Sequence[Claim]], copies: Mapping[int, int]) -> CoverageError | None:
    """Name the first region whose boxes are not what was agreed.

    Parameters
    ----------
    schema : Schema
        The union schema.
    boxes : mapping of int to sequence of (role, copy, Box)
        What all owners hold, by ordinal (`mpickpt.state.coverage.claims_of` gives one owner's).
    copies : mapping of int to int
        In how many copies each region is held, by ordinal (`mpickpt.state.coverage.copies_of`); only these
        regions are looked at.

    Returns
    -------
    CoverageError or None
        The refusal, with region, box, first index and roles; None when nothing is wrong.
    """
    for ordinal in sorted(copies):
        region = schema[ordinal]
        fault = diagnose(region, boxes.get(ordinal, ()), copies[ordinal])
        if fault is not None:
            each = "each copy tiles it exactly once" if copies[ordinal] > 1 else "boxes that tile it exactly once"
            shape = "" if region.shape is None else f" shape {region.shape},"
            return CoverageError(
                f"pieces do not tile region {region.name}: {fault.text}",
                region=region.name,
                roles=fault.roles,
                expected=f"{shape} {each}".strip(),
                found=f"{fault.kind} at box [{fault.box.text()}], first index {fault.box.lo}",
                advice="check `at`, `shape` and `replica` of what these owners declare",
            )
    return None
