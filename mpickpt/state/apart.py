"""Whether destinations are apart in memory: two of them in one place could not both be filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mpickpt.errors import StateError
from mpickpt.state import values

#: A destination, what is copied into it, and the region's name.
Copy: TypeAlias = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], str]
#: A random generator, the one whose state it gets, and the region's name.
Setting: TypeAlias = tuple[Any, Any, str]


def check_apart(copies: Sequence[Copy], settings: Sequence[Setting]) -> None:
    """Refuse destinations that share memory and would get different content; tied ones, alike in all, are well.

    Raises
    ------
    StateError
        Naming both regions.
    """
    bounded = sorted(
        ((*np.lib.array_utils.byte_bounds(target), at) for at, (target, _, _) in enumerate(copies) if target.size),
    )
    open_: list[tuple[int, int]] = []  # (end, index) of those before that may reach into the present one
    for low, high, at in bounded:
        open_ = [(end, other) for end, other in open_ if end > low]
        for _, other in open_:
            _check_pair(copies[other], copies[at])
        open_.append((high, at))
    _check_generators(settings)


def _check_pair(one: Copy, two: Copy) -> None:
    a, b = one[0], two[0]
    if not np.shares_memory(a, b):
        return
    tied = (a.ctypes.data, a.shape, a.strides, a.dtype) == (b.ctypes.data, b.shape, b.strides, b.dtype)
    if not (tied and one[1].tobytes() == two[1].tobytes()):
        raise _shared(one[2], two[2], "arrays that share memory")


def _check_generators(settings: Sequence[Setting]) -> None:
    seen: dict[int, tuple[bytes, str]] = {}
    for target, source, name in settings:
        state = values.encode(source, name)
        known = seen.setdefault(id(getattr(target, "bit_generator", target)), (state, name))
        if known[0] != state:
            raise _shared(known[1], name, "one random generator")


def _shared(one: str, two: str, what: str) -> StateError:
    return StateError(
        f"two regions of the destination are {what}, and the checkpoint has different content for them",
        region=two,
        expected="memory of its own for each region, or the same content",
        found=f"{one!r} and {two!r}",
        unharmed="all arrays: nothing was filled",
        advice="give each region a destination of its own",
    )
