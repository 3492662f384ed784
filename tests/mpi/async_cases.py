"""Saves in the background under MPI: see test_async.py."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
from mpi4py import MPI as MPI4PY

import mpickpt
from mpickpt import Checkpointer, PerOwner, Split, failpoints
from mpickpt.errors import CheckpointError

if TYPE_CHECKING:
    from mpi4py import MPI

ROWS = 1 << 14


def state(comm: MPI.Intracomm, step: int) -> dict[str, Any]:
    mine = len(mpickpt.shares(ROWS, comm.size)[comm.rank])
    return {
        "w": Split(np.full((mine, 16), 100 * step + comm.rank, np.float32), length=ROWS),
        "b": np.full(70_000, step, np.float64),
        "n": step,
        "own": PerOwner([comm.rank, step]),
    }


def held(comm: MPI.Intracomm, path: Path) -> tuple[int, bool]:
    """Resume what is newest; tell its step, and whether all of it is of that step."""
    mine = state(comm, 0)
    with Checkpointer(path, comm) as ckpt:
        run = ckpt.resume(mine, readonly=True)
    step = run.step
    whole = (
        (mine["w"].array == 100 * step + comm.rank).all()
        and (mine["b"] == step).all()
        and run.value("n") == step
        and run.value("own") == [comm.rank, step]
    )
    return step, bool(whole)


@rank.case
def a_loop_of_its_own_messages_goes_on_beside_the_saves(comm: MPI.Intracomm, directory: Path) -> Any:
    """The caller computes, and sends and reduces on its own communicator, while saves are in flight."""
    path = directory / "run"
    total = np.zeros(1)
    with Checkpointer(path, comm, async_=True, deadline=20.0) as ckpt:
        ckpt.resume(state(comm, 0))
        for step in range(1, 9):
            mine = state(comm, step)
            made = ckpt.save(mine, step=step, cursor=10 * step)
            mine["w"].array[:] = mine["b"][:] = -1  # never reaches the file
            while True:
                comm.Allreduce(np.ones(1), total)
                assert total[0] == comm.size
                # All leave this loop together.
                left = np.array([made.durable], np.int32)
                comm.Allreduce(MPI4PY.IN_PLACE, left, MPI4PY.MIN)
                if left[0]:
                    break
    return held(comm, path)


@rank.case
def a_failure_at_one_owner_is_raised_by_all_at_their_next_call(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner's disk fails in the background."""
    path = directory / "run"
    told: list[Any] = []
    with Checkpointer(path, comm, async_=True, deadline=10.0) as ckpt:
        ckpt.save(state(comm, 1), step=1)
        for number, place in enumerate(("writer.created", "writer.synced", "save.agreed", "save.heard")):

            def fail(name: str, place: str = place) -> None:
                if name == place and comm.rank == comm.size - 1:
                    raise mpickpt.StoreError("injected", errno=28)

            ckpt.latest()  # no save is in flight while the failpoint is set
            failpoints.hook = fail
            try:
                made = ckpt.save(state(comm, 10 + number), step=10 + number)
                with contextlib.suppress(CheckpointError):
                    made.wait(30)
            finally:
                failpoints.hook = None
            try:
                ckpt.save(state(comm, 20 + number), step=20 + number)
            except CheckpointError as error:
                told.append([type(error).__name__, error.role, f"step {10 + number}" in str(error), made.durable])
            ckpt.save(state(comm, 10 + number), step=10 + number)
    return [told, *held(comm, path)]


