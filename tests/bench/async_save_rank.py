"""The one owner of async_save.py: measures what the arguments say, and prints the figures as one line of JSON."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpickpt

ARRAYS = 16
BLOCK = 1.0  # seconds of training that are measured without a save
_python = ctypes.PyDLL(None)  # calls by way of this keep the interpreter lock


def state(size: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {f"layer{i:02d}": rng.random(size // ARRAYS // 4, np.float32) for i in range(ARRAYS)}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Saves:
    """Saves in the background, one step after the other."""

    def __init__(self, path: Path, held: dict[str, Any]) -> None:
        self.ckpt = mpickpt.Checkpointer(path, MPI.COMM_WORLD, async_=True, keep=1)
        self.ckpt.resume(held)
        self.held, self.step = held, 0
        self.began = self.returned = self.durable = 0.0

    def save(self) -> mpickpt.Save:
        self.step += 1
        self.began = time.perf_counter()
        made = self.ckpt.save(self.held, step=self.step)
        self.returned = time.perf_counter()
        made._root.add_done_callback(lambda _: setattr(self, "durable", time.perf_counter()))
        return made

    def rest(self) -> None:
        """Wait for everything, removal of the older generation included."""
        self.ckpt.latest()
        self.ckpt._saving.await_rotation()


def until_the_return(saves: Saves, runs: int) -> dict[str, Any]:
    """Time a call, and one copy of the same arrays by one thread into memory that has been touched, in turn."""
    held = list(saves.held.values())
    copies = [np.zeros_like(array) for array in held]
    figures: dict[str, list[float]] = {"first": [], "copy": [], "save": []}

    def copy() -> None:
        for one, other in zip(copies, held, strict=True):
            np.copyto(one, other)

    for run in range(runs + 1):
        copied = timed(copy)
        saves.save()
        taken = saves.returned - saves.began
        saves.rest()
        if run == 0:
            figures["first"].append(taken)
        else:
            figures["copy"].append(copied)
            figures["save"].append(taken)
    return figures


def compute() -> Callable[[], None]:
    """A step that computes: products of matrices that stay in the cache, and some Python."""
    a, b = np.random.default_rng(2).random((2, 192, 192))
    c = np.empty_like(a)

    def step() -> None:
        np.dot(a, b, out=c)
        for _ in range(200):
            pass

    return step


def talk() -> Callable[[], None]:
    """A step that sends and receives: 64 KiB to itself, and a sum over all owners."""
    comm, one, other, total = MPI.COMM_WORLD, np.zeros(1 << 13), np.zeros(1 << 13), np.zeros(64)

    def step() -> None:
        for _ in range(20):
            request = comm.Irecv(other, source=0, tag=1)
            comm.Send(one, dest=0, tag=1)
            request.Wait()
            comm.Allreduce(MPI.IN_PLACE, total)

    return step


def slowed(saves: Saves, runs: int, step: Callable[[], None]) -> dict[str, Any]:
    """Time a step with no save in flight, and with one, in turn: seconds, and by what part it takes longer.

    `computing` is the part of that for which this thread was at work, if more slowly; for the rest it had no core.
    """
    figures: dict[str, list[float]] = {"without": [], "with": [], "slowed": [], "computing": [], "save": []}

    def block(goes_on: Callable[[], bool]) -> tuple[float, float]:
        count, began, computed = 0, time.perf_counter(), time.thread_time()
        while goes_on():
            step()
            count += 1
        return (time.perf_counter() - began) / count, (time.thread_time() - computed) / count

    for run in range(runs + 1):
        saves.rest()
        end = time.perf_counter() + BLOCK
        before, computed = block(lambda end=end: time.perf_counter() < end)  # type: ignore[misc]
        made = saves.save()
        during, computing = block(lambda made=made: not made.durable)  # type: ignore[misc]
        if run:
            taken = saves.durable - saves.returned
            told = (before, during, during / before - 1, (computing - computed) / before, taken)
            for values, value in zip(figures.values(), told, strict=True):
                values.append(value)
    return figures


def locked(saves: Saves, runs: int, hold: float) -> dict[str, Any]:
    """Time a save while this thread waits for it, and while it holds the interpreter lock `hold` seconds at a time."""
    figures: dict[str, list[float]] = {"free": [], "held": []}
    for _ in range(runs + 1):
        for name in figures:
            saves.rest()
            made = saves.save()
            if name == "free":
                made.wait()
            while not made.durable:
                _python.usleep(int(hold * 1e6))
            figures[name].append(saves.durable - saves.returned)
    return {name: values[1:] for name, values in figures.items()}


def main() -> None:
    what, path, size, runs, hold = (
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
        float(sys.argv[5]),
    )
    saves = Saves(path, state(size))
    if what == "return":
        found = until_the_return(saves, runs)
    elif what == "lock":
        found = locked(saves, runs, hold)
    else:
        found = slowed(saves, runs, compute() if what == "compute" else talk())
    saves.rest()
    saves.ckpt.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
