"""A small disk that fills up at every stage of a save, and calls of the operating system that fail.

test_disk_full.py says what must come, and mounts the disk: its path is in the environment variable DISK.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crashkit
import numpy as np
import rank
from scene import patched

import mpickpt
from mpickpt import Split, _native
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory

if TYPE_CHECKING:
    from mpi4py import MPI

ROWS = 1 << 16
"""Bytes of each owner: whole pages, so that what follows them in a file needs a page of its own."""
PAGE = 4096


class Disk:
    """The small file system."""

    def __init__(self) -> None:
        self.path = Path(os.environ["DISK"])
        self.filler = self.path / "filler"

    def fill(self, leave: int = 0) -> None:
        """Use all space but `leave` bytes."""
        found = os.statvfs(self.path)
        with open(self.filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - leave)
        assert os.statvfs(self.path).f_bavail * found.f_frsize == leave

    def use_up_names(self) -> None:
        """Make so many files that there can be no more."""
        self.filler.mkdir()
        for number in itertools.count():
            if os.statvfs(self.path).f_ffree == 0:
                return
            (self.filler / str(number)).touch()

    def free(self) -> None:
        """Free what was used."""
        if self.filler.is_dir():
            shutil.rmtree(self.filler)
        else:
            self.filler.unlink(missing_ok=True)


def until(*files: Path, seconds: float = 3.0) -> None:
    """Wait until other owners have made some files."""
    limit = time.monotonic() + seconds
    while not all(file.exists() for file in files):
        assert time.monotonic() < limit, f"not made within {seconds} s: {files}"
        time.sleep(0.001)


class Case:
    """One store on the small disk, and one save that meets with a full disk."""

    def __init__(self, comm: MPI.Intracomm, directory: Path, *, begin: bool = True, **options: Any) -> None:
        self.comm, self.directory = comm, directory
        self.role, self.owners = comm.Get_rank(), comm.Get_size()
        self.disk = Disk()
        self.path = self.disk.path / directory.name
        self.pids = comm.allgather(os.getpid())
        self.ckpt = mpickpt.Checkpointer(self.path, comm, **{"deadline": 4.0, "keep": None, **options})
        self.step = 0
        if begin:
            self.ckpt.resume(self.state())
            for _ in range(2):
                self.save()

    def state(self) -> dict[str, Any]:
        """Give a state that tells the step."""
        rows = np.full(ROWS, self.step, np.uint8)
        return {"m": Split(rows, length=ROWS * self.owners), "lr": 0.5**self.step}

    def save(self) -> str:
        """Save the next step."""
        self.step += 1
        return self.ckpt.save(self.state(), step=self.step, cursor=self.step).root

    def together(self, look: Callable[[], Any]) -> Any:
        """Let owner 0 look while nobody does anything."""
        rank.meet(self.comm)
        try:
            return look() if self.role == 0 else None
        except BaseException:
            traceback.print_exc()
            self.comm.Abort(1)  # the others wait for this owner
            raise
        finally:
            rank.meet(self.comm)

    def alone_at(self, who: int) -> None:
        """Let an owner go on after agreement only when the others have done all that they do before it has."""
        done = [self.directory / f"done.{role}" for role in range(self.owners) if role != who]
        mine = self.directory / f"done.{self.role}"

        if self.role == who:
            rank.failpoint("save.agreed", lambda: until(*done), comm=self.comm, role=self.role)
        else:
            point = "save.committed" if self.role else "save.shards-written"
            rank.failpoint(point, mine.touch, comm=self.comm, role=self.role)

    def outcome(self) -> dict[str, Any]:
        """Make the save; tell what came of it, and what `end` tells."""
        found = rank.attempt(self.save)
        rank.clear()
        return self.end(found)

    def end(self, found: dict[str, Any]) -> dict[str, Any]:
        """Tell what is listed and left, and how the next save goes on a freed disk."""
        found["listed"] = self.together(lambda: sorted(crashkit.listed(self.path)))
        found["left"] = self.together(lambda: crashkit.leftovers(self.path))
        self.together(self.disk.free)
        found["next"] = self.save()
        found["end"] = self.together(lambda: sorted(crashkit.listed(self.path).items()))
        self.ckpt.close()
        self.together(lambda: shutil.rmtree(self.path))
        return found


@contextlib.contextmanager
def no_space_reserved(case: Case, who: int) -> Iterator[None]:
    """Do without preallocation, as on file systems that know none."""
    fake = (lambda fd, size: None) if case.role == who else _native.preallocate
    with patched(_native, "preallocate", fake):
        yield


def _full(
    comm: MPI.Intracomm, directory: Path, who: int, at: str, fill: Callable[[Disk], None], *, reserved: bool = True
) -> dict[str, Any]:
    """Fill the disk at a failpoint of one owner, when the others have done their part."""
    case = Case(comm, directory)
    case.alone_at(who)
    rank.failpoint(at, lambda: fill(case.disk), role=who, comm=comm)
    with contextlib.nullcontext() if reserved else no_space_reserved(case, who):
        return case.outcome()


FULL: dict[str, tuple[str, Callable[[Disk], None], bool]] = {
    "creation of a shard": ("save.agreed", Disk.use_up_names, True),
    "space of a shard": ("save.agreed", Disk.fill, True),
    "chunk": ("writer.created", lambda disk: disk.fill(2 * PAGE), False),
    "tables": ("writer.chunk", Disk.fill, False),
    "creation of a manifest": ("save.heard", Disk.use_up_names, True),
    "manifest": ("save.heard", Disk.fill, True),
    "creation of the root": ("save.compared", Disk.use_up_names, True),
    "root": ("save.compared", Disk.fill, True),
}
"""By stage: the failpoint after which there is no space, and whether a shard's space is reserved before."""
ONLY = {"creation of a manifest": 1, "manifest": 1, "creation of the root": 0, "root": 0}
STAGES = [(stage, who) for stage in FULL for who in (0, 1) if ONLY.get(stage, who) == who]


