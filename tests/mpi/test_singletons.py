"""Processes that MPI has made worlds of their own, as under the wrong ``srun --mpi``: one clear error, nothing written.

Each is started without a launcher, with the variables that srun gives to the tasks of a step.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import mpilaunch
import pytest

PROGRAM = """
import sys
from mpi4py import MPI
import mpickpt
ckpt = mpickpt.Checkpointer(sys.argv[1], MPI.COMM_WORLD, alone="alone" in sys.argv)
print("opened", ckpt.resume({"x": 1}).epoch, flush=True)
ckpt.close()
"""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "slurm.md"
STEP = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
ENDLESS = {"MPICKPT_END_TIME": "4000000000"}  # no squeue is asked


def start(
    mpi: str, folder: Path, more: Mapping[str, str], *args: str, tasks: int, text: str = PROGRAM
) -> list[subprocess.Popen[str]]:
    """Start processes, as the tasks of one step."""
    program = folder / "program.py"
    program.write_text(text)
    command = [str(mpilaunch.python_of(mpi)), "-m", "mpi4py", str(program), str(folder / "run"), *args]
    return [
        subprocess.Popen(
            command,
            cwd=folder,
            env=mpilaunch.environment(mpi, {**more, **ENDLESS, "SLURM_PROCID": str(task)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for task in range(tasks)
    ]


def ended(started: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Wait for all; give exit codes and what they said."""
    found = []
    try:
        for process in started:
            said = process.communicate(timeout=60)[0]
            found.append((process.returncode, said))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return found


def test_tasks_of_one_step_that_mpi_has_made_singletons_are_refused(mpi: str, tmp_path: Path) -> None:
    found = ended(start(mpi, tmp_path, STEP, tasks=2))
    for code, said in found:
        assert code != 0
        assert said.count("StateError: MPI did not find the other processes") == 1, said
        assert "SLURM_STEP_NUM_TASKS=2" in said
        assert "unharmed: the store: nothing was written" in said
    long, short = (said for _, said in found)
    for word in ("srun --mpi=pmix", "srun --mpi=pmi2", "expected: an MPI.COMM_WORLD of 2 processes", "alone=True"):
        assert word in long
        assert word not in short
    assert "next: process 0 says what to do" in short
    assert not (tmp_path / "run").exists()


def test_the_program_of_the_page_says_it_once(mpi: str, tmp_path: Path) -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = ended(start(mpi, tmp_path, STEP, tasks=2, text=text))
    assert [code for code, _ in found] == [1, 1], found
    (_, said), (_, silent) = found
    assert said.startswith("StateError: MPI did not find the other processes"), said
    assert "srun --mpi=pmix" in said
    assert "Traceback" not in said
    assert silent == ""
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_caller_who_says_so_is_alone(mpi: str, tmp_path: Path) -> None:
    found = ended(start(mpi, tmp_path, STEP, "alone", tasks=1))
    assert found[0][0] == 0, found
    assert "opened 1" in found[0][1]


@pytest.mark.parametrize("more", [{}, {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4"}], ids=["no job", "a batch script"])
def test_one_process_without_srun_is_one_owner(mpi: str, more: dict[str, str], tmp_path: Path) -> None:
    ((code, said),) = ended(start(mpi, tmp_path, more, tasks=1))
    assert (code, "opened 1" in said) == (0, True), said
