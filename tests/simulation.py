"""Many owners in one process under virtual time: every interleaving of a seed, at no cost of waiting.

Owners are threads over `Wiring.local`, and so are their workers; exactly one of all runs at a time. It runs until it
sleeps, waits for a worker, or comes to a failpoint or an operation of the file system; then the seed chooses who goes
on, and time jumps to the next moment at which anything can happen. So a schedule of many deadlines takes milliseconds,
and the same seed gives the same schedule again. Of the library nothing is replaced but its clock, its threads' start
and its queues; syncs do nothing, for durability is not simulated.

A `Plan` disturbs: it delays one thread (a slow disk), freezes an owner with all its threads (SIGSTOP), kills it
(SIGKILL: nothing of it runs any more), or lets an operation fail, hang, or succeed with a lost reply.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import random
import sys
import threading
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import outcomes
import pytest

import mpickpt
from mpickpt import _native, failpoints
from mpickpt.cluster import attempt, channel, mailbox, publish
from mpickpt.cluster.topology import Topology
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CheckpointError
from mpickpt.store import threads

DEADLINE = 1.0
_FOREVER = float("inf")
_STEP = 1e-5
"""Virtual seconds that each turn of a thread takes."""


class Gone(BaseException):
    """Ends a thread of a killed owner, or of a world that is over."""


class Deadlock(AssertionError):
    """Nobody can go on, or virtual time is up."""


class World:
    """Time and turns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.actors: list[Actor] = []
        self.frozen: dict[int, float] = {}
        self.trace: list[tuple[float, int, str]] = []
        self.failures: list[BaseException] = []
        self.calm = True
        self.over = False
        self._back = threading.Semaphore(0)

    def here(self) -> Actor | None:
        """Give the actor that runs, where this thread is one."""
        thread = threading.current_thread()
        return thread if isinstance(thread, Actor) and thread.world is self else None

    def sleep(self, seconds: float) -> None:
        """Let the others go on for so long."""
        me = self.here()
        assert me is not None
        me.predicate, me.wake = None, self.now + max(0.0, seconds)
        self._turn(me)

    def wait(self, predicate: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until `predicate` holds, at most `seconds`; tell whether it does."""
        me = self.here()
        assert me is not None
        me.predicate, me.wake = predicate, _FOREVER if seconds is None else self.now + seconds
        self._turn(me)
        return predicate()

    def _turn(self, me: Actor) -> None:
        if not self.over:
            self._back.release()
            me.go.acquire()
        if self.over:
            raise Gone

    def freeze(self, owner: int, seconds: float) -> None:
        """Stop an owner with all its threads."""
        self.frozen[owner] = max(self.frozen.get(owner, 0.0), self.now + seconds)

    def kill(self, owner: int) -> None:
        """Let nothing of an owner run any more."""
        self.frozen[owner] = _FOREVER

    def quieten(self) -> None:
        """Let nothing disturb from now on, and everyone that lives go on."""
        self.calm = True
        self.frozen = {owner: until for owner, until in self.frozen.items() if until == _FOREVER}

    def killed(self, owner: int) -> bool:
        """Tell whether an owner was killed."""
        return self.frozen.get(owner) == _FOREVER

    def run(self, mains: list[Actor], limit: float) -> None:
        """Give turns until the main threads of all owners that live have ended."""
        while any(not main.finished and not self.killed(main.owner) for main in mains):
            times = [(max(actor.ready(self.now), self.frozen.get(actor.owner, 0.0)), actor) for actor in self.actors]
            first = min(time for time, _ in times)
            if first > limit:
                raise Deadlock(f"nobody goes on before {first} s\n{self.stacks()}")
            self.now = max(self.now, first)
            actor = self.random.choice([actor for time, actor in times if time <= self.now])
            actor.go.release()
            self._back.acquire()
            self.now += _STEP

    def end(self) -> None:
        """Let every thread that is left end."""
        self.over = True
        for actor in list(self.actors):
            actor.go.release()
            actor.join_really(10)

    def stacks(self) -> str:
        """Give the stacks of all threads."""
        frames = sys._current_frames()
        found = []
        for actor in self.actors:
            frame = frames.get(actor.ident or 0)
            text = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
            found.append(f"owner {actor.owner}, {actor.name}, ready at {actor.ready(self.now)}\n{text}")
        return "\n".join(found)


_world: list[World] = []


class Actor(threading.Thread):
    """A thread that runs only in its turn; the library's workers are such threads too."""

    def __init__(self, target: Callable[[], None], name: str, daemon: bool = True, owner: int | None = None) -> None:
        super().__init__(name=name, daemon=daemon)
        self.world = _world[-1]
        starter = self.world.here()
        assert owner is not None or starter is not None
        self.owner = owner if owner is not None else starter.owner  # type: ignore[union-attr]
        self.go = threading.Semaphore(0)
        self.predicate: Callable[[], bool] | None = None
        self.wake = self.world.now
        self.finished = False
        self._program = target

    def ready(self, now: float) -> float:
        """Give the time at which this thread can go on."""
        return now if self.predicate is not None and self.predicate() else self.wake

    def start(self) -> None:
        self.world.actors.append(self)
        super().start()

    def run(self) -> None:
        self.go.acquire()
        try:
            if not self.world.over:
                self._program()
        except Gone:
            pass
        except BaseException as error:
            self.world.failures.append(error)
        finally:
            self.finished = True
            self.world.actors.remove(self)
            self.world._back.release()

    def join(self, timeout: float | None = None) -> None:
        self.world.wait(lambda: self.finished, timeout)

    def join_really(self, seconds: float) -> None:
        """Wait for the thread's end in real time."""
        super().join(seconds)


class SimulatedFuture(futures.Future[Any]):
    """A future whose waiters give up their turn."""

    def _await(self, timeout: float | None) -> None:
        if _world and _world[-1].here() is not None and not _world[-1].wait(self.done, timeout):
            raise futures.TimeoutError

    def result(self, timeout: float | None = None) -> Any:
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        return super().exception(0)


class SimulatedQueue:
    """A queue whose takers give up their turn."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self) -> Any:
        while not self._items:
            _world[-1].wait(lambda: bool(self._items))
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)


# --- what happens at failpoints and operations


@dataclass
class Plan:
    """What disturbs a schedule. `at` is asked at every failpoint and operation, and may sleep, freeze, kill, raise.

    Attributes
    ----------
    at : callable
        ``at(world, owner, name)``; name is that of a failpoint, or ``op.NAME`` before an operation.
    after : callable
        The same, after an operation has been done: what it raises is a lost reply.
    """

    at: Callable[[World, int, str], None] = lambda world, owner, name: None
    after: Callable[[World, int, str], None] = lambda world, owner, name: None


def random_stops(seed: int) -> Plan:
    """Stop owners and slow threads, more or less often and long."""
    random_ = random.Random(f"stops {seed}")
    stops = random_.choice([0.002, 0.006, 0.02])
    slow = random_.choice([0.0, 0.01])
    longest = DEADLINE * random_.choice([1.5, 3, 6])

    def at(world: World, owner: int, name: str) -> None:
        dice = random_.random() * (20 if name == "clock" else 1)  # it is looked at so often
        if dice < stops:
            world.freeze(owner, random_.uniform(0.2 * DEADLINE, longest))
            world.sleep(0)
        elif dice < stops + slow:
            world.sleep(random_.uniform(0, 9 * DEADLINE if name == "op.fsync" else 1.5 * DEADLINE))
        elif dice < 0.3:
            world.sleep(0.01 * DEADLINE * random_.random())

    return Plan(at)


OPERATIONS: dict[str, tuple[Any, str]] = {
    "fsync": (_native, "fsync"),
    "write": (_native, "pwrite_all"),
    "chunks": (_native, "write_chunks"),
    "preallocate": (_native, "preallocate"),
    "rename": (_native, "rename_noreplace"),
    "link": (_native, "link"),
    "read": (_native, "pread_full"),
    "read-chunks": (_native, "read_chunks"),
    "open": (os, "open"),
    "close": (os, "close"),
    "mkdir": (os, "mkdir"),
    "lstat": (os, "lstat"),
    "fstat": (os, "fstat"),
    "listdir": (os, "listdir"),
    "unlink": (os, "unlink"),
}


def _wrap(name: str, real: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    def operation(*args: Any, **more: Any) -> Any:
        world = _world[-1] if _world else None
        me = None if world is None or world.over else world.here()
        if me is None:
            return real(*args, **more)
        assert world is not None
        world.trace.append((world.now, me.owner, f"op.{name}"))
        if world.calm:
            return None if name == "fsync" else real(*args, **more)
        try:
            plan.at(world, me.owner, f"op.{name}")
        except OSError:
            if name == "close":
                real(*args, **more)  # after an error of close the descriptor is gone all the same
            raise
        found = None if name == "fsync" else real(*args, **more)
        plan.after(world, me.owner, f"op.{name}")
        return found

    return operation


def _cannot_rename(source: str, target: str) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@contextlib.contextmanager
def simulated(seed: int, plan: Plan, link: bool = False) -> Iterator[World]:
    """Put clock, threads, queues, failpoints and operations of the library under a world's control."""
    world = World(seed)

    def reach(name: str) -> None:
        me = world.here()
        if me is not None and not world.over:
            world.trace.append((world.now, me.owner, name))
            if not world.calm:
                plan.at(world, me.owner, name)

    def monotonic() -> float:
        me = world.here()
        if me is not None and not world.over and not world.calm:
            plan.at(world, me.owner, "clock")  # an owner may also be stopped just before it looks at the clock
        return world.now

    clock = types.SimpleNamespace(monotonic=monotonic, sleep=world.sleep)
    with pytest.MonkeyPatch.context() as patch:
        for module in (mailbox, channel, attempt, publish, threads):
            patch.setattr(module, "time", clock)
        patch.setattr(channel, "_LONGEST_SLEEP", DEADLINE / 40)
        patch.setattr(threads, "Future", SimulatedFuture)
        patch.setattr(threads, "queue", types.SimpleNamespace(SimpleQueue=SimulatedQueue, Empty=queue.Empty))
        shim = types.SimpleNamespace(**{name: getattr(threading, name) for name in threading.__all__})
        shim.Thread = Actor
        patch.setattr(threads, "threading", shim)
        if link:
            patch.setattr(_native, "rename_noreplace", _cannot_rename)
        for name, (module, attribute) in OPERATIONS.items():
            patch.setattr(module, attribute, _wrap(name, getattr(module, attribute), plan))
        patch.setattr(failpoints, "hook", reach)
        _world.append(world)
        try:
            yield world
        finally:
            world.end()
            _world.pop()


# --- owners that save


@dataclass
class Story:
    """What came of one schedule: by call and owner, how it ended, and how long it took.

    Attributes
    ----------
    outcomes : dict
        As `outcomes.Outcomes`.
    errors : dict
        The refusals themselves.
    seconds : dict
        Virtual seconds that each call took.
    """

    seed: int
    path: Path
    owners: int
    world: World
    outcomes: dict[int, dict[int, str]] = field(default_factory=dict)
    errors: dict[int, dict[int, CheckpointError]] = field(default_factory=dict)
    seconds: dict[int, dict[int, float]] = field(default_factory=dict)

    def text(self) -> str:
        """Tell the story to a person."""
        lines = [f"seed {self.seed} in {self.path}"]
        for call in sorted(self.outcomes):
            lines += [f"  call {call}, owner {owner}: {text}" for owner, text in sorted(self.outcomes[call].items())]
        lines += [f"  {time:8.4f} owner {owner} {name}" for time, owner, name in self.world.trace[-300:]]
        return "\n".join(lines)

    def saved(self, call: int) -> bool:
        """Tell whether all owners say that a call has saved."""
        found = self.outcomes.get(call, {}).values()
        return len(found) == self.owners and all(text.startswith("saved ") for text in found)

    def check(self, *, clean: bool = True) -> None:
        """Check that owners and store agree, that all that is listed is whole, and that nothing is left behind."""
        wrong = outcomes.contradictions(self.outcomes, self.path)
        assert not wrong, "\n".join(wrong) + "\n" + self.text()
        outcomes.check_listed(self.path)
        left = outcomes.leftovers(self.path) if clean else []
        assert not left, f"left behind: {left}\n{self.text()}"


def play(
    path: Path,
    plan: Plan,
    *,
    owners: int = 3,
    calls: int = 3,
    first: int = 1,
    calm: int = 1,
    seed: int = 0,
    limit: float = 300.0,
    resume: bool = True,
    pause: Callable[[World], float] = lambda world: 0.0,
    length: int = 24,
    link: bool = False,
    fan_out: int | None = None,
    **options: Any,
) -> Story:
    """Let all owners save `calls` times; call k saves step k.

    Parameters
    ----------
    first : int
        The number of the first call.
    calm : int
        At the last so many calls, for which all owners that live wait, nothing disturbs any more; nor does anything
        before the first call.
    limit : float
        Virtual seconds until the schedule counts as hung.
    resume : bool
        Whether all resume first.
    pause : callable
        Gives the virtual seconds that an owner computes before each call.
    length : int
        Elements of the sharded array.
    link : bool
        Whether the file system knows no no-replace rename, so that files are placed by link.
    fan_out : int, optional
        The most children that an owner has, in a tree; by default all are owner 0's.
    options
        Of Checkpointer.
    """
    options = {"deadline": DEADLINE, "keep": None, **options}
    with simulated(seed, plan, link) as world:
        story = Story(seed, path, owners, world)
        wires = Wiring.local(owners, None if fan_out is None else Topology.of("tree", owners, fan_out))
        here: list[int] = []

        def meet(place: int) -> None:
            """Wait until every owner that lives has come so far."""
            here.append(place)
            world.wait(lambda: here.count(place) + sum(map(world.killed, range(owners))) >= owners)

        def save(checkpointer: mpickpt.Checkpointer, role: int, call: int) -> None:
            begun = world.now
            try:
                outcome = f"saved {checkpointer.save(outcomes.state(role, owners, call, length), step=call).root}"
            except KeyboardInterrupt as error:
                outcome = outcomes.told(error)
            except CheckpointError as error:
                outcome = outcomes.told(error)
                story.errors.setdefault(call, {})[role] = error
            story.outcomes.setdefault(call, {})[role] = outcome
            story.seconds.setdefault(call, {})[role] = world.now - begun

        def owner(role: int) -> Callable[[], None]:
            def program() -> None:
                checkpointer = mpickpt.Checkpointer(path, wires[role], **options)
                if resume:
                    checkpointer.resume(outcomes.state(role, owners, 0, length))
                meet(0)
                world.calm = False
                for call in range(first, first + calls):
                    if call == first + calls - calm:
                        meet(call)
                        world.quieten()
                    world.sleep(0.0 if world.calm else pause(world))
                    save(checkpointer, role, call)

            return program

        mains = [Actor(owner(role), f"owner-{role}", owner=role) for role in range(owners)]
        for main in mains:
            main.start()
        world.run(mains, limit)
        # What goes on in the background (removal of files, rotation) comes to its end.
        world.quieten()
        quiet = Actor(lambda: world.sleep(30 * DEADLINE), "quiet", owner=-1)
        quiet.start()
        world.run([quiet], world.now + 60 * DEADLINE)
    if world.failures:
        raise AssertionError(story.text()) from world.failures[0]
    return story
