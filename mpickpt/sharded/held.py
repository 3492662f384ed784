"""What each rank holds: plain arrays as parts of one region, and, where the files would not tell, a list of names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from mpickpt.errors import CheckpointError, DisagreementError, FormatError, StateError
from mpickpt.state import dtypes, names
from mpickpt.state.capture import Capture
from mpickpt.state.flatten import MAX_DEPTH, flatten, namedtuple, stateful
from mpickpt.state.layout import PerOwner, Sharded
from mpickpt.state.region import Box, Schema

#: The one key that a state dict may not have: under it a rank's list of names is kept, where one is needed.
TOLD: Final = "mpickpt.sharded"

_State = dict[Any, Any]
_ARRAYS: Final = (np.ndarray, np.memmap)


@dataclass(slots=True)
class _Rows:
    """One name's arrays, rank by rank: where each begins in the whole."""

    dtype: str
    trailing: tuple[int, ...]
    first: int
    length: int = 0
    starts: dict[int, int] = field(default_factory=dict)


def regions(states: Any) -> list[_State]:
    """Turn one state dict a rank into states as `Checkpointer.save` takes them.

    Arrays of one name become boxes of one region, concatenated along axis 0 in the order of ranks.

    Raises
    ------
    StateError
        For what is no list of dicts, or cannot be saved exactly; with the rank.
    DisagreementError
        If arrays of one name have different dtypes or trailing shapes.
    """
    if not isinstance(states, list | tuple) or not states:
        raise StateError("no state dicts by rank", expected="a list of one dict or more", found=repr(states)[:100])
    found: dict[str, _Rows] = {}
    for rank, state in enumerate(states):
        with _at(rank):
            if not isinstance(state, dict):
                raise StateError("a rank's state is no dict", expected="dict", found=type(state).__name__)
            if TOLD in state:
                raise StateError("a name that is reserved", region=TOLD, advice="give it another name")
            _map(state, (), partial(_count, found, rank))
    made: list[_State] = [_map(state, (), partial(_box, found, rank)) for rank, state in enumerate(states)]
    told = _told([_capture(state, rank, len(made)) for rank, state in enumerate(made)])
    return made if told is None else [{**state, TOLD: PerOwner(mine)} for state, mine in zip(made, told, strict=True)]


class _at:
    """Say at which rank a refusal arose."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CheckpointError):
            error.at(self.rank, None)


def _capture(state: _State, rank: int, owners: int) -> Capture:
    with _at(rank):
        return flatten(state, rank, owners)


def _map(x: Any, path: tuple[Any, ...], change: Callable[[str, Any], Any]) -> Any:
    """Give a copy of nested dicts, lists and tuples in which `change` has replaced arrays of one axis or more."""
    if len(path) > MAX_DEPTH:
        raise StateError("containers are nested too deeply", expected=f"at most {MAX_DEPTH} levels")
    if type(x) in _ARRAYS:
        return change(names.join(path), x) if x.ndim else x
    if stateful(x) or namedtuple(x) or (dataclasses.is_dataclass(x) and not isinstance(x, type)):
        raise StateError(
            "an object that would not come back as it is",
            region=names.join(path),
            expected="dicts, lists, tuples, arrays, plain values, wrappers of mpickpt",
            found=f"{type(x).__module__}.{type(x).__qualname__}",
            advice="give its state_dict(), or its fields as a dict",
        )
    if isinstance(x, dict):
        return {key: _map(item, (*path, key), change) for key, item in x.items()}
    if type(x) in (list, tuple):
        return type(x)(_map(item, (*path, index), change) for index, item in enumerate(x))
    return x


def _count(found: dict[str, _Rows], rank: int, name: str, array: np.ndarray[Any, Any]) -> None:
    dtype, trailing = dtypes.name_of(array.dtype, name), array.shape[1:]
    rows = found.setdefault(name, _Rows(dtype, trailing, rank))
    if (dtype, trailing) != (rows.dtype, rows.trailing):
        raise DisagreementError(
            "arrays of one name are no parts of one array",
            region=name,
            roles=(rows.first, rank),
            expected=f"{rows.dtype} of shape (rows, {', '.join(map(str, rows.trailing))}), as at rank {rows.first}",
            found=f"{dtype} of shape {array.shape}",
            unharmed="the store: nothing was written",
        )
    rows.starts[rank] = rows.length
    rows.length += array.shape[0]


def _box(found: dict[str, _Rows], rank: int, name: str, array: np.ndarray[Any, Any]) -> Sharded:
    rows = found[name]
    at = (rows.starts[rank], *(0 for _ in rows.trailing))
    return Sharded(array, shape=(rows.length, *rows.trailing), at=at)


# ---------------------------------------------------------------- names that files do not tell


def _told(captures: Sequence[Capture]) -> list[_State] | None:
    """List what each rank holds; None where the shards tell it: one box of each array, and all else on every rank."""
    held: dict[str, int] = {}
    plain = all(capture.containers == captures[0].containers for capture in captures)
    for capture in captures:
        for holding in capture.holdings:
            if holding.mode == "boxes":
                plain = plain and len(holding.parts) == 1 and not holding.parts[0].box.empty and holding.copy[1] == 1
            elif holding.mode == "replicated":
                held[holding.region.name] = held.get(holding.region.name, 0) + 1
    if plain and all(count == len(captures) for count in held.values()):
        return None
    return [
        {
            "regions": {
                h.region.name: [[list(part.box.lo), list(part.box.hi)] for part in h.parts] for h in capture.holdings
            },
            "containers": dict(capture.containers),
        }
        for capture in captures
    ]


@dataclass(slots=True)
class Held:
    """What one rank held: the boxes of each region (none of opaque ones), and its containers other than dict."""

    boxes: dict[str, list[Box]]
    containers: dict[str, Any]


def read_told(told: object, schema: Schema, path: str) -> Held:
    """Read what `regions` told of one rank.

    Raises
    ------
    FormatError
        If it is malformed, or names what the schema has not.
    """

    def refuse(what: str, region: str | None = None, found: object = None) -> FormatError:
        return FormatError(f"a rank's list of names: {what}", region=region, path=path, found=repr(found)[:100])

    if not isinstance(told, dict) or told.keys() != {"regions", "containers"}:
        raise refuse("its keys", found=told)
    if not isinstance(told["regions"], dict) or not isinstance(told["containers"], dict):
        raise refuse("no dicts", found=told)
    boxes: dict[str, list[Box]] = {}
    for name, items in told["regions"].items():
        if name not in schema or name == TOLD:
            raise refuse("no such region", found=name)
        shape = schema[schema.ordinal(name)].shape
        if not isinstance(items, list) or (shape is None and items):
            raise refuse("no boxes", name, items)
        boxes[name] = []
        for item in items:
            if not isinstance(item, list) or len(item) != 2 or not all(map(_numbers, item)):
                raise refuse("a malformed box", name, item)
            box = Box(tuple(item[0]), tuple(item[1]))
            try:
                box.check(shape or (), name)
            except StateError as error:
                raise refuse(error.message, name, item) from None
            boxes[name].append(box)
    return Held(boxes, told["containers"])


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value)
