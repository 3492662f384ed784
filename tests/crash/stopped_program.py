"""Owners that are stopped at a failpoint of a save and go on later: many cases in one job, given in the variable CRASH.

A case: ``{"name", "stop": {ROLE: FAILPOINT, ...}, "calls": N, "slow": ROLE, "write", "options"}``. All owners save
steps 1 and 2; then those of `stop` are stopped as they come to their failpoint in the next save. The others call save
until it raises, and then so often that `calls` have raised; then the stopped ones go on, make the calls that they have
missed, and all save once more together. Deadline: `DEADLINE` seconds. The owner `slow` takes longer than that to write
its shards.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crashkit
import rank
import stoppedkit

import mpickpt

if TYPE_CHECKING:
    from mpi4py import MPI

DEADLINE = 2.0
_PATIENCE = 20.0


class Stopped:
    """One case at one owner."""

    def __init__(self, comm: MPI.Intracomm, directory: Path, plan: dict[str, Any]) -> None:
        self.comm, self.directory, self.plan = comm, directory, plan
        self.role, self.owners = comm.Get_rank(), comm.Get_size()
        self.late = {int(role): at for role, at in plan["stop"].items()}
        self.awake = [role for role in range(self.owners) if role not in self.late]
        self.pids = comm.allgather(os.getpid())
        self.step = 0
        self.calls: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """Give the calls of this owner from the one with the stop on, the last save, and what is in the store."""
        options = {"deadline": DEADLINE, "keep": 2, "write": self.plan.get("write", "each")}
        options |= self.plan.get("options", {})
        self.ckpt = mpickpt.Checkpointer(self.directory / "run", self.comm, **options)
        self.ckpt.resume(crashkit.state(self.role, self.owners, 0))
        for _ in range(2):
            self.save()
        rank.meet(self.comm)
        if "slow" in self.plan:
            for name in ("writer.created", "save.shards-written"):  # it makes progress between them
                rank.failpoint(name, "sleep", role=self.plan["slow"], seconds=0.7 * DEADLINE, comm=self.comm)
        if self.role in self.late:
            rank.failpoint(self.late[self.role], "stop", role=self.role, comm=self.comm)
            self.call()
            goal = self.goal()
            while self.step < goal:
                self.call()
        else:
            self.call_until_it_raises()
            if self.role == self.awake[0]:
                self.go_on()
        self.goal()
        rank.meet(self.comm)
        rank.clear()
        last = self.save()
        self.ckpt.close()  # waits until old generations are removed
        rank.meet(self.comm)
        found = {"calls": self.calls, "last": [self.step, last]}
        if self.role == 0:
            path = self.directory / "run"
            found["listed"] = sorted(crashkit.listed(path).items())
            found["left"] = crashkit.leftovers(path)
        return found

    def save(self) -> str:
        """Save the next step."""
        self.step += 1
        state = crashkit.state(self.role, self.owners, self.step)
        return self.ckpt.save(state, step=self.step, cursor=10 * self.step).root

    def call(self) -> bool:
        """Save the next step; tell whether that raised."""
        self.calls.append({"step": self.step + 1, **rank.attempt(self.save)})
        return "raised" in self.calls[-1]

    def call_until_it_raises(self) -> None:
        """Call until so many calls have raised as the plan wants."""
        raised = 0
        while raised < self.plan.get("calls", 1) and len(self.calls) < 4:
            raised += self.call()
        new = self.directory / f"new.{self.role}"
        new.write_text(str(self.step))
        new.rename(self.directory / f"done.{self.role}")

    def goal(self) -> int:
        """Wait until all that were not stopped have ended their calls; give the step that they have come to."""
        files = [self.directory / f"done.{role}" for role in self.awake]
        self.until(lambda: all(file.exists() for file in files), "the others have ended their calls")
        return max(int(file.read_text()) for file in files)

    def go_on(self) -> None:
        """Continue those that are stopped, which they must be, once the others have ended their calls."""
        self.goal()
        for role in self.late:
            stat = Path(f"/proc/{self.pids[role]}/stat")
            self.until(lambda stat=stat: stat.read_text().rpartition(")")[2].split()[0] == "T", f"{role} is stopped")
        for role in self.late:
            os.kill(self.pids[role], signal.SIGCONT)

    def until(self, condition: Any, what: str) -> None:
        """Wait."""
        limit = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < limit, f"not within {_PATIENCE} s: {what}"
            time.sleep(0.002)


if __name__ == "__main__":
    stoppedkit.run_plans(lambda *case: Stopped(*case).run())
