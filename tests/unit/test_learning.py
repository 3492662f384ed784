"""Data-parallel learners: their identity, their inputs, the state of an optimizer that is cut by coordinates."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpickpt
from mpickpt import Contract, learning
from mpickpt.errors import StateError

X = np.arange(60, dtype=np.float32).reshape(12, 5)
W = {"w": np.zeros(5, np.float32), "layers": [np.ones((2, 2)), np.array(3.0)]}


def identity(**changed: Any) -> dict[str, Any]:
    return learning.identity(**{"program": "p", "initial": W, "rate": 0.1, "inputs": X, **changed})


@given(st.lists(st.integers(0, 12), max_size=6))
def test_how_the_inputs_are_split_leaves_no_trace(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), 12]
    split = [X[a:b] for a, b in itertools.pairwise(bounds)]
    assert identity(inputs=split) == identity()
    assert identity(inputs=X.astype(">f4")[::-1][::-1]) == identity()


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"program": "q"}, ["identity.program"]),
        ({"rate": np.float32(0.1)}, ["identity.rate"]),
        ({"initial": {**W, "w": W["w"] - 0.0}}, []),
        ({"initial": {**W, "w": -W["w"]}}, ["identity.initial.w"]),  # minus zero is another number
        ({"initial": {"w": W["w"], "layers": [np.ones(4), np.array(3.0)]}}, ["identity.initial.layers"]),
        ({"initial": 7}, ["identity.initial", "identity.initial.layers", "identity.initial.w"]),
        ({"inputs": [X[6:], X[:6]]}, ["identity.inputs.digest"]),  # another order of owners
        ({"inputs": X[:11]}, ["identity.inputs.count", "identity.inputs.digest"]),
        ({"inputs": X.astype(np.float64)}, ["identity.inputs.digest"]),
        ({"inputs": X.reshape(12, 5, 1)}, ["identity.inputs.digest"]),
        ({"inputs": "mnist"}, ["identity.inputs", "identity.inputs.count", "identity.inputs.digest"]),
        ({"seed": 3}, ["identity.seed"]),
    ],
)
def test_what_makes_another_learner_is_named(changed: dict[str, Any], fields: list[str]) -> None:
    differences = Contract(identity=identity()).differences(Contract(identity=identity(**changed)))
    assert [name for name, _, _ in differences] == fields


def test_shares_of_different_inputs_are_refused() -> None:
    for shares in ([X, X.astype(np.float64)], [X, X[:, :4]]):
        with pytest.raises(StateError, match="different inputs"):
            identity(inputs=shares)
        with pytest.raises(StateError, match="different inputs"):
            learning.repartition(shares, 2)


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))
def test_repartition_keeps_the_order_and_follows_the_rule(length: int, before: int, now: int) -> None:
    inputs = np.arange(length)
    again = learning.repartition(learning.repartition(inputs, before), now)
    assert [share.tolist() for share in again] == [list(share) for share in mpickpt.shares(length, now)]
    assert np.concatenate(again).tolist() == inputs.tolist()
    assert learning.repartition([str(i) for i in range(length)], now) == [
        [str(i) for i in share] for share in mpickpt.shares(length, now)
    ]
    assert [learning.coordinates(length, now, role) for role in range(now)] == [
        slice(share.start, share.stop) for share in mpickpt.shares(length, now)
    ]


def test_repartition_refuses_what_is_no_sequence_and_no_count() -> None:
    for inputs, owners in ((iter([1]), 2), (X, 0), (5, 1), (X, -1)):
        with pytest.raises(StateError):
            learning.repartition(inputs, owners)
    with pytest.raises(StateError, match="no such role"):
        learning.coordinates(5, 2, 2)


def test_numerics_name_versions_if_asked() -> None:
    assert learning.numerics(dtype="f4", combine="role order") == {
        "dtype": "float32", "combine": "role order", "tree": "star",
    }  # fmt: skip
    found = learning.numerics(dtype=np.float64, combine="pairs", tree=2, versions=["numpy"], fused=False)
    assert found["versions"] == {"numpy": np.__version__}
    assert (found["dtype"], found["tree"], found["fused"]) == ("float64", 2, False)
    with pytest.raises(StateError, match="nothing that is installed"):
        learning.numerics(dtype="f4", combine="", versions=["no-such-thing"])


def test_partitioned_state_of_an_optimizer_comes_back(tmp_path: Any) -> None:
    def state(fill: float) -> dict[str, Any]:
        own = {"m": np.full(7, fill, np.float32), "v": np.full(7, fill * fill, np.float32)}
        return learning.partitioned(7, own, {"step": int(fill), "power": np.array(0.9**fill, np.float32)})

    with mpickpt.Checkpointer(tmp_path, alone=True) as ckpt:
        ckpt.resume(state(0))
        ckpt.save(state(3), step=3)
    with mpickpt.Checkpointer(tmp_path, alone=True) as ckpt:
        run = ckpt.resume(state(0))
    assert run.value("step") == 3
    assert run.value("power") == np.float32(0.9**3)
    assert run.value("v").tolist() == [9.0] * 7
    with pytest.raises(StateError, match="vector and of a word"):
        learning.partitioned(7, {"m": np.zeros(7)}, {"m": 1})
