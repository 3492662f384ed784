"""`resume(low_memory=True)`: verified first and nothing kept, then read right into the caller's arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpickpt
from mpickpt import Checkpointer, failpoints
from mpickpt.errors import IntegrityError, NonFiniteError, SchemaError, StateError

CHUNKS = 3 * (4 << 20) // 8 + 5  # float64 elements: three whole chunks and a part of one


class Model:
    """Something of the caller's that holds its own arrays."""

    def __init__(self, fill: float) -> None:
        self.weights = np.full(1000, fill)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "layers": 3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["layers"] != 3:
            raise ValueError("another model")
        self.weights = state["weights"].copy()


def state(fill: float) -> dict[str, Any]:
    """One of everything that a destination may hold."""
    rng = np.random.default_rng(int(fill))
    columns = np.zeros((700, 900), np.float32)[:, ::3]
    columns[:] = fill
    return {
        "big": np.full(CHUNKS, fill),
        "small": [np.full(n, fill, np.int32) for n in (1, 2, 1000)],
        "scalar": np.full((), fill),
        "empty": np.empty((0, 3)),
        "columns": columns,
        "fortran": np.full((50, 60), fill, order="F"),
        "swapped": np.full(1000, fill, ">f8"),
        "boxes": mpickpt.Sharded(
            [(np.full((2, 8), fill), (0, 0)), (np.full((2, 8), fill + 1), (2, 0))], shape=(4, 8), dtype="f8"
        ),
        "model": Model(fill),
        "rng": mpickpt.PerOwner(rng),
        "list": mpickpt.Value([fill, {"lr": fill}]),
        "lr": fill,
    }


