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
import threading
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import greenlet
import pytest

from mpickpt import _native, checkpointer, failpoints
from mpickpt.cluster import attempt, channel, mailbox, publish, transport
from mpickpt.cluster.messages import HEADER, Kind
from mpickpt.cluster.topology import Place, Topology
from mpickpt.cluster.wiring import Wiring
from mpickpt.store import threads

T = TypeVar("T")

COUNTED = ("messages", "bytes", "opened", "created", "synced", "folders synced", "namespace operations")
"""What is counted for each owner in each call. Beats are none of the messages (and the still clock brings none)."""


class Deadlock(AssertionError):
    """Owners wait for messages that nobody sends."""


class Owner:
    """One owner: its greenlet, its letters, what was counted of it since the call began."""

    __slots__ = ("counts", "green", "job", "parked", "role", "steps", "syncs", "things", "wires", "world")

    def __init__(self, world: World, role: int) -> None:
        self.world = world
        self.role = role
        self.things: Any = None
        self.wires: Wiring | None = None
        self.green: greenlet.greenlet | None = None
        self.job: Callable[[Owner], None] | None = None
        self.parked = False
        self.counts = [0] * len(COUNTED)
        self.steps = self.syncs = 0

    def count(self, what: int, by: int = 1) -> None:
        self.counts[what] += by


class Wire:
    """One line's transport of one owner; knows its neighbours and nobody else."""

    __slots__ = ("_arrived", "_neighbours", "_owner", "hosts")
    name = "none"

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._arrived: list[tuple[int, bytes, int, int]] = []
        self._neighbours: dict[int, Wire] = {}
        self.hosts: dict[int, str] = {}

    def send(self, role: int, message: bytes) -> None:
        """Deliver, and let the receiver go on if it waits."""
        kind = Kind(HEADER.unpack_from(message)[0])
        world, sender, there = self._owner.world, self._owner, self._neighbours[role]
        if kind is not Kind.BEAT:
            sender.count(0)
            sender.count(1, len(message) - HEADER.size)
            world.longest[kind.name] = max(world.longest[kind.name], len(message) - HEADER.size)
        there._arrived.append((sender.role, message, sender.steps + 1, sender.syncs))
        receiver = there._owner
        if receiver.parked:
            receiver.parked = False
            world.ready.append(receiver)

    def poll(self) -> list[tuple[int, bytes]]:
        """Give what has arrived."""
        if not self._arrived:
            return []
        arrived, self._arrived = self._arrived, []
        owner = self._owner
        owner.steps = max(owner.steps, max(steps for _, _, steps, _ in arrived))
        owner.syncs = max(owner.syncs, max(syncs for _, _, _, syncs in arrived))
        return [(role, message) for role, message, _, _ in arrived]

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
    longest : Counter
        Bytes of the longest message of each kind since the call began.
    operations : Counter
        File operations of all owners since the call began, by name.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.owners = [Owner(self, role) for role in range(topology.owners)]
        self.ready: deque[Owner] = deque()
        self.here: Owner | None = None
        self.longest: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.reached: Callable[[Owner, str], None] = lambda owner, name: None
        self._hub = greenlet.getcurrent()

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
        self.operations.clear()
        for owner in self.owners:
            owner.job, owner.parked = job, False
            owner.counts = [0] * len(COUNTED)
            owner.steps = owner.syncs = 0
            owner.green = greenlet.greenlet(_main, parent=self._hub)
            self.ready.append(owner)
        while self.ready:
            owner = self.ready.popleft()
            self.here = owner
            assert owner.green is not None
            owner.green.switch(owner)
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
                world.here.count(6)
            return real(*args, **more)

        return operation

    for name, module in NAMESPACE.items():
        yield module, name, space(name, getattr(module, name))

    real_open, real_fsync = os.open, _native.fsync
    folders: set[int] = set()

    def open_(path: Any, flags: int, *args: Any, **more: Any) -> int:
        fd = real_open(path, flags, *args, **more)
        (folders.add if flags & os.O_DIRECTORY else folders.discard)(fd)
        if world.here is not None:
            made = bool(flags & os.O_CREAT)
            world.operations["create" if made else "open"] += 1
            world.here.count(6)
            if not flags & os.O_DIRECTORY:
                world.here.count(3 if made else 2)
        return fd

    def fsync(fd: int) -> None:
        real_fsync(fd)
        owner = world.here
        if owner is not None:
            world.operations["sync of a directory" if fd in folders else "sync"] += 1
            owner.count(5 if fd in folders else 4)
            owner.syncs += 1

    yield os, "open", open_
    yield _native, "fsync", fsync


@contextlib.contextmanager
def world_of(topology: Topology) -> Iterator[World]:
    """Make a world, and put the library's clock, pools and file operations under it."""
    world = World(topology)
    clock = types.SimpleNamespace(monotonic=lambda: 0.0, sleep=world.sleep)

    def reach(name: str) -> None:
        if world.here is not None:
            world.reached(world.here, name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (mailbox, channel, attempt, publish):
            patch.setattr(module, "time", clock)
        patch.setattr(checkpointer, "Pool", Inline)
        for module, name, operation in list(_counting(world)):
            patch.setattr(module, name, operation)
        patch.setattr(failpoints, "hook", reach)
        try:
            yield world
        finally:
            world.close()
