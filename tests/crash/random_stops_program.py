"""Owners that save again and again while they are stopped: ``random_stops_program.py STORE SEED CALLS WRITE DEADLINE``.

In about every third call one of them, at times two, is stopped at a failpoint that the seed chooses; the test
continues it, and stops others at any moment. After the last call nothing disturbs any more, and all save together.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import crashkit
import rank

import mpickpt
from mpickpt import failpoints

_EVENTS = 16
"""About so many failpoints an owner comes to in one call."""


def main() -> None:
    """Run one owner."""
    comm = rank.world()
    role, owners = comm.Get_rank(), comm.Get_size()
    seed, calls, deadline = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[5])
    options: dict[str, Any] = {"write": sys.argv[4], "deadline": deadline, "keep": None}
    ckpt = mpickpt.Checkpointer(Path(sys.argv[1]), comm, **options)
    ckpt.resume(crashkit.state(role, owners, 0))
    rank.meet(comm)
    (rank.folder() / f"begun.{role}").touch()
    left = [0]  # failpoints until the stop

    def reach(name: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            rank.stop()

    failpoints.hook = reach
    outcomes: list[list[Any]] = []

    def save() -> list[Any]:
        step = len(outcomes) + 1
        state = crashkit.state(role, owners, step)
        found = rank.attempt(lambda: ckpt.save(state, step=step, cursor=10 * step).root)
        if "value" in found:
            outcomes.append(["saved", found["value"]])
        else:
            outcomes.append([found["raised"]["class"], found["raised"]["traceback"]])
        return outcomes[-1]

    for call in range(calls):
        draw = random.Random(f"{seed} {call}")  # the same on all owners
        stopped = draw.sample(range(owners), draw.choice([0, 0, 0, 1, 1, 2]))
        events = [draw.randint(1, _EVENTS) for _ in range(owners)]
        left[0] = events[role] if role in stopped else 0
        save()
        rank.report(outcomes=outcomes)
    failpoints.hook = None
    (rank.folder() / f"calm.{role}").touch()
    rank.meet(comm)
    for _ in range(5):  # of a short deadline a busy machine may make one too short
        if save()[0] == "saved":
            break
    rank.report(outcomes=outcomes, end=True)
    ckpt.close()


if __name__ == "__main__":
    main()
