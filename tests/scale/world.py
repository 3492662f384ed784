"""Thousands of owners in one process: each a greenlet over an in-memory wire, and all that it does is counted.

What runs is the library itself: `Checkpointer.save` and `resume` over a `Wiring`, files in a real directory. Replaced
are only the wire, the pools (a task runs at once, in its owner's turn) and the clock, which stands still: nothing that
an owner does here depends on time, for it sleeps only until a message comes. If nobody can go on, `World.run` says so.

Every message carries the length of the longest chain of messages, and of syncs, that had to come before it: the cost
of a call in time is read off these two (docs/scale.md).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import time
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import greenlet
import pytest

from mpickpt import _native, checkpointer, failpoints
from mpickpt.cluster import attempt, channel, mailbox, publish
from mpickpt.cluster.messages import HEADER, Kind
from mpickpt.cluster.topology import Place, Topology
from mpickpt.cluster.wiring import Wiring

T = TypeVar("T")

COUNTED = (
    "messages",
    "bytes",
    "manifests read",
    "shards read",
    "shared shards read",
    "other files read",
    "files created",
    "syncs of files",
    "syncs of directories",
    "namespace operations",
)
"""What is counted for each owner in each call. Beats are none of the messages (and the still clock brings none)."""
_PLACE = {what: place for place, what in enumerate(COUNTED)}
_FOLDER = re.compile(r"/data/[^/]+/[0-9]+")


class Deadlock(AssertionError):
    """Owners wait for messages that nobody sends."""


class Owner:
    """One owner: its greenlet, its letters, what was counted of it since the call began."""

    __slots__ = (
        "counts", "folders", "green", "job", "parked", "role", "seconds", "steps", "syncs", "things", "wires", "world",
    )  # fmt: skip

    def __init__(self, world: World, role: int) -> None:
        self.world = world
        self.role = role
        self.things: Any = None
        self.wires: Wiring | None = None
        self.green: greenlet.greenlet | None = None
        self.job: Callable[[Owner], None] | None = None
        self.parked = False
        self.counts = [0] * len(COUNTED)
        self.steps = self.syncs = self.folders = 0
        self.seconds = 0.0

    def count(self, what: str, by: int = 1) -> None:
        self.counts[_PLACE[what]] += by


class Wire:
    """One line's transport of one owner; knows its neighbours and nobody else."""

    __slots__ = ("_arrived", "_neighbours", "_owner", "hosts")
    name = "none"

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._arrived: list[tuple[int, bytes, tuple[int, int, int]]] = []
        self._neighbours: dict[int, Wire] = {}
        self.hosts: dict[int, str] = {}

    def send(self, role: int, message: bytes) -> None:
        """Deliver, and let the receiver go on if it waits."""
        kind, size = Kind(HEADER.unpack_from(message)[0]), len(message) - HEADER.size
        world, sender, there = self._owner.world, self._owner, self._neighbours[role]
        if kind is not Kind.BEAT:
            sender.count("messages")
            sender.count("bytes", size)
            world.longest[kind.name] = max(world.longest.get(kind.name, size), size)
            world.shortest[kind.name] = min(world.shortest.get(kind.name, size), size)
        there._arrived.append((sender.role, message, (sender.steps + 1, sender.syncs, sender.folders)))
        receiver = there._owner
        if receiver.parked:
            receiver.parked = False
            world.ready.append(receiver)

    def poll(self) -> list[tuple[int, bytes]]:
        """Give what has arrived."""
        owner = self._owner
        owner.world.look_at(owner)
        arrived, self._arrived = self._arrived, []
        for _, _, (steps, syncs, folders) in arrived:
            owner.steps = max(owner.steps, steps)
            owner.syncs = max(owner.syncs, syncs)
            owner.folders = max(owner.folders, folders)
        return [(role, message) for role, message, _ in arrived]

    def dead(self) -> frozenset[int]:
        """Nobody dies here."""
        return frozenset()

    def close(self, patience: float) -> None:
        """Let go of the neighbours."""
        self._neighbours.clear()


class Inline:
    """A pool whose tasks run at once, in the turn of the owner that submits them."""

    def __init__(self, n: int, name: str) -> None:
        self.size = 1

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T]:
        return Done(fn, args)  # type: ignore[return-value]

    def renew(self) -> None:
        """No thread hangs."""

    def close(self, timeout: float | None = None) -> None:
        """No thread runs."""

    def end(self) -> None:
        """No thread runs."""


