"""Who holds regions, as declarations tell it: of many regions in a row mostly the same owners."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from mpickpt.errors import FormatError
from mpickpt.state.coverage import MASK

#: The first role that declares a region, how many owners do, and the sum of their weights.
Holder: TypeAlias = tuple[int, int, int]
#: And of how many regions in a row, in the schema's order.
Run: TypeAlias = tuple[Holder, int]

MAX_ROLE: Final = 1 << 31


def each_holder(runs: Sequence[Run]) -> Iterator[Holder]:
    """Give the holder of each region."""
    return itertools.chain.from_iterable(itertools.repeat(*run) for run in runs)


def malformed(where: str, expected: str, found: object) -> FormatError:
    """Say what is malformed in declarations."""
    return FormatError(f"malformed declarations: {where}", expected=expected, found=repr(found)[:100])


def number(value: object, where: str, start: int, stop: int) -> int:
    """Read an integer of [start, stop)."""
    if type(value) is not int or not start <= value < stop:
        raise malformed(where, f"a number in [{start}, {stop})", value)
    return value


def sequence(value: object, where: str, length: int | None = None) -> Sequence[Any]:
    """Read a list, of `length` items where that is given."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise malformed(where, "a list" + ("" if length is None else f" of {length}"), value)
    return value


def _holder(value: object) -> Holder:
    first, count, weights = sequence(value, "holders", 3)
    if not isinstance(weights, str) or len(weights) != 64 or set(weights) - set("0123456789abcdef"):
        raise malformed("holders", "64 hexadecimal digits", weights)
    return number(first, "holders", 0, MAX_ROLE), number(count, "holders", 1, MAX_ROLE), int(weights, 16)


def read_runs(runs: object, holders: object, regions: int) -> list[Run]:
    """Read who holds the regions, in the schema's order."""
    known = [_holder(one) for one in sequence(holders, "holders")]
    found: list[Run] = []
    count = 0
    for run in sequence(runs, "runs"):
        index, length = sequence(run, "runs", 2)
        index = number(index, "runs", 0, len(known))
        count += number(length, "runs", 1, regions - count + 1)
        extend(found, known[index], length)
    if count != regions:
        raise malformed("runs", f"{regions} regions", count)
    return found


def extend(runs: list[Run], holder: Holder, length: int) -> None:
    """Have the next `length` regions held by `holder`."""
    if runs and runs[-1][0] == holder:
        length += runs.pop()[1]
    runs.append((holder, length))


def unite_runs(mine: Sequence[Run], theirs: Sequence[Run]) -> list[Run]:
    """Say who holds the regions together, where two lists of holders are of the same regions."""
    united: list[Run] = []
    rest = iter(theirs)
    other, left = next(rest, ((0, 0, 0), 0))
    for holder, length in mine:
        while length:
            step = min(length, left)
            assert step, "both are of the same regions"
            both = min(holder[0], other[0]), holder[1] + other[1], (holder[2] + other[2]) & MASK
            extend(united, both, step)
            length, left = length - step, left - step
            if not left:
                other, left = next(rest, (other, 0))
    return united
