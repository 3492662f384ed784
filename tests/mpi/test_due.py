"""`due` and `stopping` on real owners, on Open MPI and MPICH: the same answer at the same step on all of them.

due_cases.py has the cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

PROGRAM = Path(__file__).with_name("due_cases.py")


def passed(mpi: str, case: str, owners: int) -> list[Any]:
    return mpilaunch.batch(PROGRAM, mpi, timeout=240.0).passed(case, owners)


def same(found: Sequence[Any], value: Any) -> None:
    assert list(found) == [value] * len(found)


def refused(found: Sequence[Any]) -> dict[str, Any]:
    """Check that all owners raised the same refusal; give its record."""
    assert ["raised" in one for one in found] == [True] * len(found), found
    records = [one["raised"]["record"] for one in found]
    same(records, records[0])
    assert records[0]["unharmed"]
    assert records[0]["advice"]
    return dict(records[0])


def inner(owners: int, role: int) -> bool:
    """Tell whether a role of a tree of fan-out 2 has children."""
    return role in {1: {0}, 3: {0}, 5: {0, 1, 3}}[owners]


def test_every_so_many_steps_from_the_first_call_on(mpi: str, owners: int) -> None:
    same(passed(mpi, "every_so_many_steps", owners), {"due": [4, 8, 12, 16], "stopping": None})


@pytest.mark.parametrize("owners", [1, 3])
def test_by_owner_0s_clock(mpi: str, owners: int) -> None:
    same(passed(mpi, "every_so_many_seconds", owners), [[], [6], [], []])
    same(passed(mpi, "the_interval_of_daly", owners), [[2], [], [6]])


def test_a_signal_at_any_owner_stops_all_at_one_step(mpi: str, owners: int) -> None:
    # What owner 0 is told is answered in the next call; another owner's word goes up first.
    steps = [4 if who == 0 else 5 for who in range(owners)]
    same(passed(mpi, "sigusr1_at_any_owner", owners), [{"due": [step], "stopping": step} for step in steps])


def test_sigterm_too(mpi: str) -> None:
    same(passed(mpi, "sigterm_at_any_owner", 2), [{"due": [step], "stopping": step} for step in (4, 5)])


@pytest.mark.parametrize("owners", [3, 5])
def test_a_signal_in_a_tree(mpi: str, owners: int) -> None:
    steps = [4 if inner(owners, who) else 5 for who in range(owners)]
    found = passed(mpi, "a_signal_at_any_owner_of_a_tree", owners)
    same(found, [{"due": [step], "stopping": step} for step in steps])


def test_a_handler_of_the_callers_own_is_called_and_comes_back(mpi: str) -> None:
    same(passed(mpi, "a_handler_of_the_callers_own", 2), [2, True])


def test_a_stop_that_the_program_asks_for_outlives_other_calls(mpi: str, owners: int) -> None:
    expected = [False, False, True, True, False, True, "stop()", 0]
    same(passed(mpi, "the_program_asks_for_a_stop", owners), expected)


@pytest.mark.parametrize("owners", [1, 3])
def test_a_stop_file(mpi: str, owners: int) -> None:
    found = passed(mpi, "a_stop_file", owners)
    same(found, found[0])
    assert found[0][0] is True
    assert found[0][2] == 99, "the store opens with that file in it"
    assert found[0][3] == ["stop file", 0], "a person's wish: nobody starts it again"


def test_a_persons_stop_goes_before_a_signal_and_the_first_reason_stays(mpi: str) -> None:
    same(passed(mpi, "two_reasons_in_one_round", 2), [["stop file", 0]] * 2)


@pytest.mark.parametrize("owners", [1, 3])
def test_the_end_time(mpi: str, owners: int) -> None:
    found = passed(mpi, "the_end_time_is_near", owners)
    assert all(one["one"] and one["in time"] for one in found), found
    assert all(one["why"] == ["end time", 75] for one in found), found
    assert [line for line in found[0]["said"] if line.startswith("stopping: ") and "until the end time" in line]
    assert not [line for line in found[0]["said"] if "no save is begun" in line]
    found = passed(mpi, "the_end_time_is_too_near", owners)
    assert [(one["due"], one["stopping"]) for one in found] == [([], 2)] * owners
    assert all(one["why"] == ["end time", 75] for one in found), found
    (line,) = [line for line in found[0]["said"] if "no save is begun any more" in line]
    assert "s are left until the end time, and the slowest of the last saves took 20.0 s" in line


def test_the_end_time_from_slurm(mpi: str) -> None:
    same(passed(mpi, "slurm_tells_the_end_time", 3), [True, 1, ["end time", 75]])


def test_the_end_time_from_the_environment(mpi: str) -> None:
    same(passed(mpi, "the_end_time_is_in_the_environment", 2), 2)


@pytest.mark.parametrize("owners", [1, 2, 5])
def test_a_newer_job_ends_the_second_due_a_second_after_its_claim(mpi: str, owners: int) -> None:
    found = passed(mpi, "a_newer_job_is_seen_by_due", owners)
    assert [one["due"][0]["value"] for one in found] == [False] * owners
    record = refused([one["due"][1] for one in found])
    assert (record["class"], record["role"]) == ("EpochError", 0)
    assert record["message"] == "a newer job has continued this run"
    assert refused([one["save"] for one in found])["class"] == "EpochError"


@pytest.mark.parametrize("owners", [1, 3])
def test_before_resume(mpi: str, owners: int) -> None:
    for first, after in passed(mpi, "due_before_resume", owners):
        assert first["raised"]["record"]["class"] == "StateError"
        assert first["raised"]["record"]["message"] == "due was called before resume"
        assert after is True


@pytest.mark.parametrize("owners", [2, 3, 5])
def test_another_step_at_one_owner(mpi: str, owners: int) -> None:
    found = passed(mpi, "due_with_another_step", owners)
    record = refused([one[0] for one in found])
    assert (record["class"], record["role"]) == ("DisagreementError", owners - 1)
    assert (record["expected"].split(",")[0], record["found"]) == ("step 2", "step 3")
    same([one[1] for one in found], [6])


@pytest.mark.parametrize("owners", [1, 2, 3])
def test_a_step_that_is_no_number(mpi: str, owners: int) -> None:
    record = refused(passed(mpi, "due_with_a_step_that_is_no_number", owners))
    assert (record["class"], record["role"]) == ("StateError", owners - 1)


@pytest.mark.parametrize("owners", [2, 3])
def test_other_intervals_at_one_owner(mpi: str, owners: int) -> None:
    found = passed(mpi, "other_intervals_at_one_owner", owners)
    for at in (0, 1):
        record = refused([one[at] for one in found])
        assert record["class"] == "DisagreementError"
        assert f"every 5 at owner 0, 10 at owner {owners - 1}" in record["message"]


@pytest.mark.parametrize("owners", [2, 3, 5])
def test_an_owner_that_is_stopped_is_named_and_takes_part_again(mpi: str, owners: int) -> None:
    found = passed(mpi, "an_owner_is_stopped", owners)
    assert [one[0][0].get("value") for one in found] == [True] * owners
    record = refused([one[0][1] for one in found])
    assert (record["class"], record["role"], record["message"]) == ("DeadlineError", owners - 1, "an owner is silent")
    assert all(one[0][1]["seconds"] < 3.0 for one in found)
    same([one[1] for one in found], [6, 9])


def test_beside_other_calls_and_closed_with_a_round_begun(mpi: str, owners: int) -> None:
    same(passed(mpi, "beside_other_calls", owners), [[2, 4, 6, 8], [2, 4, 6, 8]])


def test_messages_of_a_step(mpi: str, owners: int) -> None:
    found = passed(mpi, "messages_of_a_step", owners)
    assert [one["edges"] for one in found] == [owners - 1, *[1] * (owners - 1)]
    assert [one["sent"] for one in found] == [100 * one["edges"] for one in found]
    assert all(one["bytes"] <= 20 * one["sent"] for one in found)
