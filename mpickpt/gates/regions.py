"""Arrays of several dtypes and shapes in boxes of several kinds, whose elements are known from where they stand.

An element's value is a number computed from its place, one element at a time, so that what comes back is compared
with arithmetic and not with what was saved.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import ml_dtypes
import numpy as np

from mpickpt import Sharded, Split

Index = tuple[int, ...]
Array = np.ndarray[Any, Any]

SHAPES: Final[dict[str, tuple[Any, Index]]] = {
    "bytes": (np.uint8, (7,)),
    "half": (ml_dtypes.bfloat16, (5, 3)),
    "matrix": (np.float32, (6, 9)),
    "cube": (np.float64, (3, 4, 5)),
    "pairs": (np.complex64, (4, 4)),
    "twin-a": (np.int32, (11,)),
    "twin-b": (np.int32, (11,)),
    "point": (np.int64, ()),
}
BOXES: Final = ("rows", "columns", "uneven", "alike")
_BLANK: Final = 1


def value(name: str, index: Index) -> int:
    """Give the number at an index of a region: small, so that every dtype has it exactly, and never that of a blank."""
    number = sum(map(ord, name)) * 7
    for axis, at in enumerate(index):
        number = 31 * number + 17 * axis + at
    return number % 126 + 2


class Held:
    """One owner's part of one region.

    Parameters
    ----------
    name : str
        The region.
    boxes : str
        One of `BOXES`: ``rows`` by the rule of shares; ``columns``; ``uneven``: one row, then what is left; ``alike``:
        all of it on all owners.
    role, owners : int
    """

    def __init__(self, name: str, boxes: str, role: int, owners: int) -> None:
        self.name = name
        dtype, self.shape = SHAPES[name]
        self.alike = boxes == "alike" or not self.shape
        self.by_rule = boxes == "rows"
        first, size = [0] * len(self.shape), list(self.shape)
        if not self.alike:
            axis = len(self.shape) - 1 if boxes == "columns" else 0
            first[axis], size[axis] = _share(boxes, self.shape[axis], role, owners)
        self.first = tuple(first)
        self.array: Array = np.full(size, _BLANK, dtype)

    def fill(self) -> None:
        """Give every element its value."""
        for index in itertools.product(*map(range, self.array.shape)):
            self.array[index] = value(self.name, self._place(index))

    def _place(self, index: Index) -> Index:
        return tuple(map(sum, zip(self.first, index, strict=True)))

    def declared(self) -> Any:
        """Declare it to `Checkpointer`."""
        if self.alike:
            return self.array
        if self.by_rule:
            return Split(self.array, length=self.shape[0])
        return Sharded(self.array, shape=self.shape, at=self.first)

    def wrong(self) -> list[str]:
        """List elements that are not what they must be."""
        found = []
        for index in itertools.product(*map(range, self.array.shape)):
            place = self._place(index)
            if self.array[index] != value(self.name, place):
                found.append(f"{self.name}{list(place)}: {self.array[index]!s}, not {value(self.name, place)}")
        return found

    @property
    def untouched(self) -> bool:
        """Whether it is as blank as it was made."""
        return bool((self.array == _BLANK).all())


def _share(boxes: str, length: int, role: int, owners: int) -> tuple[int, int]:
    """Give where an owner's part of an axis begins, and how long it is."""
    if boxes == "uneven":
        cuts = [0, *(1 + (length - 1) * k // max(1, owners - 1) for k in range(owners - 1)), length]
        return cuts[role], cuts[role + 1] - cuts[role]
    return length // owners * role + min(role, length % owners), length // owners + (role < length % owners)


def held(boxes: str, role: int, owners: int) -> list[Held]:
    """Give an owner's part of every region, blank."""
    return [Held(name, boxes, role, owners) for name in SHAPES]