def _full(stage: str, who: int) -> Callable[[MPI.Intracomm, Path], Any]:
    """Make the case of one stage at one owner."""
    at, fill, reserved = FULL[stage]

    def case(comm: MPI.Intracomm, directory: Path) -> Any:
        case = Case(comm, directory)
        case.alone_at(who)
        rank.failpoint(at, lambda: fill(case.disk), role=who, comm=comm)
        with contextlib.nullcontext() if reserved else no_space_reserved(case, who):
            return case.outcome()

    case.__name__ = f"{stage} at {who}".replace(" ", "_")
    return case


for _stage, _who in STAGES:
    rank.case(_full(_stage, _who))


@rank.case
def all_shards_at_once(comm: MPI.Intracomm, directory: Path) -> Any:
    """The disk is full for all, before any of them has begun."""
    case = Case(comm, directory)
    ready = [directory / f"ready.{role}" for role in range(case.owners)]

    def agreed() -> None:
        if case.role == 0:
            case.disk.fill()
        ready[case.role].touch()
        until(*ready)

    rank.failpoint("save.agreed", agreed)
    return case.outcome()


@rank.case
def another_owners_shard_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 has written its own; that of the next does not fit any more."""
    case = Case(comm, directory, write="gather")
    rank.failpoint("save.shards-written", case.disk.fill, role=0)
    return case.outcome()


@rank.case
def attempt_directory(comm: MPI.Intracomm, directory: Path) -> Any:
    """There can be no more names at all."""
    case = Case(comm, directory)
    case.together(case.disk.use_up_names)
    return case.outcome()


def _first(comm: MPI.Intracomm, directory: Path, name: str) -> Any:
    """Fill the disk before the first save of a run, or as it publishes something."""
    case = Case(comm, directory, begin=False)
    real = Directory.publish
    filled: list[str] = []

    def publish(self: Directory, place: str, target: str, data: bytes) -> bool:
        if os.path.relpath(os.path.join(place, target), self.path).startswith(name) and not filled:
            filled.append(target)
            case.disk.fill()
        return real(self, place, target, data)

    if name == "":
        case.together(case.disk.fill)
    with patched(Directory, "publish", publish if name and case.role == 0 else real):
        return case.outcome()


@rank.case
def trial_write(comm: MPI.Intracomm, directory: Path) -> Any:
    """The disk is full before the store is made."""
    return _first(comm, directory, "")


@rank.case
def run_json(comm: MPI.Intracomm, directory: Path) -> Any:
    """It is full as the run is named."""
    return _first(comm, directory, "run.json")


@rank.case
def claim(comm: MPI.Intracomm, directory: Path) -> Any:
    """It is full as the epoch is claimed."""
    return _first(comm, directory, "epochs")


@rank.case
def void(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 is stopped before it publishes, and there is no space for the void of those who doubt."""
    case = Case(comm, directory, deadline=0.8)
    rank.failpoint("save.compared", lambda: (case.disk.fill(), rank.stop()), role=0, comm=comm)
    found = rank.attempt(case.save)
    rank.clear()
    (directory / f"ended.{case.role}").touch()
    if case.role == 1:
        until(directory / "ended.2")
        os.kill(case.pids[0], signal.SIGCONT)
    return case.end(found)


