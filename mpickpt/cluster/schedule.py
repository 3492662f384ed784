"""When to save, by owner 0's clock: every so many seconds, or the interval after Young and Daly; and when time is up.

Nothing here sends a message or touches a file. `every` needs no clock and is not here: all owners know it alike.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from mpickpt.errors import StateError
from mpickpt.state import arguments

#: Where a script tells when the job will be ended: seconds since 1970 (``date +%s``), or a time of ISO 8601.
END_TIME: Final = "MPICKPT_END_TIME"
#: Where newer versions of Slurm tell it: seconds since 1970.
SLURM_END_TIME: Final = "SLURM_JOB_END_TIME"
#: Times and durations are estimates: so much longer than measured the next save, or the next step, may take.
MARGIN: Final = 1.25
#: Seconds that stay for the end of the process.
RESERVE: Final = 2.0
#: So many saves, and so many steps, are remembered; the slowest of them counts where time runs out.
_SAVES: Final = 5
_STEPS: Final = 64


def young(cost: float, mtbf: float) -> float:
    """Give the interval between saves to first order.

    ``sqrt(2 cost mtbf)``, the work between two saves that loses the least time to saving and to failures together:
    J. W. Young, Communications of the ACM 17 (1974), 530-531.

    Parameters
    ----------
    cost : float
        Seconds that a save takes.
    mtbf : float
        Mean time between failures of the whole job, in seconds.

    Returns
    -------
    float
        Seconds of work between the end of a save and the beginning of the next.
    """
    return math.sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Give the interval between saves to higher order.

    For a save of ``d`` seconds and a mean time between failures of ``M``, if ``d < 2M``, it is
    ``sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d``, and ``M`` otherwise: equation 37 of J. T. Daly, Future
    Generation Computer Systems 22 (2006), 303-312. For cheap saves it is Young's.

    Parameters
    ----------
    cost : float
        Seconds that a save takes.
    mtbf : float
        Mean time between failures of the whole job, in seconds.

    Returns
    -------
    float
        Seconds of work between the end of a save and the beginning of the next.
    """
    if cost >= 2 * mtbf:
        return mtbf
    share = cost / (2 * mtbf)
    return young(cost, mtbf) * (1 + math.sqrt(share) / 3 + share / 9) - cost


@dataclass(frozen=True, slots=True)
class When:
    """What the caller asked for.

    Attributes
    ----------
    every : int or None
        Steps: a save is due at each multiple.
    every_seconds : float or None
        Seconds of work between two saves.
    mtbf_seconds : float or None
        Mean time between failures of the whole job, for `daly`.
    end_time : float or None
        When the job will be ended: seconds since 1970. Owner 0's counts.
    slurm : str or None
        Slurm's id of the job that is to be asked for, where nobody has said it.
    past : str or None
        What was said, and is past already: it does not count, since it was some earlier job's.
    """

    every: int | None = None
    every_seconds: float | None = None
    mtbf_seconds: float | None = None
    end_time: float | None = None
    slurm: str | None = None
    past: str | None = None

    @classmethod
    def of(cls, every: object, every_seconds: object, mtbf_seconds: object, end_time: object) -> When:
        """Check the caller's arguments; what is not given as `end_time` may be in the environment.

        An end time that is past already is none: a script may have exported it in an earlier start of the job, and a
        run that heeded it would leave at once, without a save, each time that it is started again.

        Raises
        ------
        StateError
            For one that is out of range.
        """
        arguments.positive("every", every)
        name = "end_time"
        if end_time is None and os.environ.get(END_TIME):
            end_time, name = _number(os.environ[END_TIME]), END_TIME
        elif end_time is None:
            end_time, name = _slurms(), SLURM_END_TIME
        if isinstance(end_time, datetime) and end_time.tzinfo is not None:
            end_time = end_time.timestamp()
        end, past = _end(name, end_time), None
        if end is not None and end <= time.time():
            past, end = f"{name} {datetime.fromtimestamp(end).astimezone().isoformat(timespec='seconds')}", None
        return cls(
            every if isinstance(every, int) else None,
            _seconds("every_seconds", every_seconds, "seconds, above 0, or None"),
            _seconds("mtbf_seconds", mtbf_seconds, "seconds, above 0, or None"),
            end,
            None if end is not None else os.environ.get("SLURM_JOB_ID") or None,
            past,
        )

    def alike(self) -> Mapping[str, Any]:
        """Give what all owners must have asked for alike, as far as it was asked for."""
        found = {"every": self.every, "every_seconds": self.every_seconds, "mtbf_seconds": self.mtbf_seconds}
        return {name: str(value) for name, value in found.items() if value is not None}


