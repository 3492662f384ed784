"""Work of one owner within a call: which thread does it, while the call's own polls.

- What only computes (`reckon`) is done at once where it is little, and else by a worker: to hand it to another thread
  and back takes two turns of the interpreter lock, for which the caller's code may let wait long.
- Lists of file operations (`perform`) are done by a thread that never takes that lock. A worker does what follows an
  error, and all of it where a test waits at failpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

from mpickpt import failpoints
from mpickpt.cluster.channel import Call, Working
from mpickpt.errors import CheckpointError
from mpickpt.store.steps import Steps

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Up to so many regions, boxes or pieces, all that is computed of them in one go takes a few milliseconds.
LITTLE: Final = 256


class Task(Protocol[T_co]):
    """File operations, and what is made of how they ended."""

    steps: Steps

    def conclude(self, error: BaseException | None) -> T_co:
        """Give the result, or raise; without an error it touches no file."""


def reckon(call: Call, size: int, work: Callable[..., T], *args: Any) -> T:
    """Compute something of `size` regions, boxes or pieces."""
    return work(*args) if size <= LITTLE else call.run(work, *args)


def perform(call: Call, task: Task[T], working: Working | None = None, ready: Future[None] | None = None) -> T:
    """Do a task while this thread polls; raises what `task.conclude` does, as `Call.run`.

    Parameters
    ----------
    working : Working, optional
        What shows that it gets on; without it the task is taken for one sync.
    ready : Future, optional
        The task begins when this is done, in whichever thread that is seen first; its failure is raised.
    """
    steps = task.steps

    def in_worker() -> T:
        if ready is not None:
            ready.result()
        return task.conclude(steps.run())

    def by_worker() -> T:
        steps.worker = worker = call.line.pool.submit(in_worker)
        return call.join(worker, working=working)

    if failpoints.hook is not None:
        return by_worker()
    troubles: list[BaseException] = []

    def begin(done: Future[None] | None = None) -> None:
        try:
            if done is not None:
                done.result()
            steps.begin()
        except BaseException as trouble:  # the thread of the call deals with it
            troubles.append(trouble)

    def ended() -> bool:
        if troubles or steps.wait(0):
            return True
        call.look_after(working)
        return False

    steps.close_list()
    call.attend(working)
    if ready is None:
        begin()
    else:
        ready.add_done_callback(begin)
    call.wait(ended, nap=steps.wait)
    if troubles:
        if isinstance(troubles[0], OSError) and not isinstance(troubles[0], CheckpointError):
            return by_worker()  # there are no more threads: it has to be done by one that is there
        raise troubles[0]
    error = steps.outcome()
    return task.conclude(None) if error is None else call.run(task.conclude, error)
