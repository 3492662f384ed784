"""One of two jobs on the same stores: ``claiming_program.py FOLDER WHO MODE ROUNDS``.

`WHO` is ``a`` or ``b``. In each round both jobs open ``FOLDER/run-ROUND``. Modes:

- ``barrier``: both resume, and are held just before the claim until both have come there;
- ``delays``: both resume and save twice, with random pauses at every failpoint of owner 0;
- ``crash``: one job alone, killed at the failpoint in the variable POINT while it resumes.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import crashkit
import rank
from scene import snapshot

import mpickpt

LIMIT = 60.0


def until(path: Path) -> None:
    """Wait until the other job has made a file."""
    end = time.monotonic() + LIMIT
    while not path.exists():
        if time.monotonic() > end:
            raise AssertionError(f"the other job did not come: {path}")
        time.sleep(0.001)


def main() -> None:
    """Run one owner of one job."""
    folder, who, mode, rounds = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    other = "b" if who == "a" else "a"
    comm = rank.world()
    role, owners = comm.Get_rank(), comm.Get_size()

    def meet(place: str) -> None:
        """Wait, at owner 0, for the other job."""
        (folder / f"{place}.{who}").touch()
        until(folder / f"{place}.{other}")

    def attempt(call: Any) -> str:
        try:
            return f"well {call()}"
        except mpickpt.EpochError as error:
            return f"EpochError {error.message}"

    found: list[Any] = []
    for number in range(rounds):
        if role == 0 and mode != "crash":
            meet(f"round-{number}")
        rank.meet(comm)
        store, state = folder / f"run-{number}", crashkit.state(role, owners, 50)
        before, dice = snapshot(state), random.Random(f"{who} {number}")
        ckpt = mpickpt.Checkpointer(store, comm, deadline=20.0, keep=None)
        if mode == "crash":
            rank.failpoint(os.environ["POINT"], "kill", role=0)
        elif mode == "barrier":
            rank.failpoint("claim.listed", lambda n=number: meet(f"claim-{n}"), role=0)  # type: ignore[misc]
        else:
            rank.failpoint("*", lambda d=dice: time.sleep(d.random() ** 6 * 0.05), role=0, again=True)  # type: ignore[misc]
        mine: list[Any] = []
        outcome = attempt(lambda c=ckpt, s=state, m=mine: m.append(c.resume(s)))
        entry: dict[str, Any] = {"resumed": outcome, "same": snapshot(state) == before}
        if mine:
            entry |= {"epoch": mine[0].epoch, "step": mine[0].step}
        if mine and mode == "delays":
            entry["saves"] = []
            for step in (mine[0].step + 1, mine[0].step + 2):
                what = crashkit.state(role, owners, step)
                saved = attempt(lambda c=ckpt, w=what, s=step: c.save(w, step=s, cursor=10 * s).root)
                entry["saves"].append([step, saved])
                if not saved.startswith("well"):
                    break
        rank.clear()
        if role == 0 and mode != "crash":
            meet(f"end-{number}")
        rank.meet(comm)
        if mine and mode == "delays":  # one more, long after: whoever is not the newest is told now
            step = (entry["saves"][-1][0] if entry["saves"] else mine[0].step) + 1
            what = crashkit.state(role, owners, step)
            entry["last"] = attempt(lambda c=ckpt, w=what, s=step: c.save(w, step=s, cursor=10 * s).root)
        found.append(entry)
        rank.report(rounds=found)
        ckpt._end(meet=False)
        if role == 0 and mode != "crash":
            meet(f"over-{number}")
        rank.meet(comm)


if __name__ == "__main__":
    main()
