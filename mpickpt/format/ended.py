"""``epochs/N.ended``: how the job that had an epoch ended, as it said itself (docs/format.md, "Ended")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mpickpt.format.fields import FORMAT, shortened
from mpickpt.format.records import open_record, record

_KEYS: Final = ("epoch", "reason", "time")


@dataclass(frozen=True)
class Ended:
    """How the job that had epoch `epoch` ended, or why it began to. Told, never compared; most kills leave none.

    Parameters
    ----------
    epoch : int
        The epoch, >= 1.
    reason : str
        Why: what told it to stop, what it raised, or that the program closed it.
    time : str
        When, as its clock said.
    """

    epoch: int
    reason: str
    time: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shortened(self.reason))

    def encode(self, algorithm: str = "blake3") -> tuple[bytes, str]:
        """Write it; see `record`."""
        value = {"format": FORMAT, "kind": "ended", "epoch": self.epoch, "reason": self.reason, "time": self.time}
        return record(value, algorithm)

    @classmethod
    def decode(cls, data: bytes, path: str | None = None, *, digest: str | None = None) -> Ended:
        """Read it; see `unrecord`."""
        fields, _ = open_record(data, "ended", path, digest, _KEYS)
        return cls(fields.integer("epoch", 1), fields.text("reason"), fields.text("time"))
