"""One job of the chaos: ``chaos_program.py STORE``; what happens to it is in the variable CHAOS, as JSON.

It resumes, checks every bit, saves some steps, and tells of all that it was told (`oracle.Teller`). A job with a rival
saves until it is fenced, or until there is a file `enough` in its folder. What disturbs it (`event`):

kill, kill all
    An owner, or all, killed at its `at`-th operation on the store.
die
    An owner killed as it comes to a failpoint.
stop
    An owner stopped at a failpoint for three deadlines.
hang
    The same, until somebody outside lets it go on.
fault
    A system call that fails at one owner.

Where the event is `late`, counting begins after the resume. `dawdle`: owner 0 pauses up to so many seconds around its
claim, so that an older job can save there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crashkit
import rank
from faults_program import Shim
from oracle import Teller, state, whose
from powercut.scenario import as_elsewhere

import mpickpt
from mpickpt.cluster.claims import Claims
from mpickpt.errors import CheckpointError, DeadlineError, EpochError, OvertakenError
from mpickpt.store import fencing

DEADLINE = 1.0
TRIES = 4
#: So long a job with a rival tries again what a silent owner of its own has ended.
PATIENCE = 80.0


def fence_ignored() -> None:
    """Whether a newer job goes on is not asked."""
    fencing.check = lambda directory, epoch: None
    fencing.orphaned = lambda directory, name: None


def lineage_ignored() -> None:
    """The newest root is resumed, whatever the claims say of it."""
    from mpickpt.store import directory

    directory.descends = lambda root, origins: True


def rival_ignored() -> None:
    """An epoch that another job was first to take counts as taken by this one."""
    publish = Claims._publish

    def published(self: Claims, claim: Any) -> None:
        with contextlib.suppress(EpochError):
            publish(self, claim)

    Claims._publish = published  # type: ignore[method-assign]


def not_looked_again() -> None:
    """What an older job saves between the look at the roots and the claim is not seen."""
    Claims._newer = lambda self, *_: None  # type: ignore[method-assign]


MISTAKES: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (fence_ignored, lineage_ignored, rival_ignored, not_looked_again)
}


class Job:
    """One owner of the job."""

    def __init__(self, store: Path, plan: dict[str, Any]) -> None:
        self.comm, self.folder, self.store, self.plan = rank.world(), rank.folder(), store, plan
        self.role, self.owners = self.comm.Get_rank(), self.comm.Get_size()
        self.tell = Teller(self.folder, self.role)
        self.rival = bool(plan.get("rival"))
        self.limit = time.monotonic() + PATIENCE
        self.step = self.epoch = 0

    def run(self) -> str:
        """Resume and save; give how it ended, in one word."""
        self.pids = self.comm.allgather(os.getpid())
        with contextlib.ExitStack() as self.stack:
            if not self.plan["event"].get("late"):
                self.disturb()
            if self.plan.get("dawdle") and self.role == 0:
                self.dawdle()
            self.ckpt = mpickpt.Checkpointer(self.store, self.comm, deadline=DEADLINE, **self.plan["options"])
            ended = self.resume() or self.train()
            if ended == "done":
                with contextlib.suppress(CheckpointError):
                    self.ckpt.close()
            else:
                self.ckpt._end(meet=False)
        return ended

    def disturb(self) -> None:
        """Let happen what the plan wants."""
        event = self.plan["event"]
        what = event["what"]
        if event.get("role") != self.role:
            return
        if what in ("kill", "kill all"):
            self.stack.enter_context(crashkit.operations(self.store, killer(event, self.pids)))
        if what in ("stop", "hang", "die"):
            act = "kill" if what == "die" else "stop"
            seconds = 3 * DEADLINE if what == "stop" else None
            rank.failpoint(event["point"], act, occurrence=event["at"], seconds=seconds)
        if what == "fault":
            Shim(self.store).arm(event["kind"], event["at"], event["errno"], event["mode"])

    def dawdle(self) -> None:
        """Pause around the claim."""
        dice = random.Random(self.plan["job"])
        for point in ("resume.chosen", "claim.listed", "claim.placed"):
            rank.failpoint(point, lambda: time.sleep(dice.random() * self.plan["dawdle"]), again=True)

    def again(self, error: CheckpointError) -> bool:
        """Tell whether to try again; the calls of all owners stay in step, for a refusal is everybody's."""
        if self.rival and isinstance(error, DeadlineError):
            return time.monotonic() < self.limit
        self.tries -= 1
        return self.tries > 0

    def resume(self) -> str | None:
        """Resume; give how the job ends by it, if it does."""
        self.tries = TRIES
        while True:
            destination = crashkit.state(self.role, self.owners, 0)
            try:
                run = self.ckpt.resume(destination)
            except CheckpointError as error:
                rank.report(refused=rank.raised(error))
                if isinstance(error, EpochError) and not isinstance(error, OvertakenError):
                    return "fenced"
                if self.plan["refused"] or not self.again(error):
                    return "refused"
            else:
                break
        self.step, self.epoch = run.step, run.epoch
        job = whose(destination, self.role, self.owners, run.step)
        self.tell(resumed=run.step, root=run.root, epoch=run.epoch, whose=job)
        return None

    def train(self) -> str:
        """Save step after step; give how the job ends."""
        if self.plan["event"].get("late"):
            self.disturb()
        fenced = False
        while not self.enough():
            ended = self.save()
            if ended is None and fenced:
                return "saved after it was fenced"
            if ended == "fenced" and not fenced and self.rival:
                # Some owners may have been told of a success: all make the next call together (P10).
                fenced = True
                self.step += 1
            elif ended is not None:
                return ended
        return "done"

    def save(self) -> str | None:
        """Save the next step; give how the job ends by it, if it does."""
        step = self.step + 1
        self.tries = TRIES
        while True:
            try:
                mine = state(self.role, self.owners, self.plan["job"], step)
                root = self.ckpt.save(mine, step=step, cursor=10 * step).root
            except CheckpointError as error:
                rank.report(failed=rank.raised(error))
                if isinstance(error, EpochError):
                    return "fenced"
                if not self.again(error):
                    return "failed"
            else:
                break
        self.tell(saved=step, root=root, epoch=self.epoch)
        self.step = step
        return None

    def enough(self) -> bool:
        """Tell whether the last step is saved: the same at all owners.

        Whoever has saved a step knows that owner 0 had come to that save: what it wrote down before is there.
        """
        if not self.rival:
            self.plan["saves"] -= 1
            return bool(self.plan["saves"] < 0)
        last = self.folder / "last"
        if self.role == 0 and not last.exists() and (self.folder / "enough").exists():
            (self.folder / "new").write_text(str(self.step + 2))
            (self.folder / "new").rename(last)
        return last.exists() and self.step >= int(last.read_text())


def killer(event: dict[str, Any], pids: list[int]) -> Callable[[str, str], None]:
    """Give what kills this process, or all, when it is called for the `at`-th time."""
    count = itertools.count(1)

    def before(name: str, path: str) -> None:
        if next(count) == event["at"]:
            for pid in pids if event["what"] == "kill all" else ():
                if pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            rank.kill()

    return before


def main() -> None:
    """Run one owner."""
    plan = json.loads(os.environ["CHAOS"])
    as_elsewhere(plan)
    job = Job(Path(sys.argv[1]), plan)
    job.tell.tell_claims()
    if plan.get("mistake"):
        MISTAKES[plan["mistake"]]()
    rank.report(end=job.run())


if __name__ == "__main__":
    main()
