"""Owners that are stopped at a failpoint of a resume, and go on by themselves: cases in the variable CRASH.

A case: ``{"name", "stop": {ROLE: FAILPOINT, ...}, "options"}``. All owners resume from a store of two generations;
those of `stop` are stopped for longer than the deadline. Each tells what its resume came to, and what its arrays
hold then. Once all have told, all resume once more together, and save.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import crashkit
import rank
import stoppedkit
from scene import patched, snapshot

import mpickpt

DEADLINE = 2.0
STOPPED = 2.5 * DEADLINE


def run(comm: Any, directory: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Give what one owner saw."""
    role, owners, path = comm.Get_rank(), comm.Get_size(), directory / "run"
    if role == 0:
        crashkit.publish(path, owners, (1, 2))
    rank.meet(comm)
    state = crashkit.state(role, owners, 50)
    before, saved = snapshot(state), snapshot(crashkit.state(role, owners, 2))
    options = plan.get("options", {})
    with contextlib.ExitStack() as stack:
        if options.get("topology") == "tree":  # what all need is passed on there, which on one host it is not
            stack.enter_context(patched(socket, "gethostname", lambda: f"node{role}"))
        ckpt = mpickpt.Checkpointer(path, comm, deadline=DEADLINE, **options)
    rank.meet(comm)
    for late, point in plan["stop"].items():
        rank.failpoint(point, "stop", role=int(late), seconds=STOPPED, comm=comm)
    outcome = rank.attempt(lambda: ckpt.resume(state).step)
    held = snapshot(state)
    found = {"outcome": outcome, "held": "before" if held == before else "saved" if held == saved else "neither"}
    rank.meet(comm)
    rank.clear()
    found["again"] = ckpt.resume(state).step
    ckpt.save(crashkit.state(role, owners, 3), step=3, cursor=30)
    ckpt.close()
    return found


if __name__ == "__main__":
    stoppedkit.run_plans(run)
