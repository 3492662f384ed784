"""The measurements, made by all owners together: limits first, then what mpickpt takes, so many runs in alternation.

A duration is the slowest owner's, a rate the bytes of all over it; syncs are included, and the page cache is dropped
between a write and a read, or, where this user may not do that, asked to forget the files.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from mpickpt._version import __version__
from mpickpt.bench import limits
from mpickpt.bench.plan import ARRAYS, PIECE, ROW, Plan
from mpickpt.checkpointer import Checkpointer
from mpickpt.errors import DeadlineError, IntegrityError, NotFoundError
from mpickpt.state.layout import Sharded
from mpickpt.store.events import read_events
from mpickpt.store.filesystem import probe

#: Bytes a second below which a file system is given up, and seconds for all else.
_SLOWEST: Final = 5e6
_PATIENCE: Final = 120.0
_LOOK: Final = 0.0005


class Together:
    """The owners of a benchmark, or one process without MPI.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or None
    patience : float
        Seconds after which an owner that does not come is given up.
    """

    def __init__(self, comm: Any, patience: float) -> None:
        self.comm = comm
        self.patience = patience
        self.role: int = 0 if comm is None else comm.rank
        self.owners: int = 1 if comm is None else comm.size

    def meet(self) -> None:
        """Wait for all, without taking a core from who still works.

        Raises
        ------
        DeadlineError
            If somebody does not come.
        """
        if self.comm is None:
            return
        request, end = self.comm.Ibarrier(), time.monotonic() + self.patience
        while not request.Test():
            if time.monotonic() > end:
                raise DeadlineError("an owner of the benchmark does not come", expected=f"all in {self.patience:.0f} s")
            time.sleep(_LOOK)

    def slowest(self, seconds: float) -> float:
        """Give the longest of all owners' durations."""
        if self.comm is None:
            return seconds
        found = np.zeros(self.owners)
        self.comm.Allgather(np.array([seconds]), found)
        return float(found.max())

    def timed(self, work: Callable[[], object]) -> float:
        """Let all do something at once; gives the seconds of the slowest."""
        self.meet()
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        self.meet()
        return self.slowest(seconds)

    def first(self, work: Callable[[], Any]) -> Any:
        """Let owner 0 do something while the others wait; all get what it gave, which is plain data."""
        self.meet()
        data = json.dumps(work()).encode() if self.role == 0 else b""
        self.meet()
        if self.comm is not None:
            size = np.array([len(data)])
            self.comm.Bcast(size)
            body = np.frombuffer(data, np.uint8).copy() if self.role == 0 else np.zeros(int(size[0]), np.uint8)
            self.comm.Bcast(body)
            data = body.tobytes()
        return json.loads(data)


def boxes(rank: int, rows: int, fill: bool) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Make an owner's boxes of `ARRAYS` float32 arrays, of random numbers or of -1."""
    if fill:
        return [np.random.default_rng([rank, i]).random((rows, ROW), np.float32) for i in range(ARRAYS)]
    return [np.full((rows, ROW), -1, np.float32) for _ in range(ARRAYS)]


def sharded(mine: list[np.ndarray[Any, Any]], rank: int, owners: int) -> dict[str, Any]:
    """Give the state that is saved and restored: arrays that are sharded by rows, alike at all owners."""
    rows = len(mine[0])
    shape = (rows * owners, ROW)
    return {f"layer{i:02d}": Sharded(box, shape=shape, at=(rows * rank, 0)) for i, box in enumerate(mine)}


def patience(plan: Plan) -> float:
    """Give the seconds that one step of a benchmark may take."""
    return _PATIENCE + 8 * plan.nbytes / _SLOWEST


def measure(plan: Plan, folder: Path, comm: Any) -> dict[str, Any]:
    """Measure. Collective.

    Parameters
    ----------
    plan : Plan
    folder : Path
        A folder on the file system that is measured, for this benchmark alone.
    comm : mpi4py.MPI.Intracomm or None
        The owners; None: this process alone.

    Returns
    -------
    dict
        What ``mpickpt bench --json`` writes: docs/benchmarks.md says what the figures are.
    """
    bench = _Bench(plan, folder, Together(comm, patience(plan)))
    for run in range(plan.runs):
        bench.run(run)
    return bench.told()