@rank.case
def an_error_at_each_failpoint_of_a_save(comm: MPI.Intracomm, directory: Path) -> Any:
    """At each place that a save in the background comes to, at the first and at the last owner that comes there.

    Gives for each: place, owner that failed, the outcomes of all, whether the generation is there, whether the save
    after that is durable.
    """
    path, told = directory / "run", list[Any]()
    with Checkpointer(path, comm, async_=True, deadline=10.0, keep=1) as ckpt:
        ckpt.save(state(comm, 1), step=1)
        reached = set[str]()
        with _hooked(ckpt, reached.add):
            ckpt.save(state(comm, 2), step=2).wait(30)
        places = comm.allgather(reached)
        step = 2
        for place in sorted(set.union(*places)):
            there = [role for role, names in enumerate(places) if place in names]
            for failing in sorted({there[0], there[-1]}):

                def fail(name: str, place: str = place, failing: int = failing) -> None:
                    if name == place and comm.rank == failing:
                        raise mpickpt.StoreError("injected", errno=28)

                with _hooked(ckpt, fail):
                    made = ckpt.save(state(comm, step + 1), step=step + 1)
                    with contextlib.suppress(CheckpointError):
                        made.wait(30)
                    next_call = rank.attempt(ckpt.latest)  # whichever it is
                outcomes = comm.allgather(_outcome(next_call, made))
                newest = ckpt.latest()
                assert newest is not None
                again = ckpt.save(state(comm, step + 2), step=step + 2)
                again.wait(30)
                told.append([place, failing, outcomes, newest.step == step + 1, again.durable])
                step += 2
    return [told, held(comm, path) == (step, True)]


def _outcome(next_call: dict[str, Any], made: mpickpt.Save) -> list[Any]:
    """Say how a save ended for one owner: whether it was durable, and what its next call raised."""
    raised = next_call.get("raised")
    return [made.durable, None if raised is None else raised.get("record") or raised["message"]]


@contextlib.contextmanager
def _hooked(ckpt: Checkpointer, hook: Any) -> Iterator[None]:
    """Set a hook while no save of this owner is in flight, nor an older one's removal."""
    with contextlib.suppress(CheckpointError):
        ckpt.latest()
    ckpt._saving.await_rotation()
    failpoints.hook = hook
    try:
        yield
        ckpt._saving.await_rotation()
    finally:
        failpoints.hook = None


@rank.case
def memory_descriptors_and_threads_stay_flat(comm: MPI.Intracomm, directory: Path) -> Any:
    """Over as many saves as SAVES says; gives what each owner has more at the end than it had after fifty."""
    saves, mine = int(os.environ.get("SAVES", "100")), {"w": np.zeros(1000), "own": PerOwner([comm.rank]), "n": 0}
    with Checkpointer(directory / "run", comm, async_=True, keep=1, deadline=20.0) as ckpt:
        for step in range(saves):
            mine["n"] = step
            mine["w"][:] = step
            ckpt.save(mine, step=step)
            if step == 50:
                before = _settled(ckpt)
        end = time.monotonic() + 5
        after = _settled(ckpt)
        while after[1:] > before[1:] and time.monotonic() < end:
            time.sleep(0.01)
            after = _now()  # each owner looks as often as it likes: not collective
    return [one - other for one, other in zip(after, before, strict=True)]


def _settled(ckpt: Checkpointer) -> list[int]:
    """Give resident bytes, descriptors, threads, with no save in flight and no garbage."""
    ckpt.latest()
    ckpt._saving.await_rotation()
    return _now()


def _now() -> list[int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return [pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), threading.active_count()]


@rank.case
def owners_that_take_turns_in_coming_late_do_not_hang(comm: MPI.Intracomm, directory: Path) -> Any:
    """Each save begins at one owner a while after it began at the others, which go on computing."""
    path = directory / "run"
    with Checkpointer(path, comm, async_=True, deadline=10.0) as ckpt:
        for step in range(6):
            if step % comm.size == comm.rank:
                time.sleep(0.1)
            ckpt.save(state(comm, step), step=step)
    return held(comm, path)


@rank.case
def one_owner_saves_in_the_background_and_the_others_do_not(comm: MPI.Intracomm, directory: Path) -> Any:
    """It is one save all the same."""
    path = directory / "run"
    with Checkpointer(path, comm, deadline=10.0) as ckpt:
        for step in range(4):
            ckpt.save(state(comm, step), step=step, async_=step % comm.size == comm.rank)
    return held(comm, path)


@rank.case
def a_gathered_save_in_the_background(comm: MPI.Intracomm, directory: Path) -> Any:
    """Bytes travel to owner 0 beside the caller's own messages."""
    path = directory / "run"
    with Checkpointer(path, comm, write="gather", async_=True, deadline=20.0) as ckpt:
        for step in range(3):
            ckpt.save(state(comm, step), step=step)
            for _ in range(20):
                comm.Barrier()
    return held(comm, path)


if __name__ == "__main__":
    rank.main()
