"""The channel: numbered collective calls along the topology's edges, with beats and deadlines.

One `Line` serves one stream of collective calls. Each call has a number, counted before anything may raise, and the
number is in every message. The rules, in the order in which `Call` applies them:

1. The mailbox is drained before anything is judged. Messages of lower numbers are dropped and are no sign of life;
   those of higher numbers are kept for the call that they belong to.
2. An abort ends the call with the refusal that it carries. After its own commitment an owner heeds its parent's abort,
   and from others only one that says that the void is durable.
3. A message of a higher number says that a neighbour has left this call: before the own commitment that ends it too,
   after it the outcome is in doubt.
4. A neighbour that is still awaited and silent for `deadline` seconds ends the call, or, after the own commitment,
   puts it in doubt. A gap in the own polling longer than a beat (a suspended machine) resets the clocks of silence.
5. A worker without progress for `deadline` seconds ends the call; one that syncs has ten times as long.

The thread that calls here only polls: files, digests and large JSON are the workers' business.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import IntEnum
from typing import Any, Final, NoReturn, Protocol, TypeVar

from mpickpt import canonical
from mpickpt.cluster.topology import Place
from mpickpt.cluster.transport import Transport
from mpickpt.errors import CheckpointError, DeadlineError, InDoubtError, TopologyError, from_record, owner
from mpickpt.store.commit import was_published
from mpickpt.store.threads import Pool

T = TypeVar("T")

_log = logging.getLogger("mpickpt")

_HEADER: Final = struct.Struct("<BQ")
_SHORTEST_SLEEP: Final = 0.0001
_LONGEST_SLEEP: Final = 0.005
#: A sync may take this many deadlines before it counts as hung.
SYNC_PATIENCE: Final = 10


class Kind(IntEnum):
    """What a message is."""

    BEAT = 0
    ABORT = 1
    READY = 2
    ASK = 3
    DECLARE = 4
    GO = 5
    COMMIT = 6
    RELEASE = 7
    INQUIRE = 8
    ANSWER = 9
    PLAN = 10
    PULL = 11
    CHUNK = 12
    WRITTEN = 13
    OUTCOME = 14
    RESULT = 15


class Working(Protocol):
    """What the channel watches of a worker: store.writer.Progress is one."""

    syncing: bool
    cancelled: bool

    @property
    def done(self) -> int:
        """Bytes done so far."""


class Outcome(Exception):
    """Not an error: the doubt was settled by the store, and the generation is published."""


class Line:
    """One stream of collective calls over one transport."""

    def __init__(self, transport: Transport, place: Place, deadline: float, host: str, pool: Pool) -> None:
        self.transport = transport
        self.place = place
        self.deadline = deadline
        self.beat = min(1.0, deadline / 3)
        self.host = host
        self.pool = pool
        self.number = 0
        self.counts: Counter[str] = Counter()
        self._kept: list[tuple[int, Kind, int, bytes]] = []

    def call(self, unharmed: str = "the store and all arrays") -> Call:
        """Begin the next collective call. Counts first, and cannot raise.

        `unharmed` is what a refusal of this call leaves as it was, where the refusal does not say so itself.
        """
        self.number += 1
        kept, self._kept = self._kept, []
        return Call(self, kept, unharmed)

    def keep(self, source: int, kind: Kind, number: int, body: bytes) -> None:
        """Keep a message of a later call."""
        self._kept.append((source, kind, number, body))


class Call:
    """One collective call of this owner.

    Use as a context manager: an exception that leaves the block, and has not come through the channel, is told to all
    neighbours first, so that nobody waits for this owner.
    """

    def __init__(self, line: Line, kept: list[tuple[int, Kind, int, bytes]], unharmed: str) -> None:
        self.line = line
        self.unharmed = unharmed
        self.place = line.place
        self.number = line.number
        self.working: Working | None = None
        self.heard: set[int] = set()  # children that have committed: no longer watched
        self._inbox: list[tuple[int, Kind, bytes]] = []
        self._abort: tuple[int, CheckpointError, bool] | None = None
        self._ahead: int | None = None
        self._doubt: Callable[[CheckpointError], CheckpointError | None] | None = None
        self._seal: Callable[[CheckpointError], CheckpointError | None] | None = None
        self._over = False
        self.void = False  # whether the call ended with a void that is durable
        self._bytes_below: dict[int, int] = {}
        now = time.monotonic()
        self._last = dict.fromkeys(self.place.neighbours, now)
        self._polled = self._beaten = self._moved = now
        self._seen = -1
        for message in kept:
            self._sort(*message)

    # -- sending

    def send(self, role: int, kind: Kind, body: bytes = b"") -> None:
        """Begin to send a message of this call to a neighbour."""
        self.line.counts["beats" if kind is Kind.BEAT else "sent"] += 1
        self.line.counts["bytes"] += len(body)
        self.line.transport.send(role, _HEADER.pack(kind, self.number) + body)

    def up(self, kind: Kind, body: bytes = b"") -> None:
        """Send to the parent."""
        assert self.place.parent is not None
        self.send(self.place.parent, kind, body)

    def down(self, kind: Kind, body: bytes = b"") -> None:
        """Send to all children."""
        for role, _ in self.place.children:
            self.send(role, kind, body)

    # -- waiting

    def from_children(self, kind: Kind, take: Callable[[int, bytes], None] | None = None) -> dict[int, bytes]:
        """Wait for one message of `kind` from every child; `take` sees each as it comes."""
        got: dict[int, bytes] = {}
        children = {role for role, _ in self.place.children}

        def all_here() -> bool:
            for source, body in self._pop(kind):
                if source in got:
                    raise TopologyError(
                        f"a second {kind.name.lower()} message of one call",
                        role=source,
                        unharmed="earlier generations",
                        advice="report this: that owner runs another program or another version of mpickpt",
                    )
                if take is not None:
                    take(source, body)
                got[source] = body
            return got.keys() >= children

        self.wait(all_here)
        return got

    def from_parent(self, *kinds: Kind) -> tuple[Kind, bytes]:
        """Wait for the next message of one of `kinds` from the parent."""
        found: list[tuple[Kind, bytes]] = []

        def here() -> bool:
            for index, (source, kind, body) in enumerate(self._inbox):
                if source == self.place.parent and kind in kinds:
                    del self._inbox[index]
                    found.append((kind, body))
                    return True
            return False

        self.wait(here)
        return found[0]

    def arrived(self, kind: Kind) -> list[tuple[int, bytes]]:
        """Take what has arrived of `kind`, without waiting; for use inside a `wait`."""
        return list(self._pop(kind))

    def _pop(self, kind: Kind) -> list[tuple[int, bytes]]:
        taken = [(source, body) for source, k, body in self._inbox if k is kind]
        if taken:
            self._inbox = [message for message in self._inbox if message[1] is not kind]
        return taken

    def run(self, work: Callable[..., T], *args: Any, working: Working | None = None, judge: bool = True) -> T:
        """Let a worker do `work` while this thread polls.

        Without `working` the work is taken for one sync: it may last `SYNC_PATIENCE` deadlines.
        """
        return self.join(self.line.pool.submit(work, *args), working=working, judge=judge)

    def join(self, future: Future[T], *, working: Working | None = None, judge: bool = True) -> T:
        """Wait for work that a worker has already begun."""
        if working is not None:
            self.working = working
        self._moved, self._seen = time.monotonic(), -1
        limit = self.line.deadline * SYNC_PATIENCE

        def finished() -> bool:
            if not future.done():
                self._watch_worker(working, limit)
            return future.done()

        self.wait(finished, judge=judge)
        if judge and future.exception() is not None:
            # Another owner's abort may be the cause of our own trouble (its files are gone): it goes first.
            self._poll()
            self._judge()
        return future.result()

    def _watch_worker(self, working: Working | None, limit: float) -> None:
        now = time.monotonic()
        patience = limit
        if working is not None:
            if working.done != self._seen:
                self._seen, self._moved = working.done, now
            if not working.syncing:
                patience = self.line.deadline
        if now - self._moved > patience:
            raise DeadlineError(
                "the writer of this owner made no progress",
                role=self.place.role,
                host=self.line.host,
                expected=f"progress within {patience:g} s",
                found=f"none for {now - self._moved:.1f} s",
                unharmed="earlier generations",
                advice="look at the file system under the store, and whether other files on it can be written",
            )

    def wait(self, ready: Callable[[], bool], *, judge: bool = True) -> None:
        """Poll until `ready` says so; judge after each look at the mailbox."""
        pause = _SHORTEST_SLEEP
        while True:
            busy = self._poll()
            if ready():
                return
            if judge:
                self._judge()
            if busy:
                pause = _SHORTEST_SLEEP
            time.sleep(pause)
            pause = min(_LONGEST_SLEEP, pause * 1.5)

    # -- polling and judging

    def _sort(self, source: int, kind: Kind, number: int, body: bytes) -> None:
        if number < self.number:
            self.line.counts["dropped"] += 1
            return
        if number > self.number:
            self._ahead = source
            self.line.keep(source, kind, number, body)
            return
        self._last[source] = time.monotonic()
        if kind is Kind.BEAT:
            self._bytes_below[source] = int.from_bytes(body[:8], "little")
        elif kind is Kind.ABORT:
            record = canonical.loads(body, what="an abort message")
            void = bool(record.get("void"))
            deaf = self._doubt is not None and source != self.place.parent and not void
            # The parent has the last word: it has chosen among the refusals of its subtree.
            if not deaf and (self._abort is None or source == self.place.parent):
                self._abort = (source, from_record(record["error"]), void)
        else:
            self._inbox.append((source, kind, body))

    def _poll(self) -> bool:
        now = time.monotonic()
        if now - self._polled > self.line.beat:
            self._last = dict.fromkeys(self._last, now)
            self._moved = now
        self._polled = now
        arrived = self.line.transport.poll()
        for source, message in arrived:
            kind, number = _HEADER.unpack_from(message)
            self.line.counts["received"] += 1
            self._sort(source, Kind(kind), number, message[_HEADER.size :])
        if now - self._beaten >= self.line.beat:
            self._beaten = now
            body = self.bytes_done().to_bytes(8, "little")
            for role in self.place.neighbours:
                self.send(role, Kind.BEAT, body)
        return bool(arrived)

    def bytes_done(self) -> int:
        """Give the bytes written so far in this owner's subtree, as far as beats have told."""
        below = sum(self._bytes_below.get(role, 0) for role, _ in self.place.children)
        return below + (self.working.done if self.working is not None else 0)

    def _judge(self) -> None:
        if self._abort is not None:
            source, error, void = self._abort
            self.fail(error, void=void, final=source == self.place.parent)
        if any(kind in (Kind.RELEASE, Kind.RESULT) for _, kind, _ in self._inbox):
            return
        if self._ahead is not None:
            error = DeadlineError(
                f"this owner missed the end of a collective call: {owner(self._ahead)} is at a later one",
                role=self.place.role,
                host=self.line.host,
                unharmed="earlier generations",
                advice="go on: the next call takes part again",
            )
            self._suspect(error, final=self._ahead == self.place.parent)
        now = time.monotonic()
        dead = self.line.transport.dead()
        for role in self.place.neighbours:
            if role != self.place.parent and (self._doubt is not None or role in self.heard):
                continue
            silence = now - self._last[role]
            if role in dead or silence > self.line.deadline:
                error = DeadlineError(
                    "an owner has died" if role in dead else "an owner is silent",
                    role=role,
                    host=self.line.transport.hosts.get(role),
                    expected=f"a sign of life within {self.line.deadline:g} s",
                    # No measured time: owners that see the same silence raise the same refusal.
                    found="its process is gone" if role in dead else "none",
                    unharmed="earlier generations",
                    advice="look at that owner's process and node; the next start resumes from the newest generation",
                )
                self._suspect(error, final=role == self.place.parent)

    def _suspect(self, error: CheckpointError, final: bool) -> None:
        """End the call with `error`, or, after the own commitment, let the store decide."""
        if self._doubt is None:
            self.fail(error, final=final)
        self.settle(error)

    # -- ending

    def committed(self, doubt: Callable[[CheckpointError], CheckpointError | None]) -> None:
        """Say that this owner has committed: from now on the store decides.

        `doubt` runs in a worker. It gets the refusal that the owner would raise, publishes it as a void record unless
        the root or a void stands there already, and returns what holds: a refusal, or None for published.
        """
        self._doubt = doubt

    def settle(self, error: CheckpointError) -> NoReturn:
        """Ask the store. Raises what the void record there says, or `Outcome` where the root stands."""
        doubt = self._doubt
        assert doubt is not None
        self._doubt = lambda again: again  # settled once; a failure below is final
        try:
            verdict = self.run(doubt, error, judge=False)
        except CheckpointError as trouble:
            raise InDoubtError(
                f"nobody can tell whether the root was published: {error.message}, and the store does not answer: "
                f"{trouble.message}",
                role=self.place.role,
                host=self.line.host,
                path=trouble.path,
                unharmed="earlier generations",
                advice="do not count on this save; the next resume finds out",
            ) from trouble
        if verdict is None:
            raise Outcome
        self.fail(verdict, void=True)

    def over(self) -> None:
        """Say that the last word on each edge has been sent: an exception from here on concerns this owner alone."""
        self._over = True

    def sealed(self, seal: Callable[[CheckpointError], CheckpointError | None]) -> None:
        """Say, at the root, how its own abort is made final in the store once a commitment has arrived.

        `seal` is such a function as `committed` takes.
        """
        self._seal = seal

    def fail(self, error: CheckpointError, *, void: bool = False, final: bool = False) -> NoReturn:
        """Tell all neighbours, the silent one too, and raise what all raise.

        Unless the refusal is `final` (the parent's word, or the parent is lost) or the void is durable, it goes up
        first, and the parent's word is awaited: of several refusals at once all owners raise the same.
        """
        error.at(self.place.role, self.line.host)
        if error.host is None and error.role is not None:
            error.host = self.line.transport.hosts.get(error.role)
        if error.unharmed is None:
            error.unharmed = self.unharmed
        if self.working is not None:
            self.working.cancelled = True
        published = was_published(error)  # its durability is unknown, and a sync must not be tried again
        if self._seal is not None and not void and not published and (self.heard or self._doubt is not None):
            seal, self._seal = self._seal, None
            try:
                verdict = self.run(seal, error, judge=False)
            except CheckpointError as trouble:
                _log.error("the abort could not be made final in the store: %s", trouble)
            else:
                if verdict is None:
                    raise Outcome
                error, void = verdict, True
        if self.place.parent is not None:
            self.up(Kind.ABORT, self._abortion(error, void))
            if not (final or void):
                error, void = self._verdict(error)
        self._over = True
        self.down(Kind.ABORT, self._abortion(error, void))
        raise error

    def _abortion(self, error: CheckpointError, void: bool) -> bytes:
        return canonical.dumps({"error": error.to_record(), "void": void})

    def _verdict(self, mine: CheckpointError) -> tuple[CheckpointError, bool]:
        """Wait for the parent's word on an own refusal; a parent that is silent or gone on has none."""
        parent = self.place.parent
        assert parent is not None

        def told() -> bool:
            if self._abort is not None and self._abort[0] == parent:
                return True
            if self._ahead == parent or any(kind in (Kind.RELEASE, Kind.RESULT) for _, kind, _ in self._inbox):
                return True
            return parent in self.line.transport.dead() or time.monotonic() - self._last[parent] > self.line.deadline

        self.wait(told, judge=False)
        if self._abort is None or self._abort[0] != parent:
            return mine, False
        _, error, void = self._abort
        return (mine if error.to_record() == mine.to_record() else error), void

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or self._over or isinstance(error, Outcome):
            return
        if isinstance(error, CheckpointError):
            self.fail(error)
        told = CheckpointError(
            f"an owner failed: {type(error).__name__}: {error}",
            role=self.place.role,
            host=self.line.host,
            advice="that owner's own traceback says where",
        )
        if isinstance(error, Exception):
            told.__cause__ = error
            self.fail(told)
        # An interrupt or exit is not held up and goes on as it is; the others hear of it as a refusal.
        with contextlib.suppress(CheckpointError, Outcome):
            self.fail(told, final=True)


def merge_outcomes(mine: CheckpointError | None, others: Mapping[int, bytes]) -> CheckpointError | None:
    """Choose the refusal that all will raise: that of the lowest role."""
    found = [] if mine is None else [mine]
    for body in others.values():
        record = canonical.loads(body, what="an owner's outcome")
        if record is not None:
            found.append(from_record(record))
    return min(found, key=lambda error: -1 if error.role is None else error.role, default=None)
