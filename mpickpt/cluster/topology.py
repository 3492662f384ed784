"""Who is whose parent: arithmetic on roles, nothing else.

A role is a rank of the caller's communicator, and roles are numbered in preorder: the subtree of a role is the range
``[role, role + size)``. A star is the tree whose root has all others as children. Children share what is below a role
as evenly as can be, larger first; where it is known at which roles nodes begin, a cut between children goes to the
nearest of them, so that no message crosses the network that need not; and to where a switch's nodes begin, if that is
no further than half a child's share.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from mpickpt.state.region import shares

#: `topology="auto"` is a star up to so many owners.
MOST_IN_A_STAR: Final = 32
#: What a caller may ask for.
KINDS: Final = ("auto", "star", "tree")

Starts: TypeAlias = tuple[tuple[int, int], ...]
"""Where groups of neighbouring roles begin: (first, step), ascending from 0; from each `first` on one every `step`."""


@dataclass(frozen=True, slots=True)
class Place:
    """One owner's place in the topology.

    Attributes
    ----------
    role, owners : int
        This owner's role and how many owners there are.
    parent : int or None
        The parent's role; None at the root, which is role 0.
    children : tuple of (role, size)
        Each child with the number of roles in its subtree.
    size : int
        The number of roles in this owner's subtree, itself included.
    height : int
        How many edges lie between this owner and the root.
    """

    role: int
    owners: int
    parent: int | None
    children: tuple[tuple[int, int], ...]
    size: int
    height: int = 0

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Children first, then the parent."""
        below = tuple(role for role, _ in self.children)
        return below if self.parent is None else (*below, self.parent)


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape that all owners of one communicator make.

    Attributes
    ----------
    owners : int
    fan_out : int
        The most children that a role has; ``owners - 1`` in a star.
    grounds : tuple of Starts
        Where the nodes below each switch begin, the widest first, and at last where nodes do; none where that is not
        known.
    """

    owners: int
    fan_out: int
    grounds: tuple[Starts, ...] = ()

    @classmethod
    def of(cls, kind: str, owners: int, fan_out: int, grounds: tuple[Starts, ...] = ()) -> Topology:
        """Choose a shape: ``star``, ``tree``, or ``auto``, a star up to `MOST_IN_A_STAR` owners."""
        if kind == "star" or (kind == "auto" and owners <= MOST_IN_A_STAR):
            return cls(owners, max(1, owners - 1))
        return cls(owners, fan_out, grounds)

    @property
    def star(self) -> bool:
        """Whether the root has all others as children."""
        return self.fan_out >= self.owners - 1

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data, as it stands in the root manifest."""
        return {"kind": "star" if self.star else "tree", "fan_out": self.fan_out}

    def place(self, role: int) -> Place:
        """Find the place of a role, in as many steps as the tree is high."""
        at, size, parent, height = 0, self.owners, None, 0
        while at != role:
            parent = at
            at, size = next((r, n) for r, n in self._children(at, size) if r <= role < r + n)
            height += 1
        return Place(role, self.owners, parent, self._children(at, size), size, height)

    @property
    def writers(self) -> tuple[int, ...]:
        """The roles that write what all owners hold alike: the root and its children."""
        return (0, *(role for role, _ in self._children(0, self.owners)))

    def _children(self, role: int, size: int) -> tuple[tuple[int, int], ...]:
        return _children(role, size, self.fan_out, self.grounds)


@lru_cache(maxsize=4096)
def _children(role: int, size: int, fan_out: int, grounds: tuple[Starts, ...]) -> tuple[tuple[int, int], ...]:
    rest = size - 1
    if rest == 0:
        return ()
    first, end = role + 1, role + size
    cuts = [first + share.start for share in shares(rest, min(fan_out, rest))]
    if grounds:
        cuts = [first, *_moved(cuts[1:], first, end, grounds)]
    ends = [*cuts[1:], end]
    return tuple((start, stop - start) for start, stop in zip(cuts, ends, strict=True))


def _moved(cuts: list[int], first: int, end: int, grounds: tuple[Starts, ...]) -> list[int]:
    """Move the cuts of a range to where switches, or else nodes, begin; cuts that fall together are one."""
    *switches, nodes = grounds
    if _begins(nodes, first)[1] >= end:
        return cuts  # it lies within one node
    share = (end - first) / (len(cuts) + 1)
    settled, left = set[int](), cuts
    for starts in switches:
        nearest = [(cut, _nearest(starts, cut)) for cut in left]
        near = {cut: start for cut, start in nearest if first < start < end and 2 * abs(start - cut) <= share}
        settled.update(near.values())
        left = [cut for cut in left if cut not in near]
    settled.update(start for start in (_nearest(nodes, cut) for cut in left) if first < start < end)
    return sorted(settled)


def _begins(starts: Starts, role: int) -> tuple[int, int]:
    """Give where the group begins in which a role is, and where the next one would."""
    at = bisect_right(starts, role, key=lambda stretch: stretch[0]) - 1
    first, step = starts[at]
    begin = first + (role - first) // step * step
    after = begin + step
    return begin, min(after, starts[at + 1][0]) if at + 1 < len(starts) else after


def _nearest(starts: Starts, role: int) -> int:
    begin, after = _begins(starts, role)
    return after if after - role <= role - begin else begin
