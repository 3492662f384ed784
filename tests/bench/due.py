"""What `due` costs a step: ``mpirun -n 4 python -m mpi4py tests/bench/due.py DIR [--steps 300] [--ms 5]``.

A step computes for some milliseconds and adds up an array over all owners, as data-parallel training does. Blocks of
steps with and without `due` alternate, so that both see the same machine. Printed, of the slowest owner: the step
without `due` and with it, the time that the caller spends in the call, and how much of it computing; the rest is
waiting for other owners, which it would otherwise wait for in the next sum.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from mpi4py import MPI

import mpickpt


def trainer(comm: MPI.Intracomm, seconds: float) -> Callable[[], None]:
    """Give a step: matrix products for so many seconds, then a sum over all owners."""
    a, gradient = np.ones((128, 128), np.float32), np.ones(25_000, np.float32)
    began = time.perf_counter()
    for _ in range(200):
        a @ a
    products = max(1, round(seconds * 200 / (time.perf_counter() - began)))
    products = int(comm.allreduce(products, MPI.MIN))

    def step() -> None:
        for _ in range(products):
            a @ a
        comm.Allreduce(MPI.IN_PLACE, gradient)
        gradient[:] = 1

    return step


def main() -> None:
    """Measure, and print one line of JSON at owner 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--steps", type=int, default=300, help="of a block (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=10, help="of each kind (default: %(default)s)")
    parser.add_argument("--ms", type=float, default=5.0, help="of computing a step (default: %(default)s)")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    train = trainer(comm, options.ms / 1000)
    blocks: dict[bool, list[float]] = {False: [], True: []}
    inside: list[float] = []
    computing: list[float] = []
    with mpickpt.Checkpointer(options.store, comm, every_seconds=1e6) as ckpt:
        ckpt.resume({"w": np.zeros(4)})
        step = 0
        for block in range(2 * options.blocks + 2):
            asking = bool(block % 2)
            comm.Barrier()
            began, spent = time.perf_counter(), []
            for _ in range(options.steps):
                train()
                step += 1
                if asking:
                    at, cpu = time.perf_counter(), time.thread_time()
                    ckpt.due(step)
                    spent.append(time.perf_counter() - at)
                    computing.append(time.thread_time() - cpu)
            took = (time.perf_counter() - began) / options.steps
            if block >= 2:  # the first of each warms up
                blocks[asking].append(took)
                inside += spent
    mine = np.array([np.median(blocks[False]), np.median(blocks[True]), np.median(inside), np.median(computing)])
    comm.Allreduce(MPI.IN_PLACE, mine, MPI.MAX)
    if comm.rank == 0:
        names = ("step", "step with due", "in due", "of it computing")
        found: dict[str, object] = {name: round(1e6 * value, 1) for name, value in zip(names, mine, strict=True)}
        print(json.dumps({"owners": comm.size, "mpi": MPI.Get_library_version()[:24], "microseconds": found}))


if __name__ == "__main__":
    main()
