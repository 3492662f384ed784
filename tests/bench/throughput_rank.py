"""One rank of throughput.py: saves or restores a sharded state and reports the slowest owner's seconds."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI

import mpickpt

ARRAYS = 16


def boxes(rank: int, per_owner: int, fill: bool) -> list[np.ndarray]:
    """Make an owner's boxes of `ARRAYS` float32 arrays, `per_owner` bytes in all."""
    shape = (per_owner // ARRAYS // 4096, 1024)
    if fill:
        return [np.random.default_rng([rank, i]).random(shape, np.float32) for i in range(ARRAYS)]
    return [np.full(shape, -1, np.float32) for _ in range(ARRAYS)]


def main() -> None:
    """Do what the arguments say: ``save|load STORE BYTES-AN-OWNER WRITE``."""
    what, store, per_owner, write = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    comm = MPI.COMM_WORLD
    mine = boxes(comm.rank, per_owner, fill=what == "save")
    rows = len(mine[0])
    held = {
        f"layer{i:02d}": mpickpt.Sharded(box, shape=(rows * comm.size, 1024), at=(rows * comm.rank, 0))
        for i, box in enumerate(mine)
    }
    with mpickpt.Checkpointer(store, comm, write=write, keep=1) as ckpt:
        if what == "save":
            ckpt.resume(held)
        comm.Barrier()
        began = time.perf_counter()
        if what == "save":
            ckpt.save(held, step=1)
        else:
            ckpt.resume(held)
        slowest = np.array([time.perf_counter() - began])
        comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        if what == "load":
            assert all(map(np.array_equal, mine, boxes(comm.rank, per_owner, fill=True)))
    if comm.rank == 0:
        print(json.dumps({"seconds": slowest[0], "bytes": comm.size * per_owner}), flush=True)


if __name__ == "__main__":
    main()
