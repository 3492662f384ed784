"""Resume equivalence of the example: 5 steps in one go equal 3, a checkpoint, and 2 in fresh processes, bit for bit."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

import mpickpt

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train_digits.py"

_whole: dict[tuple[str, int], dict[str, Any]] = {}


def train(mpi: str, owners: int, folder: Path, steps: int, *more: str) -> dict[str, Any]:
    """Run the example; give what it reported."""
    report = folder / f"{steps}.json"
    args = [str(folder / "store"), "--steps", str(steps), "--report", str(report), *more]
    result = mpilaunch.run(EXAMPLE, owners, mpi, args)
    assert result.returncode == 0, result.output
    return dict(json.loads(report.read_bytes()))


def whole(mpi: str, owners: int, folder: Path) -> dict[str, Any]:
    """Give the report of 5 steps in one go; once for each MPI and owner count."""
    if (mpi, owners) not in _whole:
        _whole[mpi, owners] = train(mpi, owners, folder / "whole", 5)
    return _whole[mpi, owners]


@pytest.fixture(params=["each", "gather"])
def write(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_five_steps_equal_three_and_two(mpi: str, owners: int, write: str, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    expected = whole(mpi, owners, tmp_path)
    first = train(mpi, owners, tmp_path, 3, "--write", write)
    assert first["digest"] != expected["digest"]
    second = train(mpi, owners, tmp_path, 5, "--write", write)
    assert (first["began"], second["began"], expected["began"]) == (0, 3, 0)
    assert second["digest"] == expected["digest"]
    assert second["owners"] == owners


def test_kill_before_a_step_is_resumed_from_the_last_save(mpi: str, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    expected = whole(mpi, 3, tmp_path)
    args = [str(tmp_path / "store"), "--steps", "5", "--every", "2", "--kill-at-step", "3"]
    killed = mpilaunch.run(EXAMPLE, 3, mpi, args)
    assert killed.returncode != 0
    assert "step 2:" in killed.output
    resumed = train(mpi, 3, tmp_path, 5, "--every", "2")
    assert resumed["began"] == 2
    assert resumed["digest"] == expected["digest"]


LONG = ("--steps", "100000", "--every", "5")


def stopped(running: mpilaunch.Running) -> tuple[int, str]:
    """Wait for the end of a run; give its exit code and the reason that it named."""
    result = running.wait()
    said = [line for line in result.output.splitlines() if line.startswith(("stopped by ", "EpochError: "))]
    return result.returncode, said[-1] if said else result.output


@pytest.mark.parametrize(("number", "owner"), [(signal.SIGTERM, 0), (signal.SIGUSR1, 1)])
def test_a_signal_at_one_owner_ends_it_with_75_and_it_goes_on(
    mpi: str, number: signal.Signals, owner: int, tmp_path: Path
) -> None:
    with mpilaunch.start(EXAMPLE, 2, mpi, [str(tmp_path / "store"), *LONG]) as running:
        running.until(lambda: "step 5:" in running.output(), "the first save")
        running.signal(owner, number)
        assert stopped(running) == (75, f"stopped by {number.name}")
    newest = mpickpt.open_store(tmp_path / "store").generations()[-1].step
    assert train(mpi, 2, tmp_path, newest + 1)["began"] == newest


def test_a_persons_stop_file_ends_it_with_0(mpi: str, tmp_path: Path) -> None:
    with mpilaunch.start(EXAMPLE, 2, mpi, [str(tmp_path / "store"), *LONG]) as running:
        running.until(lambda: "step 5:" in running.output(), "the first save")
        (tmp_path / "store" / "stop").touch()
        assert stopped(running) == (0, "stopped by stop file")


def test_a_run_that_a_newer_job_goes_on_with_ends_with_5(mpi: str, tmp_path: Path) -> None:
    with mpilaunch.start(EXAMPLE, 2, mpi, [str(tmp_path / "store"), *LONG]) as running:
        running.until(lambda: "step 5:" in running.output(), "the first save")
        for _ in range(3):  # 75: the older one saved meanwhile
            newer = mpilaunch.run(EXAMPLE, 2, mpi, [str(tmp_path / "store"), "--steps", "1"])
            if newer.returncode != 75:
                break
        assert newer.returncode == 0, newer.output
        assert "resumed at step" in newer.output
        code, said = stopped(running)
    assert code == 5
    assert said.startswith("EpochError: a newer job has continued this run")


def test_a_refusal_is_said_once_and_ends_it_with_its_own_exit_code(mpi: str, tmp_path: Path) -> None:
    train(mpi, 2, tmp_path, 1)
    result = mpilaunch.run(EXAMPLE, 3, mpi, [str(tmp_path / "store")])
    assert result.returncode == 4, result.output
    assert result.output.count("PlacementError: ") == 1, result.output
    assert "Traceback" not in result.output


#: The example with a short deadline, in which owner 0 stops at step 3.
LOSES = f"""
import os, runpy, signal, sys
import mpickpt

class Loses(mpickpt.Checkpointer):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, deadline=2.0, **more)

    def due(self, step):
        if step == 3 and self._wiring.role == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().due(step)

mpickpt.Checkpointer = Loses
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


def test_where_an_owner_is_lost_the_others_say_so_and_the_job_ends(mpi: str, tmp_path: Path) -> None:
    result = mpilaunch.run(LOSES, 3, mpi, [str(tmp_path / "store"), "--every", "1"])
    assert result.returncode != 0
    assert "DeadlineError: " in result.output
    assert "owner 0" in result.output
    assert "Traceback" not in result.output


def test_resume_of_a_finished_run_loses_nothing(mpi: str, tmp_path: Path) -> None:
    first = train(mpi, 2, tmp_path, 4)
    again = train(mpi, 2, tmp_path, 4)
    assert again["began"] == 4
    assert (again["digest"], again["root"]) == (first["digest"], first["root"])


def test_one_process_with_mpi_equals_one_process_without(mpi: str, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    expected = whole(mpi, 1, tmp_path)
    hidden = tmp_path / "hidden" / "mpi4py"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('absent')\n")
    env = mpilaunch.environment(mpi)
    env["PYTHONPATH"] = f"{hidden.parent}:{env['PYTHONPATH']}"
    report = tmp_path / "alone.json"
    command = [str(mpilaunch.python_of(mpi)), str(EXAMPLE), str(tmp_path / "alone"), "--steps", "5"]
    subprocess.run([*command, "--report", str(report)], env=env, check=True, timeout=60)
    assert json.loads(report.read_bytes())["digest"] == expected["digest"]


def test_it_learns(mpi: str, tmp_path: Path) -> None:
    report = train(mpi, 2, tmp_path, 200, "--every", "100")
    assert report["accuracy"] > 0.9
