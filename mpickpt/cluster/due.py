"""The round of each `due`: whether anybody was told to stop, a save is due, a newer job goes on with the run.

Each `due` finishes the round that the one before it began, and begins the next; so the messages of a round travel while
the owners train. A round is one numbered call on the line of `resume` and `verify`: one word up each edge, one answer
down. Another call on that line between two `due` drops the round, on all owners alike, for its number is then a lower
one; nothing is lost by that, since whoever was told to stop says so in each word.

1. word up      at the end of one `due`: the step, and who was told to stop    due.begun
2. answer down  in the next one: owner 0 decides with its clock and its store  due.heard, due.answered
"""

from __future__ import annotations

import logging
import struct
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from mpickpt import failpoints
from mpickpt.cluster.channel import Call, Kind, Line
from mpickpt.cluster.claims import Claims
from mpickpt.cluster.limit import Limit
from mpickpt.cluster.schedule import MARGIN, Schedule, When
from mpickpt.cluster.told import BY_FILE, BY_TIME, Told, name_of
from mpickpt.cluster.watch import Watch
from mpickpt.errors import CheckpointError, DisagreementError
from mpickpt.state.moment import Moment
from mpickpt.store.directory import Directory

_log = logging.getLogger("mpickpt")

_WORD: Final = struct.Struct("<qqB")
_NOBODY: Final = -1
_CLOSED: Final = "closed by the program"
#: What an answer says, in its first byte: a save is due, leave the loop, no save can end in time any more. Its second
#: byte says what the stop is by (`mpickpt.cluster.told`).
_SAVE, _STOP, _LATE = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Word:
    """What an owner says for its subtree: at which step it is, the first owner that was told to stop, and by what."""

    step: int
    role: int = _NOBODY
    by: int = 0

    def pack(self) -> bytes:
        """Give the message's body."""
        return _WORD.pack(self.step, self.role, self.by)

    @classmethod
    def unpack(cls, body: bytes) -> Word:
        """Read a message's body."""
        return cls(*_WORD.unpack(body))

    def joined(self, other: Word) -> Word:
        """Take the word of a child, whose roles are all higher, into this one."""
        return self if self.role != _NOBODY else Word(self.step, other.role, other.by)


