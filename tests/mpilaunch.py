"""Start real ranks for a test: one mpirun, a time limit that always works, one report a rank.

`run` starts a program on a number of owners under one of the MPIs and waits; `start` leaves it running, so that a
test can stop, continue or kill single ranks from outside. Ranks run ``python -m mpi4py rankmain.py PROGRAM``:
rankmain.py writes the rank's pid, installs failpoints and makes stacks available, then runs the program unchanged,
so any script can be tested. Programs use rank.py to report.

A job runs in its own session. On a time-out every rank's stack is collected, then the whole session is killed and
`Hang` is raised: a deadlock is a failure with a stack trace. `batch` runs the many cases of one program in one
mpirun, which is what keeps the suites quick.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpickpt

HERE = Path(__file__).resolve().parent
MPIS = ("openmpi", "mpich")
STACKS = signal.SIGRTMIN + 7
"""The signal at which a rank writes its stacks; rank.py installs the handler."""

Report = dict[str, Any]

# What an outer launcher may have left in the environment: a rank must not take itself for a part of that job.
_LAUNCHER_VARIABLES = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "HYDRA_", "MPI_LOCAL", "WORLD_SIZE")
_SETTINGS = {
    "openmpi": {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    },
    "mpich": {},
}


class Hang(AssertionError):
    """A job ran past its time limit; the message holds its output and the stacks of its ranks."""


class Unavailable(Exception):
    """This MPI is not there; the message names what is missing."""


def _kind(python: Path) -> str | None:
    """Tell which MPI lies beside an interpreter."""
    if (python.parent / "prterun").exists():
        return "openmpi"
    if (python.parent / "mpiexec.hydra").exists():
        return "mpich"
    return None


@functools.cache
def python_of(mpi: str) -> Path:
    """Find the interpreter of the environment that has this MPI: the running one, or MPICKPT_TEST_OPENMPI / _MPICH."""
    here = Path(sys.executable)
    if _kind(here) == mpi:
        return here
    variable = f"MPICKPT_TEST_{mpi.upper()}"
    named = os.environ.get(variable)
    if not named:
        raise Unavailable(f"{mpi}: not beside {here}, and {variable} (a python with {mpi} and mpi4py) is not set")
    python = Path(named)
    python = python / "bin" / "python" if python.is_dir() else python
    if _kind(python) != mpi:
        raise Unavailable(f"{mpi}: {variable}={named} has no {mpi} mpirun beside it")
    return python


def environment(mpi: str, extra: Mapping[str, str] = {}) -> dict[str, str]:
    """Make the environment of a job: this one without launcher variables, the MPI's settings, tests/ importable."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(_LAUNCHER_VARIABLES)}
    paths = [str(HERE), *(str(Path(p).resolve()) for p in found.get("PYTHONPATH", "").split(os.pathsep) if p)]
    package = Path(mpickpt.__file__).resolve().parent.parent
    if package.name != "site-packages":  # a source tree: ranks must run the one that these tests run
        paths.append(str(package))
    found |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    return found | _SETTINGS[mpi] | dict(extra)


@dataclass(frozen=True)
class Result:
    """How a job ended.

    Attributes
    ----------
    returncode : int
        mpirun's; negative when mpirun itself was killed by a signal.
    output : str
        Standard output and error of all ranks and of mpirun, mixed.
    reports : list of dict or None
        By rank: what it reported until its end; None if it never reported.
    seconds : float
        From start to end of mpirun.
    """

    returncode: int
    output: str
    reports: list[Report | None]
    seconds: float

    def ok(self) -> list[Report]:
        """Check that mpirun ended with 0 and that every rank reported; give the reports."""
        assert self.returncode == 0, f"mpirun ended with {self.returncode}\n{self.output}"
        found = [report for report in self.reports if report is not None]
        assert len(found) == len(self.reports), f"not every rank reported: {self.reports}\n{self.output}"
        return found


