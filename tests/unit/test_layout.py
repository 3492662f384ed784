"""What wrappers take and refuse by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpickpt.errors import StateError
from mpickpt.state.layout import PerOwner, Replicated, Sharded, Spec, Split, Value

X = np.zeros((2, 3))


def test_sharded_forms() -> None:
    one = Sharded(X, shape=(4, 3), at=(2, 0))
    assert (one.single, one.parts[0][1], one.shape, one.replica) == (True, (2, 0), (4, 3), (0, 1))
    many = Sharded([(X, (0, 0)), (X, np.array([2, 0]))], shape=[4, 3], replica=(1, 2))
    assert (many.single, [at for _, at in many.parts], many.replica) == (False, [(0, 0), (2, 0)], (1, 2))
    none = Sharded([], shape=(4, 3), dtype="bfloat16")
    assert none.parts == []
    assert str(none.dtype) == "bfloat16"


@pytest.mark.parametrize(
    ("array", "arguments"),
    [
        (X, {"shape": (4, 3)}),
        (X, {"shape": 4, "at": (0, 0)}),
        (X, {"shape": (4, -3), "at": (0, 0)}),
        (X, {"shape": (4, 3.0), "at": (0, 0)}),
        (X, {"shape": (4, True), "at": (0, 0)}),
        (X, {"shape": "43", "at": (0, 0)}),
        (X, {"shape": (4, 3), "at": (0.5, 0)}),
        (X, {"shape": (4, 3), "at": 0}),
        (X, {"shape": (4, 3), "at": (0, 0), "replica": (2, 2)}),
        (X, {"shape": (4, 3), "at": (0, 0), "replica": (-1, 2)}),
        (X, {"shape": (4, 3), "at": (0, 0), "replica": (0, 0)}),
        (X, {"shape": (4, 3), "at": (0, 0), "replica": (0,)}),
        (X, {"shape": (4, 3), "at": (0, 0), "replica": 2}),
        (X, {"shape": (4, 3), "at": (0, 0), "dtype": "longdouble"}),
        ([], {"shape": (4, 3)}),
        ([X], {"shape": (4, 3)}),
        ([(X, (0, 0), 1)], {"shape": (4, 3)}),
        ([(X, (0, 0))], {"shape": (4, 3), "at": (0, 0)}),
    ],
)
def test_sharded_refuses(array: Any, arguments: Any) -> None:
    with pytest.raises(StateError):
        Sharded(array, **arguments)


@pytest.mark.parametrize("length", [-1, 2.5, "3", None, True])
def test_split_refuses(length: Any) -> None:
    with pytest.raises(StateError):
        Split(X, length=length)


@pytest.mark.parametrize(("shape", "dtype"), [((-1,), "f4"), (3, "f4"), ((3,), "object"), ((3,), None), ((3,), "S4")])
def test_spec_refuses(shape: Any, dtype: Any) -> None:
    with pytest.raises(StateError):
        Spec(shape, dtype)


def test_per_owner_refuses_unknown_on_resize() -> None:
    assert PerOwner(3).on_resize == "refuse"
    assert PerOwner(3, on_resize="keep").on_resize == "keep"
    with pytest.raises(StateError):
        PerOwner(3, on_resize="maybe")  # type: ignore[arg-type]


def test_wrappers_show_what_they_are() -> None:
    shown = [repr(x) for x in (Replicated(X), Value(3), PerOwner(X), Split(X, length=2), Spec((2,), "float32"))]
    assert shown == [
        "Replicated(ndarray)",
        "Value(int)",
        "PerOwner(ndarray, on_resize='refuse')",
        "Split(length=2)",
        "Spec((2,), 'float32')",
    ]
    assert repr(Sharded(X, shape=(2, 3), at=(0, 0))) == "Sharded(1 boxes, shape=(2, 3), replica=(0, 1))"
