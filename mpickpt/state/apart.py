"""Whether destinations are apart in memory: two of them in one place could not both be filled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpickpt.errors import StateError
from mpickpt.state import values
from mpickpt.state.places import Places

_Array: TypeAlias = np.ndarray[Any, Any]
#: A destination, what is copied into it (None: it is read right into it later), and the region's name.
Copy: TypeAlias = tuple[_Array, _Array | None, str]
#: A random generator, the one whose state it gets, and the region's name.
Setting: TypeAlias = tuple[Any, Any, str]


def check_apart(copies: Sequence[Copy], settings: Sequence[Setting]) -> None:
    """Refuse destinations that share memory and would get different content; tied ones, alike in all, are well.

    Raises
    ------
    StateError
        Naming both regions.
    """
    for one, two in _meeting([target for target, _, _ in copies]):
        _check_pair(copies[one], copies[two])
    _check_generators(settings)


def alone(arrays: Mapping[str, Sequence[_Array]]) -> set[str]:
    """Give the names of the regions whose arrays share no memory with those of another one."""
    every = [(name, array) for name, parts in arrays.items() for array in parts]
    found = set(arrays)
    for one, two in _meeting([array for _, array in every]):
        found -= {every[one][0], every[two][0]}
    return found


def _meeting(arrays: Sequence[_Array]) -> Iterator[tuple[int, int]]:
    """Give the places of each two arrays that share memory."""
    places = Places.of(arrays)
    lows, highs = places.addresses.copy(), places.addresses + places.nbytes
    for at in np.flatnonzero(~places.contiguous).tolist():
        lows[at], highs[at] = np.lib.array_utils.byte_bounds(arrays[at])
    some = np.flatnonzero(places.nbytes)
    order = some[np.argsort(lows[some], kind="stable")]
    lows, highs = lows[order], highs[order]
    if not np.any(lows[1:] < highs[:-1]):
        return  # as nearly always: where any two meet, so do two neighbours
    open_: list[tuple[int, int]] = []  # (end, place) of those before that may reach into the present one
    for low, high, at in zip(lows.tolist(), highs.tolist(), order.tolist(), strict=True):
        open_ = [(end, other) for end, other in open_ if end > low]
        for _, other in open_:
            if np.shares_memory(arrays[other], arrays[at]):
                yield other, at
        open_.append((high, at))


def _check_pair(one: Copy, two: Copy) -> None:
    (a, content, name), (b, other, second) = one, two
    tied = (a.ctypes.data, a.shape, a.strides, a.dtype) == (b.ctypes.data, b.shape, b.strides, b.dtype)
    known = content is not None and other is not None
    if not (known and tied and content.tobytes() == other.tobytes()):  # type: ignore[union-attr]
        raise _shared(name, second, "arrays that share memory")


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