# --- calls that fail


def foldered(data: Path, known: set[str]) -> None:
    """Wait until the new attempt has its folder of shards: a moment only, for who makes it may have failed."""
    limit = time.monotonic() + 0.3
    while not any(path.parent.name not in known for path in data.glob("*/00000")) and time.monotonic() < limit:
        time.sleep(0.001)


def _sweep(comm: MPI.Intracomm, directory: Path, way: Way, who: int, number: int, lost: bool) -> list[Any]:
    """Save again and again: in the n-th save the n-th call of one owner on the store's files fails.

    With `lost` it is done, and reported failed. Gives for each save the call, what came of it, and what the store
    holds. Ends with a save that has not so many calls. The others wait a moment until that owner has made the folder of
    the shards, which whoever comes first makes: which call is the n-th would be chance.
    """
    # Events are written beside, sooner or later: which call is the n-th would be chance. test_events.py has them.
    ckpt = mpickpt.Checkpointer(directory / "run", comm, deadline=4.0, keep=None, events=False)
    role, owners = comm.Get_rank(), comm.Get_size()
    ckpt._directory._way = way
    ckpt.resume(crashkit.state(role, owners, 0))
    ckpt.save(crashkit.state(role, owners, 1), step=1)
    found: list[Any] = []
    before: list[str] = []
    for step in itertools.count(2):
        seen: list[tuple[str, str]] = []

        def call(name: str, path: str, seen: list[Any] = seen, nth: int = step - 1) -> None:
            told = any(call in ("rename", "link") and at.startswith("roots/") for call, at in seen)
            seen.append((name, ("afterwards: " if told else "") + os.path.relpath(path, directory / "run")))
            if len(seen) == nth:
                raise OSError(number, os.strerror(number))

        known = set(os.listdir(directory / "run" / "data"))
        if role != who:
            rank.failpoint("save.agreed", lambda known=known: foldered(directory / "run" / "data", known), comm=comm)
        hooks = ((lambda name, path: None), call) if lost else (call, lambda name, path: None)
        state = crashkit.state(role, owners, step)
        with crashkit.operations(directory / "run", *hooks) if role == who else contextlib.nullcontext():
            outcome = rank.attempt(lambda state=state, step=step: ckpt.save(state, step=step, cursor=step).root)
        rank.clear()
        reached = comm.bcast(seen[step - 2] if len(seen) >= step - 1 else None, root=who)
        if role == 0:
            store = Directory(directory / "run")
            outcome["roots"] = [store.read_root(n.name).digest for n in store.lineage() if n.step == step]
            left = crashkit.leftovers(directory / "run")
            outcome["left"] = [name for name in left if name not in before]
            before = left
        found.append([reached, outcome])
        rank.meet(comm)
        if reached is None:
            break
    ckpt.close()
    if role == 0:
        crashkit.listed(directory / "run")
    return found


SWEEPS: dict[str, tuple[Way, int, int, bool]] = {
    f"{way.name.lower()} {errno.errorcode[number]} at {who}{' lost' if lost else ''}": (way, who, number, lost)
    for way, number, lost in (
        (Way.RENAME, errno.EIO, False),
        (Way.LINK, errno.EDQUOT, False),
        (Way.RENAME, errno.EIO, True),
        (Way.LINK, errno.EIO, True),
        # A network file system that repeats a request finds its own work.
        (Way.RENAME, errno.EEXIST, True),
        (Way.LINK, errno.EEXIST, True),
    )
    for who in (0, 1)
}


def _sweeping(name: str) -> Callable[[MPI.Intracomm, Path], Any]:
    def case(comm: MPI.Intracomm, directory: Path) -> Any:
        return _sweep(comm, directory, *SWEEPS[name])

    case.__name__ = name.replace(" ", "_")
    return case


for _name in SWEEPS:
    rank.case(_sweeping(_name))


if __name__ == "__main__":
    rank.main()
