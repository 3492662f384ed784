"""Fixtures for all tests: the MPIs that are there, and the owner counts that every MPI test runs at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The harness is imported by name from every folder of tests, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measured
import mpilaunch
import stepkit
from powercut import tally

from mpickpt import failpoints

stepkit.install()

OWNERS = (1, 2, 3, 5)


@pytest.fixture(params=mpilaunch.MPIS)
def mpi(request: pytest.FixtureRequest) -> str:
    """One of the MPIs, ``openmpi`` or ``mpich``; skips, naming what is absent, where it is not there."""
    name = str(request.param)
    try:
        mpilaunch.python_of(name)
    except mpilaunch.Unavailable as missing:
        pytest.skip(str(missing))
    return name


@pytest.fixture(params=OWNERS)
def owners(request: pytest.FixtureRequest) -> int:
    """An owner count."""
    return int(request.param)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what this worker has counted and measured, where tests are shared out to several (pytest-xdist)."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["tally"] = [dict(tally.counts), dict(tally.failures)]
        output["slurm"] = list(measured.slurm)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a worker has counted and measured; one that crashed has sent nothing."""
    output = getattr(node, "workeroutput", {})
    counts, failures = output.get("tally", ({}, {}))
    tally.counts.update(counts)
    tally.failures.update(failures)
    measured.slurm.extend(output.get("slurm", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was counted and measured."""
    failed = [one for key in ("failed", "error") for one in terminalreporter.stats.get(key, ())]
    crashes = sum("tests/crash/" in one.nodeid for one in failed)
    for title, lines in (("crash safety", tally.text(crashes).splitlines()), ("slurm", measured.slurm)):
        if lines:
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.line(line)


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    """Leave no failpoint of one test to the next."""
    yield
    failpoints.hook = None
