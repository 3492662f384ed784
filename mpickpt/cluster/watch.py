"""Owner 0's looks at the store between saves: whether a newer job goes on with the run, and whether a person said stop.

A look runs in a worker, at most once a second, and never holds the training up for longer than a second: where the
store does not answer, training goes on, and the next save finds out.
"""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Future
from typing import Final

from mpickpt.cluster.channel import Call
from mpickpt.cluster.claims import Claims
from mpickpt.errors import CheckpointError, EpochError, from_record
from mpickpt.store.directory import Directory
from mpickpt.store.presence import there
from mpickpt.store.threads import Pool

_log = logging.getLogger("mpickpt")

#: Whoever wants the run to save and end makes a file of this name in its directory.
STOP_FILE: Final = "stop"
#: Seconds between two looks, and for how long one is waited for.
_EVERY: Final = 1.0
_PATIENCE: Final = 1.0


class Watch:
    """What owner 0 has seen in the store.

    Attributes
    ----------
    stop : bool
        Whether the stop file was there at the last look.
    """

    def __init__(self, directory: Directory, claims: Claims, pool: Pool, deadline: float) -> None:
        self.path = os.path.join(directory.path, STOP_FILE)
        self.stop = False
        self._claims = claims
        self._pool = pool
        self._deadline = deadline
        self._patience = min(_PATIENCE, deadline / 4)
        self._look: Future[tuple[bool, EpochError | None]] | None = None
        self._began = -_EVERY
        self._newer: EpochError | None = None
        self._troubled = False

    def begin(self) -> None:
        """Begin a look, if a second has passed since the last one began."""
        now = time.monotonic()
        if self._look is not None and now - self._began > self._deadline:
            self._look = None  # it hangs
        if self._look is None and now - self._began >= _EVERY:
            self._began = now
            self._look = self._pool.submit(self._see, now)

    def _see(self, now: float) -> tuple[bool, EpochError | None]:
        return there(self.path), self._claims.fenced(now)

    def end(self, call: Call) -> None:
        """Take what the look that was begun has seen; a look in progress is waited for, but not for long.

        Raises
        ------
        EpochError
            If a newer job has continued the run.
        """
        look = self._look
        if look is not None and not look.done():
            end = time.monotonic() + self._patience
            call.wait(lambda: look.done() or time.monotonic() > end)
        if look is not None and look.done():
            self._look = None
            self._take(look)
        if self._newer is not None:
            raise from_record(self._newer.to_record())

    def _take(self, look: Future[tuple[bool, EpochError | None]]) -> None:
        try:
            self.stop, self._newer = look.result()
        except (CheckpointError, OSError) as error:
            # No reason to end a training: before it publishes anything, a save looks again, and refuses.
            if not self._troubled:
                _log.warning("whether a newer job has continued the run is not known at present: %s", error)
            self._troubled = True
        else:
            self._troubled = False

    def forget(self) -> None:
        """Forget a newer job: this one has taken an epoch again."""
        self._look, self._newer, self._began = None, None, -_EVERY
