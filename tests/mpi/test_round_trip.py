"""What was saved comes back bit for bit, at every owner count, on both MPIs, whoever writes.

Each case of round_trip_cases.py saves a state with ``write="each"`` and with ``"gather"``, resumes it by another
Checkpointer into other contents, restores all regions whole, and puts every array together again from the shards by
the safetensors library alone.
"""

from __future__ import annotations

from pathlib import Path

import mpilaunch
import pytest

CASES = Path(__file__).with_name("round_trip_cases.py")


@pytest.mark.parametrize("case", mpilaunch.cases(CASES))
def test_comes_back_bit_for_bit(mpi: str, owners: int, case: str) -> None:
    told = mpilaunch.batch(CASES, mpi, timeout=240).passed(case, owners)
    assert all(one == told[0] for one in told), "owners tell different things"


def test_swapped_copies_are_named(mpi: str, owners: int) -> None:
    told = mpilaunch.batch(CASES, mpi, timeout=240).passed("swapped_bytes_of_one_copy_are_refused", owners)[0]
    assert len(told) == (2 if owners > 1 else 0)
    for region, roles, expected, found, text in told:
        assert (region, roles) == ("w", [0, owners // 2])
        assert expected != found
        assert "index" in text


def test_owner_that_cannot_take_its_part_is_named(mpi: str, owners: int) -> None:
    told = mpilaunch.batch(CASES, mpi, timeout=240).passed("what_one_owner_cannot_take_nobody_takes", owners)[0]
    assert told == [owners - 1, "rng"]
