"""Who is whose parent: arithmetic on roles, nothing else.

A role is a rank of the caller's communicator, and roles are numbered in preorder: the subtree of a role is the range
``[role, role + size)``. A star is the tree whose root has all others as children.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpickpt.state.region import shares


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
    """

    role: int
    owners: int
    parent: int | None
    children: tuple[tuple[int, int], ...]
    size: int

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Children first, then the parent."""
        below = tuple(role for role, _ in self.children)
        return below if self.parent is None else (*below, self.parent)


def _children(role: int, size: int, fan_out: int) -> tuple[tuple[int, int], ...]:
    rest = size - 1
    if rest == 0:
        return ()
    return tuple((role + 1 + share.start, len(share)) for share in shares(rest, min(fan_out, rest)))


def place(role: int, owners: int, fan_out: int | None = None) -> Place:
    """Find the place of `role` among `owners`.

    Parameters
    ----------
    fan_out : int, optional
        The most children that a role has; None makes a star.
    """
    fan_out = max(1, owners - 1) if fan_out is None else fan_out
    at, size, parent = 0, owners, None
    while at != role:
        parent = at
        at, size = next((r, n) for r, n in _children(at, size, fan_out) if r <= role < r + n)
    return Place(role, owners, parent, _children(role, size, fan_out), size)


def writers(owners: int, fan_out: int | None = None) -> tuple[int, ...]:
    """Give the roles that write what all owners hold alike: the root and its children."""
    return (0, *(role for role, _ in place(0, owners, fan_out).children))
