"""A save is accepted exactly when each copy of each region is tiled once: real saves, at 1 owner and at 4 in a tree."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crashkit
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import mpickpt
from mpickpt import Sharded
from mpickpt.cluster.topology import Topology
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CoverageError, StateError
from mpickpt.state.region import Box

Shape = tuple[int, ...]
Held = tuple[int, int, Box]
"""(role, copy, box)"""

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder() -> Iterator[Path]:
    shm = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="mpickpt-", dir=shm if shm.is_dir() else None))
    yield path
    shutil.rmtree(path)


@st.composite
def decompositions(draw: st.DrawFn, owners: int) -> tuple[Shape, int, list[Held]]:
    """Cut a region again and again; give each box of each copy to an owner that holds no other copy, in any order."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 6))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(box.lo[axis], box.hi[axis]))
        halves = (
            Box(box.lo, (*box.hi[:axis], cut, *box.hi[axis + 1 :])),
            Box((*box.lo[:axis], cut, *box.lo[axis + 1 :]), box.hi),
        )
        boxes += [half for half in halves if not half.empty]
    copies = draw(st.integers(1, owners))
    held = []
    for copy in range(copies):
        roles = [role for role in range(owners) if role % copies == copy]
        held += [(draw(st.sampled_from(roles)), copy, box) for box in boxes]
    return shape, copies, draw(st.permutations(held))


KINDS = ("gap", "overlap", "shift", "claimed twice", "copy doubled, another missing", "an owner in another's copy")


def plant(draw: st.DrawFn, kind: str, shape: Shape, copies: int, held: list[Held]) -> list[Held] | None:
    """Plant a fault of one kind; None where these boxes leave no room for it."""
    index = draw(st.integers(0, len(held) - 1))
    role, copy, box = held[index]
    wide = [axis for axis, end in enumerate(shape) if box.hi[axis] < end]
    if kind == "gap":
        return held[:index] + held[index + 1 :]
    if kind == "claimed twice":
        return [*held, held[index]]
    if kind == "overlap" and wide:
        axis = draw(st.sampled_from(wide))
        grown = Box(box.lo, tuple(n + (a == axis) for a, n in enumerate(box.hi)))
        return [*held[:index], (role, copy, grown), *held[index + 1 :]]
    if kind == "shift" and (axes := [*wide, *(axis for axis, n in enumerate(box.lo) if n > 0)]):
        axis = draw(st.sampled_from(axes))
        by = 1 if axis in wide else -1
        ends = (tuple(n + by * (a == axis) for a, n in enumerate(end)) for end in (box.lo, box.hi))
        return [*held[:index], (role, copy, Box(*ends)), *held[index + 1 :]]
    other = (copy + 1) % copies
    if kind == "copy doubled, another missing" and copies > 1:  # every byte of it is there as often as it should be
        return [(r, other if c == copy else c, b) for r, c, b in held]
    if kind == "an owner in another's copy" and copies > 1:
        return [(r, other if r == role else c, b) for r, c, b in held]
    return None


@st.composite
def faults(draw: st.DrawFn, kind: str, owners: int) -> tuple[Shape, int, list[Held]]:
    """Give a decomposition with one fault of a kind."""
    shape, copies, held = draw(decompositions(owners))
    broken = plant(draw, kind, shape, copies, held)
    assume(broken is not None)
    assert broken is not None
    return shape, copies, broken


def save(path: Path, owners: int, shape: Shape, copies: int, held: list[Held]) -> list[Any]:
    """Save what owners hold, each a thread; give each one's outcome: the root, or what was raised."""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    def one(wires: Wiring) -> Any:
        mine = [(copy, box) for role, copy, box in held if role == wires.role]
        copy = mine[0][0] if mine else wires.role % copies
        parts = [(values[box.relative(Box.whole(shape))], box.lo) for _, box in mine]
        state = {"w": Sharded(parts, shape=shape, dtype=values.dtype, replica=(copy, copies)), "n": 1}
        with mpickpt.Checkpointer(path, wires, deadline=20, contract=mpickpt.Contract(placement="free")) as ckpt:
            try:
                return ckpt.save(state, step=1).root
            except (CoverageError, StateError) as error:
                return type(error).__name__, error.region, error.message

    return crashkit.local(owners, one, topology=Topology.of("tree", owners, 2))


@pytest.mark.parametrize("owners", [1, 4])
@QUICK
@given(st.data())
def test_each_tiling_is_saved_and_read_back(folder: Path, owners: int, data: st.DataObject) -> None:
    shape, copies, held = data.draw(decompositions(owners))
    path = Path(tempfile.mkdtemp(dir=folder)) / "run"
    (root, *others) = save(path, owners, shape, copies, held)
    assert isinstance(root, str), root
    assert others == [root] * (owners - 1)
    whole = mpickpt.open_store(path).read()["w"]
    np.testing.assert_array_equal(whole, np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


@pytest.mark.parametrize(("owners", "kind"), [(4, kind) for kind in KINDS] + [(1, kind) for kind in KINDS[:4]])
@settings(QUICK, max_examples=15)
@given(st.data())
def test_each_planted_fault_is_refused_at_all_owners(folder: Path, owners: int, kind: str, data: st.DataObject) -> None:
    shape, copies, broken = data.draw(faults(kind, owners))
    path = Path(tempfile.mkdtemp(dir=folder)) / "run"
    (first, *others) = save(path, owners, shape, copies, broken)
    assert first[:2] == ("CoverageError", "w"), first
    assert others == [first] * (owners - 1)
    assert mpickpt.open_store(path).generations() == []
