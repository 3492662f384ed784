"""`write="gather"`: bounded chunks travel to owner 0, which writes what the owners would have written themselves.

The cases are in gather_cases.py. Whatever else comes back under gather is in test_round_trip.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mpilaunch
import pytest

CASES = Path(__file__).with_name("gather_cases.py")
LARGE = Path(__file__).with_name("large_gather.py")
MIB = 1 << 20


def told(mpi: str, case: str, owners: int) -> list[Any]:
    return mpilaunch.batch(CASES, mpi).passed(case, owners)


def test_hundreds_of_chunks_in_fragments_come_back(mpi: str, owners: int) -> None:
    by_role = told(mpi, "hundreds_of_chunks_in_fragments", owners)
    assert all(chunks == by_role[0] for chunks in by_role)
    assert min(by_role[0]) > 100


def test_files_are_the_same_whoever_writes(mpi: str, owners: int) -> None:
    files = told(mpi, "the_files_are_the_same_whoever_writes", owners)[0]
    assert {f"00000/{role:06d}.safetensors" for role in range(owners)} <= set(files)


def test_owners_with_nothing_to_send_are_waited_for_by_nobody(mpi: str, owners: int) -> None:
    told(mpi, "owners_with_nothing_to_send", owners)


def test_state_without_any_array_is_gathered(mpi: str, owners: int) -> None:
    told(mpi, "values_only", owners)


def test_nan_of_another_owner_is_refused_by_all_and_named(mpi: str, owners: int) -> None:
    index = (4 * owners - 2, 1)  # of 4 rows an owner, the second last
    assert (
        told(mpi, "a_nan_of_another_owner_is_found_by_the_writer", owners)
        == [[owners - 1, "x", f"nan at index {index}"]] * owners
    )


def test_memory_of_owner_0_is_the_pool_and_not_the_sum_of_all(mpi: str) -> None:
    by_role = told(mpi, "memory_of_the_writer", 5)
    assert by_role[0]["sent"] == 4 * 80 * MIB
    for role, found in enumerate(by_role):
        assert found["grown"] < 100 * MIB, f"owner {role} took {found['grown'] / MIB:.0f} MiB"


@pytest.mark.long
def test_more_than_2_gib_an_owner(mpi: str, tmp_path: Path) -> None:
    found = mpilaunch.run(LARGE, 2, mpi, [str(tmp_path / "run")], timeout=280).ok()
    assert all(report["nbytes"] > 2 << 30 for report in found)
    assert len(list((tmp_path / "run").glob("data/*/*/*.safetensors"))) == 2
