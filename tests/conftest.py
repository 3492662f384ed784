"""Fixtures for all tests: the MPIs that are there, and the owner counts that every MPI test runs at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The harness is imported by name from every folder of tests, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import mpilaunch

from mpickpt import failpoints

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


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    """Leave no failpoint of one test to the next."""
    yield
    failpoints.hook = None
