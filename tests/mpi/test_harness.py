"""The harness itself: a hang is killed with stacks, a raised rank is reported, ranks can be steered, cases run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import mpilaunch
import pytest

CASES = Path(__file__).with_name("harness_cases.py")


def test_every_rank_reports(mpi: str) -> None:
    result = mpilaunch.run(
        "import sys, rank\nrank.report(me=rank.world().Get_rank(), size=rank.world().Get_size(), args=sys.argv[1:])\n",
        3,
        mpi,
        args=["--steps", "4"],
    )
    assert result.ok() == [{"me": r, "size": 3, "args": ["--steps", "4"]} for r in range(3)]


def test_hang_is_killed_with_stacks_of_every_rank(mpi: str) -> None:
    program = (
        "import os, rank, signal\nrank.report(pid=os.getpid())\n"
        "def waits_for_ever():\n    rank.world().recv(source=1)\n"
        "if rank.number() == 0: waits_for_ever()\n"
        "else: rank.stop()\n"
    )
    begun = time.monotonic()
    running = mpilaunch.start(program, 2, mpi, timeout=3)
    pids = [running.wait_report(rank, "pid") for rank in (0, 1)]
    running.wait_stopped(1)
    with pytest.raises(mpilaunch.Hang, match=r"(?s)waits_for_ever.*rank 1, process state T.*in stop"):
        running.wait()
    assert time.monotonic() - begun < 8
    assert all(mpilaunch._state(pid) in ("gone", "Z") for pid in pids)


def test_raised_rank_is_reported_and_ends_the_job(mpi: str) -> None:
    program = (
        "import time, rank\nfrom mpickpt.errors import CoverageError\n"
        "if rank.world().Get_rank() == 1: raise CoverageError('a gap', region='w', expected=4, found=3)\n"
        "rank.world().Barrier()\n"
    )
    result = mpilaunch.run(program, 2, mpi, timeout=20)
    assert result.returncode != 0
    assert result.reports[0] is None
    assert result.reports[1] is not None
    assert result.reports[1]["raised"]["class"] == "CoverageError"
    assert result.reports[1]["raised"]["record"]["region"] == "w"
    assert "a gap" in result.output


def test_killed_rank_ends_the_job_and_its_report_stays(mpi: str) -> None:
    with mpilaunch.start(
        "import rank\nrank.report(step=3)\nrank.world().Barrier()\n"  # both have reported
        "rank.world().Barrier() if rank.number() else rank.stop()\n",
        2,
        mpi,
    ) as job:
        job.wait_stopped(0)
        job.signal(1, signal.SIGKILL)
        job.signal(0, signal.SIGCONT)
        result = job.wait()
    assert result.returncode != 0
    assert result.reports == [{"step": 3}, {"step": 3}]


def test_failpoints_stop_kill_raise_by_role_and_occurrence(mpi: str) -> None:
    program = (
        "import rank\nfrom mpickpt import failpoints\nrank.world()\n"
        "for k in range(3):\n"
        "    try:\n        failpoints.reach('a.b')\n        failpoints.reach('c')\n"
        "    except OSError as error:\n        rank.report(errno=error.errno, at=k)\n"
        "    rank.report(done=k)\n"
    )
    rules = [
        {"name": "a.b", "do": "raise", "errno": 28, "role": 0, "occurrence": 2},
        {"name": "c", "do": "stop", "role": 1, "occurrence": 3},
    ]
    with mpilaunch.start(program, 2, mpi, failpoints=rules) as job:
        job.wait_stopped(1)
        assert job.wait_report(1, "done") == 1
        job.signal(1, signal.SIGCONT)
        assert job.wait().ok() == [{"errno": 28, "at": 1, "done": 2}, {"done": 2}]
    killed = mpilaunch.run(program, 2, mpi, failpoints=[{"name": "c", "do": "kill", "role": 1, "occurrence": 2}])
    assert killed.returncode != 0
    assert killed.reports[1] == {"done": 0}


def test_stopped_rank_is_continued_after_seconds(mpi: str) -> None:
    program = (
        "import time, rank\nt = time.monotonic(); rank.stop(0.5); rank.report(s=time.monotonic() - t)\nrank.world()\n"
    )
    (one,) = mpilaunch.run(program, 1, mpi).ok()
    assert 0.4 < one["s"] < 3


@pytest.mark.parametrize("case", mpilaunch.cases(CASES))
def test_batch_runs_every_case_at_every_owner_count(mpi: str, owners: int, case: str) -> None:
    batch = mpilaunch.batch(CASES, mpi)
    if case == "one_owner_raises":
        found = batch.outcomes(case, owners)
        assert [("raised" in outcome) for outcome in found] == [role == owners - 1 for role in range(owners)]
        with pytest.raises(AssertionError, match="planned"):
            batch.passed(case, owners)
    else:
        assert batch.passed(case, owners) == [[role, owners] for role in range(owners)]


def test_absent_mpi_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPICKPT_TEST_MPICH", raising=False)
    monkeypatch.setattr("sys.executable", "/nowhere/bin/python")
    with pytest.raises(mpilaunch.Unavailable, match="MPICKPT_TEST_MPICH"):
        mpilaunch.python_of.__wrapped__("mpich")


def test_ranks_do_not_take_themselves_for_a_part_of_an_outer_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "7")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "7")
    found = mpilaunch.environment("mpich")
    assert "SLURM_NTASKS" not in found
    assert "OMPI_COMM_WORLD_SIZE" not in found
    assert str(mpilaunch.HERE) in found["PYTHONPATH"].split(os.pathsep)
