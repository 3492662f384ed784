"""Saves, at most one at a time: in the caller's thread, or staged and then published by a thread of its own.

Staging copies what the caller's arrays hold into memory that is kept from save to save. The thread does all the rest,
from agreement to publication, on the communicator of the saves, and needs no other call of the caller's to get on. It
begins beside the copying, and agrees and plans meanwhile, to have that behind it when the caller goes on, who may hold
the interpreter lock for long. How it ended is told by the `Save`, and where it failed by the next call of all owners.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Final, NoReturn

import numpy as np

from mpickpt.cluster.channel import Line
from mpickpt.cluster.garbage import fewer_collections
from mpickpt.cluster.lineage import Lineage
from mpickpt.cluster.publish import Publisher
from mpickpt.cluster.saves import Published, Staged
from mpickpt.continuation import Save
from mpickpt.errors import CheckpointError, StateError, StoreError
from mpickpt.native import _native
from mpickpt.reporting import Reporter
from mpickpt.state import arguments, nest
from mpickpt.state.moment import Moment
from mpickpt.store.bulk import address, numbers
from mpickpt.store.memory import aligned
from mpickpt.store.threads import Pool, finished, no_thread, share

_log = logging.getLogger("mpickpt")
_LINE: Final = 64
#: Seconds after which a thread that has not begun, since its start was interrupted, never will.
_START: Final = 1.0
#: Bytes that a thread copies before it looks for more.
_STRETCH: Final = 4 << 20


class Over(threading.Event):
    """Set when the thread of a save in the background has ended; the interpreter's exit waits for it.

    What `threading` knows of a thread is not enough: an interrupted `join` may take it for one that has ended.
    """

    _waited_for: ClassVar[set[Over]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self._process = os.getpid()

    def begin(self) -> None:
        """Say that it has begun."""
        self.begun.set()
        if not Over._waited_for:  # again each time, to come before the end of MPI, whenever that was loaded
            atexit.unregister(Over._wait_for_all)
            atexit.register(Over._wait_for_all)
        Over._waited_for.add(self)

    def set(self) -> None:
        """Say that it has ended, or never will begin."""
        Over._waited_for.discard(self)
        super().set()

    @staticmethod
    def _wait_for_all() -> None:
        for over in list(Over._waited_for):
            if over._process == os.getpid():  # a forked process has no such thread
                over.wait()


class Copies:
    """Copies of arrays, that are still to be made."""

    def __init__(self, arrays: Sequence[Any], copies: Sequence[Any]) -> None:
        self._arrays = arrays
        self._copies = copies
        self.nbytes = sum(array.nbytes for array in arrays)

    def make(self, pool: Pool) -> None:
        """Make them, in the threads of `pool` and in the caller's own.

        Each thread makes its part in one call without the interpreter lock: between two calls it would have to wait for
        the thread that publishes.
        """
        rows, odd = [], []
        for array, copy in zip(self._arrays, self._copies, strict=True):
            if array.flags.c_contiguous:
                to, start = address(copy), address(array)
                rows += [
                    (to + at, start + at, min(_STRETCH, array.nbytes - at)) for at in range(0, array.nbytes, _STRETCH)
                ]
            else:
                odd.append((array, copy))
        table, following = numbers(rows, 3), np.zeros(1, np.int64)
        share(pool, lambda _: _native.copy_all(table, following), range(min(pool.size, len(rows))))
        share(pool, lambda pair: np.copyto(pair[1], pair[0], casting="no"), odd)


class Staging:
    """Memory that a state is copied into: exactly as much as it needs, kept for the next one of the same size."""

    def __init__(self) -> None:
        self._memory: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)

    def take(self, capture: nest.Capture, most: int | None) -> tuple[int, Copies | None]:
        """Put private memory in the place of a capture's arrays, unless these take more than `most` bytes.

        Returns
        -------
        (int, Copies or None)
            Bytes of the arrays, and the copies that are still to be made; or what copies would take, and None: nothing
            is changed then.

        Raises
        ------
        StoreError
            If there is no memory for a copy (ENOMEM).
        """
        parts = [part for holding in capture.holdings for part in holding.parts if isinstance(part.array, np.ndarray)]
        arrays = [part.array for part in parts if isinstance(part.array, np.ndarray)]
        ends = np.cumsum([-(-array.nbytes // _LINE) * _LINE for array in arrays], dtype=np.int64)
        size = int(ends[-1]) if arrays else 0
        if most is not None and size > most:
            return size, None
        if size != len(self._memory):
            self._memory = np.empty(0, np.uint8)  # let go of the old first
            try:
                self._memory = aligned(size)
            except MemoryError as error:
                raise StoreError(
                    "there is no memory for a copy of the state",
                    errno=errno.ENOMEM,
                    expected=f"{size} bytes",
                    unharmed="earlier generations and all arrays",
                    advice="save with async_=False, which needs no copy",
                ) from error
        copies = []
        for array, end in zip(arrays, ends.tolist(), strict=True):
            start = end - -(-array.nbytes // _LINE) * _LINE
            copies.append(self._memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape))

        for part, staged in zip(parts, copies, strict=True):
            part.array = staged
        return size, Copies(arrays, copies)


class Saving:
    """The saves of one Checkpointer.

    Parameters
    ----------
    publisher : Publisher
    lineage : Lineage
    jobs, chunks : Pool
    quiet : Pool
        Threads for the chunks of a save in the background: they leave a core to the caller.
    role, owners : int
    background : bool
        Whether MPI lets a thread of ours work beside the caller's.
    took : callable
        Is told how many seconds a save has taken, from agreement to release.
    reporter : Reporter
    most : int, optional
        Bytes that a copy of the state may take: a greater one is saved at once.
    """

    def __init__(
        self,
        publisher: Publisher,
        lineage: Lineage,
        jobs: Pool,
        chunks: Pool,
        quiet: Pool,
        role: int,
        owners: int,
        background: bool,
        took: Callable[[float], None],
        reporter: Reporter,
        most: int | None = None,
    ) -> None:
        self._publisher = publisher
        self._lineage = lineage
        self._jobs = jobs
        self._chunks = chunks
        self._quiet = quiet
        self._role = role
        self._owners = owners
        self._background = background
        self._took = took
        self._reporter = reporter
        self._most = most
        self._staging = Staging()
        self._rotating: Future[None] | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()  # of the save in flight, or the last one
        self._over.set()
        self._failed: BaseException | None = None
        self._said: set[str] = set()
        #: Set while the caller's arrays are being filled, and for good where that failed: there is no state to save.
        self.undefined = threading.Event()

    def save(self, state: Any, step: int, cursor: int, asynchronous: bool, keep: object) -> Save:
        """Save in this thread, or stage and begin; `keep` lives for as long as the save is in flight."""
        captured = lambda: self._flatten(state, step, cursor)  # noqa: E731
        if asynchronous and not self._background:
            self._warn("MPI offers less than MPI_THREAD_MULTIPLE: async_ saves are made at once, not in the background")
            asynchronous = False
        began, copies = time.monotonic(), None
        if asynchronous:
            captured, copies, asynchronous = self._stage(state, step, cursor)
        if not asynchronous:
            self._publisher.pool = self._chunks
            published = self._publish(captured, step, cursor)
            return Save.of(published.step, published.root)
        self._publisher.pool = self._quiet
        staged = Staged(self._publisher.line.take())
        future: Future[str] = Future()
        over = Over()

        def work(keep: object) -> None:
            try:
                over.begin()
                self._publish(captured, step, cursor, began, staged, future)
            except BaseException as error:  # raised by the next call, and by whoever waits for the save
                if isinstance(error, CheckpointError):
                    error.message = f"the save of step {step} in the background failed: {error.message}"
                self._failed = error
                if not future.done():
                    future.set_exception(error)
            finally:
                over.set()

        # No daemon: the interpreter's exit waits for it. It has the deadlines of every save.
        thread = threading.Thread(target=work, args=(keep,), name="mpickpt-save")
        try:
            self._thread, self._over = thread, over
            try:
                thread.start()
            except RuntimeError as error:
                self._thread = None
                over.set()
                refusal = no_thread(error)
                self.missed(refusal)
                self._refuse(refusal, step, cursor, staged)
            self._copy(copies, staged, step, cursor, began)
        except BaseException as error:  # an interrupt, for the most part: the save must not wait for what never comes
            if not staged.complete.done():
                staged.complete.set_exception(CheckpointError(f"the copy of the state was not completed: {error!r}"))
            if not over.begun.wait(_START):
                over.set()
            raise
        return Save(arguments.plain(step), future)

    def _copy(self, copies: Copies | None, staged: Staged, step: int, cursor: int, began: float) -> None:
        """Make the copies that a save in the background waits for."""
        start = time.monotonic()
        if copies is not None:
            copies.make(self._chunks)
        now = time.monotonic()
        staged.seconds = now - start
        if copies is not None:
            step, cursor = arguments.plain(step), arguments.plain(cursor)
            self._reporter.staged(step, cursor, self._epoch(), copies.nbytes, now - began)
        staged.complete.set_result(None)

    def _refuse(self, error: CheckpointError, step: int, cursor: int, staged: Staged) -> NoReturn:
        """Refuse where all owners can hear it."""

        def refuse() -> nest.Capture:
            raise error

        self._publish(refuse, step, cursor, staged=staged)
        raise error

    def _flatten(self, state: Any, step: int, cursor: int) -> nest.Capture:
        Moment(step, cursor)
        if self.undefined.is_set():
            raise StateError(
                "the last resume failed while it filled the state, which is of no one step now",
                expected="a resume that succeeds",
                found="none since",
                unharmed="the store",
                advice="resume again, or start again, before anything is saved",
            )
        return nest.flatten(state, self._role, self._owners)

    def _warn(self, message: str, *more: object) -> None:
        """Log a warning, once."""
        if message not in self._said:
            _log.warning(message, *more)
        self._said.add(message)

    def _stage(self, state: Any, step: int, cursor: int) -> tuple[Callable[[], nest.Capture], Copies | None, bool]:
        """Capture a state as it is now, with copies that are still to be made; say whether there may be any.

        What is wrong with it is told where all owners can hear it.
        """
        try:
            with fewer_collections():
                capture = self._flatten(state, step, cursor)
                nbytes, copies = self._staging.take(capture, self._most)
        except Exception as error:
            refusal = error

            def refuse() -> nest.Capture:
                raise refusal

            return refuse, None, True
        if copies is None:
            self._warn(
                "owner %d: a copy of the state takes %d bytes, and staging_bytes allows %d: async_ saves are made at "
                "once, not in the background",
                self._role,
                nbytes,
                self._most,
            )
            return (lambda: capture), None, False
        return (lambda: capture), copies, True

    def _epoch(self) -> int | None:
        mine = self._lineage.claims.mine
        return None if mine is None else mine.epoch

    def _publish(
        self,
        flatten: Callable[[], nest.Capture],
        step: int,
        cursor: int,
        began: float | None = None,
        staged: Staged | None = None,
        done: Future[str] | None = None,
    ) -> Published:
        """Publish; in the thread of a save in the background `began` and `staged` tell of its staging.

        `done` is given the root's digest before anything else is done for which the interpreter lock is waited for.
        """
        publisher, reporter = self._publisher, self._reporter
        before, entered = publisher.last, time.monotonic()
        step, cursor, background = arguments.plain(step), arguments.plain(cursor), began is not None
        with (
            # Not while the caller goes on: what it throws away would pile up, with all the memory that hangs on it.
            contextlib.nullcontext() if background else fewer_collections(),
            reporter.saving(step, cursor, self._epoch, background),
            reporter.bar(f"saving step {step}", publisher.progress),
        ):
            published = publisher.save(flatten, step, cursor, self._begin, began, staged)
            if done is not None:
                done.set_result(published.root)
        if published is not before:
            now = time.monotonic()
            self._took(now - entered)
            reporter.durable(published, publisher.timings, now - (began or entered), background)
            if self._role == 0:
                self._rotating = self._jobs.submit(self._lineage.rotate, published)
        return published

    def _begin(self, step: int, cursor: int) -> dict[str, Any]:
        self.await_rotation()
        return self._lineage.begin_save(self._publisher, step, cursor)

    def await_rotation(self) -> None:
        """Let the removal of old generations end, unless the file system hangs in it."""
        if self._rotating is not None and not finished(self._rotating, self._publisher.line.deadline):
            _log.warning("old generations are still being removed in %s", self._publisher.directory.path)

    @property
    def in_flight(self) -> bool:
        """Whether a save in the background goes on."""
        return not self._over.is_set()

    def missed(self, error: BaseException) -> None:
        """Have the next call raise, too, how a save in the background never came to begin.

        The others' saves have failed in the background by it, and their next call raises that, and is one that this
        owner must not make: it would fail in the background in turn, and so on without end.
        """
        if self._owners > 1:
            told = error.message if isinstance(error, CheckpointError) else type(error).__name__
            self._failed = CheckpointError(f"the save before did not begin: {told}", role=self._role)

    def settle(self, line: Line | None) -> None:
        """Wait for the save in flight, which has its deadlines, and raise, once, how it failed.

        Parameters
        ----------
        line : Line, optional
            That of the call that the caller is making, which this then is in the place of. An owner for which the save
            did not fail (protocol P10), or which had made it at once, is in that call, and is told.

        Raises
        ------
        CheckpointError
            The same on all owners.
        """
        self._over.wait()
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # its start was interrupted before there was a thread
                self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, None
        if failed is None:
            return
        if line is not None:
            told = CheckpointError(f"an owner failed: {failed!r}", role=self._role)
            if isinstance(failed, CheckpointError):
                told = failed
            with contextlib.suppress(CheckpointError):
                line.call().fail(told, told=True, final=True)
        raise failed
