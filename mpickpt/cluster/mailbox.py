"""One owner's end of the channel in one call: what it sends, what has arrived, when each neighbour was last heard."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Protocol

from mpickpt.cluster.messages import HEADER, OPENINGS, Abort, Kind
from mpickpt.cluster.topology import Place
from mpickpt.cluster.transport import Transport
from mpickpt.store.threads import Pool


class Working(Protocol):
    """What the channel watches of a worker: store.progress.Progress is one."""

    @property
    def done(self) -> int:
        """Bytes done so far."""

    @property
    def payload(self) -> int:
        """Bytes of payload done so far: what beats tell."""

    @property
    def syncing(self) -> int:
        """How many syncs are in flight."""

    def cancel(self) -> None:
        """Ask it to stop."""


class Ends:
    """What all calls of one line share: the wire, the clocks' limits, and messages that came before their call."""

    def __init__(self, transport: Transport, place: Place, deadline: float, host: str, pool: Pool) -> None:
        self.transport = transport
        self.place = place
        self.deadline = deadline
        self.beat = min(1.0, deadline / 3)
        self.host = host
        self.pool = pool
        self.number = 0
        self.counted: int | None = None  # the number of a call that is still to begin
        self.counts: Counter[str] = Counter()
        self.kept: list[tuple[int, Kind, int, bytes]] = []

    def count(self) -> None:
        """Count the call that comes: whatever keeps it from beginning, this owner stays in step with the others."""
        self.number += 1
        self.counted = self.number

    def take(self) -> int:
        """Give the number of the call that begins: the one that was counted for it, or the next."""
        if self.counted is None:
            self.count()
        number, self.counted = self.number, None
        return number


class Mailbox:
    """The messages of one call.

    Attributes
    ----------
    ahead : set of int
        Neighbours that have sent a message of a later call: they have left this one.
    abort : (int, Abort) or None
        Who aborted, and how; the parent's word goes before others', a void before what is none.
    strangers : set of int
        Neighbours that have opened another call under this one's number: none of the two would ever end.
    came : dict
        When the last message of each neighbour came that is no beat.
    """

    def __init__(self, line: Ends, number: int, opening: Kind) -> None:
        self.line = line
        self.place = line.place
        self.number = number
        self.opening = opening
        self.working: Working | None = None
        self.abort: tuple[int, Abort] | None = None
        self.ahead: set[int] = set()
        self.strangers: set[int] = set()
        self.came: dict[int, float] = {}
        self._committed = False
        self._inbox: list[tuple[int, Kind, bytes]] = []
        self._bytes_below: dict[int, int] = {}
        now = time.monotonic()
        self._last = dict.fromkeys(self.place.neighbours, now)
        self._polled = self._beaten = self._moved = now
        self._woken = -math.inf  # when this process was found to have been stopped
        kept, line.kept = line.kept, []
        for message in kept:
            self._sort(*message)

    # -- sending

    def send(self, role: int, kind: Kind, body: bytes = b"") -> None:
        """Begin to send a message of this call to a neighbour."""
        self.line.counts["beats" if kind is Kind.BEAT else "sent"] += 1
        self.line.counts["bytes"] += len(body)
        self.line.transport.send(role, HEADER.pack(kind, self.number) + body)

    def up(self, kind: Kind, body: bytes = b"") -> None:
        """Send to the parent."""
        assert self.place.parent is not None
        self.send(self.place.parent, kind, body)

    def down(self, kind: Kind, body: bytes = b"") -> None:
        """Send to all children."""
        for role, _ in self.place.children:
            self.send(role, kind, body)

    # -- receiving

    def poll(self) -> bool:
        """Empty the wire, send a beat where one is due; tell whether anything came."""
        now = time.monotonic()
        if now - self._polled > self.line.beat:  # a stopped process, a suspended machine
            self._last = dict.fromkeys(self._last, now)
            self._moved = self._woken = now
        self._polled = now
        arrived = self.line.transport.poll()
        for source, message in arrived:
            kind, number = HEADER.unpack_from(message)
            self.line.counts["received"] += 1
            self._sort(source, Kind(kind), number, message[HEADER.size :])
        if now - self._beaten >= self.line.beat:
            self._beaten = now
            body = self.bytes_done().to_bytes(8, "little")
            for role in self.place.neighbours:
                self.send(role, Kind.BEAT, body)
        return bool(arrived)

    def _sort(self, source: int, kind: Kind, number: int, body: bytes) -> None:
        if number < self.number:
            self.line.counts["dropped"] += 1
            return
        if number > self.number:
            self.ahead.add(source)
            self.line.kept.append((source, kind, number, body))
            return
        self._last[source] = time.monotonic()
        if kind is Kind.BEAT:
            self._bytes_below[source] = int.from_bytes(body[:8], "little")
        elif kind is Kind.ABORT:
            abort, parent = Abort.unpack(body), source == self.place.parent
            # After its own commitment an owner is deaf to its children, but for what is final in the store.
            deaf = self._committed and not parent and not abort.void
            # The parent has the last word: it has chosen among the refusals of its subtree.
            if not deaf and (self.abort is None or parent or abort.void):
                self.abort = (source, abort)
        elif kind in OPENINGS and kind is not self.opening:
            self.strangers.add(source)
        else:
            self.came[source] = self._last[source]
            self._inbox.append((source, kind, body))

    def take(self, source: int | None, *kinds: Kind) -> tuple[Kind, bytes] | None:
        """Take the first message of one of `kinds` from a neighbour, if it is there."""
        for index, (sender, kind, body) in enumerate(self._inbox):
            if sender == source and kind in kinds:
                del self._inbox[index]
                return kind, body
        return None

    def arrived(self, kind: Kind) -> list[tuple[int, bytes]]:
        """Take all that has arrived of `kind`."""
        taken = [(source, body) for source, k, body in self._inbox if k is kind]
        if taken:
            self._inbox = [message for message in self._inbox if message[1] is not kind]
        return taken

    def released(self) -> bytes | None:
        """Give the last word of a call that ends well, where it is there and not yet taken."""
        return next((body for _, kind, body in self._inbox if kind in (Kind.RELEASE, Kind.RESULT)), None)

    # -- knowing

    def silent(self, role: int) -> bool:
        """Tell whether a neighbour had given no sign of life for `deadline` seconds at the last poll, or is dead.

        Not by the clock as it is now: this process may have been stopped since, with its mailbox as old as that.
        """
        return role in self.line.transport.dead() or self._polled - self._last[role] > self.line.deadline

    def refresh(self, roles: set[int]) -> None:
        """Begin the clocks of silence of some neighbours anew."""
        self._last.update(dict.fromkeys(roles, time.monotonic()))

    def bytes_done(self) -> int:
        """Give the bytes written so far in this owner's subtree, as far as beats have told."""
        below = sum(self._bytes_below.get(role, 0) for role, _ in self.place.children)
        return below + (self.working.payload if self.working is not None else 0)
