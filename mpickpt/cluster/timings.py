"""What a save's time went into, at all owners: told with the commitments, so that nobody hears more of more owners.

Behind its commitment each owner says for its subtree: how long ago the first owner began, the bytes, what the time of
the owner went into that was busy longest, and the sums over all. Durations travel and no clocks: owners' clocks differ.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from mpickpt.store.progress import Spent

#: Role of the busiest owner, nanoseconds since the first began, bytes; the times of the busiest, and of all together.
_TIMES: Final = struct.Struct("<3Q 5Q 5Q")
SIZE: Final = _TIMES.size
_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Timings:
    """The times of a subtree.

    Attributes
    ----------
    role : int
        The owner that was busy for longest.
    began : float
        When the first owner began, by this process's monotonic clock.
    nbytes : int
        Bytes of all pieces in all shards.
    slowest : Spent
        What the time of `role` went into.
    total : Spent
        The sums over all owners.
    """

    role: int
    began: float
    nbytes: int
    slowest: Spent
    total: Spent

    @classmethod
    def of(cls, role: int, began: float, nbytes: int, spent: Spent) -> Timings:
        """Make those of one owner."""
        return cls(role, began, nbytes, spent, spent)

    def merged(self, other: Timings) -> Timings:
        """Take another subtree in."""
        longer = other if (other.slowest.busy, -other.role) > (self.slowest.busy, -self.role) else self
        return Timings(
            longer.role,
            min(self.began, other.began),
            self.nbytes + other.nbytes,
            longer.slowest,
            self.total.plus(other.total),
        )

    def pack(self, now: float) -> bytes:
        """Write them, `now` by the clock of `began`."""
        numbers = [self.role, _nanoseconds(now - self.began), self.nbytes]
        numbers += map(_nanoseconds, (*self.slowest, *self.total))
        return _TIMES.pack(*(min(_MAX, number) for number in numbers))

    @classmethod
    def unpack(cls, body: bytes, now: float) -> Timings:
        """Read what `pack` wrote, heard `now`: any bytes of the right size are some times."""
        role, elapsed, nbytes, *times = _TIMES.unpack(body)
        seconds = [time / 1e9 for time in times]
        return cls(role, now - elapsed / 1e9, nbytes, Spent(*seconds[:5]), Spent(*seconds[5:]))

    def ended(self, now: float, owners: int) -> dict[str, Any]:
        """Say, at owner 0 once the root is durable, what the event of a save says of it (docs/format.md).

        Parameters
        ----------
        now : float
            Now.
        owners : int
            How many there are.

        Returns
        -------
        dict
            ``bytes``, ``seconds``, ``throughput``, ``slowest``, ``phases``, ``fractions``, ``mean``. The phases sum up
            to the seconds: what the busiest owner did not do itself is waiting.
        """
        # Its own times may be some nanoseconds longer than what came of the clock of another owner.
        seconds = max(now - self.began, self.slowest.busy)
        phases = self.slowest._asdict() | {"waiting": seconds - self.slowest.busy}
        return {
            "bytes": self.nbytes,
            "seconds": seconds,
            "throughput": self.nbytes / seconds if seconds > 0 else 0.0,
            "slowest": self.role,
            "phases": phases,
            "fractions": {name: part / seconds if seconds > 0 else 0.0 for name, part in phases.items()},
            "mean": {name: part / owners for name, part in self.total._asdict().items()},
        }


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
