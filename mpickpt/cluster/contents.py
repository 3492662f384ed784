"""Digests of what an owner holds in copies, for the sum `copies` (docs/format.md, "Coverage")."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mpickpt.state import coverage
from mpickpt.state.capture import Part
from mpickpt.state.declare import Declarations
from mpickpt.state.nest import Capture, Holding
from mpickpt.state.places import lies_flat
from mpickpt.state.region import Box, Schema, flat_boxes
from mpickpt.store.bulk import address
from mpickpt.store.progress import Progress
from mpickpt.store.threads import Pool

#: Bytes of strided memory that are made contiguous at a time.
_PART: Final = 4 << 20
#: Small holdings are hashed many to a task, by one call.
_TASK_BYTES: Final = 8 << 20
_TASK_INPUTS: Final = 4096


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


@dataclass(slots=True)
class _Batch:
    """Boxes and values that one task hashes, all with one factor; they are kept until it has."""

    factor: int
    heads: list[bytes] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)
    strided: list[tuple[int, Part]] = field(default_factory=list)
    size: int = 0

    def take(self, ordinal: int, holding: Holding) -> None:
        """Take in a holding: what lies in memory as it is hashed is only noted, the rest must be brought together."""
        if holding.data is not None:
            self._note(ordinal, coverage.POINT, np.frombuffer(holding.data, np.uint8))
        for part in holding.parts:
            if isinstance(part.array, np.ndarray) and not part.box.empty:
                if lies_flat(part.array):
                    self._note(ordinal, part.box, part.array)
                else:
                    self.strided.append((ordinal, part))
                    self.size += part.array.nbytes

    def _note(self, ordinal: int, box: Box, array: np.ndarray[Any, Any]) -> None:
        self.heads.append(coverage.content_head(ordinal, box))
        self.memory.append((address(array), array.nbytes))
        self.kept.append(array)
        self.size += array.nbytes

    @property
    def full(self) -> bool:
        """Whether it is enough for a task."""
        return self.size >= _TASK_BYTES or len(self.heads) >= _TASK_INPUTS

    def hash(self) -> int:
        """Give the sum of all digests, times the factor."""
        found = coverage.content_total(self.heads, self.memory)
        for ordinal, part in self.strided:
            assert isinstance(part.array, np.ndarray)
            found += coverage.content(ordinal, part.box, little_endian(part.array))
        return self.factor * found


def needed(capture: Capture, declarations: Declarations, role: int) -> bool:
    """Tell whether anything is held in copies, so that there is something to hash."""
    return any(
        coverage.copies_factor(holding, declarations.entries[holding.region.name], role) for holding in capture.holdings
    )


def begin(
    capture: Capture,
    declarations: Declarations,
    schema: Schema,
    role: int,
    pool: Pool,
    progress: Progress,
) -> list[Future[int]]:
    """Begin to hash what is held in copies; the sum of the results is this owner's share of `copies`.

    Nothing is hashed where there is only one copy. What is hashed counts as progress, and its time as a digest's.
    """
    tasks: list[Future[int]] = []
    batches: dict[int, _Batch] = {}

    def hash_batch(batch: _Batch) -> int:
        began = time.monotonic()
        with progress.work():
            found = batch.hash()
            progress.add_aside(batch.size)
            progress.took(digest=time.monotonic() - began)
        return found

    for holding in capture.holdings:
        name = holding.region.name
        factor = coverage.copies_factor(holding, declarations.entries[name], role)
        if factor == 0:
            continue
        batch = batches.get(factor)
        if batch is None:
            batch = batches[factor] = _Batch(factor)
        batch.take(schema.ordinal(name), holding)
        if batch.full:
            tasks.append(pool.submit(hash_batch, batches.pop(factor)))
    return tasks + [pool.submit(hash_batch, batch) for batch in batches.values()]
