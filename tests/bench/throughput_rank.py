"""One rank of throughput.py: saves or restores a sharded state and reports the slowest owner's seconds."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI

import mpickpt
from mpickpt.bench.measure import boxes, sharded
from mpickpt.bench.plan import ARRAYS, ROW


def main() -> None:
    """Do what the arguments say: ``save|load STORE BYTES-AN-OWNER WRITE``."""
    what, store, per_owner, write = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    comm = MPI.COMM_WORLD
    rows = per_owner // (ARRAYS * ROW * 4)
    mine = boxes(comm.rank, rows, fill=what == "save")
    held = sharded(mine, comm.rank, comm.size)
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
            assert all(map(np.array_equal, mine, boxes(comm.rank, rows, fill=True)))
    if comm.rank == 0:
        print(json.dumps({"seconds": slowest[0], "bytes": comm.size * per_owner}), flush=True)


if __name__ == "__main__":
    main()
