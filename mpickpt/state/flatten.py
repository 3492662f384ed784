"""Nested containers to regions: what this owner holds, by name.

Dicts with string keys, dataclasses and namedtuples are always descended into; lists, tuples and other dicts only
where there is something in them that is more than a plain value. An object with state_dict() is read through it;
as a destination it is an open prefix, whose own content is not looked at.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, Final

import numpy as np

from mpickpt.errors import StateError
from mpickpt.state import dtypes, values
from mpickpt.state.capture import Capture, Holding, Node, Part
from mpickpt.state.generators import GENERATORS
from mpickpt.state.layout import WRAPPERS, PerOwner, Replicated, Sharded, Spec, Split, Value
from mpickpt.state.names import Key, all_plain, escape
from mpickpt.state.region import Box, Region, Rule

MAX_DEPTH: Final = 64
_ONE: Final = (0, 1)  # the only copy
_ARRAYS: Final = (np.ndarray, np.memmap)
_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})
_BUILT_IN: Final = frozenset({dict, list, tuple, set, frozenset, *_SCALARS, *_ARRAYS, *WRAPPERS, Spec})


def flatten(state: object, role: int, owners: int, *, destination: bool = False) -> Capture:
    """Find what an owner holds.

    Parameters
    ----------
    state : nested containers
        Of arrays, wrappers (`Sharded`, `Split`, `PerOwner`, ...) and plain values.
    role, owners : int
        This owner's rank, and how many there are.
    destination : bool
        Whether it is to be filled: values are not encoded then, `Spec` may stand for an array, and objects with
        load_state_dict are open prefixes.

    Returns
    -------
    Capture
        Refers to the caller's arrays; nothing of them is copied.

    Raises
    ------
    StateError
        For what cannot be saved exactly, a container that holds itself, a box that does not fit its region.
    """
    walker = _Walker(role, owners, destination)
    try:
        nest = walker.walk(state, "", 0)
    except RecursionError:
        raise StateError(
            "containers are nested too deeply", expected=f"at most {MAX_DEPTH} levels", found="more than Python follows"
        ) from None
    walker.holdings.sort(key=lambda holding: holding.region.name)
    return Capture(walker.holdings, walker.containers, nest, walker.open_prefixes)


@functools.lru_cache(maxsize=1 << 16)
def _array_region(name: str, dtype: str, shape: tuple[int, ...]) -> Region:
    """Make an array's region; kept, since the same come at every save."""
    return Region(name, dtype, shape, "array")


def stateful(x: object) -> bool:
    """Tell whether it is an object with state_dict() and load_state_dict()."""
    return (
        type(x) not in _BUILT_IN
        and not isinstance(x, type)
        and callable(getattr(x, "state_dict", None))
        and callable(getattr(x, "load_state_dict", None))
    )


def namedtuple(x: object) -> bool:
    """Tell whether it is a namedtuple."""
    return isinstance(x, tuple) and type(x) is not tuple and hasattr(type(x), "_fields") and hasattr(type(x), "_make")


def _state_dict(x: Any, name: str) -> Any:
    try:
        return x.state_dict()
    except Exception as error:  # the caller's own code: one owner's failure is a refusal of all
        raise StateError(
            f"state_dict() raised {type(error).__name__}: {error}",
            region=name,
            found=f"{type(x).__module__}.{type(x).__qualname__}",
            advice="the traceback is at that owner",
        ) from error


