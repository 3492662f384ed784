"""Being told to stop: by a signal, if the caller asked to catch it, or by the program itself.

What told an owner, or owner 0 for all, is one byte in messages: a signal's number, or one of the codes below.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final

from mpickpt.errors import StateError

#: Stand for a signal's number where the program asked for the stop itself, a person did, or time is up.
BY_CALL: Final = 255
BY_FILE: Final = 254
BY_TIME: Final = 253
_EXPECTED: Final = "numbers of signals that can be caught, such as signal.SIGUSR1 and signal.SIGTERM"
_NAMES: Final = {BY_CALL: "stop()", BY_FILE: "stop file", BY_TIME: "end time"}


class Told:
    """Whether this owner has been told to stop, and by what; it is not told otherwise again.

    Attributes
    ----------
    by : int
        Number of the first signal, `BY_CALL`, or 0.
    """

    def __init__(self, signals: Iterable[int] = ()) -> None:
        """Check which signals are to be caught. Nothing is caught before `catch`.

        Raises
        ------
        StateError
            If one is none that can be caught, or this is not the main thread, which alone may catch any.
        """
        self.by = 0
        if not isinstance(signals, Iterable):
            raise StateError("signals is no list of signals", expected=_EXPECTED, found=repr(signals)[:100])
        self._signals = [_checked(number) for number in signals]
        self._before: dict[int, Any] = {}

    def catch(self) -> None:
        """Catch the signals, until `release`. A handler of the caller's own is called as well."""
        for number in self._signals:
            self._before[number] = signal.signal(number, self._handle)

    def release(self, by: int = 0) -> None:
        """Put back what handled the signals before, unless somebody has put another handler there since.

        A signal that nothing handled would end the process. Where the run was told to stop from outside, such a one is
        ignored from here on: the process is on its way out, and another signal would only kill it before its exit code.

        Parameters
        ----------
        by : int
            What the owners have agreed to stop for, if they have.
        """
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets no other thread do it
        leaving = (by or self.by) not in (0, BY_CALL)
        while self._before:
            number, before = self._before.popitem()
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_IGN if leaving and before == signal.SIG_DFL else before)

    def stop(self) -> None:
        """Tell this owner to stop."""
        self.by = self.by or BY_CALL

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Only a note is made: it may be in the middle of anything, a save among others.
        self.by = self.by or number
        before = self._before.get(number)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)


def name_of(by: int) -> str:
    """Name what told an owner to stop: ``SIGTERM``, ``end time``, ``stop file``, ``stop()``."""
    if by in _NAMES:
        return _NAMES[by]
    try:
        return signal.Signals(by).name
    except ValueError:
        return f"signal {by}"


def goes_on(by: int) -> bool:
    """Tell whether the run is to go on in another job: after a signal or the end time, not where a person said stop."""
    return by not in (0, BY_CALL, BY_FILE)


def _checked(number: object) -> int:
    if threading.current_thread() is not threading.main_thread():
        raise StateError("signals can be caught in the main thread only", expected="the main thread")
    if not isinstance(number, int) or isinstance(number, bool) or number not in signal.valid_signals():
        raise StateError("signals has something in it that is no signal", expected=_EXPECTED, found=repr(number)[:100])
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise StateError("a signal that cannot be caught", expected=_EXPECTED, found=signal.Signals(number).name)
    if signal.getsignal(number) is None:  # it could not be put back
        raise StateError(
            "a signal that another library catches already", expected=_EXPECTED, found=signal.Signals(number).name
        )
    return int(number)
