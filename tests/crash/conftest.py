"""Fixtures of the crash tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from powercut.judge import Judges
from powercut.proof import processes


@pytest.fixture
def ram(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: schedules are many, and durability is not simulated."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="mpickpt-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory where there is one."""
    path = Path(tempfile.mkdtemp(prefix="mpickpt-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def judges(memory: Path) -> Iterator[Judges]:
    found = Judges(memory / "judged", processes())
    yield found
    found.close()
