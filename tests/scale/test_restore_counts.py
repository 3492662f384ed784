"""What a restore opens, at other owner counts and in other topologies: only files that hold a byte that is needed.

Owners are simulated (docs/scale.md) where real processes would take minutes; test_trees.py has real ones.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import treekit
from world import Owner, World, world_of

import mpickpt
from mpickpt.cluster.topology import Topology
from mpickpt.state.region import Box

ALIKE = ("model/large", "model/small", "opt/lr", "opt/betas")

#: Who saves and who restores: (kind, owners, fan-out) each.
CHANGES = {
    "64 -> 3, tree to star": (("tree", 64, 3), ("star", 3, 3)),
    "64 -> 3, star to tree": (("star", 64, 3), ("tree", 3, 2)),
    "64 -> 3, tree to tree": (("tree", 64, 16), ("tree", 3, 2)),
    "3 -> 64, star to tree": (("star", 3, 3), ("tree", 64, 16)),
    "3 -> 64, tree to star": (("tree", 3, 2), ("star", 64, 64)),
    "17 -> 5, tree to star": (("tree", 17, 2), ("star", 5, 5)),
    "17 -> 5, tree to another tree": (("tree", 17, 3), ("tree", 5, 2)),
    "17 -> 17, tree to star": (("tree", 17, 2), ("star", 17, 17)),
    "64 -> 64, tree to another tree": (("tree", 64, 3), ("tree", 64, 16)),
}


@contextlib.contextmanager
def opened_by(world: World, path: Path) -> Iterator[dict[int, list[str]]]:
    """List the files of attempts that each owner opens to read."""
    real, found = os.open, dict[int, list[str]]()

    def open_(file: Any, flags: int, *args: Any, **more: Any) -> int:
        name = os.path.relpath(os.fspath(file), path)
        if world.here is not None and name.startswith("data/") and not flags & (os.O_CREAT | os.O_DIRECTORY):
            found.setdefault(world.here.role, []).append(name.split("/", 2)[2])
        return real(file, flags, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_)
        yield found


def _asked(role: int, owners: int) -> dict[str, list[Box]]:
    """Give the boxes that an owner wants for itself."""
    state = treekit.state(role, owners, 0, own=False, copies=False)
    boxes, rows = state["model"]["boxes"].parts, mpickpt.shares(treekit.LENGTH, owners)[role]
    held = [Box(tuple(at), tuple(a + n for a, n in zip(at, array.shape, strict=True))) for array, at in boxes]
    return {"model/boxes": held, "opt/m": [Box((rows.start,), (rows.stop,))]}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_opened_that_holds_no_needed_byte(tmp_path: Path, change: str) -> None:
    (kind, before, fan_out), (other, after, wide) = CHANGES[change]
    path = tmp_path / "run"

    def save(owner: Owner) -> None:
        assert owner.wires is not None
        with mpickpt.Checkpointer(path, owner.wires) as ckpt:
            ckpt.save(treekit.state(owner.role, before, 1, own=False, copies=False), step=1)

    def restore(owner: Owner) -> None:
        assert owner.wires is not None
        with mpickpt.Checkpointer(path, owner.wires) as ckpt:
            state = treekit.state(owner.role, after, 0, own=False, copies=False)
            run = ckpt.resume(state, repartition=True)
            treekit.check(run.state, owner.role, after, 1, own=False, copies=False)

    with world_of(Topology.of(kind, before, fan_out)) as world:
        world.wire()
        world.run(save)
    with world_of(Topology.of(other, after, wide)) as world, opened_by(world, path) as opened:
        world.wire()
        world.run(restore)
    for role in range(after):
        mine, common = treekit.needed(path, _asked(role, after), ALIKE, None)
        found = opened.get(role, [])
        assert len(found) == len({*found}), "a file is opened twice"
        assert set(found) == (mine | common if role == 0 else mine), (role, set(found) ^ mine)
