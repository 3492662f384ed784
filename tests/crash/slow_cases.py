"""Saves at a slow file system, made to happen on real owners; test_slow.py says what must come."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crashkit
import numpy as np
import rank
from scene import patched

import mpickpt
from mpickpt import Split, _native
from mpickpt.cluster.channel import SYNC_PATIENCE
from mpickpt.format.shard import CHUNK

if TYPE_CHECKING:
    from mpi4py import MPI

DEADLINE = 1.0
CHUNKS = 6
"""So many chunks of 4 MiB each owner writes where they are throttled."""


def _slowly(
    comm: MPI.Intracomm, directory: Path, fault: Callable[[], Any], chunks: int = 1, **options: Any
) -> dict[str, Any]:
    """Save once with a fault and once without; give what came, how long the first took, and what is listed."""
    role, owners = comm.Get_rank(), comm.Get_size()
    rows = owners * ((chunks - 1) * CHUNK + 1000)
    mine = crashkit.rows(role, owners, rows)

    def state(step: int) -> dict[str, Any]:
        return {"m": Split(np.full(len(mine), step, np.uint8), length=rows), "w": np.full(3, 1.0 * step)}

    with mpickpt.Checkpointer(directory / "run", comm, **{"deadline": DEADLINE, **options}) as ckpt:
        ckpt.resume(state(0))
        first = state(1)
        with fault():
            found = rank.attempt(lambda: ckpt.save(first, step=1).root)
        rank.meet(comm)
        if role == 0:
            found["listed"] = sorted(crashkit.listed(directory / "run").items())
        second = state(2)
        rank.meet(comm)  # so that none comes late to it
        found["next"] = ckpt.save(second, step=2).root
    return found


@contextlib.contextmanager
def _throttled(comm: MPI.Intracomm, role: int, seconds: float, name: str = "writer.chunk") -> Iterator[None]:
    """Let an owner's writer sleep after each chunk; one thread at a time, as a slow disk does."""
    turn = threading.Lock()

    def wait() -> None:
        with turn:
            time.sleep(seconds)

    with rank.fault(name, wait, role=role, again=True, comm=comm):
        yield


@contextlib.contextmanager
def _slow_sync(comm: MPI.Intracomm, role: int, suffix: str, seconds: float) -> Iterator[None]:
    """Let an owner's sync of one kind of file take long; of a temporary file, that of the root."""
    real = _native.fsync

    def fsync(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if comm.Get_rank() == role and (name.endswith(suffix) or ("/.tmp-" in name and suffix == ".tmp")):
            time.sleep(seconds)
        real(fd)

    with patched(_native, "fsync", fsync):
        yield


# --- progress


@rank.case
def writes_that_take_three_deadlines_at_owner_0(comm: MPI.Intracomm, directory: Path) -> Any:
    return _slowly(comm, directory, lambda: _throttled(comm, 0, 3.2 * DEADLINE / CHUNKS), CHUNKS)


@rank.case
def writes_that_take_three_deadlines_at_the_last_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    return _slowly(comm, directory, lambda: _throttled(comm, comm.Get_size() - 1, 3.2 * DEADLINE / CHUNKS), CHUNKS)


@rank.case
def writes_that_take_three_deadlines_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    pause = 3.2 * DEADLINE / (CHUNKS * comm.Get_size())
    return _slowly(comm, directory, lambda: _throttled(comm, 0, pause), CHUNKS, write="gather")


# --- none


@rank.case
def one_chunk_that_takes_three_deadlines_at_owner_0(comm: MPI.Intracomm, directory: Path) -> Any:
    return _slowly(comm, directory, lambda: _throttled(comm, 0, 3 * DEADLINE))


@rank.case
def one_chunk_that_takes_three_deadlines_at_the_last_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    return _slowly(comm, directory, lambda: _throttled(comm, comm.Get_size() - 1, 3 * DEADLINE))


@rank.case
def one_chunk_that_takes_three_deadlines_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    return _slowly(comm, directory, lambda: _throttled(comm, 0, 3 * DEADLINE), write="gather")


@rank.case
def the_space_of_a_shard_that_takes_three_deadlines(comm: MPI.Intracomm, directory: Path) -> Any:
    return _slowly(comm, directory, lambda: _throttled(comm, comm.Get_size() - 1, 3 * DEADLINE, "writer.created"))


# --- syncs


@rank.case
def a_sync_of_five_deadlines_of_a_shard(comm: MPI.Intracomm, directory: Path) -> Any:
    last = comm.Get_size() - 1
    return _slowly(comm, directory, lambda: _slow_sync(comm, last, f"{last:06d}.safetensors", 5 * DEADLINE))


@rank.case
def a_sync_of_five_deadlines_of_a_manifest(comm: MPI.Intracomm, directory: Path) -> Any:
    last = comm.Get_size() - 1
    return _slowly(comm, directory, lambda: _slow_sync(comm, last, f"{last:06d}.json", 5 * DEADLINE))


@rank.case
def a_sync_of_five_deadlines_of_the_root(comm: MPI.Intracomm, directory: Path) -> Any:
    return _slowly(comm, directory, lambda: _slow_sync(comm, 0, ".tmp", 5 * DEADLINE))


@rank.case
def a_sync_of_five_deadlines_of_the_roots_directory(comm: MPI.Intracomm, directory: Path) -> Any:
    return _slowly(comm, directory, lambda: _slow_sync(comm, 0, "/roots", 5 * DEADLINE))


@rank.case
def a_sync_of_five_deadlines_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    fault = lambda: _slow_sync(comm, 0, "000001.safetensors", 5 * DEADLINE)  # noqa: E731
    return _slowly(comm, directory, fault, write="gather")


@rank.case
def a_sync_that_never_ends(comm: MPI.Intracomm, directory: Path) -> Any:
    last, short = comm.Get_size() - 1, DEADLINE / 2
    fault = lambda: _slow_sync(comm, last, f"{last:06d}.safetensors", (SYNC_PATIENCE + 3) * short)  # noqa: E731
    return _slowly(comm, directory, fault, deadline=short)


if __name__ == "__main__":
    rank.main()
