"""Fixtures of unit tests: a store to begin with, and a look whether a descriptor leaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dirkit
import pytest

from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Fail where a descriptor is open afterwards that was not before."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before, "a file descriptor leaked"


@pytest.fixture(params=list(Way))
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    """An empty store with the claim of epoch 1, for each way to commit."""
    return dirkit.claimed(tmp_path, request.param)
