"""What travels on the channel: the kinds of message, the last word of a call that fails, outcomes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mpickpt import canonical
from mpickpt.errors import CheckpointError, from_record

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


def merge_outcomes(mine: CheckpointError | None, others: Mapping[int, bytes]) -> CheckpointError | None:
    """Choose the refusal that all will raise: that of the lowest role."""
    found = [] if mine is None else [mine]
    for body in others.values():
        record = canonical.loads(body, what="an owner's outcome")
        if record is not None:
            found.append(from_record(record))
    return min(found, key=lambda error: -1 if error.role is None else error.role, default=None)
