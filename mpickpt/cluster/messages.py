"""What travels on the channel: the kinds of message, the last word of a call that fails, outcomes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mpickpt import canonical
from mpickpt.errors import CheckpointError, ContractError, from_record

#: In front of each message: its kind, and the number of the call.
HEADER: Final = struct.Struct("<BQ")


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
    BLOCK = 16
    TAKEN = 17
    WORD = 18


#: With one of these, on the way up, a call begins.
OPENINGS: Final = (Kind.READY, Kind.WORD)


@dataclass(frozen=True, slots=True)
class Abort:
    """The last word of a call that fails.

    Attributes
    ----------
    error : CheckpointError
    void : bool
        Whether it stands in the store as a void record, so that it is final for everybody.
    doubt : bool
        Whether the sender could not ask the store: who has committed asks for itself.
    """

    error: CheckpointError
    void: bool = False
    doubt: bool = False

    def pack(self) -> bytes:
        """Give the message's body."""
        return canonical.dumps({"error": self.error.to_record(), "void": self.void, "doubt": self.doubt})

    @classmethod
    def unpack(cls, body: bytes) -> Abort:
        """Read a message's body."""
        record = canonical.loads(body, what="an abort message")
        return cls(from_record(record["error"]), bool(record["void"]), bool(record["doubt"]))


#: As many lines of differences as one refusal lists of several owners, and what stands for those left out.
_MOST_LINES: Final = 20
_MORE: Final = "    and more"


def _joined(found: list[CheckpointError]) -> CheckpointError | None:
    """Give the refusal of the lowest role; where it lists what differs, with what differs at the others."""
    found.sort(key=lambda error: -1 if error.role is None else error.role)
    first = found[0] if found else None
    if isinstance(first, ContractError):
        head, *lines = first.message.split("\n")
        roles = {first.role, *first.roles}
        room = max(0, _MOST_LINES - len(lines))  # what one owner lists of its own is never cut
        for other in found[1:]:
            theirs = other.message.split("\n")[1:] if isinstance(other, ContractError) else []
            new = [line for line in theirs if line not in lines]
            if len(new) > room:
                new = [*new[:room], *([] if _MORE in lines else [_MORE])]
            elif new:
                roles |= {other.role, *other.roles}
            lines += new
            room = max(0, room - len(new))
        if _MORE in lines:
            lines.append(lines.pop(lines.index(_MORE)))
        first.message = "\n".join([head, *lines])
        if len(roles) > 1:
            first.roles = tuple(sorted(role for role in roles if role is not None))
    return first


def merge_outcomes(mine: CheckpointError | None, others: Mapping[int, bytes]) -> CheckpointError | None:
    """Choose the refusal that all will raise: that of the lowest role, with what differs at the others (`_joined`)."""
    found = [] if mine is None else [mine]
    for body in others.values():
        record = canonical.loads(body, what="an owner's outcome")
        if record is not None:
            found.append(from_record(record))
    return _joined(found)
