"""What an owner process of a gate runs: ``python -m mpi4py -m mpickpt.gates.owner FOLDER``.

FOLDER/plan.json lists tasks; every owner does them one after the other and writes what it saw as lines of JSON into
FOLDER/owner.ROLE, each with one write, so that a line that is there is whole whatever became of the process. Nobody
here judges: `mpickpt.gates.gate` does, in the process that started the launcher.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mpickpt
from mpickpt import failpoints
from mpickpt.errors import CheckpointError, DeadlineError
from mpickpt.gates import broken, learners, regions
from mpickpt.store import commit

if TYPE_CHECKING:
    from mpi4py import MPI

Task = dict[str, Any]


class Journal:
    """What one owner saw."""

    def __init__(self, folder: Path, role: int) -> None:
        self._fd = os.open(folder / f"owner.{role}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self.task = ""

    def write(self, **event: Any) -> None:
        """Write one line."""
        os.write(self._fd, json.dumps({"task": self.task, **event}).encode() + b"\n")


class Owner:
    """One owner of one task."""

    def __init__(self, task: Task, comm: MPI.Comm, journal: Journal, deadline: float) -> None:
        self.task = task
        self.comm: Any = comm
        self.role, self.owners = comm.Get_rank(), comm.Get_size()
        self.journal = journal
        self.deadline = deadline

    # -- opening

    def open(self, contract: mpickpt.Contract) -> mpickpt.Checkpointer:
        """Open the task's store; collective."""
        options: dict[str, Any] = dict(self.task.get("options", {}))
        if "devices" in self.task:
            options["device"] = self.task["devices"][self.role]
        return mpickpt.Checkpointer(
            self.task["store"], self.comm, contract=contract, keep=None, deadline=self.deadline, **options
        )

    def arrange(self, step: int) -> None:
        """Arrange for what the task says: SIGKILL, or to be held, at a failpoint after another, in a step's save.

        Step 0 is the resume.
        """
        rule = self.task.get("kill") or self.task.get("hold")
        if rule is None or rule["step"] != step or rule["role"] != self.role:
            return
        passed: list[str] = []

        def hook(name: str) -> None:
            passed.append(name)
            if name == rule["at"] and rule["after"] in passed:
                if "go" not in rule:
                    os.kill(os.getpid(), signal.SIGKILL)
                failpoints.hook = None
                self.journal.write(event="held", at=name)
                self.await_file(rule["go"])

        failpoints.hook = hook

    def await_file(self, path: str) -> None:
        """Wait until the process that started the launcher has made a file.

        Raises
        ------
        DeadlineError
            If it does not.
        """
        limit = time.monotonic() + self.deadline
        while os.path.basename(path) not in os.listdir(os.path.dirname(path)):
            if time.monotonic() > limit:
                raise DeadlineError("nobody lets this owner go on", path=path, expected=f"within {self.deadline:g} s")
            time.sleep(0.01)

    # -- tasks

    def train(self) -> dict[str, Any]:
        """Resume a learner, train it up to a step, save after every one."""
        task, build = self.task, self.task.get("build")
        learner = learners.Learner(task["learner"], task["combine"], self.comm, self.deadline)
        contract = learners.contract(
            task.get("contract_of") or task["learner"], task["combine"], **task.get("contract", {})
        )
        found: dict[str, Any] = {"trained": 0}
        before = held(learner)
        if task.get("begin"):
            self.await_file(task["begin"])
        ckpt = self.open(contract)
        try:
            self.arrange(0)
            run = ckpt.resume(learner.state(), **task.get("resume", {}))
            learner.steps = run.value("opt/steps", 0)
            cursor = broken.forget(build if run.step else None, learner, run.cursor)
            found |= {"began": run.step, "cursor": run.cursor, "epoch": run.epoch, "fresh": run.fresh, "root": run.root}
            found["resumed"] = held(learner)
            for step in range(run.step + 1, task["to"] + 1):
                cursor += learner.step(cursor)
                found["trained"] += 1
                self.save(ckpt, learner, step, cursor, build)
            found |= {"ended": task["to"], "held": held(learner)}
        except CheckpointError as refusal:
            found |= {"refused": refusal.to_record(), "untouched": held(learner) == before}
            ckpt._end(meet=False)
        else:
            ckpt.close()
        return found

    def save(
        self, ckpt: mpickpt.Checkpointer, learner: learners.Learner, step: int, cursor: int, build: str | None
    ) -> None:
        """Save one step, with what the task wants to happen meanwhile."""
        self.arrange(step)
        if build == "early-word":
            self.journal.write(event="saved", step=step)
        if self.task.get("diverge") == step:
            self.diverge(ckpt, learner, step, cursor)
        saved = ckpt.save(learner.state(), step=step, cursor=cursor)
        self.journal.write(event="saved", step=step, root=saved.root)

    def diverge(self, ckpt: mpickpt.Checkpointer, learner: learners.Learner, step: int, cursor: int) -> None:
        """Let the last owner's copy of a replicated array differ in one bit, try to save, and mend it."""
        bits = learner.w.view(np.uint32)
        flip = np.uint32(1 if self.role == self.owners - 1 else 0)
        bits[7] ^= flip
        try:
            root = ckpt.save(learner.state(), step=step, cursor=cursor).root
            self.journal.write(event="diverged", published=root)
        except CheckpointError as refusal:
            self.journal.write(event="diverged", refused=refusal.to_record())
        bits[7] ^= flip

    def regions(self) -> dict[str, Any]:
        """Resume arrays of every dtype in one kind of boxes, then save them in another."""
        contract = mpickpt.Contract(identity={"program": "regions"}, placement="free")
        parts = regions.held(self.task["boxes"], self.role, self.owners)
        found: dict[str, Any] = {"trained": 0}
        ckpt = self.open(contract)
        try:
            run = ckpt.resume({part.name: part.declared() for part in parts})
            wrong = [] if run.fresh else [text for part in parts for text in part.wrong()]
            found |= {"began": run.step, "fresh": run.fresh, "wrong": wrong[:20]}
            if "save" in self.task:
                parts = regions.held(self.task["save"], self.role, self.owners)
                for part in parts:
                    part.fill()
                saved = ckpt.save({part.name: part.declared() for part in parts}, step=run.step + 1)
                found["saved"] = saved.root
        except CheckpointError as refusal:
            found |= {"refused": refusal.to_record(), "untouched": all(part.untouched for part in parts)}
            ckpt._end(meet=False)
        else:
            ckpt.close()
        return found

    def race(self) -> dict[str, Any]:
        """Race with all others for one name after another; gives the rounds that this owner believes to have won."""
        won = []
        way = commit.Way(self.task["way"])
        for number in range(self.task["rounds"]):
            data = f"{number} {self.role}\n".encode()
            learners.finish(self.comm.Ibarrier(), self.deadline)
            if self.task.get("build") == "no-exclusion":
                Path(self.task["store"], f"round-{number}").write_bytes(data)
                won.append(number)
            elif commit.publish(self.task["store"], f"round-{number}", data, way, self.task["fence"]):
                won.append(number)
            learners.finish(self.comm.Ibarrier(), self.deadline)
            read = Path(self.task["store"], f"round-{number}").read_bytes()
            self.journal.write(event="seen", round=number, content=read.decode(errors="replace"))
        return {"won": won}

    def sync(self) -> dict[str, Any]:
        """Write and sync a file and its directory again and again; gives the seconds that each took."""
        seconds = []
        for number in range(self.task["rounds"]):
            begun = time.perf_counter()
            commit.write_new(os.path.join(self.task["store"], f"sync-{self.role}-{number}"), b"x" * 4096)
            commit.sync_directory(self.task["store"], self.task["fence"])
            seconds.append(time.perf_counter() - begun)
        return {"seconds": seconds}


