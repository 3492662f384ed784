"""Scenarios recorded, and their crash states judged: what `tests/crash/test_power_cuts.py` runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mpilaunch

from powercut.disk import Crashes, State
from powercut.judge import Judges, promises
from powercut.trace import Op, Recorder, strace

PROGRAM: Final = Path(__file__).with_name("scenario.py")
#: The store lies two directories below what is recorded: mpickpt makes both.
STORE: Final = "runs/one"
#: So many states wait for a judge at most.
_AHEAD: Final = 200


class NotKilled(Exception):
    """A job that was to be killed came to its end."""


@dataclass(frozen=True)
class Job:
    """One job of a scenario; see `scenario`."""

    saves: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    way: str = "rename"
    fence: bool = False
    direct: bool = False
    fan_out: int | None = None
    fail: Sequence[dict[str, Any]] = ()
    kill: tuple[int, str, str, int] | None = None
    sweep: bool = False
    mistake: str | None = None
    inject: Sequence[str] = ()

    def plan(self) -> str:
        """Write it down for the program."""
        names = ("saves", "options", "way", "fence", "direct", "fan_out", "fail", "kill", "sweep", "mistake")
        return json.dumps({name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Scenario:
    """Jobs one after the other on one store, which is empty at first.

    Attributes
    ----------
    keep : int
        How many generations stay at least, whatever happens.
    program : Path
        What runs as each owner: with the store as its argument and the job's plan in POWERCUT. It saves the states of
        `crashkit` and tells of them as `scenario` does.
    """

    jobs: tuple[Job, ...]
    owners: int = 3
    keep: int = 2
    program: Path = PROGRAM


@dataclass(frozen=True)
class Recording:
    """What the jobs of a scenario did to the disk."""

    scenario: Scenario
    ops: Sequence[Op]
    directories: set[int]
    known: frozenset[str]


def record(scenario: Scenario, folder: Path, mpi: str = "openmpi") -> Recording:
    """Run the jobs of a scenario under strace."""
    disk, told, logs = folder / "disk", folder / "told", folder / "logs"
    for each in (disk, told, logs):
        each.mkdir(parents=True)
    recorder = Recorder(disk, told)
    for number, job in enumerate(scenario.jobs):
        log = logs / str(number)
        under = strace(log, *job.inject)
        env = {"POWERCUT": job.plan()}
        result = mpilaunch.run(
            scenario.program, scenario.owners, mpi, [str(disk / STORE)], env, timeout=120.0, folder=told, under=under
        )
        if job.kill is not None:
            if any("done" in (report or {}) for report in result.reports):
                raise NotKilled(f"there is no such operation: {job.kill}")
        else:
            result.ok()
        recorder.read(log)
    shutil.rmtree(logs)
    shutil.rmtree(disk)
    return Recording(scenario, recorder.ops, recorder.directories, frozenset(_roots(recorder.ops)))


def _roots(ops: Iterable[Op]) -> Iterator[str]:
    """Give the digests of all roots that were written."""
    for op in ops:
        if op.kind == "data" and "/roots/" in op.path and op.data.count(b"\n") == 2:
            first, second = op.data.splitlines()
            if json.loads(first).get("kind") == "root":
                yield json.loads(second)["digest"]


@dataclass
class Account:
    """What came of it."""

    states: int = 0
    failures: list[str] = field(default_factory=list)


def check(
    recording: Recording, judges: Judges, states: Iterable[State], crashes: Crashes, most: int | None = None
) -> Account:
    """Judge states of a recording; stops after `most` failures."""
    account, waiting = Account(), []
    scenario = recording.scenario

    def take(count: int) -> None:
        while len(waiting) > count:
            state, future = waiting.pop(0)
            verdict = future.result()
            broken = promises(verdict, state.told, scenario.keep, recording.known)
            account.states += 1
            if broken:
                tree = "\n".join(f"  {path} {len(crashes.contents.of[digest])}" for path, _, digest in state.files)
                account.failures.append(f"{crashes.model.value}, {state.story}: {broken}\n{tree}")

    for state in states:
        waiting.append((state, judges.judge(state, crashes.contents.of, STORE, scenario.owners)))
        take(_AHEAD)
        if most is not None and len(account.failures) >= most:
            judges.drop(future for _, future in waiting)
            return account
    take(0)
    return account


def processes() -> int:
    """Tell how many processes judge: more than there are cores, for owners that wait for each other leave them idle."""
    return 2 * len(os.sched_getaffinity(0))
