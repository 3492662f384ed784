"""30,000 arrays of 1 KiB, held in three ways: see test_many_arrays.py."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
from sameness import open_run, require, share_of

import mpickpt

if TYPE_CHECKING:
    from mpi4py import MPI
    from sameness import Array

COUNT = 30_000


def busy() -> float:
    """Give the seconds for which the cores of this machine have worked, whoever they worked for."""
    user, nice, system, _, _, hard, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + hard + soft) / os.sysconf("SC_CLK_TCK")


def seconds(comm: MPI.Intracomm, directory: Path, write: str, hold: Callable[[Array], Any]) -> dict[str, list[Any]]:
    """Save and resume twice, each resume by a new Checkpointer; time from the first start to the last end.

    `hold` gives the state for a table of all arrays. Of each call this owner tells the seconds that went by, those
    for which the cores were busy, and those for which they were busy with this owner.
    """
    took: dict[str, list[Any]] = {"save": [], "resume": []}

    def timed(what: str, call: Callable[[], Any]) -> None:
        rank.meet(comm)
        begun, worked, own = time.monotonic(), busy(), time.process_time()
        call()
        rank.meet(comm)
        took[what].append([time.monotonic() - begun, busy() - worked, time.process_time() - own])

    table = np.random.default_rng(5).integers(0, 1 << 20, (COUNT, 256)).astype(np.float32)
    with open_run(directory / "run", comm, write=write) as ckpt:
        for step in (1, 2):
            table += 1
            state = functools.partial(hold, table)
            timed("save", lambda state=state, step=step: ckpt.save(state(), step=step))  # type: ignore[misc]
    for _ in range(2):
        filled = np.full_like(table, -1.0)
        with open_run(directory / "run", comm, write=write) as ckpt:
            timed("resume", lambda filled=filled: ckpt.resume(hold(filled)))  # type: ignore[misc]
        mine = filled != -1.0
        require((filled[mine] == table[mine]).all(), "other arrays came back")
        require(mine.sum() >= COUNT * 256 // comm.Get_size(), "not all came back:", mine.sum())
    return took


@rank.case
def every_owner_holds_all(comm: MPI.Intracomm, directory: Path) -> dict[str, list[Any]]:
    return seconds(comm, directory, "each", lambda table: {f"layer{i}": row for i, row in enumerate(table)})


@rank.case
def every_owner_holds_a_quarter_of_each(comm: MPI.Intracomm, directory: Path) -> dict[str, list[Any]]:
    def hold(table: Array) -> Any:
        return {f"layer{i}": mpickpt.Split(share_of(row, comm), length=256) for i, row in enumerate(table)}

    return seconds(comm, directory, "each", hold)


@rank.case
def one_owner_holds_each_and_one_writes(comm: MPI.Intracomm, directory: Path) -> dict[str, list[Any]]:
    me, owners = comm.Get_rank(), comm.Get_size()
    return seconds(comm, directory, "gather", lambda table: {f"layer{i}": table[i] for i in range(me, COUNT, owners)})


if __name__ == "__main__":
    rank.main()