class Done:
    """The future of a task that has run."""

    __slots__ = ("_error", "_result")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._error: BaseException | None = None
        self._result: Any = None
        try:
            self._result = fn(*args)
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class World:
    """All owners, and who can go on.

    Attributes
    ----------
    longest, shortest : dict
        Bytes of the longest and the shortest message of each kind since the call began.
    operations : Counter
        File operations of all owners since the call began, by name.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.owners = [Owner(self, role) for role in range(topology.owners)]
        self.ready: deque[Owner] = deque()
        self.here: Owner | None = None
        self.longest: dict[str, int] = {}
        self.shortest: dict[str, int] = {}
        self.operations: Counter[str] = Counter()
        self.watched: frozenset[int] = frozenset()
        self.look: Callable[[Owner], None] = lambda owner: None
        self._hub = greenlet.getcurrent()

    def look_at(self, owner: Owner) -> None:
        """Let whoever watches look at an owner: at all its messages, failpoints and file operations."""
        if owner.role in self.watched:
            begun = time.thread_time()
            self.look(owner)
            owner.seconds -= time.thread_time() - begun

    def wire(self) -> None:
        """Give every owner fresh wires to its neighbours."""
        for owner in self.owners:
            place = self.topology.place(owner.role)
            owner.wires = Wiring(place, self.topology, Wire(owner), Wire(owner))  # type: ignore[arg-type]
        for owner in self.owners:
            for line in ("saves", "others"):
                wire = getattr(owner.wires, line)
                for role in _place(owner).neighbours:
                    wire._neighbours[role] = getattr(self.owners[role].wires, line)
                    wire.hosts[role] = "simulated"

    def run(self, job: Callable[[Owner], None]) -> None:
        """Let all owners do one job, to its end; counts begin anew."""
        self.longest.clear()
        self.shortest.clear()
        self.operations.clear()
        for owner in self.owners:
            owner.job, owner.parked = job, False
            owner.counts = [0] * len(COUNTED)
            owner.steps = owner.syncs = owner.folders = 0
            owner.seconds = 0.0
            owner.green = greenlet.greenlet(_main, parent=self._hub)
            self.ready.append(owner)
        while self.ready:
            owner = self.ready.popleft()
            self.here = owner
            assert owner.green is not None
            begun = time.thread_time()
            owner.green.switch(owner)
            owner.seconds += time.thread_time() - begun
            self.here = None
        waiting = [owner.role for owner in self.owners if owner.green is not None]
        if waiting:
            raise Deadlock(f"{len(waiting)} owner(s) wait for ever, among them {waiting[:10]}")

    def sleep(self, seconds: float) -> None:
        """Wait for the next message."""
        owner = self.here
        assert owner is not None
        owner.parked = True
        self._hub.switch()

    def close(self) -> None:
        """Let go of everybody."""
        for owner in self.owners:
            owner.things = owner.wires = owner.green = None


def _main(owner: Owner) -> None:
    assert owner.job is not None
    owner.job(owner)
    owner.green = None


def _place(owner: Owner) -> Place:
    assert owner.wires is not None
    return owner.wires.place


# --- files

NAMESPACE = {
    "mkdir": os,
    "stat": os,
    "lstat": os,
    "listdir": os,
    "unlink": os,
    "rmdir": os,
    "rename_noreplace": _native,
    "link": _native,
}
"""Operations that ask the server of a directory; `open` is counted with them."""


def _counting(world: World) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Give what takes the place of each file operation: it does the same and counts."""

    def space(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **more: Any) -> Any:
            if world.here is not None:
                world.operations[name] += 1
                world.here.count("namespace operations")
                world.look_at(world.here)
            return real(*args, **more)

        return operation

    for name, module in NAMESPACE.items():
        yield module, name, space(name, getattr(module, name))

    real_open, real_fsync = os.open, _native.fsync
    open_now: dict[int, str] = {}

    def open_(path: Any, flags: int, *args: Any, **more: Any) -> int:
        fd = real_open(path, flags, *args, **more)
        open_now[fd] = os.fspath(path)
        if world.here is not None:
            what = "files created" if flags & os.O_CREAT else _read(open_now[fd], flags)
            world.operations["create" if flags & os.O_CREAT else "open"] += 1
            world.here.count("namespace operations")
            if what:
                world.here.count(what)
        return fd

    def fsync(fd: int) -> None:
        real_fsync(fd)
        owner = world.here
        if owner is not None:
            directory = stat.S_ISDIR(os.fstat(fd).st_mode)
            world.operations["sync of a directory" if directory else "sync"] += 1
            owner.count("syncs of directories" if directory else "syncs of files")
            if _FOLDER.search(open_now[fd]) and directory:
                owner.folders += 1
            else:
                owner.syncs += 1

    yield os, "open", open_
    yield _native, "fsync", fsync


def _read(path: str, flags: int) -> str | None:
    """Say what kind of file is opened for reading."""
    if flags & os.O_DIRECTORY:
        return None
    if path.endswith(".r.safetensors"):
        return "shared shards read"
    if path.endswith(".safetensors"):
        return "shards read"
    return "manifests read" if "/data/" in path or "/roots/" in path else "other files read"


@contextlib.contextmanager
def world_of(topology: Topology) -> Iterator[World]:
    """Make a world, and put the library's clock, pools and file operations under it."""
    world = World(topology)
    clock = types.SimpleNamespace(monotonic=lambda: 0.0, sleep=world.sleep)

    def reach(name: str) -> None:
        if world.here is not None:
            world.look_at(world.here)

    with pytest.MonkeyPatch.context() as patch:
        for module in (mailbox, channel, attempt, publish):
            patch.setattr(module, "time", clock)
        patch.setattr(checkpointer, "Pool", Inline)
        patch.setattr(socket, "gethostname", lambda: "" if world.here is None else f"node{world.here.role}")
        for module, name, operation in list(_counting(world)):
            patch.setattr(module, name, operation)
        patch.setattr(failpoints, "hook", reach)
        try:
            yield world
        finally:
            world.close()
