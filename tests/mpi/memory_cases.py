"""How much memory saves and resumes take beside the state, as the kernel counts it: see test_memory.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank

import mpickpt
from mpickpt import Checkpointer, Replicated, Spec, Split, failpoints
from mpickpt.errors import CheckpointError

if TYPE_CHECKING:
    from mpi4py import MPI

rank.on_a_host_of_its_own()

MIB = 1 << 20
OWN, ALIKE = 192 * MIB, 64 * MIB  # bytes of each owner


def state(comm: MPI.Intracomm, fill: float) -> dict[str, Any]:
    """Make a state of `OWN` and `ALIKE` bytes an owner, the latter the same on all."""
    rows = OWN // 4096
    return {
        "own": Split(np.full((rows, 512), fill + comm.rank), length=rows * comm.size),
        "alike": np.full(ALIKE // 8, fill),
        "n": fill,
    }


def holds(comm: MPI.Intracomm, mine: dict[str, Any], fill: float) -> bool:
    return bool((mine["own"].array == fill + comm.rank).all() and (mine["alike"] == fill).all())


def extra(work: Callable[[], object]) -> int:
    """Do some work; give by how many bytes this process was at most greater meanwhile than before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _told("VmRSS")
    work()
    return _told("VmHWM") - before


def _told(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


@rank.case
def saves(comm: MPI.Intracomm, directory: Path) -> Any:
    """At once; gathered; with a bound; in the background, twice."""
    mine, found = state(comm, 1.0), {}
    ways: dict[str, dict[str, Any]] = {
        "at once": {},
        "gathered": {"write": "gather"},
        "sha256": {"digest": "sha256"},
        "bounded": {"digest": "sha256", "staging_bytes": 4 * MIB},
        "gathered, bounded": {"write": "gather", "staging_bytes": 8 * MIB},
        "in the background": {"async_": True},
    }
    for name, options in ways.items():
        with Checkpointer(directory / name, comm, keep=1, deadline=60.0, **options) as ckpt:
            ckpt.save({"w": np.arange(3)}, step=0).wait()
            found[name] = extra(lambda c=ckpt: c.save(mine, step=1).wait())  # type: ignore[misc]
            if name == "in the background":
                found["again"] = extra(lambda c=ckpt: c.save(mine, step=2).wait())  # type: ignore[misc]
    return found


@rank.case
def resumes(comm: MPI.Intracomm, directory: Path) -> Any:
    """By way of private memory, and right into the arrays; both give the same."""
    path, mine = directory / "run", state(comm, 1.0)
    with Checkpointer(path, comm, deadline=60.0) as ckpt:
        ckpt.save(mine, step=1)
    found = {}
    for low in (False, True):
        mine["own"].array[:] = mine["alike"][:] = -1
        with Checkpointer(path, comm, deadline=60.0) as ckpt:
            found["low" if low else "usual"] = extra(lambda c=ckpt, low=low: c.resume(mine, low_memory=low))  # type: ignore[misc]
        assert holds(comm, mine, 1.0)
    return found


ROWS = 1 << 16


def small(comm: MPI.Intracomm, fill: float) -> dict[str, Any]:
    mine = len(mpickpt.shares(ROWS, comm.size)[comm.rank])
    return {
        "own": Split(np.full((mine, 32), fill + comm.rank, np.float32), length=ROWS),
        "alike": np.full(700_000, fill),
        "small": [np.full(n, fill) for n in range(1, 20)],
        "n": fill,
    }


@rank.case
def destinations_that_differ_in_what_becomes_of_them(comm: MPI.Intracomm, directory: Path) -> Any:
    """What owner 0 passes on goes into an array at one owner, and becomes a new one at another."""
    path = directory / "run"
    with Checkpointer(path, comm, deadline=20.0) as ckpt:
        ckpt.save(small(comm, 1.0), step=1)
    mine = small(comm, 5.0)
    mine["gone"] = mine.pop("small")
    mine["small"] = mine.pop("gone")  # and in another order
    if comm.rank % 2:
        mine["alike"] = Replicated(Spec((700_000,), "f8"))
        mine["small"][3].flags.writeable = False
    with Checkpointer(path, comm, deadline=20.0, topology="tree", fan_out=2) as ckpt:
        run = ckpt.resume(mine, low_memory=True)
    assert (mine["own"].array == 1.0 + comm.rank).all()
    assert (run.state["alike"] == 1.0).all()
    assert all((array == 1.0).all() for array in run.state["small"])
    return (run.state["alike"] is mine["alike"]) == (comm.rank % 2 == 0)


@rank.case
def another_owner_count(comm: MPI.Intracomm, directory: Path) -> Any:
    """What was saved by all is read by the first alone, and back."""
    path = directory / "run"
    with Checkpointer(path, comm, deadline=20.0) as ckpt:
        ckpt.save({"w": Split(np.arange(ROWS)[slice(*_share(comm.size, comm.rank))], length=ROWS)}, step=1)
    alone = comm.Split(comm.rank == 0)
    if comm.rank == 0:
        whole = np.zeros(ROWS, int)
        with Checkpointer(path, alone, deadline=20.0) as ckpt:
            ckpt.resume({"w": Split(whole, length=ROWS)}, low_memory=True, repartition=True)
            ckpt.save({"w": Split(whole, length=ROWS)}, step=2)
        assert (whole == np.arange(ROWS)).all()
    alone.Free()
    rank.meet(comm)
    mine = np.zeros(len(mpickpt.shares(ROWS, comm.size)[comm.rank]), int)
    with Checkpointer(path, comm, deadline=20.0) as ckpt:
        step = ckpt.resume({"w": Split(mine, length=ROWS)}, low_memory=True, repartition=True).step
    return [step, bool((mine == np.arange(ROWS)[slice(*_share(comm.size, comm.rank))]).all())]


def _share(owners: int, role: int) -> tuple[int, int]:
    mine = mpickpt.shares(ROWS, owners)[role]
    return mine.start, mine.stop


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@rank.case
def damage_between_the_two_readings(comm: MPI.Intracomm, directory: Path) -> Any:
    """Of a file of one owner's own, and of one that owner 0 reads for all: nobody trains, nobody saves."""
    path = directory / "run"
    told: list[Any] = []
    with Checkpointer(path, comm, deadline=20.0) as ckpt:
        ckpt.save(small(comm, 1.0), step=1)
        last = comm.size - 1
        (folder,) = (path / "data").iterdir()
        # Each is spoiled by who reads it, just before.
        for file, reader in ((f"00000/{last:06d}.safetensors", last), ("00000/000000.r.safetensors", 0)):
            target = folder / file
            if not target.exists():  # alone, one owner has no file for all
                told.append(None)
                continue
            whole, mine = target.read_bytes(), small(comm, 5.0)
            for readonly in (True, False):
                rank.meet(comm)

                def spoil(name: str, target: Path = target, reader: int = reader) -> None:
                    if name == "resume.agreed" and comm.rank == reader:
                        _flip(target)

                failpoints.hook = spoil
                told.append(_refusal(lambda m=mine, r=readonly: ckpt.resume(m, low_memory=True, readonly=r)))  # type: ignore[misc]
                failpoints.hook = None
                told.append(_refusal(lambda m=mine: ckpt.save(m, step=2)))  # type: ignore[misc]
                rank.meet(comm)
                if comm.rank == reader:
                    target.write_bytes(whole)
                rank.meet(comm)
            ckpt.resume(mine, low_memory=True)
            assert (mine["own"].array == 1.0 + comm.rank).all()
            assert (mine["alike"] == 1.0).all()
        ckpt.save(small(comm, 2.0), step=2)
        told.append(ckpt.resume(small(comm, 3.0), low_memory=True).step)
    return told


def _refusal(call: Callable[[], object]) -> Any:
    """Make a call that is refused; give what of the refusal must be the same on all owners."""
    try:
        call()
    except CheckpointError as error:
        return [type(error).__name__, error.path, "undefined" in str(error.unharmed), "last resume" in error.message]
    return "not refused"


if __name__ == "__main__":
    rank.main()
