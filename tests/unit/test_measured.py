"""What tests count and measure is told at the end of the session, also where several workers share the tests out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
MEASURES = """
import measured
from powercut import tally

def test_it():
    measured.slurm.append("measured by {name}")
    tally.add("checks", 2)
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_it_is_told_whoever_ran_the_test(workers: str, tmp_path: Path) -> None:
    names = ("one", "another")
    for name in names:
        (tmp_path / f"test_{name}.py").write_text(MEASURES.format(name=name))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "conftest"]
    command += ["-p", "no:cacheprovider", "-n", workers, "--dist", "loadfile", str(tmp_path)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        assert done.stdout.count(f"measured by {name}") == 1, done.stdout
    assert "4 checks: 0 failures" in done.stdout
