"""30,000 arrays of 1 KiB, held in three ways: see test_many_arrays.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
from sameness import open_run, require, share_of

from mpickpt import Split

if TYPE_CHECKING:
    from mpi4py import MPI
    from sameness import Array

COUNT = 30_000


def _measure(comm: MPI.Intracomm, path: Path, hold: Callable[[list[Array]], Any], write: str) -> dict[str, float]:
    """Save twice and resume; give the seconds from the first owner's start to the last one's end of each."""
    content = np.random.default_rng(5).standard_normal((COUNT, 256)).astype(np.float32)
    arrays = list(content)
    took: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        rank.meet(comm)
        begun = time.monotonic()
        found = call()
        rank.meet(comm)
        took[name] = time.monotonic() - begun
        return found

    with open_run(path, comm, write=write) as ckpt:
        timed("first save", lambda: ckpt.save(hold(arrays), step=1))
        content *= 2
        timed("second save", lambda: ckpt.save(hold(arrays), step=2))
    filled = np.zeros_like(content)
    with open_run(path, comm, write=write) as ckpt:
        timed("resume", lambda: ckpt.resume(hold(list(filled))))
    mine = hold([np.array([i], np.int32) for i in range(COUNT)] if False else list(range(COUNT)))  # type: ignore[arg-type]
    del mine
    return took
