"""One job whose system calls are recorded: ``scenario.py STORE``; what it does is in the variable POWERCUT, as JSON.

It resumes, saves the state of `crashkit` at each of some steps, and tells of each success as a training loop would.

options
    Arguments of the Checkpointer.
saves
    How many steps to save after the one that was resumed.
way, fence
    "link": place by link; true: sync by a fence too.
direct
    Whether shards are written past the page cache, as on ext4.
fan_out
    Not null: owners are a tree.
fail
    Arguments of `rank.failpoint`, for the saves: one that fails is a part of the story, and is saved again.
kill
    [role, name, end, n]: this owner is killed before its n-th operation of this name (`crashkit.OPERATIONS`) on a path
    that ends so; empty: any.
sweep
    Whether owner 0 sweeps at the end, as `mpickpt sweep` does.
mistake
    A name of `mistakes`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crashkit
import rank

import mpickpt
from mpickpt import checkpointer
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CheckpointError
from mpickpt.store import direct, filesystem
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from powercut import mistakes


def as_elsewhere(plan: dict[str, Any]) -> None:
    """Let the probe find what another file system would have it find."""
    real = filesystem.probe

    def probe(directory: str) -> filesystem.Promise:
        found = vars(real(directory))
        return filesystem.Promise(**found | {"way": Way[plan["way"].upper()], "fence": plan["fence"]})

    filesystem.probe = probe
    if plan.get("direct"):
        direct.LEAST, direct.FASTER = 1, frozenset(filesystem.KINDS)  # type: ignore[misc]
    if plan["fan_out"] is not None:

        class Trees(Wiring):
            @classmethod
            def of(cls, comm: Any, alone: bool, deadline: float = 60.0, *_: Any, **__: Any) -> Wiring:
                return Wiring.of(comm, alone, deadline, "tree", plan["fan_out"])

        checkpointer.Wiring = Trees  # type: ignore[misc]


def main() -> None:
    """Run the job."""
    plan = json.loads(os.environ["POWERCUT"])
    comm, folder, store = rank.world(), rank.folder(), Path(sys.argv[1])
    role = comm.Get_rank()
    as_elsewhere(plan)
    mistakes.plant(plan["mistake"], store, folder, role)
    with contextlib.ExitStack() as stack:
        if plan["kill"] is not None and plan["kill"][0] == role:
            stack.enter_context(crashkit.operations(store.parents[1], killer(*plan["kill"][1:])))
        run_job(plan, comm, store)
    rank.report(done=True)


def killer(name: str, end: str, number: int) -> Callable[[str, str], None]:
    """Give what kills this process when it is called for the `number`-th time for such an operation."""
    count = itertools.count(1)

    def before(operation: str, path: str) -> None:
        if name in ("", operation) and path.endswith(end) and next(count) == number:
            rank.report(killed=[operation, path])
            rank.kill()

    return before


def run_job(plan: dict[str, Any], comm: Any, store: Path) -> None:
    """Resume, save, sweep."""
    folder, role, owners = rank.folder(), comm.Get_rank(), comm.Get_size()
    with mpickpt.Checkpointer(store, comm, **plan["options"]) as ckpt:
        assert ckpt._wiring.topology.to_json()["kind"] == ("star" if plan["fan_out"] is None else "tree")
        run = ckpt.resume(crashkit.state(role, owners, 0))
        with open(folder / f"said.{role}", "a") as file:
            file.write(json.dumps({"epoch": run.epoch}) + "\n")
        if run.root is not None:
            crashkit.say(folder, role, run.step, run.root)
        if plan["mistake"] is None:
            # Owner 0 tells as it releases the others: rotation begins as `save` returns, and its sync covers others.
            rank.failpoint("save.released", lambda: mistakes.tell_newest(store, folder, role), role=0, again=True)
        for rule in plan["fail"]:
            rank.failpoint(**rule)
        for step in range(run.step + 1, run.step + 1 + plan["saves"]):
            for left in (1, 0):
                try:
                    saved = ckpt.save(crashkit.state(role, owners, step), step=step, cursor=10 * step)
                except CheckpointError:
                    if not (left and plan["fail"]):
                        raise
                else:
                    crashkit.say(folder, role, step, saved.root)
                    break
    if plan["sweep"] and role == 0:
        Directory(store).sweep()


if __name__ == "__main__":
    main()
