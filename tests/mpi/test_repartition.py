"""A state goes to any number of owners and to any boxes where its contract lets it, and nowhere else.

The cases are in repartition_cases.py; each runs on communicators of 1 to 5 owners, split off one mpirun.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mpilaunch
import pytest

CASES = Path(__file__).with_name("repartition_cases.py")
WORLD = 5


def told(mpi: str, case: str) -> list[Any]:
    return mpilaunch.batch(CASES, mpi, world=WORLD, owners=(WORLD,)).passed(case, WORLD)


@pytest.mark.parametrize(
    "case",
    [
        "a_learner_goes_from_count_to_count",
        "boxes_of_any_kind_go_to_boxes_of_any_kind",
        "how_a_region_is_held_may_change",
        "stages_of_a_pipeline_are_dealt_out_anew",
        "an_object_gets_its_whole_state_at_any_count",
    ],
)
def test_other_owners_get_the_same_bits(mpi: str, case: str) -> None:
    told(mpi, case)


def test_another_count_is_refused_unless_asked_for_and_never_where_bound(mpi: str) -> None:
    by_role = told(mpi, "another_count_must_be_asked_for")
    refusals = by_role[0]  # of rank 0, which is in every communicator
    assert len(refusals) == 2 * 8
    for owners, text in zip((2, 5) * 8, refusals, strict=True):
        assert text.startswith(f"3 owners, {owners} owners: ")
    asking = [text for text in refusals if "repartition=True" in text]
    binding = [text for text in refusals if "binds the placement" in text]
    assert (len(asking), len(binding)) == (2 * 3, 2 * 5)
    assert by_role[1] == refusals
    assert all(found == refusals[1::2] for found in by_role[2:])


def test_what_each_owner_has_of_its_own_is_refused_kept_or_dropped(mpi: str) -> None:
    by_role = told(mpi, "what_is_of_each_owner_says_what_becomes_of_it")
    assert by_role[:2] == [["own/a", "own/a"]] * 2
    assert by_role[2:] == [["own/a"]] * 3


def test_no_case_is_left_out() -> None:
    source = Path(__file__).read_text()
    assert all(f'"{case}"' in source for case in mpilaunch.cases(CASES))
