"""Many chunks in one call into the C extension: without the interpreter lock, by several threads that share a list.

A thread that had to take the lock between two chunks would wait there for as long as the caller's own code holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from mpickpt import failpoints
from mpickpt.native import _native
from mpickpt.store.progress import Progress
from mpickpt.store.threads import Pool, share

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Result: TypeAlias = tuple[Any, ...]


@dataclass(slots=True)
class Job:
    """A list of chunks of one shard.

    Parameters
    ----------
    count : int
        How many there are.
    call : callable
        ``call(turn, most)`` works on them until none is left, or `most` are done where that is not 0, and gives what
        the extension gave: its outcome, a place in the shard, and more.
    refuse : callable
        Gives the exception for an outcome that is a refusal.
    failpoint : bool
        Whether `call` reaches a failpoint after each chunk: where a test waits for that, chunks are done one by one.
    """

    count: int
    call: Callable[[Numbers, int], Result]
    refuse: Callable[[Result], BaseException]
    failpoint: bool = False
    turn: Numbers = field(default_factory=lambda: np.zeros(2, np.int64))

    def run(self) -> tuple[int, BaseException] | None:
        """Work in this thread until nothing is left; give the place and the failure, if there is one."""
        place = -1
        try:
            while not self.turn[1]:
                result = self.call(self.turn, 1 if self.failpoint and failpoints.hook is not None else 0)
                place = result[1]
                if result[0] in (_native.DONE, _native.STOPPED):
                    return None
                if result[0] != _native.MORE:
                    return place, self.refuse(result)
            return None
        except BaseException as error:  # whoever waits for the job raises it
            return place, error

    def stop(self) -> None:
        """End it before its next chunk."""
        self.turn[1] = 1


def work_off(pool: Pool | None, jobs: Sequence[Job], progress: Progress) -> None:
    """Do all jobs, in order, in the threads of `pool` and in the caller's own.

    After the first failure no chunk is begun any more; what was begun is waited for, and then the failure of the first
    chunk of the first job that failed is raised: the same one whichever thread was the quickest.

    Raises
    ------
    Cancelled
        If `progress`, which all jobs share, was told to stop them.
    """
    failures: list[tuple[int, int, BaseException]] = []

    def work(number: int) -> None:
        failed = jobs[number].run()
        if failed is not None:
            failures.append((number, *failed))
            for job in jobs:
                job.stop()

    threads = 1 if pool is None else pool.size
    share(pool, work, [number for number, job in enumerate(jobs) for _ in range(min(threads, job.count))])
    if failures:
        raise min(failures, key=lambda failure: failure[:2])[2]
    progress.check()


def numbers(rows: Iterable[Sequence[int]], width: int) -> Numbers:
    """Make the table that the extension takes."""
    return np.array(list(rows), np.int64).reshape(-1, width)


def address(array: np.ndarray[Any, Any]) -> int:
    """Give where an array's memory begins; the array must be kept for as long as that is used."""
    found = array.__array_interface__["data"][0]
    assert isinstance(found, int)
    return found
