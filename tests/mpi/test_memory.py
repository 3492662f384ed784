"""What saves and resumes take of the memory beside the state, by the kernel's count; and `resume(low_memory=True)`.

Each owner holds 256 MiB. What is allowed beside the pools are threads, tables, and MPI's own buffers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mpilaunch
import pytest

CASES = Path(__file__).with_name("memory_cases.py")
LARGE = ("saves", "resumes")
MIB = 1 << 20
COPY = 256 * MIB
OTHER = 24 * MIB


def measured(mpi: str, case: str, owners: int) -> list[dict[str, int]]:
    found: list[dict[str, int]] = mpilaunch.batch(CASES, mpi, 3, (1, 3), only=LARGE).passed(case, owners)
    for role, one in enumerate(found):
        print(f"{mpi}, owner {role} of {owners}:", {name: f"{size / MIB:.1f} MiB" for name, size in one.items()})
    return found


@pytest.mark.parametrize("owners", [1, 3])
def test_a_save_takes_its_pool_and_never_a_copy(mpi: str, owners: int) -> None:
    for one in measured(mpi, "saves", owners):
        assert one["at once"] < OTHER
        assert one["gathered"] < 64 * MIB + OTHER
        assert one["sha256"] < 64 * MIB + OTHER
        assert one["bounded"] < 4 * MIB + OTHER
        assert one["gathered, bounded"] < 2 * 8 * MIB + OTHER


@pytest.mark.parametrize("owners", [1, 3])
def test_a_save_in_the_background_takes_one_copy_which_is_kept(mpi: str, owners: int) -> None:
    for one in measured(mpi, "saves", owners):
        assert COPY - OTHER < one["in the background"] < COPY + OTHER
        assert one["again"] < OTHER


@pytest.mark.parametrize("owners", [1, 3])
def test_a_resume_takes_one_private_copy_and_with_low_memory_none(mpi: str, owners: int) -> None:
    pool = 0 if owners == 1 else 64 * MIB  # what is passed on is in blocks, of which so much are here or on their way
    for one in measured(mpi, "resumes", owners):
        assert COPY - OTHER < one["usual"] < COPY + pool + OTHER
        assert one["low"] < pool + OTHER


def passed(mpi: str, case: str, owners: int) -> list[Any]:
    small = (
        "destinations_that_differ_in_what_becomes_of_them",
        "another_owner_count",
        "damage_between_the_two_readings",
    )
    return mpilaunch.batch(CASES, mpi, only=small).passed(case, owners)


def test_what_becomes_of_a_destination_may_differ_between_owners(mpi: str, owners: int) -> None:
    assert passed(mpi, "destinations_that_differ_in_what_becomes_of_them", owners) == [True] * owners


def test_any_owner_count_reads_right_into_its_arrays(mpi: str, owners: int) -> None:
    assert passed(mpi, "another_owner_count", owners) == [[2, True]] * owners


def test_where_the_second_reading_fails_all_are_told_and_nobody_saves(mpi: str, owners: int) -> None:
    told = passed(mpi, "damage_between_the_two_readings", owners)
    assert told == [told[0]] * owners
    own, alike = told[0][:4], told[0][4:-1]
    assert [one[0] for one in own] == ["IntegrityError", "StateError"] * 2
    assert [one[2:] for one in own] == [[True, False], [False, True]] * 2
    if owners > 1:
        assert [one[0] for one in alike] == ["IntegrityError", "StateError"] * 2
        assert [one[2:] for one in alike] == [[True, False], [False, True]] * 2
    assert told[0][-1] == 2
