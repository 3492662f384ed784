"""Threads that do not keep the process alive: a hung file system must not hang the interpreter's exit."""

from __future__ import annotations

import contextlib
import errno
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import numpy as np

from mpickpt.errors import StoreError

_T = TypeVar("_T")

#: Bytes of all buffers of one work together, unless the caller of `Checkpointer` says less or more.
STAGING: Final = 64 << 20


def no_thread(error: RuntimeError) -> StoreError:
    """Make the refusal where the system gives no thread."""
    return StoreError(
        "the system gives no thread",
        errno=errno.EAGAIN,
        expected="a thread for the file system's work",
        found=str(error),
        unharmed="the store and all arrays",
        advice="raise the limit of processes and threads (ulimit -u, the job's cgroup), or run fewer of them",
    )


class _Task:
    __slots__ = ("args", "fn", "future")

    def __init__(self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.future, self.fn, self.args = future, fn, args

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.fn(*self.args))
        except BaseException as error:  # whoever waits for the future raises it
            self.future.set_exception(error)


def finished(future: Future[Any], seconds: float) -> bool:
    """Wait for a future for at most so long; tell whether it has ended, well or not."""
    try:
        future.exception(seconds)
    except (futures.TimeoutError, futures.CancelledError):
        return future.done()
    return True


class Pool:
    """A fixed number of daemon threads that run tasks in the order in which they were submitted.

    Parameters
    ----------
    n : int
        How many threads; they start with the first task.
    name : str
        What they are called in stack traces.
    """

    def __init__(self, n: int, name: str) -> None:
        self.size = max(1, int(n))
        self.name = name
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._resting: set[threading.Thread] = set()  # those that have no task
        self._waiting = 0  # tasks that no thread has taken
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., _T], *args: Any) -> Future[_T]:
        """Run ``fn(*args)`` in one of the threads. After `close` the future comes back cancelled.

        Where the system gives no thread and there is none yet, the future has failed, with StoreError (EAGAIN).
        """
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                future.set_running_or_notify_cancel()
                return future
            try:
                # One that waits is not counted on for two: a start takes longer than a task that is short.
                self._start(self._waiting + 1 - len(self._resting))
            except RuntimeError as error:
                if not self._threads:
                    future.set_exception(no_thread(error))
                    return future
            self._waiting += 1
            self._tasks.put(_Task(future, fn, args))
        return future

    def _start(self, count: int) -> None:
        """Start so many threads, as far as there may be; the lock is held. RuntimeError where the system gives none."""
        for _ in range(min(count, self.size - len(self._threads))):
            thread = threading.Thread(target=self._work, name=f"{self.name}-{next(self._count)}", daemon=True)
            thread.start()
            self._threads.append(thread)
            self._resting.add(thread)

    def _work(self) -> None:
        me = threading.current_thread()
        while (task := self._tasks.get()) is not None:
            with self._lock:
                self._waiting -= 1
                self._resting.discard(me)
            task.run()
            del task  # a waiting thread must hold no buffer of its last task
            with self._lock:
                if me not in self._threads:
                    return
                self._resting.add(me)

    def renew(self) -> None:
        """Leave threads that are at work to themselves; what comes gets others in their place.

        A thread that hangs in a file system may never come back; one that comes back ends.
        """
        with self._lock:
            self._threads = [thread for thread in self._threads if thread in self._resting]
            with contextlib.suppress(RuntimeError):  # `submit` says so
                self._start(self._waiting - len(self._resting))

    def close(self, timeout: float | None = None) -> None:
        """Cancel what has not begun, and wait for what runs: at most `timeout` seconds in all, if given."""
        with self._lock:
            self._closed = True
            while True:
                try:
                    task = self._tasks.get_nowait()
                except queue.Empty:
                    break
                if task is not None and task.future.cancel():
                    task.future.set_running_or_notify_cancel()
            for _ in self._threads:
                self._tasks.put(None)
            threads, self._threads = self._threads, []
        end = None if timeout is None else time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def end(self) -> None:
        """Let the threads end when they have done what waits for them, and wait for nobody."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._tasks.put(None)
            self._threads = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def share(pool: Pool | None, work: Callable[[_T], object], items: Sequence[_T]) -> None:
    """Run ``work(item)`` for every item, in the threads of `pool` and in the caller's own.

    Since the caller works too, this ends even where no thread of the pool is free. Items are begun in their order.
    After the first failure none is begun any more; what was begun is waited for, and then the failure of the first
    item that failed, in their order, is raised.

    Parameters
    ----------
    pool : Pool or None
        At most as many threads as it has work at once, the caller's included; None: the caller alone.
    work : callable
        Thread-safe.
    items : sequence
    """
    numbers = itertools.count()  # next() is one step under the interpreter lock
    failures: list[tuple[int, BaseException]] = []
    stopped = threading.Event()

    def loop() -> None:
        while not stopped.is_set():
            number = next(numbers)
            if number >= len(items):
                return
            try:
                work(items[number])
            except BaseException as error:
                failures.append((number, error))
                stopped.set()

    helpers = [] if pool is None else [pool.submit(loop) for _ in range(min(pool.size, len(items)) - 1)]
    try:
        loop()
    finally:
        if failures:
            stopped.set()
        for helper in helpers:
            if not helper.cancel():
                helper.exception()
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]


class Buffers:
    """Pooled buffers of one size: at most `limit` bytes of them, or one where that is more.

    Parameters
    ----------
    size : int
        Bytes of a buffer.
    limit : int
        Bytes of all together; whoever asks for more waits.
    """

    def __init__(self, size: int, limit: int = STAGING) -> None:
        self.size = size
        self._free: list[memoryview] = []
        self._room = threading.Semaphore(max(1, limit // max(1, size)))

    def take(self) -> memoryview:
        """Get a buffer, of unknown content; give it back with `give`."""
        self._room.acquire()
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(self.size, np.uint8).data

    def give(self, buffer: memoryview) -> None:
        """Give back what `take` returned."""
        self._free.append(buffer)
        self._room.release()

    @contextlib.contextmanager
    def lend(self) -> Iterator[memoryview]:
        """Hold a buffer for as long as the with-block runs."""
        buffer = self.take()
        try:
            yield buffer
        finally:
            self.give(buffer)
