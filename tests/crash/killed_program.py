"""A run that is killed at a failpoint: ``killed_program.py STORE``; the plan is in the variable CRASH, as JSON.

It resumes, saves two more steps and says so after each, as a training loop prints success. `at` is the failpoint,
`who` is the owner that is killed there, or null: whichever owner comes there first takes all others with it. Owners in
`lost` stop for good at another point, so that the rest come into doubt. `options` are further ones of the Checkpointer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import crashkit
import rank
from scene import snapshot

import mpickpt


def main() -> None:
    """Run one owner."""
    comm = rank.world()
    role, owners = comm.Get_rank(), comm.Get_size()
    plan = json.loads(os.environ.get("CRASH", "{}"))
    pids = comm.allgather(os.getpid())

    def kill_all() -> None:
        for pid in pids:
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        rank.kill()

    path = Path(sys.argv[1])
    options = {"keep": 2, "deadline": 1.0, "write": plan.get("write", "each"), **plan.get("options", {})}
    with mpickpt.Checkpointer(path, comm, **options) as ckpt:
        mine = crashkit.state(role, owners, 0)
        run = ckpt.resume(mine)
        same = snapshot(mine) == snapshot(crashkit.state(role, owners, run.step))
        rank.report(step=run.step, root=run.root, same=same)
        rank.meet(comm)
        if "at" in plan:
            who = plan["who"]
            rank.failpoint(plan["at"], kill_all if who is None else "kill", role=who)
            for lost, where in plan.get("lost", {}).items():
                rank.failpoint(where, "stop", role=int(lost))
        for step in (run.step + 1, run.step + 2):
            saved = ckpt.save(crashkit.state(role, owners, step), step=step, cursor=10 * step)
            crashkit.say(rank.folder(), role, step, saved.root)
    rank.report(reached=list(rank.reached), last=step)


if __name__ == "__main__":
    main()