@dataclass
class Running:
    """A job that was started and is steered from outside; `wait` must be called, or use it as a context manager."""

    process: subprocess.Popen[bytes]
    owners: int
    timeout: float
    folder: Path
    keep: bool
    session: Path
    started: float

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def pid(self, rank: int) -> int:
        """Give the process id of a rank; waits until it has started."""
        path = self.folder / f"pid.{rank}"
        self.until(path.exists, f"rank {rank} has started")
        return int(path.read_text())

    def signal(self, rank: int, number: int) -> None:
        """Send a signal (SIGSTOP, SIGCONT, SIGKILL, ...) to one rank."""
        os.kill(self.pid(rank), number)

    def stopped(self, rank: int) -> bool:
        """Tell whether a rank is stopped (SIGSTOP)."""
        return _state(self.pid(rank)) == "T"

    def wait_stopped(self, rank: int, seconds: float = 20.0) -> None:
        """Wait until a rank is stopped, by its own failpoint or by a signal."""
        self.until(lambda: self.stopped(rank), f"rank {rank} is stopped", seconds)

    def report(self, rank: int) -> Report | None:
        """Read what a rank has reported so far."""
        path = self.folder / f"report.{rank}.json"
        return dict(json.loads(path.read_bytes())) if path.exists() else None

    def wait_report(self, rank: int, field: str, seconds: float = 20.0) -> Any:
        """Wait until a rank has reported a field; give its value."""
        self.until(lambda: field in (self.report(rank) or {}), f"rank {rank} has reported {field!r}", seconds)
        return (self.report(rank) or {})[field]

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Wait for a condition; a job that ended meanwhile, or `seconds` gone by, is a failure."""
        limit = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"the job ended before {what}\n{self.output()}")
            if time.monotonic() > limit:
                self._hang(f"not within {seconds} s: {what}")
            time.sleep(0.005)

    def output(self) -> str:
        """Give what the job has printed so far."""
        return (self.folder / "output").read_text(errors="replace")

    def wait(self) -> Result:
        """Wait for the end; past the time limit everything is killed and `Hang` is raised."""
        try:
            code = self.process.wait(max(0.0, self.started + self.timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._hang(f"the job did not end within {self.timeout} s")
        seconds = time.monotonic() - self.started
        result = Result(code, self.output(), [self.report(rank) for rank in range(self.owners)], seconds)
        self.kill()
        return result

    def kill(self) -> None:
        """Kill what is left of the job, and remove the folder if it is the harness's own. Harmless when repeated."""
        for _ in range(3):  # a process may start another between the listing and the kill
            left = [pid for pid, session in _sessions() if session == self.process.pid]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.01)
        self.process.wait()
        shutil.rmtree(self.session, ignore_errors=True)
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _hang(self, why: str) -> None:
        stacks = self._stacks()
        output = self.output()
        reports = [self.report(rank) for rank in range(self.owners)]
        self.kill()
        raise Hang(f"{why}\n--- output\n{output}\n--- reports\n{reports}\n{stacks}")

    def _stacks(self) -> str:
        asked = []
        for rank in range(self.owners):
            with contextlib.suppress(OSError, ValueError):
                pid = int((self.folder / f"pid.{rank}").read_text())
                asked.append((rank, _state(pid)))
                os.kill(pid, STACKS)
                os.kill(pid, signal.SIGCONT)  # a stopped rank writes its stacks only when it goes on
        time.sleep(0.3)
        texts = []
        for rank, state in asked:
            path = self.folder / f"stacks.{rank}"
            text = path.read_text() if path.exists() else ""
            texts.append(f"--- stacks of rank {rank}, process state {state}\n{text or 'none: it did not answer'}")
        return "\n".join(texts)


def _fields(pid: int | str) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def _state(pid: int) -> str:
    """Give the process state as /proc does (R, S, D, T, Z), or "gone"."""
    return (_fields(pid) or ["gone"])[0]