def _string_keys(x: dict[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in x)


class _Walker:
    def __init__(self, role: int, owners: int, destination: bool) -> None:
        self.role = role
        self.owners = owners
        self.destination = destination
        self.holdings: list[Holding] = []
        self.containers: dict[str, str] = {}
        self.open_prefixes: list[str] = []
        self.within: set[int] = set()
        self.known: dict[int, bool] = {}
        self.inside_object = False

    # -- which way ------------------------------------------------------------------------------------------------

    def walk(self, x: Any, name: str, depth: int) -> Node:
        kind = type(x)
        if kind is np.ndarray:
            return self.array(x, name)
        if kind in _SCALARS:
            return self.opaque(x, name, "value")
        if stateful(x):
            return self.stateful(x, name, depth)
        if isinstance(x, dict):
            if _string_keys(x) or kind is not dict or self.descends(x):
                return self.dict(x, name, depth)
        elif isinstance(x, list | tuple):
            if namedtuple(x):
                return self.fields(x, "namedtuple", type(x)._fields, name, depth)  # type: ignore[union-attr]
            if self.descends(x):
                return self.sequence(x, name, depth)
        elif dataclasses.is_dataclass(x) and not isinstance(x, type):
            return self.fields(x, "dataclass", [field.name for field in dataclasses.fields(x)], name, depth)
        elif isinstance(x, np.ndarray):
            return self.array(x, name)
        elif isinstance(x, WRAPPERS):
            return self.wrapper(x, name, depth)
        elif isinstance(x, Spec) or (hasattr(x, "__array__") and not isinstance(x, np.generic)):
            return self.array(x, name)
        return self.opaque(x, name, "value")

    def descends(self, x: Any) -> bool:
        """Tell whether there is more than plain values in a list, tuple or dict."""
        key = id(x)
        if key in self.known:
            return self.known[key]
        self.known[key] = False  # a container in itself adds nothing to the answer; the walk finds the cycle
        found = False
        for item in x.values() if isinstance(x, dict) else x:
            kind = type(item)
            if kind in _SCALARS:
                continue
            if kind in (list, tuple, dict):
                found = self.descends(item)
            elif kind not in (set, frozenset):
                found = (
                    isinstance(item, (np.ndarray, Spec, dict, *WRAPPERS, *GENERATORS))
                    or stateful(item)
                    or namedtuple(item)
                    or (dataclasses.is_dataclass(item) and not isinstance(item, type))
                )
            if found:
                break
        self.known[key] = found
        return found

    # -- containers -----------------------------------------------------------------------------------------------

    def enter(self, x: Any, name: str, depth: int) -> None:
        if id(x) in self.within:
            raise StateError(
                "a container holds itself",
                region=name,
                expected="containers without cycles",
                found=type(x).__name__,
                advice="leave the reference to an outer container out of the state",
            )
        if depth >= MAX_DEPTH:
            raise StateError("containers are nested too deeply", region=name, expected=f"at most {MAX_DEPTH} levels")
        self.within.add(id(x))

    def children(self, x: Any, items: Any, kind: str, name: str, depth: int, plain: bool = False) -> Node:
        """Walk the items ``(key, value)`` of the container `x`; `plain` keys need no escape."""
        self.enter(x, name, depth)
        prefix = f"{name}/" if name else ""
        found: list[tuple[Key, Node]] = []
        for key, item in items:
            try:
                child = prefix + (key if plain else escape(key))
            except StateError as error:
                raise StateError(error.message, region=name, expected=error.expected, found=error.found) from None
            node = self.array(item, child) if type(item) is np.ndarray else self.walk(item, child, depth + 1)
            found.append((key, node))
        self.within.remove(id(x))
        return Node(kind, name, x, found)

    def container(self, name: str, kind: str) -> None:
        # What an object's state_dict() gave stands at the object's own path.
        self.containers[name] = f"object {kind}" if self.containers.get(name) == "object" else kind

    def dict(self, x: dict[Any, Any], name: str, depth: int) -> Node:
        if not _string_keys(x):
            self.container(name, "dict_int")
        elif not x and name not in self.containers:
            self.container(name, "dict")
        return self.children(x, x.items(), "dict", name, depth, all_plain(x))

    def sequence(self, x: Any, name: str, depth: int) -> Node:
        if type(x) not in (list, tuple):
            raise self.unknown(x, name)
        kind = type(x).__name__
        self.container(name, kind)
        return self.children(x, enumerate(x), kind, name, depth)

    def fields(self, x: Any, kind: str, names: Any, name: str, depth: int) -> Node:
        if self.inside_object:
            raise StateError(
                f"state_dict() gave a {kind}, which load_state_dict could not be given back",
                region=name,
                expected="dicts, lists, tuples, arrays, plain values",
                found=type(x).__name__,
                advice="let state_dict() give a dict",
            )
        self.container(name, kind)
        missing = [field for field in names if not hasattr(x, field)]
        if missing:
            raise StateError(f"a {kind} has a field without a value", region=name, found=missing[0])
        return self.children(x, [(field, getattr(x, field)) for field in names], kind, name, depth)

    def stateful(self, x: Any, name: str, depth: int) -> Node:
        if self.inside_object:
            raise StateError(
                "state_dict() gave another object with state_dict()",
                region=name,
                expected="dicts, lists, tuples, arrays, plain values",
                found=type(x).__name__,
                advice="let the outer state_dict() call the inner one",
            )
        if self.destination:
            self.open_prefixes.append(name)
        else:
            self.enter(x, name, depth)
            self.containers[name] = "object"
            self.inside_object = True
            content = _state_dict(x, name)
            node = self.walk(content, name, depth + 1)
            self.inside_object = False
            self.within.remove(id(x))
            # The node keeps what state_dict() gave alive: `known` and `within` go by identity.
            return Node("object", name, x, [("", node)])
        return Node("object", name, x, ())

    # -- leaves ---------------------------------------------------------------------------------------------------

    def unknown(self, x: Any, name: str) -> StateError:
        return StateError(
            "something that cannot be saved exactly",
            region=name,
            expected="arrays, plain Python values, dicts, lists, tuples, dataclasses, objects with state_dict()",
            found=f"{type(x).__module__}.{type(x).__qualname__}",
        )

    def dtype(self, array: Any, name: str) -> str:
        if type(array) in _ARRAYS or (self.destination and type(array) is Spec):
            return dtypes.name_of(array.dtype, name)
        if isinstance(array, Spec):
            raise StateError("a Spec stands for no array that could be saved", region=name, found=repr(array))
        raise StateError(
            "not a plain NumPy array",
            region=name,
            expected="numpy.ndarray" + (" or Spec" if self.destination else ""),
            found=f"{type(array).__module__}.{type(array).__qualname__}",
            advice="masks and other content of array subclasses would be lost: give numpy.asarray of each part",
        )

    def array(self, x: Any, name: str) -> Node:
        dtype = dtypes.name_of(x.dtype, name) if type(x) is np.ndarray else self.dtype(x, name)
        shape = x.shape
        region = _array_region(name, dtype, shape)
        self.holdings.append(Holding(region, "replicated", _ONE, [Part(Box.whole(shape), x)]))
        return Node("array", name, x, ())

    def opaque(self, x: Any, name: str, kind: Any, on_resize: Any = "refuse") -> Node:
        data, finite = None, True
        if not self.destination:
            content = x
            if kind == "per_owner" and stateful(x):
                content = _state_dict(x, name)
            data = values.encode(content, name)
            finite = not values.nonfinite(content)
        mode: Any = "per_owner" if kind == "per_owner" else "replicated"
        region = Region(name, "uint8", None, kind)
        self.holdings.append(Holding(region, mode, (0, 1), [], data, on_resize, finite))
        return Node("opaque", name, x, ())

    def wrapper(self, x: Any, name: str, depth: int) -> Node:
        if isinstance(x, Sharded):
            return self.sharded(x, name)
        if isinstance(x, Split):
            return self.split(x, name)
        content = x.content
        if isinstance(content, WRAPPERS):
            raise StateError(
                "a wrapper in a wrapper", region=name, found=f"{type(x).__name__}({type(content).__name__}(...))"
            )
        if isinstance(x, Replicated):
            return self.walk(content, name, depth)
        if isinstance(x, PerOwner):
            return self.opaque(content, name, "per_owner", x.on_resize)
        assert isinstance(x, Value)
        return self.opaque(content, name, "value")

    def sharded(self, x: Sharded, name: str) -> Node:
        dtype = None if x.dtype is None else dtypes.name_of(x.dtype, name)
        parts = []
        for array, at in x.parts:
            found = self.dtype(array, name)
            dtype = dtype or found
            if found != dtype:
                raise StateError("boxes of one region have different dtypes", region=name, expected=dtype, found=found)
            if not len(at) == len(array.shape) == len(x.shape):
                raise StateError(
                    "a box has another number of axes than its region",
                    region=name,
                    expected=f"{len(x.shape)} axes, for shape {x.shape}",
                    found=f"an array of shape {array.shape} at {at}",
                )
            box = Box(at, tuple(map(operator.add, at, array.shape)))
            box.check(x.shape, name)
            parts.append(Part(box, array))
        assert dtype is not None  # Sharded refuses to hold neither boxes nor dtype
        region = Region(name, dtype, x.shape, "array")
        self.holdings.append(Holding(region, "boxes", x.replica, parts))
        arrays = [part.array for part in parts]
        return Node("array", name, arrays[0], ()) if x.single else Node("arrays", name, arrays, ())

    def split(self, x: Split, name: str) -> Node:
        dtype = self.dtype(x.array, name)
        shape = tuple(x.array.shape)  # type: ignore[attr-defined]
        rule = Rule("balanced", 0)
        if not shape:
            raise StateError("an array without axes cannot be split", region=name, expected="1 axis or more", found="0")
        box = rule.box((x.length, *shape[1:]), self.role, self.owners)
        if box.shape != shape:
            raise StateError(
                "not this owner's share of a Split array",
                region=name,
                expected=f"shape {box.shape}: rows [{box.lo[0]}, {box.hi[0]}) of {x.length}, as owner {self.role} "
                f"of {self.owners}",
                found=f"shape {shape}",
                advice="give the rows shares(length, owners)[rank] of the whole array",
            )
        region = Region(name, dtype, (x.length, *shape[1:]), "array", rule)
        array: Any = x.array
        self.holdings.append(Holding(region, "boxes", (0, 1), [Part(box, array)]))
        return Node("array", name, array, ())
