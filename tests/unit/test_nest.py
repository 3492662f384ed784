"""Nested containers to regions: names, what is descended into, what is refused."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from nests import Mutable, Pair, Slotted, Stateful

from mpickpt.errors import FormatError, StateError
from mpickpt.state.layout import PerOwner, Replicated, Sharded, Spec, Split, Value
from mpickpt.state.nest import (
    escape,
    flatten,
    join,
    split,
)
from mpickpt.state.region import Box, Rule


def names_of(state: Any) -> dict[str, str]:
    return {h.region.name: h.region.kind for h in flatten(state, 0, 1).holdings}


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("w", "w"),
        ("a/b", "a%2Fb"),
        ("%", "%25"),
        ("", "%"),
        ("[0:1],#", "%5B0%3A1%5D%2C%23"),
        ("a b\"'\\", "a b\"'\\"),
        ("é中", "é中"),
        ("\x00\n\x7f\x85", "%00%0A%7F%C2%85"),
        (3, "#3"),
        (-3, "#-3"),
        ("3", "3"),
        ("#3", "%233"),
    ],
)
def test_escape_literals(key: Any, part: str) -> None:
    assert escape(key) == part
    assert split(part) == (key,)


def test_paths() -> None:
    assert join(["a", "b/c", 0]) == "a/b%2Fc/#0"
    assert split("a/b%2Fc/#0") == ("a", "b/c", 0)
    assert (join([]), split("")) == ("", ())
    assert join([""]) != join([])
    assert join(["", ""]) == "%/%"


@pytest.mark.parametrize(
    "name",
    [
        "/",
        "a/",
        "a//b",
        "%41",
        "%2f",
        "%G0",
        "%2",
        "%FF",
        "#",
        "#03",
        "#-0",
        "#x",
        "#+1",
        "a:b",
        "a\n",
        "#٣",
        "%ED%A0%80",
        "\ud800",
    ],
)
def test_names_that_nobody_writes(name: str) -> None:
    with pytest.raises(FormatError):
        split(name)


@pytest.mark.parametrize("key", ["\ud800", 1.5, None, True, (1,), b"a", 10**19])
def test_keys_that_are_no_names(key: Any) -> None:
    with pytest.raises(StateError):
        escape(key)
    with pytest.raises(StateError) as caught:
        flatten({"opt": {key: np.zeros(1), 0: 1} if not isinstance(key, str) else {key: np.zeros(1)}}, 0, 1)
    assert caught.value.region == "opt"


# -- flatten ----------------------------------------------------------------------------------------------------------


def test_regions_are_ordered_and_containers_named() -> None:
    capture = flatten(
        {"b": np.zeros(2), "a": [np.zeros(1), (np.zeros(1),)], "B": {1: np.zeros(1), "x": {}}, "e": {}, "v": [1, 2]},
        0,
        1,
    )
    assert [h.region.name for h in capture.holdings] == ["B/#1", "a/#0", "a/#1/#0", "b", "v"]
    assert capture.containers == {"a": "list", "a/#1": "tuple", "B": "dict_int", "B/x": "dict", "e": "dict"}
    assert capture.open_prefixes == []


def test_names_that_differ_only_by_how_they_join() -> None:
    state = {"a/b": np.zeros(1), "a": {"b": np.ones(1), "": np.ones(2)}, "": np.zeros(3)}
    assert sorted(names_of(state)) == ["%", "a%2Fb", "a/%", "a/b"]


def test_what_is_one_value_and_what_is_descended_into() -> None:
    kinds = names_of(
        {
            "plain": [1, {"x": (2,)}],
            "ints": {1: 2},
            "empty": [],
            "rngs": [np.random.default_rng(1), 3],
            "own": [PerOwner(3)],
            "pair": Pair(1, 2),
            "data": [Mutable(1)],
            "set": {1, 2},
            "object": [Stateful({"a": 1})],
        }
    )
    assert kinds == {
        "plain": "value",
        "ints": "value",
        "empty": "value",
        "rngs/#0": "value",
        "rngs/#1": "value",
        "own/#0": "per_owner",
        "pair/left": "value",
        "pair/right": "value",
        "data/#0/w": "value",
        "data/#0/lr": "value",
        "data/#0/step": "value",
        "set": "value",
        "object/#0/a": "value",
    }


def test_sharded_holdings() -> None:
    x, y = np.zeros((2, 3), "float32"), np.ones((1, 3), "float32")
    capture = flatten(
        {
            "one": Sharded(x, shape=(4, 3), at=(2, 0), replica=(1, 2)),
            "two": Sharded([(x, (0, 0)), (y, (3, 0))], shape=(4, 3)),
            "none": Sharded([], shape=(4, 3), dtype="bfloat16"),
        },
        0,
        1,
    )
    none, one, two = capture.holdings
    assert (one.mode, one.copy, one.region.shape, one.parts[0].box) == ("boxes", (1, 2), (4, 3), Box((2, 0), (4, 3)))
    assert one.parts[0].array is x
    assert [part.box.text() for part in two.parts] == ["0:2,0:3", "3:4,0:3"]
    assert (none.parts, none.region.dtype, none.region.rule) == ([], "bfloat16", None)


def test_split_follows_the_rule_with_fewer_rows_than_owners() -> None:
    for role, rows in enumerate([1, 1, 0]):
        (holding,) = flatten(Split(np.zeros((rows, 4)), length=2), role, 3).holdings
        assert holding.region.shape == (2, 4)
        assert holding.region.rule == Rule("balanced", 0)
        assert holding.parts[0].box == Box((min(role, 2), 0), (min(role, 2) + rows, 4))


@pytest.mark.parametrize(
    "state",
    [
        Sharded(np.zeros((2, 3)), shape=(4, 3), at=(3, 0)),
        Sharded(np.zeros((2, 3)), shape=(4, 3), at=(-1, 0)),
        Sharded(np.zeros((2, 3)), shape=(4, 3, 1), at=(0, 0, 0)),
        Sharded(np.zeros((2, 3)), shape=(4, 3), at=(0,)),
        Sharded([(3, (0,))], shape=(4,)),
        Sharded([(np.zeros(1), (0,)), (np.zeros(1, "f4"), (1,))], shape=(4,)),
        Sharded(np.zeros(1), shape=(4,), at=(0,), dtype="float32"),
        Split(np.zeros((2, 3)), length=4),
        Split(np.zeros(()), length=1),
        Split([1.0], length=1),
        Spec((2,), "float32"),
        Split(Spec((2,), "float32"), length=3),
        PerOwner(PerOwner(1)),
        Replicated(Value(1)),
        np.zeros(2, "longdouble"),
        np.array([None]),
        np.array(["a"]),
        np.ma.masked_array([1.0], [True]),
        [np.ma.masked_array([1.0], [True])],
        np.zeros(2).view(np.recarray),
        object(),
        PerOwner(object()),
        Value(Mutable(1)),
        random.SystemRandom(),
        Stateful({"inner": Stateful({})}),
        Stateful({"pair": Pair(1, 2)}),
        Stateful({"data": Mutable(1)}),
        {1.5: np.zeros(1)},
        {True: np.zeros(1)},
    ],
    ids=lambda x: type(x).__name__,
)
def test_states_that_cannot_be_saved_exactly(state: Any) -> None:
    with pytest.raises(StateError) as caught:
        flatten({"here": state}, 1, 3)
    assert caught.value.region is not None
    assert caught.value.region.startswith("here")


def test_array_likes_from_elsewhere_are_refused() -> None:
    class Tensor:
        def __array__(self) -> Any:
            raise AssertionError("it must not be converted silently")

    with pytest.raises(StateError, match="plain NumPy array"):
        flatten([Tensor(), np.zeros(1)], 0, 1)


def test_containers_that_hold_themselves() -> None:
    loop: dict[str, Any] = {"w": np.zeros(1)}
    loop["self"] = [loop]
    with pytest.raises(StateError, match="itself"):
        flatten(loop, 0, 1)
    deep: Any = np.zeros(1)
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(StateError, match="deeply"):
        flatten(deep, 0, 1)
    odd = Stateful()
    odd.content = {"me": [np.zeros(1), odd]}
    with pytest.raises(StateError):
        flatten(odd, 0, 1)


def test_one_array_under_two_names_and_one_list_in_two_places() -> None:
    w, shared = np.zeros(3), [np.ones(1)]
    assert list(names_of({"a": w, "b": w, "c": shared, "d": shared})) == ["a", "b", "c/#0", "d/#0"]


def test_a_field_without_a_value_is_refused() -> None:
    unset = object.__new__(Slotted)
    with pytest.raises(StateError):
        flatten(unset, 0, 1)


def test_values_say_whether_they_are_finite() -> None:
    found = {
        h.region.name: h.finite
        for h in flatten({"a": 1.0, "b": [float("inf")], "c": PerOwner(float("nan"))}, 0, 1).holdings
    }
    assert found == {"a": True, "b": False, "c": False}


def test_thirty_thousand_arrays_flatten_quickly() -> None:
    state = {f"layer{i}": {f"w{j}": np.zeros(4) for j in range(10)} for i in range(3000)}

    def seconds(size: int) -> float:
        part = dict(list(state.items())[:size])
        took = []
        for _ in range(3):
            start = time.process_time()
            flatten(part, 0, 4)
            took.append(time.process_time() - start)
        return min(took)

    assert seconds(3000) < 2.0  # about 0.1 s; the rest is room for a loaded machine
