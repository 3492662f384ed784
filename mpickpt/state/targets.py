"""Which arrays of a destination are filled in place, and which are made anew."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpickpt.errors import StateError
from mpickpt.state.apart import alone
from mpickpt.state.capture import Capture
from mpickpt.state.layout import Spec
from mpickpt.state.places import Places


def check_destination(capture: Capture) -> list[str]:
    """Look at what is to be filled, before anything is.

    Returns
    -------
    list of str
        Names of array regions with a part that becomes a new array: a `Spec`, or an array that is read-only.

    Raises
    ------
    StateError
        For a writeable array whose elements share memory, as `numpy.lib.stride_tricks` makes them.
    """
    arrays = [part.array for holding in capture.holdings for part in holding.parts]
    filled = _filled(arrays)
    if all(filled):
        return []
    following = iter(zip(arrays, filled, strict=True))
    fresh = []
    for holding in capture.holdings:
        made = False
        for array, good in itertools.islice(following, len(holding.parts)):
            if not good and not isinstance(array, Spec) and array.flags.writeable:
                raise StateError(
                    "elements of a destination share memory",
                    region=holding.region.name,
                    expected="an array with memory of its own for each element",
                    found=f"shape {array.shape} with strides {array.strides}",
                )
            made = made or not good
        if made:
            fresh.append(holding.region.name)
    return fresh


def _filled(arrays: Sequence[np.ndarray[Any, Any] | Spec]) -> list[bool]:
    """Tell of each array whether it can be filled in place, as `fillable` does."""
    real = [array for array in arrays if not isinstance(array, Spec)]
    places = Places.of(real)
    good = places.writeable.copy()
    for at in np.flatnonzero(good & ~places.contiguous).tolist():  # without gaps, no two elements are one
        good[at] = not _overlaps(real[at])
    told: list[bool] = good.tolist()
    if len(real) == len(arrays):
        return told
    following = iter(told)
    return [not isinstance(array, Spec) and next(following) for array in arrays]


def _overlaps(array: np.ndarray[Any, Any]) -> bool:
    return (
        0 in array.strides
        and array.size > 0
        and any(stride == 0 and length > 1 for stride, length in zip(array.strides, array.shape, strict=True))
    )


def fillable(array: np.ndarray[Any, Any] | Spec) -> bool:
    """Tell whether an array can be filled in place."""
    return not isinstance(array, Spec) and array.flags.writeable and not _overlaps(array)


def in_place(capture: Capture) -> dict[str, list[Any]]:
    """Give the caller's own arrays, by region, that are filled in place: nothing else is kept of such a region."""
    if capture.in_place is None:
        following = iter(_filled([part.array for holding in capture.holdings for part in holding.parts]))
        capture.in_place = {}
        for holding in capture.holdings:
            parts = holding.parts
            good = list(itertools.islice(following, len(parts)))
            if all(good) and holding.region.shape is not None:
                capture.in_place[holding.region.name] = [part.array for part in parts]
    return capture.in_place


def filled_alone(capture: Capture) -> dict[str, list[Any]]:
    """Give those arrays of `in_place` that share memory with no other: they may be read into without a copy between.

    Of two tied ones the copies must be compared before either is filled.
    """
    arrays = in_place(capture)
    apart = alone(arrays)
    return {name: parts for name, parts in arrays.items() if name in apart}
