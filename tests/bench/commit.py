"""What a save of almost nothing takes: ``mpirun -n N python -m mpi4py tests/bench/commit.py DIR [--saves 20]``.

Each owner holds a row of a small array, and all of them a number: so what is measured is agreement, files and their
syncs, commitments up the tree, the root, and the release. Printed: milliseconds of the slowest owner, median, least and
most, of all saves but the first, which agrees on the declarations. Where there are more owners than cores they wait for
each other's turn, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
from mpi4py import MPI

import mpickpt


def main() -> None:
    """Measure, and print one line of JSON at owner 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--saves", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--topology", choices=("auto", "star", "tree"), default="auto")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    row = np.full((1, 16), comm.rank, np.float32)
    took = []
    with mpickpt.Checkpointer(options.store, comm, keep=2, topology=options.topology) as ckpt:
        state = {"w": mpickpt.Sharded(row, shape=(comm.size, 16), at=(comm.rank, 0)), "lr": 0.1}
        ckpt.resume(state)
        for step in range(options.saves + 1):
            row += 1
            comm.Barrier()
            began = time.perf_counter()
            ckpt.save(state, step=step)
            slowest = np.array([time.perf_counter() - began])
            comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
            took.append(1000 * float(slowest[0]))
    if comm.rank == 0:
        first, *rest = took
        figures = {"median": statistics.median(rest), "min": min(rest), "max": max(rest), "first": first}
        told: dict[str, object] = {name: round(value, 1) for name, value in figures.items()}
        print(json.dumps({"owners": comm.size, "mpi": MPI.Get_library_version()[:24], "milliseconds": told}))


if __name__ == "__main__":
    main()
