"""What a training loop asks at each step: `due`, `stopping`. And at its end: `exit_code`.

The rounds behind it are in `mpickpt.cluster.due`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mpickpt.calls import Calls, one_at_a_time
from mpickpt.cluster.told import goes_on, name_of
from mpickpt.errors import StateError

if TYPE_CHECKING:
    from mpickpt.cluster.due import Rounds

#: The exit code of a run that is to be started again: EX_TEMPFAIL of sysexits.h.
REQUEUE: Final = 75


class Stepping(Calls):
    """The part of a Checkpointer that a training loop calls at each step."""

    _rounds: Rounds
    _begun: bool = False

    @one_at_a_time
    def due(self, step: int) -> bool:
        """Tell whether to save now. Collective, at every step; the same answer on all owners, in microseconds.

        True at each multiple of `every`; once `every_seconds`, or the interval for `mtbf_seconds`, has passed since the
        last save; and when the loop is to stop: then it says True once, `stopping` is True from here on, and
        the loop saves and leaves. The messages of a call travel while the owners train, and the next call takes the
        answer; so the first one goes by `every` alone. False where the end time is too near for a save to end by then.

        Parameters
        ----------
        step : int
            Committed step, as for `save`.

        Raises
        ------
        StateError
            If neither `resume` nor `save` has been called, or `step` is no whole number >= 0.
        DisagreementError
            If owners call with different steps.
        EpochError
            If a newer job has continued the run.
        DeadlineError
            If an owner does not come within the deadline.
        """
        self._check_open()
        if not self._begun:
            raise StateError(
                "due was called before resume",
                expected="resume() before the training loop, or a first save()",
                found="neither has been called",
                unharmed="the store and all arrays",
                advice="call resume() first: it says at which step the loop begins",
            )
        return self._rounds.due(step)

    @property
    def stopping(self) -> bool:
        """Whether to leave the loop: the same on all owners after the same `due`."""
        return self._rounds.by != 0

    @property
    def stopped_by(self) -> str | None:
        """What the loop is to be left for, the same on all owners after the same `due`; None while it goes on.

        The name of a signal (``"SIGTERM"``, ``"SIGUSR1"``), ``"end time"``, ``"stop file"``, or ``"stop()"``. The first
        reason stays.
        """
        return name_of(self._rounds.by) if self._rounds.by else None

    @property
    def exit_code(self) -> int:
        """The exit code by which a script knows whether to start the job again; the same on all owners.

        75 (EX_TEMPFAIL of sysexits.h) where the loop was told to stop by a signal or the end time; 0 where a person's
        stop file or `stop()` ended it, or nothing has. Also to be read after `close`.
        """
        return REQUEUE if goes_on(self._rounds.by) else 0

    def stop(self) -> None:
        """Ask for a stop, on any one owner: one of the next calls of `due` says so on all. Not collective.

        It only makes a note, so that a signal handler may call it.
        """
        self._rounds.told.stop()