def check(found: dict[str, Any], fill: float) -> None:
    want = state(fill)
    for name in ("big", "scalar", "empty", "columns", "fortran", "swapped"):
        np.testing.assert_array_equal(found[name], want[name], err_msg=name)
    for one, two in zip(found["small"], want["small"], strict=True):
        np.testing.assert_array_equal(one, two)
    for (one, _), (two, _) in zip(found["boxes"].parts, want["boxes"].parts, strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(found["model"].weights, want["model"].weights)
    assert found["rng"].content.random() == want["rng"].content.random()
    assert found["list"].content == want["list"].content
    assert found["lr"] == fill


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(state(3.0), step=3)
    return tmp_path / "run"


@pytest.fixture
def agreed() -> Iterator[list[Any]]:
    """Do what is in the list once all owners have agreed, before anything is filled."""
    acts: list[Any] = []

    def hook(name: str) -> None:
        if name == "resume.agreed":
            for act in acts:
                act()

    failpoints.hook = hook
    yield acts
    failpoints.hook = None


def shard(run: Path) -> Path:
    return next(run.glob("data/*/*/*.safetensors"))


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("level", ["full", "fast"])
def test_all_kinds_of_destinations_are_filled(run: Path, level: Any) -> None:
    mine = state(9.0)
    with Checkpointer(run) as ckpt:
        found = ckpt.resume(mine, low_memory=True, level=level)
        assert found.step == 3
        assert found.value("big") is mine["big"]
        assert found.state["big"] is mine["big"]
        check(mine, 3.0)
        ckpt.save(mine, step=4)


def test_new_arrays_come_as_ever(run: Path) -> None:
    locked = np.zeros((50, 60))
    locked.flags.writeable = False
    mine = state(9.0) | {"big": mpickpt.Spec((CHUNKS,), "f8"), "fortran": locked}
    with Checkpointer(run) as ckpt:
        found = ckpt.resume(mine, low_memory=True)
    assert (found.state["big"] == 3.0).all()
    assert (found.state["fortran"] == 3.0).all()
    assert not locked.any()


def test_whole_regions_without_a_destination(run: Path) -> None:
    with Checkpointer(run) as ckpt:
        assert (ckpt.resume(low_memory=True).state["big"] == 3.0).all()


def test_a_fresh_start(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.resume(state(1.0), low_memory=True).fresh
        ckpt.save(state(1.0), step=1)


def test_tied_arrays_are_compared_before_either_is_filled(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save({"a": np.arange(5), "b": np.arange(5), "c": np.arange(5)}, step=1)
        ckpt.save({"a": np.arange(5), "b": np.arange(5) + 1, "c": np.arange(5)}, step=2)
    tied, other = np.zeros(5, int), np.zeros(5, int)
    with Checkpointer(tmp_path / "run") as ckpt:
        with pytest.raises(StateError, match="share memory"):
            ckpt.resume({"a": tied, "b": tied, "c": other}, low_memory=True)
        assert not tied.any()
        assert not other.any()
        ckpt.resume({"a": tied, "b": tied, "c": other}, low_memory=True, step=1)
    np.testing.assert_array_equal(tied, np.arange(5))
    np.testing.assert_array_equal(other, np.arange(5))


def test_an_array_and_one_within_a_value_may_not_be_the_same_memory(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save({"a": np.arange(5), "own": mpickpt.PerOwner(np.arange(5))}, step=1)
    same = np.zeros(5, int)
    with Checkpointer(tmp_path / "run") as ckpt:
        with pytest.raises(StateError, match="share memory"):
            ckpt.resume({"a": same, "own": mpickpt.PerOwner(same)}, low_memory=True)
        assert not same.any()


def test_damage_is_found_before_anything_is_touched(run: Path) -> None:
    flip(shard(run))
    mine = state(9.0)
    with Checkpointer(run) as ckpt, pytest.raises(IntegrityError):
        ckpt.resume(mine, low_memory=True)
    check(mine, 9.0)


@pytest.mark.parametrize("size", [1000, CHUNKS])
def test_a_nan_is_found_before_anything_is_touched(tmp_path: Path, size: int) -> None:
    array = np.zeros(size)
    array[size // 2 + 1] = np.nan
    with Checkpointer(tmp_path / "run", nonfinite="allow") as ckpt:
        ckpt.save({"w": array}, step=1)
    mine = np.ones(size)
    with Checkpointer(tmp_path / "run") as ckpt, pytest.raises(NonFiniteError) as caught:
        ckpt.resume({"w": mine}, low_memory=True)
    assert caught.value.found == f"nan at index ({size // 2 + 1},)"
    assert (mine == 1).all()


def test_another_shape_is_found_before_anything_is_touched(run: Path) -> None:
    mine = state(9.0) | {"scalar": np.zeros(2)}
    with Checkpointer(run) as ckpt, pytest.raises(SchemaError):
        ckpt.resume(mine, low_memory=True)
    assert (mine["big"] == 9.0).all()


def test_damage_between_the_readings_leaves_an_undefined_state_that_is_never_saved(
    run: Path, agreed: list[Any]
) -> None:
    mine, whole = state(9.0), shard(run).read_bytes()
    agreed.append(lambda: flip(shard(run)))
    with Checkpointer(run) as ckpt:
        with pytest.raises(IntegrityError) as caught:
            ckpt.resume(mine, low_memory=True)
        assert "undefined" in str(caught.value.unharmed)
        assert "do not train on" in str(caught.value.advice)
        agreed.clear()
        for _ in range(2):
            with pytest.raises(StateError, match="the last resume failed"):
                ckpt.save(mine, step=4)
        with pytest.raises(IntegrityError):  # still damaged, and so still refused
            ckpt.resume(mine, low_memory=True)
        with pytest.raises(StateError, match="the last resume failed"):
            ckpt.save(mine, step=4, async_=True).wait(30)
        with pytest.raises(StateError, match="the last resume failed"):
            ckpt.latest()
        shard(run).write_bytes(whole)
        ckpt.resume(mine, low_memory=True)
        check(mine, 3.0)
        ckpt.save(mine, step=4)


def test_after_an_evaluation_that_failed_while_filling_nothing_is_saved(run: Path, agreed: list[Any]) -> None:
    """`readonly` takes no epoch, so that the older claim would still let it save."""
    mine = state(3.0)
    with Checkpointer(run) as ckpt:
        ckpt.resume(mine)
        whole = shard(run).read_bytes()
        agreed.append(lambda: flip(shard(run)))
        with pytest.raises(IntegrityError):
            ckpt.resume(mine, low_memory=True, readonly=True)
        agreed.clear()
        with pytest.raises(StateError, match="the last resume failed"):
            ckpt.save(mine, step=4)
        shard(run).write_bytes(whole)
        ckpt.resume(mine, readonly=True)
        ckpt.save(mine, step=4)


def test_a_load_that_fails_leaves_nothing_to_save_either(run: Path) -> None:
    class Another(Model):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError("another model")

    mine = state(9.0) | {"model": Another(9.0)}
    with Checkpointer(run) as ckpt:
        with pytest.raises(StateError, match="another model"):
            ckpt.resume(mine)
        with pytest.raises(StateError, match="the last resume failed"):
            ckpt.save(mine, step=4)
