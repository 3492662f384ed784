"""What a reader still looks for, while it goes from manifest to manifest: which shards it needs, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from mpickpt.errors import CoverageError, StateError
from mpickpt.format.manifest import ChildRecord, ShardRecord
from mpickpt.state import coverage
from mpickpt.state.region import Box, Rule, Schema, Shape
from mpickpt.store.destination import Want, check_destination

_Signature: TypeAlias = tuple[Rule, Shape, Box]
Need: TypeAlias = tuple[ShardRecord, list[Want], list[int]]


class Wanted:
    """Boxes and opaque regions that are looked for.

    Parameters
    ----------
    schema : Schema
    wants : sequence of Want
    opaque : iterable of int
        Ordinals of opaque regions.
    role : int, optional
        Whose per-owner bytes.
    owners : int
        How many owners saved.

    Raises
    ------
    StateError
        If a box or its destination does not fit its region, an ordinal is not one of an opaque region, or per-owner
        bytes are asked for without a role.
    """

    def __init__(
        self, schema: Schema, wants: Sequence[Want], opaque: Iterable[int], role: int | None, owners: int
    ) -> None:
        self._schema = schema
        self._owners = owners
        self._role = role
        self._by_ordinal: dict[int, list[int]] = {}
        self._wants = list(wants)
        self._left: list[int] = []
        self._meets: dict[int, list[Box]] = {}
        self._needs: dict[str, Need] = {}
        # Wants are counted by what decides where to look for them: of a region with a rule that, its shape and the box;
        # of another one the region.
        ruled: list[_Signature] = []
        unruled: list[int] = []
        # Boxes that fit, with size and shape: most are like others.
        fit: dict[tuple[Shape, Box], tuple[int, Shape]] = {}
        regions, count = schema.regions, len(schema)
        for number, want in enumerate(self._wants):
            ordinal, box, out = want.ordinal, want.box, want.out
            region = regions[ordinal] if 0 <= ordinal < count else None
            if region is None or region.shape is None:
                raise StateError("no array region", expected=f"an ordinal of one, below {count}", found=ordinal)
            known = fit.get((region.shape, box))
            if known is None:
                if box.hi != region.shape or any(box.lo):
                    box.check(region.shape, region.name)
                known = fit[region.shape, box] = box.size, box.shape
            if out is not None:
                check_destination(out, known[1], region.dtype, region.name)
            self._left.append(known[0])
            if not known[0]:
                continue
            if ordinal in self._by_ordinal:
                self._by_ordinal[ordinal].append(number)
            else:
                self._by_ordinal[ordinal] = [number]
            if region.rule is None:
                unruled.append(ordinal)
            else:
                ruled.append((region.rule, region.shape, box))
        self._open = len(ruled) + len(unruled)
        self._ruled: Counter[_Signature] = Counter(ruled)
        self._unruled: Counter[int] = Counter(unruled)
        self._values: set[int] = set()
        self._mine: set[int] = set()
        for ordinal in opaque:
            if not 0 <= ordinal < len(schema) or schema[ordinal].kind == "array":
                raise StateError("no opaque region", found=ordinal)
            if schema[ordinal].kind == "value":
                self._values.add(ordinal)
            elif role is None:
                raise StateError("per-owner bytes without a role", region=schema[ordinal].name)
            elif 0 <= role < owners:
                self._mine.add(ordinal)

    def _found(self, want: Want) -> None:
        """Count one want less."""
        self._open -= 1
        region = self._schema.regions[want.ordinal]
        if region.rule is None:
            self._unruled[want.ordinal] -= 1
        else:
            assert region.shape is not None
            self._ruled[region.rule, region.shape, want.box] -= 1

    @property
    def pending(self) -> bool:
        """Whether anything may still be found."""
        return bool(self._open or self._values or self._mine)

    def pending_elsewhere(self) -> bool:
        """Whether anything is missing that some other owner must have: per-owner bytes may just be absent."""
        return bool(self._open or self._values)

    # ------------------------------------------------------------------ manifests

    def meets(self, child: ChildRecord) -> bool:
        """Tell whether a subtree may hold what is still missing: by the regions' rule, or by its bounds."""
        roles = range(child.role, child.role + child.size)
        if self._mine and self._role in roles:
            return True
        for (rule, shape, box), count in self._ruled.items():
            if count and _rule_meets(rule, shape, box, roles, self._owners):
                return True
        if self._values or any(self._unruled.values()):
            if child.bounds is None:
                return True
            for ordinal, lo, hi in child.bounds:
                if ordinal in self._values:
                    return True
                if self._unruled[ordinal]:
                    bound = Box(lo, hi)
                    if any(self._left[n] and _meet(bound, self._wants[n].box) for n in self._by_ordinal[ordinal]):
                        return True
        return False

    def take(self, records: Iterable[ShardRecord]) -> None:
        """Note which of these shards hold something that is still missing."""
        for record in records:
            wants: dict[int, Want] = {}
            opaque: list[int] = []
            for ordinal, lo, hi in record.pieces:
                numbers = self._by_ordinal.get(ordinal)
                if numbers is not None:
                    for number in numbers:
                        want = self._wants[number]
                        if self._left[number] and want.box == (lo, hi) and number not in self._meets:
                            # As mostly: all of it at once.
                            self._left[number] = 0
                            self._found(want)
                            wants[number] = want
                        elif self._note(number, Box(lo, hi)):
                            wants[number] = want
                elif ordinal in self._values:
                    self._values.discard(ordinal)
                    opaque.append(ordinal)
                elif ordinal in self._mine and record.role == self._role and not record.shared:
                    self._mine.discard(ordinal)
                    opaque.append(ordinal)
            if wants or opaque:
                self._needs[record.file] = (record, list(wants.values()), opaque)

    def _note(self, number: int, piece: Box) -> bool:
        """Count what a piece gives to a want; tell whether it gives anything."""
        want = self._wants[number]
        meet = want.box if piece == want.box else _meet(piece, want.box)
        if meet is None:
            return False
        left = self._left[number]
        self._left[number] -= meet.size  # below 0 where pieces overlap: `finish` refuses that
        self._meets.setdefault(number, []).append(meet)
        if left > 0 >= self._left[number]:
            self._found(want)
        return True

    # ------------------------------------------------------------------ the end

    def finish(self, path: str) -> None:
        """Check that what is wanted was found, each element once.

        Raises
        ------
        CoverageError
            If pieces leave a gap in a wanted box or overlap there, or a value is nowhere.
        """
        odd = any(self._left) or self._meets  # else each was found in one piece
        for number, left in enumerate(self._left if odd else ()):
            want = self._wants[number]
            meets = self._meets.get(number)
            if left == 0 and (meets is None or _tiles(want.box, meets)):
                continue
            raise CoverageError(
                "the saved pieces leave a gap in a box, or overlap there",
                region=self._schema[want.ordinal].name,
                path=path,
                expected=f"[{want.box.text()}] covered exactly once: {want.box.size} elements",
                found=f"{want.box.size - left} elements in {len(meets or ())} pieces",
            )
        if self._values:
            ordinal = min(self._values)
            raise CoverageError("a value is in no shard", region=self._schema[ordinal].name, path=path)

    def needs(self) -> list[Need]:
        """Give the shards to read: (record, wants, opaque ordinals)."""
        return list(self._needs.values())


def _meet(piece: Box, wanted: Box) -> Box | None:
    """Give the common box; a 0-d one meets itself."""
    return piece.intersect(wanted) if piece.ndim == wanted.ndim else None


def _tiles(box: Box, parts: Sequence[Box]) -> bool:
    """Tell whether parts tile a box exactly once, by their signed corners."""
    moved = [
        Box(
            tuple(lo - at for lo, at in zip(part.lo, box.lo, strict=True)),
            tuple(hi - at for hi, at in zip(part.hi, box.lo, strict=True)),
        )
        for part in parts
    ]
    return coverage.corners(0, box.shape, moved) == coverage.corners(0, box.shape, [Box.whole(box.shape)])


def _rule_meets(rule: Rule, shape: Shape, box: Box, roles: range, owners: int) -> bool:
    """Tell whether any of a range of roles holds a part of a box: their shares follow each other along one axis."""
    first = rule.box(shape, roles.start, owners)
    last = rule.box(shape, min(roles.stop, owners) - 1, owners)
    axis = rule.axis
    return first.lo[axis] < box.hi[axis] and box.lo[axis] < last.hi[axis]
