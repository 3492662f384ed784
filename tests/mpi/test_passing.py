"""What all owners need is read once and passed on, in bounded memory, checked by every owner, and refused by all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mpilaunch
import pytest
from expecting import Expect, check_refused, check_unharmed

CASES = Path(__file__).with_name("passing_cases.py")
OWNERS = 8
CHUNKS = 10
SHARED = r"/00000/00000\d\.r\.safetensors$"


def outcomes(mpi: str, case: str) -> list[Any]:
    return mpilaunch.batch(CASES, mpi, world=OWNERS, owners=(OWNERS,), timeout=240.0).passed(case, OWNERS)


def test_many_blocks_are_passed_on_in_bounded_memory(mpi: str) -> None:
    found = outcomes(mpi, "many_blocks_in_bounded_memory")
    for role, (same, held, sent, opened) in enumerate(found):
        assert same
        # At most four blocks are kept, two are on their way to each of two children, and two to this owner.
        assert 0 < held <= 4 + 2 * 2 + 2, held
        assert opened == (3 if role == 0 else 0)
        assert sent > CHUNKS


def test_on_one_host_each_reads_for_itself(mpi: str) -> None:
    for role, (together, apart) in enumerate(outcomes(mpi, "on_one_host")):
        same, held, few, opened = together
        assert same
        assert (held, opened) == (0, 3)
        same, held, sent, opened = apart
        assert same
        assert held > 0
        assert opened == (3 if role == 0 else 0)
        assert sent - few > CHUNKS // 2  # blocks, or the word that they are done with; beats are in both


def test_a_slow_owner_is_waited_for_as_long_as_it_gets_on(mpi: str) -> None:
    assert outcomes(mpi, "a_slow_leaf") == [True] * OWNERS


REFUSED = {
    "a_damaged_file_of_what_all_need": Expect("IntegrityError", "bytes .* of a shard are not", role=0, path=SHARED),
    "a_byte_that_changes_on_its_way": Expect("IntegrityError", "bytes .* of a shard are not", role=2, path=SHARED),
    "a_block_that_is_left_out": Expect(
        "TopologyError", "not what comes next", role=1, expected="shards", advice="report this",
    ),
    "a_leaf_without_memory": Expect("StoreError", "no memory", role=3),
    "an_inner_owner_without_memory": Expect("StoreError", "no memory", role=1),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_resume_is_refused(mpi: str, case: str) -> None:
    found = outcomes(mpi, case)
    check_refused(found, REFUSED[case])
    check_unharmed(found)
    assert all(one["same"] and one["next"] for one in found)


def test_an_owner_that_stops_while_it_passes_on_is_named(mpi: str) -> None:
    found = outcomes(mpi, "an_inner_owner_that_stops")
    expect = Expect("DeadlineError", "an owner is silent", role=1, seconds=1.0 + 2.0)
    check_refused([one for role, one in enumerate(found) if role != 1], expect)
    assert found[1]["raised"]["record"]["class"] == "DeadlineError"
    assert all(one["same"] and one["next"] for one in found)


def test_what_only_some_want_they_read_themselves(mpi: str) -> None:
    found = outcomes(mpi, "what_only_some_want")
    assert all(same for same, _ in found)
    for role, (_, opened) in enumerate(found):
        # The first that declares a half holds it: owners 0 and 1. The rest is in the `.r` shards, which owner 0 reads.
        own = {"000000.safetensors", "000001.safetensors"} & set(opened)
        assert own == {f"00000{role % 2}.safetensors"}, (role, opened)
        assert role == 0 or not any(name.endswith(".r.safetensors") for name in opened)


def test_every_case_is_judged() -> None:
    others = {"many_blocks_in_bounded_memory", "on_one_host", "a_slow_leaf", "an_inner_owner_that_stops"}
    others |= {"what_only_some_want"}
    assert REFUSED.keys() | others == set(mpilaunch.cases(CASES))