#: From when, and until when, an end time is one: less is a duration, more are milliseconds.
_FIRST: Final = datetime(2001, 9, 9, 1, 46, 40, tzinfo=timezone.utc).timestamp()
_LAST: Final = datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()
#: What an end time may be besides a number, by where it is told.
_FORMS: Final = {
    "end_time": "a datetime with its time zone, or None",
    END_TIME: "or a time such as 2026-01-31T18:00:00+01:00 (without a zone: local time)",
}


def _number(text: str) -> object:
    """Read an end time of the environment; what is none is given back as it is."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        # Slurm's own tools write local times without a zone. Python 3.10 does not know the Z.
        return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text).timestamp()
    except (ValueError, OverflowError):
        return text


def _slurms() -> int | None:
    """Give what Slurm says in the environment, if it is a time."""
    text = os.environ.get(SLURM_END_TIME, "")
    found = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    return found if _FIRST <= found <= _LAST else None


def _end(name: str, value: object) -> float | None:
    expected = f"seconds since 1970, {_FORMS.get(name, '')}"
    found = _seconds(name, value, expected)
    if found is not None and not _FIRST <= found <= _LAST:
        raise StateError(
            f"{name} is out of range", expected=f"{expected}; between 2001 and 9999", found=repr(value)[:100]
        )
    return found


def _seconds(name: str, value: object, expected: str) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < math.inf:  # type: ignore[operator]
        raise StateError(f"{name} is out of range", expected=expected, found=repr(value)[:100])
    return float(value)  # type: ignore[arg-type]


def seconds_of(written: Mapping[str, Any]) -> float | None:
    """Give how long a save took, from what its root manifest tells; None where that does not say."""
    try:
        start, end = (datetime.fromisoformat(str(written[key])) for key in ("start", "end"))
        return max(0.0, (end - start).total_seconds())
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


class Schedule:
    """Owner 0's clock: what saves and steps have taken, and what follows from it."""

    def __init__(self, when: When) -> None:
        self.when = when
        #: When the job will be ended, seconds since 1970; Slurm may tell it later.
        self.end_time = when.end_time
        self._guess: float | None = None
        self._costs: deque[float] = deque(maxlen=_SAVES)
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._saved = time.monotonic()
        self._stepped: float | None = None

    def began(self, took: float | None = None) -> None:
        """Say that the run begins, or goes on, now; `took`: seconds that the save took that was resumed."""
        self._guess = took
        self._saved, self._stepped = time.monotonic(), None

    def saved(self, seconds: float) -> None:
        """Say that a save has ended now, and how long it took."""
        self._costs.append(seconds)
        self._saved = time.monotonic()
        self._stepped = self._saved  # its time is no step's

    def stepped(self) -> None:
        """Say that a step has ended: `due` is called."""
        now = time.monotonic()
        if self._stepped is not None:
            self._steps.append(now - self._stepped)
        self._stepped = now

    @property
    def interval(self) -> float | None:
        """Seconds of work after which a save is due; None where no clock was asked for.

        The mean cost of the last saves counts. Before the first one it is not known, and that save is due at once.
        """
        found = [] if self.when.every_seconds is None else [self.when.every_seconds]
        if self.when.mtbf_seconds is not None:
            cost = sum(self._costs) / len(self._costs) if self._costs else None
            found.append(0.0 if cost is None else daly(cost, self.when.mtbf_seconds))
        return min(found, default=None)

    def save_is_due(self) -> bool:
        """Tell whether the interval has passed."""
        interval = self.interval
        return interval is not None and time.monotonic() - self._saved >= interval

    @property
    def cost(self) -> float | None:
        """Seconds that the slowest of the last saves took; before the first, the one that was resumed, or None."""
        return max(self._costs, default=self._guess)

    @property
    def left(self) -> float:
        """Seconds until the job will be ended."""
        return math.inf if self.end_time is None else self.end_time - time.time()

    def time_is_up(self) -> bool:
        """Tell whether a save must begin now, since after one more step it might not end in time."""
        return self.left <= RESERVE + MARGIN * ((self.cost or 0.0) + max(self._steps, default=0.0))

    def too_late(self) -> bool:
        """Tell whether a save that began now could not be expected to end in time."""
        return self.left <= MARGIN * (self.cost or 0.0)
