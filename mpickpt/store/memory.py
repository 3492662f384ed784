"""Private memory that a checkpoint is read into, before anything of the caller's is touched."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpickpt.errors import StoreError
from mpickpt.state import dtypes
from mpickpt.state.region import MAX_NDIM, Box, Region
from mpickpt.store.bulk import address

_PAGE = 2 << 20
"""A huge page: memory in small ones takes longer to get from the kernel than a chunk takes to read and digest."""
_LINE = 64


def memory_for(region: Region, box: Box) -> np.ndarray[Any, Any]:
    """Make an array of its own for a box of an array region.

    Raises
    ------
    StoreError
        If there is no such memory (ENOMEM): the region is greater than this machine, or a forged schema says so.
    """
    dtype = dtypes.dtype_of(region.dtype)
    try:
        return np.empty(box.shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError: more bytes than an address can tell
        raise _none(box.size * dtype.itemsize, f"[{box.text()}] of {region.dtype}", region.name) from error


def aligned(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Make `size` bytes of memory in huge pages, where these can be had (NumPy asks for them); MemoryError if none.

    What would not fill one begins at a line of the processor's cache instead: a small state shall not cost a huge page.
    """
    start = _PAGE if size >= _PAGE else _LINE
    memory = np.empty(size + start, np.uint8)
    first = -address(memory) % start
    return memory[first : first + size]


def memory_for_all(boxes: Sequence[tuple[Region, Box]]) -> list[np.ndarray[Any, Any]]:
    """Make memory for boxes that will all be copied to where they belong: one stretch, exactly sized, in huge pages.

    Parameters
    ----------
    boxes : sequence of (Region, Box)
        Of array regions.

    Returns
    -------
    list of numpy.ndarray
        One a box, in their order. Those of one shape and dtype lie beside each other, each from a line of the cache on:
        NumPy makes thousands of them as parts of one array in little time.

    Raises
    ------
    StoreError
        If there is no such memory (ENOMEM).
    """
    alike: dict[tuple[str, Box], list[int]] = {}
    for number, (region, box) in enumerate(boxes):
        key = region.dtype, box
        if key in alike:
            alike[key].append(number)
        else:
            alike[key] = [number]
    rooms = {key: -(-key[1].size * dtypes.itemsize(key[0]) // _LINE) * _LINE for key in alike}
    size = sum(rooms[key] * len(places) for key, places in alike.items())
    try:
        memory = aligned(size)
    except (MemoryError, ValueError) as error:
        raise _none(size, "all that this owner holds", None) from error
    made: list[Any] = [None] * len(boxes)
    at = 0
    for (name, box), places in alike.items():
        room, dtype = rooms[name, box], dtypes.dtype_of(name)
        shape = box.shape
        if len(shape) >= MAX_NDIM:  # one axis more than an array can have
            for number in places:
                made[number] = np.ndarray(shape, dtype, memory, at)
                at += room
            continue
        strides = [dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        table: np.ndarray[Any, Any] = np.ndarray((len(places), *shape), dtype, memory, at, (room, *strides))
        for place, number in enumerate(places):
            made[number] = table[place, ...]
        at += room * len(places)
    return made


def _none(size: int, what: str, region: str | None) -> StoreError:
    return StoreError(
        "there is no memory for a region" if region is not None else "there is no memory for the checkpoint",
        errno=errno.ENOMEM,
        region=region,
        expected=f"{size} bytes, for {what}",
        unharmed="the store and all arrays",
        advice="read a part of it, or restore it on more owners",
    )
