"""One rank of small.py: saves or restores many small arrays and reports the slowest owner's seconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import mpickpt

ELEMENTS = 256  # of float32: 1 KiB


def held(table: np.ndarray[Any, Any], how: str, comm: MPI.Intracomm) -> dict[str, Any]:
    """Give the state: every row of `table` an array, whole at every owner, or its elements in shares."""
    if how == "replicated":
        return {f"layer{i}": row for i, row in enumerate(table)}
    mine = mpickpt.shares(ELEMENTS, comm.size)[comm.rank]
    return {f"layer{i}": mpickpt.Split(row[mine.start : mine.stop], length=ELEMENTS) for i, row in enumerate(table)}


def main() -> None:
    """Do what the arguments say: ``save|load STORE COUNT replicated|split SAVES``."""
    what, store, count, how, saves = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    comm = MPI.COMM_WORLD
    table = np.random.default_rng(5).integers(0, 1 << 20, (count, ELEMENTS)).astype(np.float32)
    took: list[float] = []

    def timed(call: Callable[[], object]) -> None:
        comm.Barrier()
        began = time.perf_counter()
        call()
        slowest = np.array([time.perf_counter() - began])
        comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        took.append(float(slowest[0]))

    with mpickpt.Checkpointer(store, comm, keep=1) as ckpt:
        if what == "save":
            ckpt.resume({"nothing": np.zeros(1)})
            for step in range(saves):
                timed(lambda step=step: ckpt.save(held(table + step, how, comm), step=step))  # type: ignore[misc]
        else:
            filled = np.full_like(table, -1.0)
            timed(lambda: ckpt.resume(held(filled, how, comm)))
            mine = filled != -1.0
            assert np.array_equal(filled[mine], (table + (saves - 1))[mine])
            assert mine.sum() >= count * ELEMENTS // comm.size
    if comm.rank == 0:
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
