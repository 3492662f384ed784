"""Regions back to nested containers: into a destination, or as new containers from names alone."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mpickpt.errors import FormatError, SchemaError, StateError
from mpickpt.native import _native
from mpickpt.state import dtypes, generators, names, values
from mpickpt.state.apart import Copy, Setting, check_apart
from mpickpt.state.capture import CONTAINERS, Capture, Node, Part, Restored
from mpickpt.state.flatten import stateful
from mpickpt.state.layout import WRAPPERS, Spec
from mpickpt.state.names import Key
from mpickpt.state.places import Places
from mpickpt.state.region import Box, Shape
from mpickpt.state.targets import check_destination, fillable

_KINDS = frozenset(CONTAINERS) | {f"object {kind}" for kind in ("list", "tuple", "dict_int")}


def check_containers(containers: object, path: str | None = None) -> dict[str, str]:
    """Check container kinds that were read from a file.

    Raises
    ------
    FormatError
        Unless they map region names to kinds of containers.
    """
    if not isinstance(containers, Mapping):
        raise FormatError("the containers are no JSON object", path=path, found=type(containers).__name__)
    for name, kind in containers.items():
        names.split(name)
        if not isinstance(kind, str) or kind not in _KINDS:
            raise FormatError("unknown kind of container", region=name, path=path, found=repr(kind)[:100])
    return dict(containers)


def build(restored: Restored, containers: Mapping[str, str]) -> Any:
    """Build nested containers from names, where there is no destination.

    Parameters
    ----------
    restored : Restored
        Whole regions.
    containers : mapping
        Escaped path -> kind, as saved. Dataclasses and namedtuples become dicts of their fields, and objects
        what their state_dict() gave.

    Returns
    -------
    nested dicts, lists, tuples
        With NumPy arrays and values as leaves.

    Raises
    ------
    FormatError
        If names and containers contradict each other, or a value is malformed.
    """
    return _Tree(restored, containers, restored.arrays.keys() | restored.opaque.keys()).at("")


class _Leaf:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Tree:
    """Names as a tree of their escaped parts, turned into containers where asked for."""

    def __init__(self, restored: Restored, containers: Mapping[str, str], chosen: Iterable[str]) -> None:
        self.containers = containers
        self.root: dict[str, Any] | _Leaf | None = None
        for name in sorted(chosen):
            if name in restored.arrays:
                self.place(name, _Leaf(restored.arrays[name][0]))
            elif name in restored.opaque:
                self.place(name, _Leaf(values.decode(restored.opaque[name], name)))
        for name, kind in containers.items():
            self.place(name, None if kind == "object" else {})

    def place(self, name: str, what: dict[str, Any] | _Leaf | None) -> None:
        """Put a leaf at a name; or see to it that there is a container ({}), or anything at all (None)."""
        found = self.root if self.root is not None else {}
        parts = name.split("/") if name else []
        if not parts:
            self.root = self.fit(name, self.root, what)
            return
        self.root = found
        for at, part in enumerate(parts):
            if isinstance(found, _Leaf):
                raise self.both("/".join(parts[:at]))
            if at == len(parts) - 1:
                found[part] = self.fit(name, found.get(part), what)
            else:
                found = found.setdefault(part, {})

    def fit(self, name: str, there: Any, what: dict[str, Any] | _Leaf | None) -> Any:
        if there is None:
            return {} if what is None else what
        if what is not None and (isinstance(what, _Leaf) or isinstance(there, _Leaf)):
            raise self.both(name)
        return there

    def both(self, name: str) -> FormatError:
        return FormatError("a name is both a region and a container", region=name)

    def has(self, name: str) -> bool:
        return self.find(name) is not None

    def find(self, name: str) -> Any:
        found: Any = self.root
        for part in name.split("/") if name else ():
            if not isinstance(found, dict):
                return None
            found = found.get(part)
        return found

    def at(self, name: str) -> Any:
        found = self.find(name)
        return {} if found is None else self.turn(name, found)

    def turn(self, name: str, node: Any) -> Any:
        if isinstance(node, _Leaf):
            return node.value
        kind = self.containers.get(name, "dict").removeprefix("object ")
        found: dict[names.Key, Any] = {}
        for part, child in node.items():
            try:
                key = names.unescape(part)
            except FormatError as error:
                raise FormatError(error.message, region=names.below(name, part), found=error.found) from None
            if isinstance(key, int) and kind not in ("list", "tuple", "dict_int"):
                raise FormatError("an index below something that is no list", region=names.below(name, part))
            found[key] = self.turn(names.below(name, part), child)
        if kind not in ("list", "tuple"):
            return found
        if found.keys() != set(range(len(found))):
            raise FormatError(
                f"a {kind} with gaps", region=name, expected=f"#0 to #{len(found) - 1}", found=str(list(found)[:20])
            )
        items = [found[index] for index in range(len(found))]
        return items if kind == "list" else tuple(items)


def prepare(capture: Capture, restored: Restored, containers: Mapping[str, str]) -> Callable[[], Any]:
    """Work out how a destination is filled. All that can be refused is refused here, and nothing is changed yet.

    Parameters
    ----------
    capture : Capture
        Of ``flatten(..., destination=True)``.
    restored : Restored
        What was read for it. An array of the destination's own in there is filled otherwise.
    containers : mapping
        Escaped path -> kind, as saved.

    Returns
    -------
    callable
        Fills arrays, generators, and lists, dicts and sets of plain values in place, replaces plain values in the
        caller's own lists, dicts and dataclasses, then calls load_state_dict. It returns nested containers as the
        destination, unwrapped: the same arrays and objects where they were filled, new ones for what is immutable,
        for `Spec` and read-only arrays. Several boxes of one region are a list of arrays.

    Raises
    ------
    SchemaError
        If something the destination holds was not read, or has another shape, dtype or kind.
    FormatError
        If a value is malformed.
    StateError
        For a destination that cannot be filled.
    """
    check_destination(capture)
    filling = _Filling(capture, restored, containers)
    nest = filling.make(capture.nest)
    check_apart(filling.copies, filling.settings)

    def fill() -> Any:
        _copy([(target, source) for target, source, _ in filling.copies if source is not None])
        for generator, source, _ in filling.settings:
            generators.set_from(generator, source)
        for container, content in filling.contents:
            _refill(container, content)
        for container, key, value in filling.items:
            _put(container, key, value)
        for name, load, structure in filling.loads:
            try:
                load(structure)
            except Exception as error:
                raise StateError(
                    f"load_state_dict() raised {type(error).__name__}: {error}",
                    region=name,
                    unharmed="the checkpoint; the arrays of the destination hold it already",
                    advice="do not train on from here: the traceback is at that owner; mend it and resume again",
                ) from error
        return nest

    return fill


def commit(capture: Capture, restored: Restored, containers: Mapping[str, str]) -> Any:
    """Fill a destination at once: `prepare`, and what it gives."""
    return prepare(capture, restored, containers)()


def _copy(pairs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> None:
    """Copy each source to its target: in one call what needs no other order of bytes and has no gaps."""
    targets, sources = Places.of([target for target, _ in pairs]), Places.of([source for _, source in pairs])
    plain = targets.contiguous & targets.writeable & sources.contiguous & (targets.nbytes == sources.nbytes)
    plain &= np.fromiter((target.dtype == source.dtype for target, source in pairs), np.bool_, len(pairs))
    rows = np.column_stack((targets.addresses, sources.addresses, targets.nbytes))[plain]
    _native.copy_all(rows, np.zeros(1, np.int64))
    for at in np.flatnonzero(~plain).tolist():
        target, source = pairs[at]
        np.copyto(target, source, casting="equiv")


class _Filling:
    """Works out what is to be done to a destination, without doing any of it."""

    def __init__(self, capture: Capture, restored: Restored, containers: Mapping[str, str]) -> None:
        self.restored = restored
        self.holdings = {holding.region.name: holding for holding in capture.holdings}
        self.shapes: dict[Box, Shape] = {}  # of boxes, of which most are alike
        self.copies: list[Copy] = []
        self.settings: list[Setting] = []
        self.contents: list[tuple[Any, Any]] = []
        self.items: list[tuple[Any, Key, Any]] = []
        self.loads: list[tuple[str, Callable[[Any], object], Any]] = []
        if capture.open_prefixes:
            others = (restored.arrays.keys() | restored.opaque.keys()) - self.holdings.keys()
            self.tree = _Tree(restored, containers, others)

    def make(self, node: Node) -> Any:
        kind, original = node.kind, node.original
        if kind == "array":
            return self.arrays(node)[0]
        if kind == "arrays":
            return self.arrays(node)
        if kind == "opaque":
            return self.opaque(node)
        if kind == "object":
            if not self.tree.has(node.name):
                raise self.missing(node.name)
            self.loads.append((node.name, original.load_state_dict, self.tree.at(node.name)))
            return original
        children = [
            (key, self.arrays(child)[0] if child.kind == "array" else self.make(child)) for key, child in node.children
        ]
        if kind in ("list", "dict", "dataclass"):
            self.replace(original, node.children, children)
        if kind == "list":
            return [child for _, child in children]
        if kind == "tuple":
            return tuple(child for _, child in children)
        if kind == "namedtuple":
            return type(original)._make(child for _, child in children)
        if kind == "dataclass":
            made = object.__new__(type(original))
            for key, child in children:
                object.__setattr__(made, str(key), child)
            return made
        if type(original) is dict:
            return dict(children)
        same = copy.copy(original)
        for key, child in children:  # not update(): a Counter's adds
            same[key] = child
        return same

    def replace(self, container: Any, nodes: Sequence[tuple[Key, Node]], made: list[tuple[Key, Any]]) -> None:
        """Have plain values of the caller's own container replaced: a variable may hold it. Wrappers stay in it."""
        frozen = getattr(getattr(container, "__dataclass_params__", None), "frozen", False)
        if not frozen:
            values = zip(nodes, made, strict=True)
            self.items += [(container, key, value) for (key, node), (_, value) in values if node.kind == "opaque"]

    def refilled(self, container: Any, content: Any) -> Any:
        """Have a mutable container filled in place: the caller's own variable may hold it."""
        self.contents.append((container, content))
        return container

    def missing(self, name: str) -> SchemaError:
        return SchemaError(
            "the checkpoint has nothing for a part of the destination",
            region=name,
            expected="a saved region of this name",
            found="none",
            unharmed="nothing of the destination was changed",
        )

    def arrays(self, node: Node) -> list[Any]:
        name = node.name
        holding = self.holdings[name]
        found = self.restored.arrays.get(name)
        if found is None and all(part.box.empty for part in holding.parts):
            return [_nothing(part) for part in holding.parts]
        if found is None or len(found) != len(holding.parts):
            raise self.missing(name)
        dtype = holding.region.dtype
        made = []
        for part, source in zip(holding.parts, found, strict=True):
            target, box = part.array, part.box
            shape = self.shapes.get(box)
            if shape is None:
                shape = self.shapes[box] = box.shape
            if source.shape != shape or dtypes.name_of(source.dtype, name) != dtype:
                raise SchemaError(
                    "what was read does not fit the destination",
                    region=name,
                    expected=f"{dtype} of shape {shape}",
                    found=f"{source.dtype} of shape {source.shape}",
                    unharmed="nothing of the destination was changed",
                )
            if isinstance(target, Spec) or not target.flags.writeable:
                made.append(source)
            else:
                self.copies.append((target, None if target is source else source, name))
                made.append(target)
        return made

    def opaque(self, node: Node) -> Any:
        name = node.name
        if name in self.restored.dropped:
            return None
        data = self.restored.opaque.get(name)
        if data is not None:
            return self.merge(node.original, values.decode(data, name), name)
        if self.holdings[name].mode == "per_owner":
            return node.original
        raise self.missing(name)

    def merge(self, target: Any, value: Any, name: str) -> Any:
        """Give what stands for a decoded value in the nest: the destination's own object where it can be set."""
        if isinstance(target, generators.GENERATORS):
            if not isinstance(value, generators.GENERATORS) or not generators.same_kind(target, value):
                raise SchemaError(
                    "the destination's random generator is of another kind",
                    region=name,
                    expected=_kind(value),
                    found=_kind(target),
                    unharmed="nothing of the destination was changed",
                )
            self.settings.append((target, value, name))
            return target
        if isinstance(target, np.ndarray):
            if (
                isinstance(value, np.ndarray)
                and value.shape == target.shape
                and fillable(target)
                and value.dtype in (target.dtype, target.dtype.newbyteorder("<"))
            ):
                self.copies.append((target, value, name))
                return target
            return value
        if type(target) is type(value):
            if type(value) is dict and target.keys() == value.keys():
                value = {key: self.merge(target[key], item, name) for key, item in value.items()}
            elif type(value) in (list, tuple) and len(target) == len(value):
                value = type(value)(self.merge(one, two, name) for one, two in zip(target, value, strict=True))
            if type(value) in (list, dict, set, bytearray):
                return self.refilled(target, value)
        if stateful(target):
            self.loads.append((name, target.load_state_dict, value))
            return target
        return value


def _refill(container: Any, content: Any) -> None:
    """Give a list, dict, set or bytearray its content."""
    if isinstance(container, list | bytearray):
        container[:] = content
    else:
        container.clear()
        container.update(content)


def _put(container: Any, key: Key, value: Any) -> None:
    """Put a value into the caller's list, dict or dataclass, unless a wrapper stands there."""
    if dataclasses.is_dataclass(container):
        if not isinstance(getattr(container, str(key), None), WRAPPERS):
            setattr(container, str(key), value)
    elif not isinstance(container[key], WRAPPERS):
        container[key] = value


def _kind(x: Any) -> str:
    if isinstance(x, np.random.Generator):
        return f"numpy Generator over {type(x.bit_generator).__name__}"
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _nothing(part: Part) -> np.ndarray[Any, Any]:
    array = part.array
    return np.empty(array.shape, array.dtype) if isinstance(array, Spec) else array


__all__ = ["build", "check_containers", "commit", "prepare"]