def _sessions() -> list[tuple[int, int]]:
    """List (pid, session) of all processes that are not yet zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _fields(entry)
            if fields and fields[0] != "Z":
                found.append((int(entry), int(fields[3])))
    return found


def start(
    program: str | Path,
    owners: int,
    mpi: str,
    args: Sequence[str] = (),
    env: Mapping[str, str] = {},
    timeout: float = 60.0,
    *,
    folder: Path | None = None,
    failpoints: Sequence[Mapping[str, Any]] = (),
    mpirun: Sequence[str] = (),
    under: Sequence[str] = (),
) -> Running:
    """Start a program on real ranks and return at once.

    Parameters
    ----------
    program : str or Path
        A file; or the text of a program, if it has a line end.
    owners : int
        Ranks to start.
    mpi : {"openmpi", "mpich"}
    args, env : the program's arguments, and additions to its environment
    timeout : float
        Seconds until the whole job is killed and `Hang` is raised.
    folder : Path, optional
        Where reports, pids and output go; by default a temporary folder that is removed at the end.
        Programs find it as ``rank.folder()``.
    failpoints : sequence of mappings
        Arguments of ``rank.failpoint``, installed in every rank before the program starts.
    mpirun : sequence of str
        Further arguments of mpirun.
    under : sequence of str
        A command that mpirun is started by, such as strace.

    Raises
    ------
    Unavailable
        If this MPI is not there.
    """
    python = python_of(mpi)
    where = Path(tempfile.mkdtemp(prefix="mpickpt-ranks-")) if folder is None else folder
    where.mkdir(parents=True, exist_ok=True)
    for old in (*where.glob("report.*.json"), *where.glob("pid.*"), *where.glob("stacks.*")):
        old.unlink()
    if isinstance(program, str) and "\n" in program:
        text, program = program, where / "program.py"
        program.write_text(text)
    environ = environment(mpi, env)
    environ |= {"MPICKPT_TEST_FOLDER": str(where), "MPICKPT_TEST_FAILPOINTS": json.dumps([dict(f) for f in failpoints])}
    # Open MPI's own files, each start for itself: of two that come up at once in one place, now and then one ends.
    session = Path(tempfile.mkdtemp(prefix="mpickpt-"))
    environ["PRTE_MCA_prte_tmpdir_base"] = str(session)
    command = [*under, str(python.parent / "mpirun"), *mpirun, "-n", str(owners), str(python), "-m", "mpi4py"]
    command += [str(HERE / "rankmain.py"), str(program), *map(str, args)]
    with open(where / "output", "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    return Running(process, owners, timeout, where, folder is not None, session, time.monotonic())


def run(
    program: str | Path,
    owners: int,
    mpi: str,
    args: Sequence[str] = (),
    env: Mapping[str, str] = {},
    timeout: float = 60.0,
    **more: Any,
) -> Result:
    """Start a program on real ranks (see `start`) and wait for its end.

    Raises
    ------
    Hang
        If it did not end within `timeout` seconds.
    """
    with start(program, owners, mpi, args, env, timeout, **more) as running:
        return running.wait()


def cases(program: Path) -> list[str]:
    """List the names of the functions of a program that are marked ``@rank.case``, without importing it."""
    found = []
    for node in ast.parse(program.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list]
            if any(ast.unparse(mark) == "rank.case" for mark in marks):
                found.append(node.name)
    assert found, f"{program} has no function marked @rank.case"
    return found


@dataclass(frozen=True)
class Batch:
    """The outcomes of all cases of one program, run in one mpirun."""

    result: Result

    def outcomes(self, case: str, owners: int) -> list[Report]:
        """Give what each of the owners of one case came to: ``{"value": ...}`` or ``{"raised": ...}``."""
        found: list[Report] = []
        for rank in range(owners):
            outcome = ((self.result.reports[rank] or {}).get("cases") or {}).get(f"{case}[{owners}]")
            assert outcome is not None, f"rank {rank} did not reach {case}[{owners}]\n{self.result.output}"
            found.append(outcome)
        return found

    def passed(self, case: str, owners: int) -> list[Any]:
        """Check that a case raised nothing on any owner; give what its function returned, by role."""
        found = self.outcomes(case, owners)
        bad = [f"owner {role}: {o['raised']['traceback']}" for role, o in enumerate(found) if "raised" in o]
        assert not bad, f"{case} on {owners} owners\n" + "\n".join(bad)
        return [outcome["value"] for outcome in found]


_batches: dict[tuple[object, ...], Batch | Hang] = {}


def batch(
    program: Path,
    mpi: str,
    world: int = 5,
    owners: tuple[int, ...] = (1, 2, 3, 5),
    timeout: float = 120.0,
    only: tuple[str, ...] = (),
) -> Batch:
    """Run every ``@rank.case`` of a program at each owner count in one mpirun of `world` ranks; once a session.

    Fewer owners than `world` are a communicator split off the world: the library must work on any communicator.
    `only` names the cases to run, where not all.
    A program that hangs hangs once, not once for every test that asks for one of its cases.
    """
    key = (program, mpi, world, owners, only)
    if key not in _batches:
        args = ["--owners", *map(str, owners), *(("--only", *only) if only else ())]
        try:
            _batches[key] = Batch(run(program, world, mpi, args, timeout=timeout))
        except Hang as hang:
            _batches[key] = hang
    found = _batches[key]
    if isinstance(found, Hang):
        raise found
    return found
