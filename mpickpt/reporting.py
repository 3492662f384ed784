"""What owner 0 says of saves and resumes: lines in the log, events in a file, a bar on a terminal.

A line of the log carries its event, as the attribute `mpickpt` of the record, for formatters that write JSON.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from typing import Any

from mpickpt import units
from mpickpt.bar import Bar, Far
from mpickpt.cluster.restore import Resumed
from mpickpt.cluster.saves import Published
from mpickpt.errors import CheckpointError, EpochError, StateError
from mpickpt.format.names import parse_root_name
from mpickpt.store.directory import Directory
from mpickpt.store.events import NAME, EventFile
from mpickpt.store.progress import Progress

_log = logging.getLogger("mpickpt")


class Resuming:
    """One resume, while it lasts: how far its reading is, and what came of it."""

    def __init__(self) -> None:
        self.result: Resumed | None = None
        self._reads: tuple[Progress, int] | None = None

    def began(self, progress: Progress, wanted: int) -> None:
        """Say that this owner begins to read so many bytes."""
        self._reads = progress, wanted

    def far(self) -> Far:
        """Say how many bytes of how many this owner has read."""
        if self._reads is None:
            return 0, 0
        progress, wanted = self._reads
        return min(wanted, progress.payload), wanted


class Reporter:
    """What one owner says; all owners have one, and only that of owner 0 says anything.

    Parameters
    ----------
    directory : Directory
    role, owners : int
    progress : bool or None
        Whether to draw; None: on a terminal.
    events : path, bool or None
        Where events go. None and True: into the run's directory; False: nowhere.

    Raises
    ------
    StateError
        If `events` is no path.
    """

    def __init__(
        self,
        directory: Directory,
        role: int,
        owners: int,
        progress: bool | None,
        events: str | os.PathLike[str] | bool | None,
    ) -> None:
        file = _file(events, directory)
        self._directory = directory
        self._speaks = role == 0
        self._owners = owners
        self._own = events is None or events is True
        self._bar = Bar(progress if self._speaks else False)
        self._events = file if self._speaks else None

    def bar(self, what: str, far: Callable[[], Far]) -> AbstractContextManager[None]:
        """Draw how far something is, for as long as the with-block runs."""
        return self._bar.show(what, far)

    def staged(self, step: int, cursor: int, epoch: int | None, nbytes: int, seconds: float) -> None:
        """Say that the state of this owner has been copied, and the caller goes on."""
        event = self._event("staged", step, cursor, epoch) | _speed(nbytes, seconds)
        self._tell(
            event,
            logging.DEBUG,
            "staged step %d: %s of owner 0 in %s",
            step,
            units.human(nbytes),
            units.seconds(seconds),
        )

    def durable(self, published: Published, timings: dict[str, Any] | None, seconds: float, background: bool) -> None:
        """Say that a generation is published."""
        name = parse_root_name(published.name)
        event = self._event("durable", published.step, published.cursor, None if name is None else name[1])
        # Without timings it was learnt in doubt, from the store, that the generation is published.
        event |= {"bytes": None, "seconds": seconds, "throughput": None} if timings is None else timings
        event |= {"background": background, "root": published.root}
        told = "" if timings is None else f" ({_summary(timings)})"
        self._tell(event, logging.INFO, "saved step %d: %s%s", published.step, published.root, told)

    @contextlib.contextmanager
    def resuming(self, step: int | None, readonly: bool) -> Iterator[Resuming]:
        """Draw how far the with-block, a resume, is, and say how it ended."""
        began, reading = time.monotonic(), Resuming()
        try:
            with self._bar.show("resuming", reading.far):
                yield reading
        except CheckpointError as error:
            # Not in the store: of that a refusal says that it is as it was.
            event = self._event("failed", step, None, None) | _refusal(error, began)
            self._tell(event, logging.DEBUG, "the resume was refused: %s", error, write=not self._own and not readonly)
            raise
        if reading.result is not None:
            self._resumed(reading.result, time.monotonic() - began, readonly)

    def _resumed(self, found: Resumed, seconds: float, readonly: bool) -> None:
        """Say where the run goes on from; a resume that is only for reading writes nothing, and no event either."""
        event = self._event("resumed", found.step, found.cursor, found.epoch) | _speed(found.nbytes, seconds)
        event |= {"fresh": found.fresh, "root": found.root}
        if found.fresh:
            path = self._directory.path
            self._tell(event, logging.INFO, "nothing to resume in %s: a fresh start", path, write=not readonly)
            return
        told = f"{units.human(found.nbytes)} in {units.seconds(seconds)}, {units.rate(event['throughput'])}"
        self._tell(event, logging.INFO, "resumed step %d: %s (%s)", found.step, found.root, told, write=not readonly)

    @contextlib.contextmanager
    def saving(self, step: int, cursor: int, epoch: Callable[[], int | None], background: bool) -> Iterator[None]:
        """Say so if the with-block, a save, fails; of one in the background in the log too, for nobody sees it yet."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            event = self._event("failed", step, cursor, epoch()) | _refusal(error, began)
            level = logging.ERROR if background else logging.DEBUG
            # The store of a job that a newer one has succeeded is that one's.
            write = not (self._own and isinstance(error, EpochError))
            self._tell(event, level, "the save of step %s failed: %s", step, error, write=write)
            raise

    def settle(self, patience: float) -> None:
        """Let events be written, for at most so many seconds."""
        if self._events is not None:
            self._events.settle(patience)

    def _event(self, kind: str, step: Any, cursor: Any, epoch: int | None) -> dict[str, Any]:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        step, cursor = (value if isinstance(value, int) else None for value in (step, cursor))
        return {"event": kind, "time": now, "step": step, "cursor": cursor, "epoch": epoch, "owners": self._owners}

    def _tell(self, event: dict[str, Any], level: int, text: str, *args: object, write: bool = True) -> None:
        if not self._speaks:
            return
        _log.log(level, text, *args, extra={"mpickpt": event})
        if write and self._events is not None:
            self._events.add(event)


def _file(events: str | os.PathLike[str] | bool | None, directory: Directory) -> EventFile | None:
    if events is False:
        return None
    if events is None or events is True:
        return EventFile(os.path.join(directory.path, NAME), directory.roots_path)
    try:
        path = os.path.abspath(os.fsdecode(events))
    except TypeError as error:
        raise StateError("events is no path", expected="a path, False or None", found=repr(events)[:100]) from error
    if not os.fspath(events) or "\0" in path:
        raise StateError("events is no path", expected="a path, False or None", found=repr(events)[:100])
    return EventFile(path, None)


def _speed(nbytes: int, seconds: float) -> dict[str, Any]:
    return {"bytes": nbytes, "seconds": seconds, "throughput": nbytes / seconds if seconds > 0 else 0.0}


def _refusal(error: Exception, began: float) -> dict[str, Any]:
    """Give what an event says of a failure."""
    role, message = getattr(error, "role", None), getattr(error, "message", str(error))
    seconds = time.monotonic() - began
    return {"seconds": seconds, "error": type(error).__name__, "role": role, "message": str(message)[:1000]}


def _summary(timings: dict[str, Any]) -> str:
    """Write the times of a save in one line."""
    parts = [f"{name} {100 * share:.0f} %" for name, share in timings["fractions"].items() if share >= 0.005]
    speed = (
        f"{units.human(timings['bytes'])} in {units.seconds(timings['seconds'])}, {units.rate(timings['throughput'])}"
    )
    return f"{speed}; owner {timings['slowest']}: {', '.join(parts)}"
