"""Resume equivalence of the example: 5 steps in one go equal 3, a checkpoint, and 2 in fresh processes, bit for bit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

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