class Rounds:
    """The rounds of one Checkpointer.

    Attributes
    ----------
    by : int
        What an answer has named as the reason to stop, 0 before; the same on all owners after the same `due`.
    """

    def __init__(self, line: Line, directory: Directory, claims: Claims, when: When, told: Told) -> None:
        self.line = line
        self.when = when
        self.told = told
        self.schedule = Schedule(when)
        self.by = 0
        self._watch = Watch(directory, claims, line.pool, line.deadline)
        self._claims = claims
        self._limit = Limit(when.slurm if line.place.parent is None else None, line.pool)
        self._open: tuple[Call, Word] | None = None
        self._said_late = False
        self._why = ""
        if when.past is not None and line.place.parent is None:
            _log.warning(
                "an end time that is past already does not count: %s (left over from an earlier start?)%s",
                when.past,
                "" if when.slurm is None else "; Slurm is asked instead",
            )

    def began(self, took: float | None = None) -> None:
        """Say that a resume has ended well; `took`: seconds that the save took of which it is, where that is told."""
        self.schedule.began(took)
        self._watch.forget()

    def due(self, step: int) -> bool:
        """Finish one round and begin the next. Collective."""
        begun, self._open = self._open, None
        answer, by = 0, 0
        self.schedule.stepped()
        # Of another number: another call has had the line since then, and all owners have dropped the round.
        if begun is not None and begun[0].number == self.line.number:
            answer, by = self._finish(*begun)
        number = self._begin(step)
        first = bool(answer & _STOP) and not self.by
        self.by = self.by or by
        if answer & _LATE:
            return False
        return first or bool(answer & _SAVE) or (self.when.every is not None and number % self.when.every == 0)

    def _mine(self, step: int) -> Word:
        by = self.told.by  # once: a signal may come between two looks
        return Word(step, self.line.place.role, by) if by else Word(step)

    def _begin(self, step: int) -> int:
        """Begin a round. Whoever has children waits for their words, in the next `due`, before it says its own."""
        call = self.line.call(opening=Kind.WORD)
        with call:
            word = self._mine(Moment(step).step)
            if call.place.parent is not None and not call.place.children:
                call.up(Kind.WORD, word.pack())
            if call.place.parent is None:
                self._watch.begin()
                self._limit.begin()
        self._open = (call, word)
        failpoints.reach("due.begun")
        return word.step

    def _finish(self, call: Call, word: Word) -> tuple[int, int]:
        """Finish a round; gives the answer's two bytes."""
        call.eager = True
        with call:
            if call.place.children or call.place.parent is None:
                word = self._mine(word.step)  # nobody has heard it yet, so it may be newer
            for role, body in sorted(call.from_children(Kind.WORD).items()):
                other = Word.unpack(body)
                if other.step != word.step:
                    raise self._disagreement(word.step, role, other.step)
                word = word.joined(other)
            failpoints.reach("due.heard")
            if call.place.parent is None:
                body = bytes(self._decide(call, word))
            else:
                if call.place.children:
                    call.up(Kind.WORD, word.pack())
                _, body = call.from_parent(Kind.RESULT)
            call.down(Kind.RESULT, body)
            call.over()
            failpoints.reach("due.answered")
        return body[0], body[1]

    def _disagreement(self, step: int, role: int, other: int) -> DisagreementError:
        here = self.line.place.role
        return DisagreementError(
            f"owners called due with different steps: step {step} at owner {here}, {other} at owner {role}",
            role=role,
            host=self.line.transport.hosts.get(role),
            roles=[here, role],
            expected=f"step {step}, as at owner {here}",
            found=f"step {other}",
            unharmed="the store and all arrays",
            advice="make every owner call due once a step, with the same step",
        )

    # -- owner 0

    def _decide(self, call: Call, word: Word) -> tuple[int, int]:
        """Say what all do next; raises EpochError where a newer job has continued the run."""
        self._watch.end(call)
        schedule = self.schedule
        if schedule.end_time is None:
            schedule.end_time = self._limit.end_time()
        by = self.by or self._reason(word)
        answer = _SAVE if schedule.save_is_due() else 0
        if schedule.too_late():
            answer |= _LATE
        if by:
            answer |= _STOP
        if by and not self.by:
            self._why = name_of(by) if by in (BY_FILE, BY_TIME) else f"{name_of(by)} at owner {word.role}"
            _log.info("stopping: %s%s", self._why, self._detail(by))
            self.end()  # at once, beside the last save: the job may be killed before that is done
        if answer & _LATE and not self._said_late:
            self._said_late = True
            _log.warning("no save is begun any more: %s%s", self._left(), self._needed())
        return answer, by

    def _reason(self, word: Word) -> int:
        """Say why the run is to stop, if it is. A person's wish goes first: the run is not to go on in another job."""
        if self._watch.stop:
            return BY_FILE
        if word.role != _NOBODY:
            return word.by
        return BY_TIME if self.schedule.time_is_up() else 0

    def _detail(self, by: int) -> str:
        if by == BY_FILE:
            return f": {self._watch.path} is there; remove it before the next start"
        return f": {self._left()}" if by == BY_TIME else ""

    def _left(self) -> str:
        left = self.schedule.left
        return f"{left:.1f} s are left until the end time" if left > 0 else f"the end time was {-left:.1f} s ago"

    def _needed(self) -> str:
        cost = self.schedule.cost
        if cost is None:
            return ""
        return f", and the slowest of the last saves took {cost:.1f} s; {MARGIN:g} times as much is allowed for"

    def end(self, error: BaseException | None = None) -> Future[None] | None:
        """Let owner 0 write down, in a worker, why this job ends: what told it to stop, or what leaves the loop now."""
        if self.line.place.parent is not None:
            return None
        told = error.message if isinstance(error, CheckpointError) else ""
        raised = f"{type(error).__name__}{': ' if told else ''}{told}"
        return self.line.pool.submit(self._claims.tell_end, self._why or (_CLOSED if error is None else raised))
