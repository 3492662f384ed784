"""Regions back to nested containers: round trips, what a destination gets, what does not fit."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nests import Frozen, Mutable, Pair, Slotted, Stateful, through, whole

from mpickpt.errors import FormatError, SchemaError, StateError
from mpickpt.state import dtypes, values
from mpickpt.state.layout import PerOwner, Replicated, Sharded, Spec, Split, Value
from mpickpt.state.nest import (
    Restored,
    build,
    check_containers,
    check_destination,
    commit,
    flatten,
)

# -- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_arrays_of_every_dtype_and_memory_form(name: str) -> None:
    raw = np.arange(12 * dtypes.itemsize(name), dtype="uint8")
    base = (raw % 2 if name == "bool" else raw).view(dtypes.dtype_of(name)).reshape(3, 4)
    forms = {"c": base, "t": base.T, "step": base[::2, ::-1], "zero": base[1, 2, ...], "empty": base[:0]}
    forms["big"] = base.astype(base.dtype.newbyteorder(">"))
    forms["readonly"] = base.copy()
    forms["readonly"].flags.writeable = False
    targets = {key: np.zeros_like(array) for key, array in forms.items()}
    targets["readonly"].flags.writeable = False
    restored = through(forms, targets)
    for key, array in forms.items():
        little = dtypes.dtype_of(name)
        assert restored[key].astype(little).tobytes() == array.astype(little).tobytes()
        assert (restored[key] is targets[key]) == (key != "readonly")
    assert not targets["readonly"].view(np.uint8).any()


def test_memmaps_are_filled(tmp_path: Path) -> None:
    target = np.memmap(tmp_path / "m", "float32", "w+", shape=(3,))
    assert through({"m": np.arange(3, dtype="float32")}, {"m": target})["m"] is target
    assert list(target) == [0, 1, 2]


def test_containers_come_back_as_what_they_are() -> None:
    def state(x: float) -> dict[str, Any]:
        w = np.full(2, x)
        return {
            "list": [w.copy(), int(x)],
            "tuple": (w.copy(), {"k": w.copy()}),
            "ints": {3: w.copy(), "s": x},
            "pair": Pair(w.copy(), x),
            "mutable": Mutable(w.copy(), x),
            "frozen": Frozen(w.copy(), str(x)),
            "slotted": Slotted(w.copy()),
            "ordered": OrderedDict(z=w.copy(), a=x),
            "default": defaultdict(list, {"q": w.copy()}),
            "empty": {},
            "nothing": [],
            "none": (),
            "value": Value({1: x}),
            "plain": Replicated([x, (x,)]),
            "scalar": np.float32(x),
        }

    target = state(1.0)
    got = through(state(2.0), target)
    assert list(got) == list(target)
    assert got["list"][0] is target["list"][0]
    assert list(got["list"][0]) == [2.0, 2.0]
    assert (type(got["tuple"]), type(got["pair"]), got["pair"].right, got["list"][1]) == (tuple, Pair, 2.0, 2)
    assert (got["ints"]["s"], got["ints"][3] is target["ints"][3]) == (2.0, True)
    assert type(got["mutable"]) is Mutable
    assert (got["mutable"].lr, got["mutable"].step, target["mutable"].lr) == (2.0, 0, 2.0)
    assert (type(got["frozen"]), got["frozen"].name, type(got["slotted"])) == (Frozen, "2.0", Slotted)
    assert (type(got["ordered"]), list(got["ordered"]), got["ordered"]["a"]) == (OrderedDict, ["z", "a"], 2.0)
    assert got["default"].default_factory is list
    assert (got["empty"], got["nothing"], got["none"]) == ({}, [], ())
    assert (got["value"], got["plain"], type(got["scalar"])) == ({1: 2.0}, [2.0, (2.0,)], np.float32)
    assert target["default"]["q"][0] == 2.0


def test_build_without_a_destination() -> None:
    state = {
        "a": [np.arange(2), (np.zeros(()), {})],
        "i": {10: np.ones(1), 9: "x"},
        "e": {"f": {}},
        "v": [],
        "p": Pair(1, np.ones(1)),
    }
    saved = flatten(state, 0, 1)
    got = build(whole(saved), saved.containers)
    assert got["a"][0].tolist() == [0, 1]
    assert got["a"][1][1] == {}
    assert type(got["a"][1]) is tuple
    assert (got["i"][9], got["i"][10].tolist(), got["e"], got["v"]) == ("x", [1.0], {"f": {}}, [])
    assert got["p"]["left"] == 1


@pytest.mark.parametrize("state", [{}, [], None, 3, "x", (np.ones(2),), np.ones(2), {"": np.ones(1)}], ids=repr)
def test_any_state_at_the_root(state: Any) -> None:
    saved = flatten(state, 0, 1)
    got = build(whole(saved), saved.containers)
    assert type(got) is type(state)
    assert repr(got) == repr(state)


def test_lists_of_more_than_ten_keep_their_order() -> None:
    saved = flatten([np.full(1, i) for i in range(25)], 0, 1)
    assert [int(x[0]) for x in build(whole(saved), saved.containers)] == list(range(25))


def test_specs_and_several_boxes_become_arrays() -> None:
    x = np.arange(6.0).reshape(2, 3)
    saved = {"w": x, "s": Sharded([(x, (0, 0)), (x + 1, (2, 0))], shape=(4, 3)), "p": Split(x, length=2)}
    y = np.zeros((2, 3))
    target = {
        "w": Spec((2, 3), "float64"),
        "s": Sharded([(y, (0, 0)), (Spec((2, 3), "f8"), (2, 0))], shape=(4, 3)),
        "p": Split(Spec((2, 3), "f8"), length=2),
    }
    assert check_destination(flatten(target, 0, 1, destination=True)) == ["p", "s", "w"]
    got = through(saved, target)
    assert np.array_equal(got["w"], x)
    assert got["s"][0] is y
    assert np.array_equal(y, x)
    assert np.array_equal(got["s"][1], x + 1)
    assert np.array_equal(got["p"], x)


def test_empty_boxes_need_nothing_to_be_read() -> None:
    target = {
        "a": Split(np.zeros((0, 2)), length=1),
        "b": Split(Spec((0, 2), "f4"), length=1),
        "c": Sharded([], shape=(2,), dtype="f4"),
    }
    got = commit(flatten(target, 1, 2, destination=True), Restored(), {})
    assert got["a"] is target["a"].array  # type: ignore[attr-defined]
    assert (got["b"].shape, got["b"].dtype, got["c"]) == ((0, 2), np.float32, [])


# -- generators, values of one's own, objects -------------------------------------------------------------------------


def test_generators_are_set_in_place() -> None:
    saved = {"a": PerOwner(np.random.default_rng(1)), "b": random.Random(2), "c": [np.random.RandomState(3)]}
    rngs = (np.random.default_rng(9), random.Random(9), np.random.RandomState(9))
    got = through(saved, {"a": PerOwner(rngs[0]), "b": rngs[1], "c": [rngs[2]]})
    assert (got["a"] is rngs[0], got["b"] is rngs[1], got["c"][0] is rngs[2]) == (True, True, True)
    assert rngs[0].random() == np.random.default_rng(1).random()
    assert rngs[1].random() == random.Random(2).random()
    assert rngs[2].random_sample() == np.random.RandomState(3).random_sample()


def test_generators_within_one_opaque_region_are_set_in_place() -> None:
    rng = np.random.default_rng(9)
    got = through({"x": PerOwner({"rng": np.random.default_rng(1), "n": [1]})}, {"x": PerOwner({"rng": rng, "n": [0]})})
    assert got["x"] == {"rng": rng, "n": [1]}
    assert rng.random() == np.random.default_rng(1).random()


@pytest.mark.parametrize(
    "rng",
    [np.random.RandomState(1), np.random.Generator(np.random.MT19937(1)), random.Random(1)],
    ids=lambda x: type(x).__name__,
)
def test_a_generator_of_another_kind_is_refused_before_anything_is_touched(rng: Any) -> None:
    w = np.zeros(2)
    with pytest.raises(SchemaError) as caught:
        through({"a": np.ones(2), "r": PerOwner(np.random.default_rng(1))}, {"a": w, "r": PerOwner(rng)})
    assert caught.value.region == "r"
    assert not w.any()


def test_per_owner_arrays_and_objects() -> None:
    same, other, loader = np.zeros(3, "i4"), np.zeros(5, "i4"), Stateful()
    saved = {
        "a": PerOwner(np.arange(3, dtype="i4")),
        "b": PerOwner(np.arange(2, dtype="i4")),
        "c": PerOwner(Stateful({"at": 7})),
    }
    got = through(saved, {"a": PerOwner(same), "b": PerOwner(other), "c": PerOwner(loader)})
    assert got["a"] is same
    assert list(same) == [0, 1, 2]
    assert list(got["b"]) == [0, 1]
    assert not other.any()
    assert (got["c"] is loader, loader.loaded) == (True, [{"at": 7}])


def test_per_owner_kept_and_dropped() -> None:
    capture = flatten({"a": PerOwner(1, on_resize="keep"), "b": PerOwner(2, on_resize="drop")}, 0, 1, destination=True)
    assert [h.on_resize for h in capture.holdings] == ["keep", "drop"]
    assert commit(capture, Restored(dropped={"b"}), {}) == {"a": 1, "b": None}


def test_objects_get_what_was_saved_whatever_their_own_looks_like() -> None:
    content = {"state": {0: {"m": np.ones(2), "step": 3}, 1: {}}, "groups": [{"lr": 0.1, "params": [0, 1]}], "none": {}}
    target = Stateful({"state": {}})
    capture = flatten({"opt": target, "w": np.zeros(1)}, 0, 1, destination=True)
    assert capture.open_prefixes == ["opt"]
    assert [h.region.name for h in capture.holdings] == ["w"]
    got = through({"opt": Stateful(content), "w": np.ones(1)}, {"opt": target, "w": np.zeros(1)})
    assert got["opt"] is target
    (loaded,) = target.loaded
    assert loaded["state"][0]["m"].tolist() == [1, 1]
    assert (loaded["state"][0]["step"], loaded["state"][1], loaded["groups"], loaded["none"]) == (
        3,
        {},
        [{"lr": 0.1, "params": [0, 1]}],
        {},
    )


@pytest.mark.parametrize(
    "content", [{}, [], 3, (np.ones(1), 2), [np.ones(1)], {1: np.ones(1)}, {1: 2}, np.ones(1)], ids=repr
)
@pytest.mark.parametrize("at_root", [True, False])
def test_whatever_state_dict_gives_comes_back(content: Any, at_root: bool) -> None:
    target = Stateful()
    if at_root:
        through(Stateful(content), target)
    else:
        through({"a": {"o": Stateful(content), "other": 1}}, {"a": {"o": target, "other": 2}})
    assert type(target.loaded[0]) is type(content)
    assert repr(target.loaded[0]) == repr(content)


def test_objects_are_loaded_last() -> None:
    w, rng = np.zeros(1), np.random.default_rng(5)
    seen: list[Any] = []

    class Watching(Stateful):
        def load_state_dict(self, content: Any) -> None:
            seen.append((w[0], rng.bit_generator.state == np.random.default_rng(1).bit_generator.state))

    through(
        {"a": Stateful({"x": 1}), "r": np.random.default_rng(1), "z": np.ones(1)}, {"a": Watching(), "r": rng, "z": w}
    )
    assert seen == [(1.0, True)]


# -- destinations that do not fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "target", "region"),
    [
        ({"a": np.ones(2), "b": np.ones(2)}, {"a": np.zeros(2), "b": np.zeros(3)}, "b"),
        ({"a": np.ones(2), "b": np.ones(2)}, {"a": np.zeros(2), "b": np.zeros(2, "f4")}, "b"),
        ({"a": np.ones(2)}, {"a": np.zeros(2), "b": np.zeros(2)}, "b"),
        ({"a": np.ones(2)}, {"a": np.zeros(2), "b": Spec((2,), "f8")}, "b"),
        ({"a": np.ones(2)}, {"a": np.zeros(2), "b": 3}, "b"),
        ({"a": np.ones(2)}, {"a": np.zeros(2), "b": Stateful()}, "b"),
        ({"a": np.ones(2), "b": 3}, {"a": np.zeros(2), "b": np.random.default_rng(1)}, "b"),
    ],
)
def test_nothing_is_touched_where_something_does_not_fit(saved: Any, target: Any, region: str) -> None:
    with pytest.raises(SchemaError) as caught:
        through(saved, target)
    assert caught.value.region == region
    assert not target["a"].any()


def test_a_malformed_value_leaves_everything_as_it_was() -> None:
    w = np.zeros(1)
    capture = flatten({"w": w, "z": 1}, 0, 1, destination=True)
    with pytest.raises(FormatError):
        commit(capture, Restored({"w": [np.ones(1)]}, {"z": b'{"int":"x"}'}), {})
    assert not w.any()


def test_destinations_whose_elements_share_memory() -> None:
    target = np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,), writeable=True)
    capture = flatten({"w": target}, 0, 1, destination=True)
    with pytest.raises(StateError) as caught:
        check_destination(capture)
    assert caught.value.region == "w"
    fine = np.broadcast_to(np.zeros(1), (3,))
    assert check_destination(flatten({"w": fine}, 0, 1, destination=True)) == ["w"]


@pytest.mark.parametrize(
    ("names", "containers"),
    [
        (["a", "a/b"], {}),
        (["a/b"], {"a/b": "list"}),
        (["a"], {"a/b": "dict"}),
        (["a/#0", "a/#2"], {"a": "list"}),
        (["a/#-1"], {"a": "list"}),
        (["a/x"], {"a": "tuple"}),
        (["a/#0"], {}),
        (["a/#0"], {"a": "dataclass"}),
        (["a//b"], {}),
        (["", "a"], {}),
        (["%zz"], {}),
    ],
)
def test_names_that_make_no_nest(names: list[str], containers: dict[str, str]) -> None:
    with pytest.raises(FormatError):
        build(Restored({name: [np.zeros(1)] for name in names}), containers)


@pytest.mark.parametrize(
    "containers", [[], {"a": 1}, {"a": "pickle"}, {"a//b": "list"}, {"a": "object dict"}, {"a": None}]
)
def test_containers_from_a_file_are_checked(containers: Any) -> None:
    with pytest.raises(FormatError):
        check_containers(containers, "root")
    assert check_containers({"a": "object list", "": "tuple"}) == {"a": "object list", "": "tuple"}


def test_values_of_a_destination_are_not_looked_at() -> None:
    capture = flatten({"a": object(), "b": PerOwner(3)}, 0, 1, destination=True)
    assert [h.data for h in capture.holdings] == [None, None]
    got = commit(capture, Restored({}, {"a": values.encode(1), "b": values.encode(2)}), {})
    assert got == {"a": 1, "b": 2}


def test_plain_values_in_the_callers_own_containers_are_replaced_and_wrappers_stay() -> None:
    def state(n: int) -> dict[str, Any]:
        box = Sharded(np.full(3, float(n)), shape=(3,), at=(0,))
        return {"history": [n] * n, "settings": {"n": n, "seen": {n}}, "pair": (n, [n]), "boxes": {"w": box, "n": n}}

    saved = flatten(state(3), 0, 1)
    target = state(0)
    history, settings, inner, boxes = target["history"], target["settings"], target["pair"][1], target["boxes"]
    wrapper = boxes["w"]
    read = Restored(
        arrays={"boxes/w": [np.full(3, 3.0)]},
        opaque={holding.region.name: holding.data for holding in saved.holdings if holding.data is not None},
    )
    commit(flatten(target, 0, 1, destination=True), read, saved.containers)
    assert (history, settings, inner) == ([3, 3, 3], {"n": 3, "seen": {3}}, [3])
    assert boxes["w"] is wrapper
    assert boxes["n"] == 3
