"""The file of events: a line of JSON for each thing that happened to a run's checkpoints, for people and for tools.

It is told, never compared: nothing is restored by it, and a run goes on as well without it. Whoever writes it never
fails and never waits: lines go out in the order in which they came, by a thread that needs no interpreter lock, and
what cannot be written is said once in the log. A line is one write at the end of the file, so that two jobs do not mix
theirs; nothing is synced, so that the last lines may be missing, or cut, after a crash of the machine.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import threading
import time
from collections import deque
from typing import Any, Final

from mpickpt.errors import NotFoundError, StoreError
from mpickpt.store.refusal import store_error
from mpickpt.store.steps import Steps

_log = logging.getLogger("mpickpt")

NAME: Final = "events.jsonl"
"""In a run's directory."""
#: As many lines are kept back at most while the file system hangs, and of a long file only the end is read.
_MOST: Final = 1000
_TAIL: Final = 16 << 20


class EventFile:
    """Where events are written.

    Parameters
    ----------
    path : str
        The file; made with the first event.
    within : str or None
        A directory that must be there before anything is written: no event makes a store of what is none.
    """

    def __init__(self, path: str, within: str | None) -> None:
        self.path = path
        self._within = within
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque(maxlen=_MOST)
        self._writing: Steps | None = None
        self._said = False

    def add(self, event: dict[str, Any]) -> None:
        """Begin to write an event: behind those that are being written, as the next one is added, or at `settle`."""
        line = json.dumps(event, ensure_ascii=True).encode() + b"\n"
        with self._lock:
            self._lines.append(line)
            self._go_on()

    def settle(self, patience: float) -> None:
        """Let what was added be written, for at most so many seconds."""
        end = time.monotonic() + patience
        while True:
            with self._lock:
                writing = self._go_on()
            if writing is None or not writing.wait(max(0.0, end - time.monotonic())):
                return

    def _go_on(self) -> Steps | None:
        """Begin to write the lines that are there, unless others are being written; give what is under way."""
        if self._writing is not None:
            if not self._writing.wait(0):
                return self._writing
            self._warn(self._writing.outcome())
            self._writing = None
        if not self._lines:
            return None
        steps = Steps()  # no thread of Python's: it would be in the way of a save that waits for the interpreter lock
        for line in self._lines:
            steps.append(self.path, line, self._within)
        try:
            steps.begin()
        except OSError as error:
            self._warn(error)
            return None
        self._lines.clear()
        self._writing = steps
        return steps

    def _warn(self, error: BaseException | None) -> None:
        if isinstance(error, OSError) and not self._said:
            self._said = True
            reason = os.strerror(error.errno or errno.EIO)
            _log.warning("events are not written to %s: %s; saves go on without", self.path, reason)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def read_events(path: str) -> list[dict[str, Any]]:
    """Read the events of a file, the oldest first: of one longer than 16 MiB those at its end.

    What is no event is passed over: lines that were cut, and what others have put there.

    Raises
    ------
    NotFoundError
        If there is no such file.
    StoreError
        If it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            there = os.fstat(fd)
            if not stat.S_ISREG(there.st_mode):
                raise StoreError("the file of events is no regular file", path=path)
            skipped = max(0, there.st_size - _TAIL)
            file.seek(skipped)
            lines = file.read(_TAIL).split(b"\n")[1 if skipped else 0 :]
    except FileNotFoundError as error:
        raise NotFoundError(
            "there are no events",
            path=path,
            expected="the file that owner 0 of a run writes with its saves",
            advice="runs with events=False write none; --events names a file elsewhere",
        ) from error
    except OSError as error:
        raise store_error(error, "reading events", path) from error
    found = []
    for line in lines:
        try:
            event = json.loads(line, parse_constant=_refused)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            found.append(event)
    return found