class _Bench:
    def __init__(self, plan: Plan, folder: Path, all_: Together) -> None:
        self.plan = plan
        self.folder = folder
        self.all = all_
        self.kind = all_.first(lambda: probe(str(folder)).kind)
        self.in_memory = self.kind == "tmpfs"
        self.fio = bool(all_.first(lambda: plan.fio and shutil.which("fio") is not None and not self.in_memory))
        self.dropped = True
        self.phases: list[dict[str, float]] = []
        self.figures: dict[str, list[float]] = {}
        self.mine = boxes(all_.role, plan.rows, fill=True)

    def say(self, text: str) -> None:
        """Tell whoever waits what is being done."""
        if self.all.role == 0:
            print(text, file=sys.stderr, flush=True)

    def note(self, name: str, value: float) -> None:
        """Keep a figure."""
        self.figures.setdefault(name, []).append(value)

    def drop(self, folder: Path) -> None:
        """Have what is read next come from the file system."""
        self.dropped = bool(self.all.first(lambda: limits.drop_caches(folder))) and self.dropped

    def run(self, number: int) -> None:
        """Measure everything once."""
        head = f"run {number + 1} of {self.plan.runs}:"
        self.say(f"{head} the limit")
        self.limit()
        self.say(f"{head} save and restore of {self.plan.nbytes >> 20} MiB")
        self.large(self.folder / f"large-{number}")
        self.say(f"{head} {self.plan.pieces} pieces of {PIECE} bytes")
        self.small(self.folder / f"small-{number}")
        self.say(f"{head} saves in the background")
        self.background(self.folder / f"background-{number}")

    # -- the limit

    def limit(self) -> None:
        """Measure what machine and file system give."""
        plan = self.plan
        per_core = max(1 << 20, min(256 << 20, plan.nbytes // len(os.sched_getaffinity(0))))
        self.note("cores", self.all.first(lambda: limits.roofline(per_core)))
        if self.in_memory:
            return
        if self.fio:
            best = self.all.first(lambda: limits.fio_best(self.folder, plan.owners, plan.per_owner))
            if min(best) > 0:
                self.note("disk write", best[0])
                self.note("disk read", best[1])
                return
            self.fio = False
        mine = self.folder / f"plain-{self.all.role}"
        self.all.meet()
        written = self.all.slowest(limits.write_plainly(mine, plan.per_owner))
        self.all.meet()
        self.drop(self.folder)
        read = self.all.slowest(limits.read_plainly(mine))
        self.all.meet()
        mine.unlink()
        self.note("disk write", plan.nbytes / written)
        self.note("disk read", plan.nbytes / read)

    # -- what mpickpt takes

    def opened(self, store: Path, events: bool = False) -> Checkpointer:
        """Open a store of the benchmark's; what is kept of the events is what the last save's time went into."""
        if not self.folder.is_dir():  # whoever started this is gone, and a store would make the folder anew
            raise NotFoundError("the folder of the benchmark is gone", path=str(self.folder))
        where: Any = store.with_suffix(".jsonl") if events else False
        comm, alone = self.all.comm, self.all.comm is None
        return Checkpointer(store, comm, keep=1, rotate="before", progress=False, events=where, alone=alone)

    def large(self, store: Path) -> None:
        """Measure a save and a cold, verified restore of large arrays."""
        all_, role, owners = self.all, self.all.role, self.all.owners
        state = sharded(self.mine, role, owners)
        limits.warm_memory(2 * self.plan.per_owner)
        with self.opened(store, events=True) as ckpt:
            ckpt.resume(state)
            seconds = all_.timed(lambda: ckpt.save(state, step=1))
        self.note("save", self.plan.nbytes / seconds)
        if role == 0:
            told = [event for event in read_events(str(store.with_suffix(".jsonl"))) if event["event"] == "durable"]
            self.phases += [event["fractions"] for event in told]
        into = boxes(role, self.plan.rows, fill=False)
        self.drop(store)
        limits.warm_memory(3 * self.plan.per_owner)  # for a private copy, and the files in the page cache
        with self.opened(store) as ckpt:
            seconds = all_.timed(lambda: ckpt.resume(sharded(into, role, owners)))
        self.note("restore", self.plan.nbytes / seconds)
        self.same(self.mine, into, store)
        self.clear(store)

    def small(self, store: Path) -> None:
        """Measure a save and a cold, verified restore of many small arrays, each at one owner."""
        all_, mine = self.all, range(self.all.role, self.plan.pieces, self.all.owners)
        held = {f"piece{i:06d}": np.full(PIECE // 4, i, np.float32) for i in mine}
        with self.opened(store) as ckpt:
            ckpt.resume(held)
            ckpt.save(held, step=1)  # declarations are kept from save to save, as in a training
            self.note("small save", all_.timed(lambda: ckpt.save(held, step=2)))
        self.drop(store)
        into = {name: np.zeros_like(array) for name, array in held.items()}
        with self.opened(store) as ckpt:
            self.note("small restore", all_.timed(lambda: ckpt.resume(into)))
        self.same(list(held.values()), list(into.values()), store)
        self.clear(store)

    def background(self, store: Path) -> None:
        """Measure how long a save in the background holds the caller up, and one memory copy beside it."""
        all_ = self.all
        state = sharded(self.mine, all_.role, all_.owners)
        copies = [np.zeros_like(box) for box in self.mine]

        def copy() -> None:
            for to, box in zip(copies, self.mine, strict=True):
                np.copyto(to, box)

        with self.opened(store) as ckpt:
            ckpt.resume(state)
            ckpt.save(state, step=1, async_=True).wait()  # makes the memory that later saves find
            copy()
            self.note("memory copy", all_.timed(copy))
            del copies[:]
            self.note("stall", all_.timed(lambda: ckpt.save(state, step=2, async_=True)))
        self.clear(store)

    def same(self, saved: list[Any], restored: list[Any], store: Path) -> None:
        """Refuse a restore that did not give back what was saved."""
        if not all(map(np.array_equal, saved, restored)):
            raise IntegrityError(
                "a restore gave back something else than was saved", path=str(store), role=self.all.role
            )

    def clear(self, store: Path) -> None:
        """Remove a store once all are done with it."""
        self.all.first(lambda: shutil.rmtree(store))

    # -- telling

    def told(self) -> dict[str, Any]:
        """Give all figures."""
        plan = self.plan
        limit = "copy + digest" if self.in_memory else "fio" if self.fio else "plain"
        return {
            "mpickpt": __version__,
            "host": socket.gethostname(),
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "file system": self.kind,
            "owners": plan.owners,
            "bytes": plan.nbytes,
            "pieces": plan.pieces,
            "runs": plan.runs,
            "limit": limit,
            "cache": "dropped" if self.dropped else "asked to forget",
            "mpi": "none" if self.all.comm is None else _library(),
            "figures": self.figures,
            "phases": self.phases,
        }


def _library() -> str:
    from mpi4py import MPI

    return MPI.Get_library_version().split("\n")[0].split(",")[0].strip()[:80]
