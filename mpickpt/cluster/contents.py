"""Digests of what an owner holds in copies, for the sum `copies` (docs/format.md, "Coverage")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from mpickpt.state import coverage
from mpickpt.state.declare import Declarations
from mpickpt.state.nest import Capture, Holding
from mpickpt.state.region import Box, Schema, flat_boxes
from mpickpt.store.threads import Pool

#: Bytes of strided memory that are made contiguous at a time.
_PART: Final = 4 << 20
#: Small holdings are hashed many to a task.
_TASK_BYTES: Final = 8 << 20
_TASK_HOLDINGS: Final = 512


def little_endian(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Give an array's bytes in C order, little-endian, in parts: from where they lie if they lie so."""
    wanted = array.dtype.newbyteorder("<")
    if array.flags.c_contiguous and array.dtype == wanted:
        yield array.reshape(-1).view(np.uint8).data
        return
    step = max(1, _PART // max(1, array.itemsize))
    for start in range(0, array.size, step):
        stop = min(array.size, start + step)
        buffer = np.empty(stop - start, wanted)
        for first, box in flat_boxes(array.shape, start, stop):
            inside = tuple(slice(lo, hi) for lo, hi in zip(box.lo, box.hi, strict=True))
            buffer[first - start : first - start + box.size] = array[inside].reshape(-1)
        yield buffer.view(np.uint8).data


def contents(ordinal: int, holding: Holding) -> list[tuple[Box, int]]:
    """Hash the content of each box of a holding."""
    if holding.data is not None:
        return [(coverage.POINT, coverage.content(ordinal, coverage.POINT, [holding.data]))]
    return [
        (part.box, coverage.content(ordinal, part.box, little_endian(part.array)))
        for part in holding.parts
        if isinstance(part.array, np.ndarray) and not part.box.empty
    ]


def begin(
    capture: Capture,
    declarations: Declarations,
    schema: Schema,
    role: int,
    pool: Pool,
    advance: Callable[[int], None],
) -> list[Future[int]]:
    """Begin to hash what is held in copies; the sum of the results is this owner's share of `copies`.

    Nothing is hashed where there is only one copy. `advance` is told the bytes that were hashed, as progress.
    """
    tasks: list[Future[int]] = []
    batch: list[tuple[int, Holding, int]] = []
    size = 0

    def hash_batch(batch: list[tuple[int, Holding, int]]) -> int:
        total = 0
        for ordinal, holding, factor in batch:
            total += factor * sum(value for _, value in contents(ordinal, holding))
            advance(_size(holding))
        return total

    for holding in capture.holdings:
        factor = coverage.copies_factor(holding, declarations.entries[holding.region.name], role)
        if factor == 0:
            continue
        batch.append((schema.ordinal(holding.region.name), holding, factor))
        size += _size(holding)
        if size >= _TASK_BYTES or len(batch) >= _TASK_HOLDINGS:
            tasks.append(pool.submit(hash_batch, batch))
            batch, size = [], 0
    if batch:
        tasks.append(pool.submit(hash_batch, batch))
    return tasks


def _size(holding: Holding) -> int:
    if holding.data is not None:
        return len(holding.data)
    return sum(part.array.nbytes for part in holding.parts if isinstance(part.array, np.ndarray))