def held(learner: learners.Learner) -> dict[str, list[Any]]:
    """Give every array of a learner: region -> [first element, bytes in hexadecimal]."""
    return {name: [at, array.astype("<f4").tobytes().hex()] for name, (at, array) in learner.pieces().items()}


TASKS: dict[str, Callable[[Owner], dict[str, Any]]] = {
    "train": Owner.train,
    "regions": Owner.regions,
    "race": Owner.race,
    "sync": Owner.sync,
}


def facts() -> dict[str, Any]:
    """Say where this process runs and with what."""
    import mpi4py
    from mpi4py import MPI

    return {
        "host": MPI.Get_processor_name(),
        "mpi": MPI.Get_library_version().strip("\0").splitlines()[0],
        "mpi4py": mpi4py.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpickpt": mpickpt.__version__,
        "system": platform.platform(),
    }


def main(folder: Path) -> None:
    """Do all tasks of a plan."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    plan = json.loads((folder / "plan.json").read_bytes())
    journal = Journal(folder, world.Get_rank())
    journal.write(event="facts", **facts())
    for task in plan["tasks"]:
        journal.task = task["id"]
        learners.finish(world.Ibarrier(), plan["deadline"])
        comm = world.Split(0 if world.Get_rank() < task["owners"] else 1, world.Get_rank())
        if world.Get_rank() < task["owners"]:
            try:
                with broken.build(task.get("build")):
                    found = TASKS[task["do"]](Owner(task, comm, journal, plan["deadline"]))
                journal.write(event="end", **found)
            except Exception:
                journal.write(event="raised", traceback=traceback.format_exc())
            failpoints.hook = None
        comm.Free()
    journal.task = ""
    learners.finish(world.Ibarrier(), plan["deadline"])
    journal.write(event="over")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
