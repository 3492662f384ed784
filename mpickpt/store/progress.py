"""How far a writer or reader is, what its time went into, and the word that stops it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Cancelled(Exception):
    """The writer was told to stop, or has been abandoned. Never reaches a user: whoever cancels knows why."""


class Spent(NamedTuple):
    """What one owner's time went into, in seconds of the wall clock: each moment counts once.

    Attributes
    ----------
    copy : float
        Copies of the state, and the look at what was copied for values that are not finite.
    digest : float
        Digests and CRCs, also those by which copies are compared.
    write : float
        Making files and writing into them.
    sync : float
        Syncs of files and directories, as far as nothing else was done meanwhile.
    planning : float
        The rest of what the owner did itself: layouts, sums of boxes, manifests, messages.
    """

    copy: float = 0.0
    digest: float = 0.0
    write: float = 0.0
    sync: float = 0.0
    planning: float = 0.0

    @property
    def busy(self) -> float:
        """All of it."""
        return sum(self)

    def plus(self, other: Spent) -> Spent:
        """Add another owner's."""
        return Spent(*(a + b for a, b in zip(self, other, strict=True)))


class Progress:
    """How far a writer or reader is: shared between its threads and whoever watches it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = 0
        self._aside = 0
        self._syncing = self._working = 0
        self._since = 0.0
        self._worked = self._synced = 0.0
        self._copy = self._digest = self._write = 0.0
        self.watch: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(5, np.int64)
        """Bytes that the extension has done, whether it is to stop, and its nanoseconds; see `_native.write_chunks`."""
        self.syncs: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(1, np.int64)
        """How many syncs of the extension's are in flight."""
        self.staging = False
        """Whether a copy is being made of what is to be written: it is waited for as a sync is."""

    @property
    def done(self) -> int:
        """Bytes done, of any work: it shows that the work gets on."""
        return self.payload + self._aside

    @property
    def payload(self) -> int:
        """Bytes of payload done."""
        return self._done + int(self.watch[0])

    @property
    def cancelled(self) -> bool:
        """Whether it was asked to stop."""
        return bool(self.watch[1])

    @property
    def syncing(self) -> int:
        """How many syncs are in flight: several files may be at that at once."""
        return self._syncing + int(self.syncs[0]) + self.staging

    @contextlib.contextmanager
    def sync(self) -> Iterator[None]:
        """Say, for the length of a with-block, that a sync is in flight, which may take long."""
        self._turn(syncing=1)
        try:
            yield
        finally:
            self._turn(syncing=-1)

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Say, for the length of a with-block, that a thread copies, digests or writes; any number of them may."""
        self._turn(working=1)
        try:
            yield
        finally:
            self._turn(working=-1)

    @contextlib.contextmanager
    def steps(self, synced: Callable[[], float]) -> Iterator[None]:
        """Say, for the length of a with-block, that a list of steps is done; `synced` tells how long it has synced."""
        before = synced()
        self.begin_steps()
        try:
            yield
        finally:
            self.end_steps(None, synced() - before)

    def begin_steps(self) -> None:
        """Say that the extension begins with a list of steps."""
        self._turn(working=1)

    def end_steps(self, at: float | None, synced: float) -> None:
        """Say that it has ended, `at` a time of the monotonic clock or now, and for how many seconds it has synced."""
        self._turn(working=-1, at=at)
        with self._lock:
            self._worked -= synced
            self._synced += synced

    def _turn(self, working: int = 0, syncing: int = 0, at: float | None = None) -> None:
        """Count the time since the last turn as what was in flight then, and go on with what is in flight now."""
        with self._lock:
            now = max(self._since, time.monotonic() if at is None else at)
            if self._working:
                self._worked += now - self._since
            elif self._syncing:
                self._synced += now - self._since
            self._since = now
            self._working += working
            self._syncing += syncing

    def add(self, count: int) -> None:
        """Count `count` bytes of payload more."""
        with self._lock:
            self._done += count

    def add_aside(self, count: int) -> None:
        """Count `count` bytes more of which nothing is written: they were compared."""
        with self._lock:
            self._aside += count

    def took(self, *, copy: float = 0.0, digest: float = 0.0, write: float = 0.0) -> None:
        """Count seconds of one thread, within `work`."""
        with self._lock:
            self._copy += copy
            self._digest += digest
            self._write += write

    def spent(self) -> Spent:
        """Say what the time has gone into so far; `planning` is not known here.

        Threads work side by side: the time in which any of them worked is divided as all their times together are.
        """
        self._turn()
        with self._lock:
            kinds = [
                seconds + int(nanoseconds) / 1e9
                for seconds, nanoseconds in zip((self._copy, self._digest, self._write), self.watch[2:], strict=True)
            ]
            total = sum(kinds)
            copy, digest = (self._worked * kind / total if total > 0 else 0.0 for kind in kinds[:2])
            return Spent(copy, digest, max(0.0, self._worked - copy - digest), self._synced)

    def cancel(self) -> None:
        """Ask the writer to stop before its next chunk."""
        self.watch[1] = 1

    def check(self) -> None:
        """Raise `Cancelled` where it was asked to stop."""
        if self.cancelled:
            raise Cancelled
