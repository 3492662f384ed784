"""A slow file system: what makes progress is never cut off, what makes none is, and a sync may take long.

Writes are throttled to three deadlines and more; one chunk hangs for as long; syncs take five deadlines. With the
refusal all owners name the one whose writer made no progress; the next save, at the mended file system, works.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

PROGRAM = Path(__file__).with_name("slow_cases.py")
OWNERS = 3
DEADLINE = 1.0
"""As in the program."""
JOBS = 3
Batches = dict[tuple[str, str], mpilaunch.Batch]


@pytest.fixture(scope="module")
def batches() -> Batches:
    """What came of every case, by MPI and name: several jobs side by side, for they mostly wait."""
    cases, found = mpilaunch.cases(PROGRAM), {}
    with contextlib.ExitStack() as stack:
        jobs = []
        for mpi in mpilaunch.MPIS:
            with contextlib.suppress(mpilaunch.Unavailable):  # the tests of this MPI are skipped and say so
                for share in range(JOBS):
                    names = cases[share::JOBS]
                    job = mpilaunch.start(PROGRAM, OWNERS, mpi, ["--only", *names], timeout=120)
                    jobs.append((mpi, names, stack.enter_context(job)))
        for mpi, names, job in jobs:
            found.update(dict.fromkeys([(mpi, name) for name in names], mpilaunch.Batch(job.wait())))
    return found


@pytest.mark.parametrize(
    ("case", "deadlines"),
    [
        ("writes_that_take_three_deadlines_at_owner_0", 3),
        ("writes_that_take_three_deadlines_at_the_last_owner", 3),
        ("writes_that_take_three_deadlines_under_gather", 3),
        ("a_sync_of_five_deadlines_of_a_shard", 5),
        ("a_sync_of_five_deadlines_of_a_manifest", 5),
        ("a_sync_of_five_deadlines_of_the_root", 5),
        ("a_sync_of_five_deadlines_of_the_roots_directory", 5),
        ("a_sync_of_five_deadlines_under_gather", 5),
    ],
)
def test_what_gets_on_is_not_cut_off(mpi: str, batches: Batches, case: str, deadlines: int) -> None:
    found = batches[mpi, case].passed(case, OWNERS)
    assert all("value" in one for one in found), [one.get("raised", {}).get("traceback") for one in found]
    assert len({one["value"] for one in found}) == 1
    assert all(one["seconds"] > deadlines * DEADLINE for one in found), "it was not slow"
    assert found[0]["listed"] == [[1, found[0]["value"]]]
    assert len({one["next"] for one in found}) == 1


@pytest.mark.parametrize(
    ("case", "role", "seconds"),
    [
        ("one_chunk_that_takes_three_deadlines_at_owner_0", 0, DEADLINE),
        ("one_chunk_that_takes_three_deadlines_at_the_last_owner", 2, DEADLINE),
        ("one_chunk_that_takes_three_deadlines_under_gather", 0, DEADLINE),
        ("the_space_of_a_shard_that_takes_three_deadlines", 2, DEADLINE),
        ("a_sync_that_never_ends", 2, 10 * DEADLINE / 2),
    ],
)
def test_what_does_not_get_on_is_cut_off(mpi: str, batches: Batches, case: str, role: int, seconds: float) -> None:
    found = batches[mpi, case].passed(case, OWNERS)
    assert all("raised" in one for one in found), found
    records: list[Any] = [one["raised"].get("record") for one in found]
    assert records == [records[0]] * OWNERS
    assert records[0]["class"] == "DeadlineError", found[0]["raised"]["traceback"]
    assert records[0]["role"] == role
    assert "no progress" in records[0]["message"]
    assert records[0]["advice"]
    assert all(seconds < one["seconds"] < seconds + 2.0 for one in found), [one["seconds"] for one in found]
    assert found[0]["listed"] == []
    assert len({one["next"] for one in found}) == 1
