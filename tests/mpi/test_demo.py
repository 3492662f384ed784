"""The demonstration itself: it ends well only if both end states are equal, and says what is missing."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import mpilaunch
import pytest

from mpickpt.cli import demo
from mpickpt.errors import CheckpointError, NotFoundError


@pytest.fixture
def running_mpi() -> None:
    """Skip where no MPI lies beside the running interpreter: the demonstration uses that one."""
    if mpilaunch._kind(Path(sys.executable)) is None:
        pytest.skip(f"no mpirun beside {sys.executable}")


@pytest.mark.usefixtures("running_mpi")
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    out = io.StringIO()
    assert demo.run(tmp_path, owners=3, steps=400, seed=3, out=out) == 0, out.getvalue()
    text = out.getvalue()
    digests = re.findall(r"run +sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    assert len(digests) == 2
    assert digests[0] == digests[1]
    assert "EQUAL bit for bit" in text
    assert "(seed 3)" in text
    resumed = re.search(r"resumed +at step (\d+) of 400; the killed run had last called step (\d+) saved", text)
    assert resumed is not None
    assert 0 < int(resumed[2]) <= int(resumed[1]) < 400
    with pytest.raises(CheckpointError, match="starts from nothing"):
        demo.run(tmp_path, out=out)


@pytest.mark.usefixtures("running_mpi")
def test_different_end_states_are_not_called_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def go(self: demo.Training, watch: object = None) -> tuple[int, float]:
        if isinstance(watch, demo._Killer):
            watch.killed, watch.seen = [1], 20
            return 137, 0.1
        return 0, 0.1

    def facts(self: demo.Training) -> dict[str, object]:
        digest = "a" if self.store.name == "killed" else "b"
        return {"saves": [0.01], "nbytes": 10, "began": began, "accuracy": 0.9, "digest": digest}

    began = 20
    monkeypatch.setattr(demo.Training, "go", go)
    monkeypatch.setattr(demo.Training, "facts", facts)
    out = io.StringIO()
    assert demo.run(tmp_path, out=out) == 1
    assert "DIFFERENT" in out.getvalue()
    began = 10
    with pytest.raises(CheckpointError, match="called saved is lost") as lost:
        demo.run(tmp_path, out=out)
    assert (lost.value.expected, lost.value.found) == (20, 10)


def test_missing_mpirun_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError, match="mpirun"):
        demo.run(tmp_path, out=io.StringIO())
