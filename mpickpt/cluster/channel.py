"""The channel: numbered collective calls along the topology's edges, with beats and deadlines.

One `Line` serves one stream of collective calls. Each call has a number, counted before anything may raise, and the
number is in every message. The rules, in the order in which `Call` applies them:

1. The mailbox is drained before anything is judged. Messages of lower numbers are dropped and are no sign of life;
   those of higher numbers are kept for the call that they belong to.
2. An abort ends the call with the refusal that it carries. After its own commitment an owner heeds its parent's abort,
   and from others only one that says that the void is durable.
3. A message of a higher number says that a neighbour has left this call: before the own commitment that ends it too,
   after it, if it is the parent's, the outcome is in doubt.
4. A neighbour that is still awaited and silent for `deadline` seconds ends the call, or, after the own commitment,
   puts it in doubt. A gap in the own polling longer than a beat (a suspended machine) resets the clocks of silence.
5. A worker without progress for `deadline` seconds ends the call; one that syncs has ten times as long.
6. A refusal of one's own goes up, and the parent's word on it is awaited, so that of several refusals at once all
   owners raise the same. After the own commitment the store is asked instead.

The thread that calls here only polls: files, digests and large JSON are the workers' business.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from mpickpt.cluster import suspicion
from mpickpt.cluster.mailbox import Ends, Mailbox, Working
from mpickpt.cluster.messages import Abort, Kind, merge_outcomes
from mpickpt.errors import CheckpointError, DeadlineError, InDoubtError, TopologyError, owner
from mpickpt.store.commit import was_published

T = TypeVar("T")

_log = logging.getLogger("mpickpt")

_SHORTEST_SLEEP: Final = 0.0001
_LONGEST_SLEEP: Final = 0.005
#: So often an eager call gives way to other processes and looks again, before it begins to sleep.
_YIELDS: Final = 100
#: Attribute of an error that the abort of the others may have caused.
LEFT_BEHIND: Final = "left_behind"
#: A sync may take this many deadlines before it counts as hung.
SYNC_PATIENCE: Final = 10

#: Asks the store, in a worker, once a call: gets the refusal that would be raised, publishes it as a void record unless
#: the root or a void stands there already, and gives what holds: a refusal, or the body of the release.
Settle: TypeAlias = Callable[[CheckpointError], "CheckpointError | bytes"]


class Outcome(Exception):
    """Not an error: the doubt was settled, and the generation is published. `release` is what the release says."""

    def __init__(self, release: bytes) -> None:
        super().__init__("published")
        self.release = release


class Line(Ends):
    """One stream of collective calls over one transport."""

    def call(
        self,
        unharmed: str = "the store and all arrays",
        number: int | None = None,
        opening: Kind = Kind.READY,
    ) -> Call:
        """Begin the next collective call, or the one of which `take` gave the number. Counts first, and cannot raise.

        `unharmed` is what a refusal of this call leaves as it was, where the refusal does not say so itself; `opening`
        is the kind of message with which it begins.
        """
        number = self.take() if number is None else number
        self.pool.renew()  # what hangs since an earlier call must not use up the threads of this one
        return Call(self, unharmed, number, opening)


class Call(Mailbox):
    """One collective call of this owner.

    Use as a context manager: an exception that leaves the block, and has not come through the channel, is told to all
    neighbours first, so that nobody waits for this owner.
    """

    def __init__(self, line: Ends, unharmed: str, number: int, opening: Kind) -> None:
        super().__init__(line, number, opening)
        self.unharmed = unharmed
        self.heard: set[int] = set()  # children that have committed: no longer watched
        self._awaited: set[int] = set()  # children from which something is awaited, whether they have committed or not
        self._settle: Settle | None = None
        self._void = False
        self._over = False
        self._seen: tuple[int, int] | None = None
        #: Whether what is awaited is on its way: then waiting begins with yielding, since a sleep takes longer.
        self.eager = False
        #: Seconds in which this owner had nothing to do but wait for others.
        self.waited = 0.0

    # -- waiting

    def from_children(self, kind: Kind, take: Callable[[int, bytes], None] | None = None) -> dict[int, bytes]:
        """Wait for one message of `kind` from every child; `take` sees each as it comes."""
        got: dict[int, bytes] = {}
        self._awaited = {role for role, _ in self.place.children}
        self.refresh(self._awaited & self.heard)  # watched again

        def all_here() -> bool:
            for source, body in self.arrived(kind):
                if source in got:
                    raise TopologyError(
                        f"a second {kind.name.lower()} message of one call",
                        role=source,
                        expected="one",
                        found="another one after it",
                        advice="report this: that owner runs another program or another version of mpickpt",
                    )
                if take is not None:
                    take(source, body)
                got[source] = body
                self._awaited.discard(source)
            return not self._awaited

        self._wait_for_others(all_here)
        return got

    def from_parent(self, *kinds: Kind) -> tuple[Kind, bytes]:
        """Wait for the next message of one of `kinds` from the parent."""
        found: list[tuple[Kind, bytes]] = []

        def here() -> bool:
            message = self.take(self.place.parent, *kinds)
            if message is not None:
                found.append(message)
            return message is not None

        self._wait_for_others(here)
        return found[0]

    def run(self, work: Callable[..., T], *args: Any, working: Working | None = None, judge: bool = True) -> T:
        """Let a worker do `work` while this thread polls.

        Without `working` the work is taken for one sync: it may last `SYNC_PATIENCE` deadlines.
        """
        return self.join(self.line.pool.submit(work, *args), working=working, judge=judge)

    def join(self, future: Future[T], *, working: Working | None = None, judge: bool = True) -> T:
        """Wait for work that a worker has already begun."""
        self.attend(working)

        def finished() -> bool:
            if not future.done():
                self.look_after(working)
            return future.done()

        self.wait(finished, judge=judge)
        if judge and future.exception() is not None:
            # Another owner's abort may be the cause of our own trouble (its files are gone): it goes first.
            if getattr(future.exception(), LEFT_BEHIND, False):
                # In a tree that abort may still be on its way through an owner that was stopped.
                end = time.monotonic() + self.line.deadline
                self.wait(lambda: time.monotonic() >= end)
            self.poll()
            self._judge()
        return future.result()

    def attend(self, working: Working | None) -> None:
        """Begin to watch work of this owner's, see `watch`; None: it is taken for one sync."""
        if working is not None:
            self.working = working
        self._moved, self._seen = time.monotonic(), None

    def _wait_for_others(self, ready: Callable[[], bool]) -> None:
        began = time.monotonic()
        self.wait(ready)
        self.waited += time.monotonic() - began

    def watch(self, busy: bool) -> None:
        """Within a `wait`: see that this owner's workers get on, unless they have nothing to do at present."""
        if busy:
            self.look_after(self.working)
        else:
            self._moved = time.monotonic()

    def look_after(self, working: Working | None) -> None:
        """Within a `wait`: see that work gets on, see `attend`."""
        now = self._polled  # see `Mailbox.silent`
        patience = self.line.deadline * SYNC_PATIENCE
        if working is not None:
            seen = (working.done, working.syncing)
            if seen != self._seen:  # a sync that begins or ends is progress too
                self._seen, self._moved = seen, now
            if not working.syncing:
                patience = self.line.deadline
        if now - self._moved > patience:
            raise DeadlineError(
                "the writer of this owner made no progress",
                role=self.place.role,
                host=self.line.host,
                expected=f"progress within {patience:g} s",
                found=f"none for {now - self._moved:.1f} s",
                advice="look at the file system under the store, and whether other files on it can be written",
            )

    def wait(
        self, ready: Callable[[], bool], *, judge: bool = True, nap: Callable[[float], object] | None = None
    ) -> None:
        """Poll until `ready` says so; judge after each look at the mailbox.

        `nap` waits for so many seconds, or less where something is ready sooner. An owner that has no neighbours has
        nothing else to wait for then, and naps for long: it takes the interpreter lock that much less often.
        """
        pause, yields = _SHORTEST_SLEEP, _YIELDS if self.eager else 0
        longest = _LONGEST_SLEEP
        if nap is None:
            nap = time.sleep
        elif not self.place.neighbours:
            pause = longest = self.line.beat / 2  # of a whole one `poll` would say that this process was stopped
        while True:
            busy = self.poll()
            if ready():
                return
            if judge:
                self._judge()
            if yields > 0:
                yields -= 1
                os.sched_yield()
                continue
            if busy:
                pause = _SHORTEST_SLEEP
            nap(pause)
            pause = min(longest, pause * 1.5)

    # -- judging

    def _judge(self) -> None:
        parent = self.place.parent
        if self.abort is not None:
            source, abort = self.abort
            self.fail(abort.error, void=abort.void, final=source == parent and not abort.doubt, told=True)
        if self.released() is not None:
            return
        if self.strangers:
            self.fail(suspicion.another_call(self, min(self.strangers)))
        for role in self.ahead:
            if role == parent or not self._committed:
                self._suspect(suspicion.missed(self, role), role)
        for role in self.place.neighbours:
            unwatched = role != parent and (self._committed or role in self.heard - self._awaited)
            if not unwatched and self.silent(role):
                self._suspect(suspicion.silence(self, role), role)

    def _suspect(self, error: CheckpointError, role: int) -> NoReturn:
        """End the call because of a neighbour; after the own commitment the store decides."""
        lost = role == self.place.parent  # and so there is no word of its to wait for
        self.fail(error, final=lost and not self._committed)

    # -- ending

    def decided_by(self, settle: Settle) -> None:
        """Say how the store is asked, once there is an attempt in it that may be published."""
        self._settle = settle

    def committed(self) -> None:
        """Say that this owner commits, or that the root begins to publish: from here on the store decides.

        What has been refused by now still counts.
        """
        self.look()
        self._committed = True

    def look(self) -> None:
        """Raise what another owner has refused by now.

        Where this process was stopped the others may have given it up: then it listens for the time of a beat.
        """
        self.poll()
        if self.place.neighbours:
            self.wait(lambda: self._polled >= self._woken + self.line.beat)
        self._judge()

    def withdrawn(self) -> None:
        """Say, at the root, that the root is certainly not in the store and never will be: its own word is enough."""
        self._committed = False

    def reopen(self) -> None:
        """Say that what the store had to decide is decided, and the call goes on."""
        self._committed, self._over, self._settle = False, False, None

    def over(self) -> None:
        """Say that the last word on each edge has been sent: an exception from here on concerns this owner alone."""
        self._over = True

    @property
    def left(self) -> bool:
        """Whether this owner has said its last word."""
        return self._over

    @property
    def abandoned(self) -> bool:
        """Whether no root can name this owner's files any more: it has not committed, or a void stands."""
        return self._void or not self._committed

    def fail(self, error: CheckpointError, *, void: bool = False, final: bool = False, told: bool = False) -> NoReturn:
        """Tell all neighbours, the silent one too, and raise what all raise.

        Parameters
        ----------
        void : bool
            The refusal stands in the store already.
        final : bool
            It is the parent's word, or there is no parent whose word could be awaited.
        told : bool
            It has come from another owner, and goes on as it is: all raise the same.

        Raises
        ------
        CheckpointError
            The parent's word, what the store says, or `error` itself.
        Outcome
            If the store says that the generation is published.
        InDoubtError
            If this owner has committed and the store does not answer.
        """
        if not told:
            error.at(self.place.role, self.line.host)
            if error.host is None and error.role is not None:
                error.host = self.line.transport.hosts.get(error.role)
            error.complete(self.unharmed)
        if self.working is not None:
            self.working.cancel()
        # Published with its durability unknown: neither a void nor a second sync may follow.
        decided = void or final or was_published(error)
        if not decided and (self._committed or (self.place.parent is None and self.heard)):
            error, void = self._ask(error)
            final = final or was_published(error)
        self._tell(Abort(error, void), up=True)
        if not (final or void) and self.place.parent is not None:
            error, void = self._verdict(error)
        self._tell(Abort(error, void), down=True)
        self._over, self._void = True, void
        raise error

    def _tell(self, abort: Abort, *, up: bool = False, down: bool = False) -> None:
        body = abort.pack()
        if up and self.place.parent is not None:
            self.up(Kind.ABORT, body)
        if down:
            self.down(Kind.ABORT, body)

    def _verdict(self, mine: CheckpointError) -> tuple[CheckpointError, bool]:
        """Wait for the parent's word on an own refusal; a parent that is silent or gone on has none."""
        parent = self.place.parent
        assert parent is not None
        word: list[Abort] = []

        def told() -> bool:
            if self.abort is not None and self.abort[0] == parent:
                word.append(self.abort[1])
            return bool(word) or parent in self.ahead or self.released() is not None or self.silent(parent)

        self.wait(told, judge=False)
        if not word:
            return mine, False
        error, void = word[0].error, word[0].void
        return (mine if error.to_record() == mine.to_record() else error), void

    def _ask(self, error: CheckpointError) -> tuple[CheckpointError, bool]:
        """Ask the store, once. Gives the refusal that holds and whether it stands there; raises `Outcome`."""
        settle, self._settle = self._settle, None
        verdict: CheckpointError | bytes | None = None
        trouble: Exception | None = None
        if settle is not None:
            try:
                verdict = self.run(settle, error, judge=False)
            except Exception as found:
                trouble = found
        if verdict is None and not self._committed:
            _log.error("the abort could not be made final in the store: %s", trouble)
            return error, False
        if verdict is None:  # the parent may have spoken meanwhile
            self.poll()
            verdict = self.released()
            if verdict is None and self.abort is not None:
                source, abort = self.abort
                if abort.void or (source == self.place.parent and not abort.doubt):
                    return abort.error, abort.void
        if verdict is None:
            self._over = True
            self._tell(Abort(error, doubt=True), up=True, down=True)
            raise self._in_doubt(error, trouble) from trouble
        if isinstance(verdict, bytes):
            self._over = True
            self.down(Kind.RELEASE, verdict)
            raise Outcome(verdict)
        return verdict, not was_published(verdict)

    def _in_doubt(self, error: CheckpointError, trouble: Exception | None) -> InDoubtError:
        said = trouble.message if isinstance(trouble, CheckpointError) else repr(trouble)
        return InDoubtError(
            f"nobody can tell whether the root was published: {error.message} ({owner(error.role, error.host)}), "
            f"and the store does not answer: {said}",
            role=self.place.role,
            host=self.line.host,
            path=trouble.path if isinstance(trouble, CheckpointError) else None,
            unharmed="earlier generations",
            advice="do not count on this save; the next resume finds out",
        )

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or self._over or isinstance(error, Outcome):
            return
        if isinstance(error, CheckpointError):
            self.fail(error)
        told = CheckpointError(
            f"an owner failed: {type(error).__name__}" + (f": {error}" if str(error) else ""),
            role=self.place.role,
            host=self.line.host,
            advice="that owner's own traceback says where",
        )
        if isinstance(error, Exception):
            told.__cause__ = error
            self.fail(told)
        # An interrupt or exit is not held up and goes on as it is; the others hear of it as a refusal.
        with contextlib.suppress(CheckpointError, Outcome):
            self.fail(told, final=not self._committed)


__all__ = ["SYNC_PATIENCE", "Call", "Kind", "Line", "Outcome", "Settle", "Working", "merge_outcomes"]
