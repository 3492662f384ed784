"""One training run on the virtual cluster: submits slurm/train.sbatch, watches what it does, does things to it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measured
import mpilaunch
import virtual

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "slurm"
EXAMPLE = ROOT / "docs" / "examples" / "train_digits.py"
PLUGIN = {"openmpi": "pmix", "mpich": "pmi2"}
OWNERS = 4
EVERY = 10
"""Steps between two saves."""
LIMIT = 80.0
"""Seconds that anything may take that is waited for: Slurm looks at time limits every half minute."""

told = measured.slurm
"""What the tests have measured: printed at the end of the session."""


def environment(mpi: str) -> dict[str, str]:
    """Make the environment that a user of this MPI submits from."""
    found = mpilaunch.environment(mpi)
    found["PATH"] = f"{mpilaunch.python_of(mpi).parent}{os.pathsep}{found['PATH']}"
    found |= {"SLURM_MPI_TYPE": PLUGIN[mpi], "SLURM_WAIT": "3"}
    if mpi == "openmpi":
        found["OMPI_MCA_btl"] = "self,sm,tcp"
    else:  # with UCX the start fails now and then: see slurm/README.md
        found |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
    return found


@dataclass
class Start:
    """What owner 0 saw in one start of the job."""

    job: str
    restarts: int
    resumed: int | None = None
    steps: list[int] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    """When each call of `due` began."""
    saves: list[dict[str, Any]] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The last step that was trained, and so may have to be trained again."""
        return max(self.steps, default=self.resumed or 0)


class Training:
    """A run with a store of its own: four owners, spread over so many nodes that are theirs alone."""

    def __init__(self, cluster: virtual.Cluster, mpi: str, folder: Path, spread: int = 2, steps: int = 300) -> None:
        self.cluster = cluster
        self.mpi = mpi
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.store = folder / "runs" / "digits"
        self.spread = spread
        self.steps = steps
        self.every = EVERY
        self.environ = environment(mpi) | {"PACED": str(folder)}
        self.job = ""
        for script in SCRIPTS.glob("*.sbatch"):
            shutil.copy(script, folder)

    def say(self, name: str, text: object) -> None:
        """Tell the program something (see paced.py)."""
        (self.folder / f".{name}").write_text(str(text))
        os.replace(self.folder / f".{name}", self.folder / name)

    def submit(self, *options: str) -> str:
        """Submit the script, as a user does; wait for nothing."""
        program = ["python", "-m", "mpi4py", str(Path(__file__).with_name("paced.py")), str(self.store)]
        program += ["--steps", str(self.steps), "--every", str(self.every)]
        defaults = [f"--nodes={self.spread}", f"--ntasks-per-node={OWNERS // self.spread}", "--exclusive"]
        defaults += ["--time=10", "--signal=B:USR1@59", "--output=%x-%j.out"]
        self.job = self.cluster.submit(*defaults, *options, "train.sbatch", *program, cwd=self.folder, env=self.environ)
        return self.job

    # -- looking

    def log(self, job: str | None = None) -> str:
        """Give what a job has printed."""
        path = self.folder / f"train-{job or self.job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def starts(self) -> list[Start]:
        """Give the starts that have come as far as to resume, in order."""
        found: list[Start] = []
        path = self.folder / "seen"
        for line in path.read_text().splitlines() if path.exists() else ():
            event = json.loads(line)
            key = event["job"], event["restarts"]
            start = next((one for one in found if (one.job, one.restarts) == key), None)
            if start is None:
                start = Start(*key)
                found.append(start)
            if "resumed" in event:
                start.resumed = event["resumed"]
            elif "step" in event:
                start.steps.append(event["step"])
            elif "asks" in event:
                start.asked.append(event["time"])
            else:
                start.saves.append(event)
        return found

    def claimed(self, epoch: int) -> float | None:
        """Say when a claim was published, if it is: as its file got its name, nothing changes it after that."""
        try:
            return (self.store / "epochs" / f"{epoch:08d}.json").stat().st_ctime
        except FileNotFoundError:
            return None

    def until(self, condition: Any, what: str) -> Any:
        """Wait until something is true."""
        try:
            return self.cluster.until(condition, LIMIT, what)
        except virtual.Late as late:
            raise virtual.Late(f"{late}\n--- {self.job}: {self.cluster.job(self.job)}\n{self.log()}") from None

    def trains(self, saves: int = 2) -> Start:
        """Wait until the present start has saved so often, and trained on after that; give it.

        A start that an older job's save has overtaken just then leaves with 75, and is started again.
        """
        restarts = int(self.cluster.job(self.job)["Restarts"])

        def ready() -> Start | None:
            nonlocal restarts
            job = self.cluster.job(self.job)
            if int(job["Restarts"]) > restarts and job["JobState"] == "PENDING":
                assert "EpochError" in self.log(), self.log()
                restarts = int(job["Restarts"])
                self.cluster.run("scontrol", "update", f"jobid={self.job}", "StartTime=now+2")
            for one in self.starts():
                if (one.job, one.restarts) == (self.job, restarts) and len(one.saves) >= saves:
                    at = one.saves[-1]["saved"] if one.saves else one.resumed or 0
                    return one if one.last > at else None
            assert self.cluster.state(self.job) in ("PENDING", "RUNNING", "COMPLETING"), self.log()
            return None

        found = self.until(ready, f"start {restarts} of job {self.job} has saved {saves} times and trains on")
        assert isinstance(found, Start)
        return found

    def ended(self, *states: str) -> float:
        """Wait until the job is in one of some states; give the time."""
        self.until(lambda: self.cluster.state(self.job) in states, f"job {self.job} is {' or '.join(states)}")
        return time.time()

    def again(self) -> None:
        """Let a requeued job start soon: Slurm would have it wait for two minutes.

        Not at once: what starts in the second in which its start before was ended is taken for that one, and fails.
        """
        before = self.starts()[-1].restarts

        def requeued() -> bool:
            job = self.cluster.job(self.job)
            return int(job["Restarts"]) > before and job["JobState"] in ("PENDING", "RUNNING")

        self.until(requeued, f"job {self.job} is requeued")
        if self.cluster.state(self.job) == "PENDING":
            self.cluster.run("scontrol", "update", f"jobid={self.job}", "StartTime=now+2")

    def nodes(self) -> list[str]:
        """Give the nodes that the job runs on."""
        return self.cluster.run("scontrol", "show", "hostnames", self.cluster.job(self.job)["NodeList"]).split()

    # -- judging

    def tool(self, *arguments: str | Path, check: bool = True) -> str:
        """Run ``mpickpt``, give what it printed."""
        command = [str(mpilaunch.python_of(self.mpi)), "-m", "mpickpt", *map(str, arguments)]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def redone(self) -> list[int]:
        """Give for each start but the first how many steps of the one before it it had to do again."""
        starts = self.starts()
        return [one.last - (after.resumed or 0) for one, after in itertools.pairwise(starts)]

    def check_equal(self, whole: Path) -> None:
        """Check that the run came to the same end, bit for bit, as one that nothing was done to."""
        assert self.cluster.state(self.job) == "COMPLETED"
        found = json.loads(self.tool("diff", "--json", self.store, whole))
        assert found["equal"]
        assert [found[side]["step"] for side in ("first", "second")] == [self.steps] * 2
