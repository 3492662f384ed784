"""One owner makes another call than the others do, on Open MPI and MPICH: all are refused, and none waits for ever.

other_calls_cases.py has the cases.
"""

from __future__ import annotations

from pathlib import Path

import mpilaunch
import pytest

PROGRAM = Path(__file__).with_name("other_calls_cases.py")


@pytest.mark.parametrize(
    ("case", "owners"),
    [
        ("owner_0_makes_another_call", 2),
        ("an_inner_role_makes_another_call", 5),
    ],
)
def test_all_are_refused(mpi: str, case: str, owners: int) -> None:
    found = mpilaunch.batch(PROGRAM, mpi, timeout=240.0).passed(case, owners)
    for outcomes in zip(*found, strict=True):
        calls = {one["call"] for one in outcomes}
        assert len(calls) == 2
        assert all("raised" in one for one in outcomes), outcomes
        assert all(one["seconds"] < 10 for one in outcomes), outcomes
        records = [one["raised"]["record"] for one in outcomes]
        if "save" in calls:  # saves and other calls do not hear of each other
            assert {record["class"] for record in records} == {"DeadlineError"}, outcomes
        else:
            assert records == [records[0]] * owners
            assert records[0]["class"] == "DisagreementError", records[0]
            assert records[0]["message"].startswith("owners made different calls: "), records[0]
            if "close" not in calls:
                assert [one["after"].get("value") for one in outcomes] == [True] * owners, outcomes
