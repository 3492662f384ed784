"""Events of several owners: see test_events.py."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank

import mpickpt
from mpickpt import Checkpointer, PerOwner, Split, bar, failpoints

if TYPE_CHECKING:
    from mpi4py import MPI

ROWS = 1 << 14


def state(comm: MPI.Intracomm, step: int) -> dict[str, Any]:
    mine = len(mpickpt.shares(ROWS, comm.size)[comm.rank])
    return {
        "w": Split(np.full((mine, 64), step, np.float32), length=ROWS),
        "b": np.full(70_000, step, np.float64),
        "own": PerOwner(step),
    }


def told(comm: MPI.Intracomm, path: Path) -> list[dict[str, Any]]:
    """Give the events at owner 0."""
    rank.meet(comm)
    if comm.rank != 0:
        return []
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


@rank.case
def saves_are_told_once(comm: MPI.Intracomm, directory: Path) -> Any:
    """A star and a tree, each owner and gathered, at once and in the background; gathered, to a slow disk."""

    def slow(name: str) -> None:
        if name == "writer.synced":
            time.sleep(0.3)

    found: dict[str, Any] = {}
    for name, options in {
        "star": {"topology": "star"},
        "tree": {"topology": "tree", "fan_out": 2},
        "gather": {"topology": "star", "write": "gather"},
    }.items():
        path = directory / name
        with Checkpointer(path, comm, deadline=20.0, **options) as ckpt:  # type: ignore[arg-type]
            ckpt.resume(state(comm, 0))
            failpoints.hook = slow if name == "gather" else None
            ckpt.save(state(comm, 1), step=1)
            ckpt.save(state(comm, 2), step=2, async_=True)
            ckpt.save(state(comm, 3), step=3)
        failpoints.hook = None
        found[name] = told(comm, path)
    return found


@rank.case
def the_slowest_owner_is_named(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 comes a little late, and the disk of the last owner is slow, or its own: in a tree both are heard of."""
    path = directory / "run"
    slowest = comm.size - 1

    def slow(name: str) -> None:
        if name == "writer.synced" and comm.rank == slowest:
            time.sleep(0.5)

    with Checkpointer(path, comm, topology="tree", fan_out=2, deadline=20.0) as ckpt:
        ckpt.resume(state(comm, 0))
        ckpt.save(state(comm, 1), step=1)
        failpoints.hook = slow
        for step in (2, 3):
            rank.meet(comm)
            if comm.rank == 0 and comm.size > 1:
                time.sleep(0.3)
            ckpt.save(state(comm, step), step=step)
            slowest = 0
        failpoints.hook = None
    return told(comm, path)


@rank.case
def the_bar_knows_what_all_have_written(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 has done with its own part, and the others are slow: their beats tell how far they are."""
    last, seen = comm.size - 1, io.StringIO()
    sys.stderr, before = seen, sys.stderr
    bar._AFTER = bar._EVERY_LINE = 0.1

    def slow(name: str) -> None:
        if name == "writer.synced" and comm.rank == last:
            time.sleep(1.6)

    try:
        with Checkpointer(directory / "run", comm, progress=True, deadline=20.0) as ckpt:
            ckpt.resume(state(comm, 0))
            failpoints.hook = slow
            ckpt.save(state(comm, 1), step=1)
    finally:
        failpoints.hook, sys.stderr = None, before
    return seen.getvalue().splitlines()


@rank.case
def events_that_cannot_be_written_fail_nothing(comm: MPI.Intracomm, directory: Path) -> Any:
    """Where the file should be there is a directory."""
    if comm.rank == 0:
        (directory / "run" / "events.jsonl").mkdir(parents=True)
    rank.meet(comm)
    with Checkpointer(directory / "run", comm, deadline=20.0) as ckpt:
        ckpt.resume(state(comm, 0))
        for step in (1, 2):
            ckpt.save(state(comm, step), step=step)
        return [one.step for one in ckpt.generations()]


if __name__ == "__main__":
    rank.main()
