"""Who is whose parent: arithmetic on roles, nothing else.

A role is a rank of the caller's communicator, and roles are numbered in preorder: the subtree of a role is the range
``[role, role + size)``. A star is the tree whose root has all others as children. Children share what is below a role
as evenly as can be, larger first; where it is known how many owners a node has, a cut between children goes to the
next boundary between nodes, so that no message crosses the network that need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from mpickpt.state.region import shares

#: `topology="auto"` is a star up to so many owners.
MOST_IN_A_STAR: Final = 32


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
    per_node : int or None
        Owners a node, where ranks fill one node after the other; None where that is not known.
    """

    owners: int
    fan_out: int
    per_node: int | None = None

    @classmethod
    def of(cls, kind: str, owners: int, fan_out: int, per_node: int | None = None) -> Topology:
        """Choose a shape: ``star``, ``tree``, or ``auto``, a star up to `MOST_IN_A_STAR` owners."""
        if kind == "star" or (kind == "auto" and owners <= MOST_IN_A_STAR):
            return cls(owners, max(1, owners - 1))
        return cls(owners, fan_out, per_node)

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
        return _children(role, size, self.fan_out, self.per_node)


@lru_cache(maxsize=4096)
def _children(role: int, size: int, fan_out: int, per_node: int | None) -> tuple[tuple[int, int], ...]:
    rest = size - 1
    if rest == 0:
        return ()
    first, end = role + 1, role + size
    starts = [first + share.start for share in shares(rest, min(fan_out, rest))]
    if per_node is not None and first // per_node != (end - 1) // per_node:
        # The range spans nodes: each cut but the first goes to the nearest boundary; cuts that fall together are one.
        rounded = ((start + per_node // 2) // per_node * per_node for start in starts[1:])
        starts = [first, *sorted({start for start in rounded if first < start < end})]
    ends = [*starts[1:], end]
    return tuple((start, stop - start) for start, stop in zip(starts, ends, strict=True))
