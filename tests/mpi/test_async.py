"""Saves in the background, under mpirun: the caller's own messages go on beside them; all hear how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mpilaunch
import pytest

from mpickpt import open_store

CASES = Path(__file__).with_name("async_cases.py")
ENDING = Path(__file__).with_name("async_ends_program.py")
FLAT = "memory_descriptors_and_threads_stay_flat"


@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("a_loop_of_its_own_messages_goes_on_beside_the_saves", 8),
        ("owners_that_take_turns_in_coming_late_do_not_hang", 5),
        ("one_owner_saves_in_the_background_and_the_others_do_not", 3),
        ("a_gathered_save_in_the_background", 2),
    ],
)
def test_the_newest_is_whole(mpi: str, owners: int, case: str, step: int) -> None:
    assert mpilaunch.batch(CASES, mpi).passed(case, owners) == [[step, True]] * owners


def test_a_failure_is_raised_by_all_at_the_next_call(mpi: str, owners: int) -> None:
    case = "a_failure_at_one_owner_is_raised_by_all_at_their_next_call"
    told = [["StoreError", owners - 1, True, False]] * 4
    assert mpilaunch.batch(CASES, mpi).passed(case, owners) == [[told, 13, True]] * owners


#: From here on the generation is there, or nobody can be sure that it is not: what P10 lets differ.
PLACED = ("commit.placed", "commit.directory-synced", "save.root-placed", "save.root-published", "save.released")
#: So it is once an owner's commitment is on its way: owner 0 may have published before it hears of a failure after it.
DOUBTFUL = ("save.committed", *PLACED)


def test_an_error_at_each_failpoint_is_raised_by_all_at_the_next_call(mpi: str, owners: int) -> None:
    """A save that failed before its root was placed is there for nobody; in any case the save after that works."""
    by_role = mpilaunch.batch(CASES, mpi).passed("an_error_at_each_failpoint_of_a_save", owners)
    assert all(whole for _, whole in by_role)
    told: list[Any] = by_role[0][0]
    assert all(one == told for one, _ in by_role)
    expected = {"save.entered", "save.agreed", "writer.created", "writer.chunk", "writer.written", "writer.synced"}
    expected |= {"save.shards-written", "save.heard", "save.compared", *PLACED}
    expected |= {"rotate.roots-removed", "rotate.directory-synced"}
    expected |= {"save.manifest-written", "save.committed"} if owners > 1 else set()
    assert {place for place, *_ in told} >= expected
    for place, failing, outcomes, there, again in told:
        what = (place, failing, there, outcomes)
        assert again, what
        refusals = [refusal for _, refusal in outcomes]
        assert refusals == [refusals[0]] * owners, what
        if place.startswith("rotate."):  # which is no part of the save, and is only logged
            assert refusals[0] is None, what
        if refusals[0] is not None:
            assert "in the background failed" in refusals[0]["message"], what
        if place not in DOUBTFUL and not place.startswith("rotate."):
            assert refusals[0] is not None, what
            assert not there, what
            assert not any(durable for durable, _ in outcomes), what
        assert there or not any(durable for durable, _ in outcomes), what


@pytest.mark.long
def test_a_thousand_saves_leave_nothing_behind(mpi: str) -> None:
    args = ["--owners", "3", "--only", FLAT]
    result = mpilaunch.run(CASES, 3, mpi, args, {"SAVES": "1000"}, timeout=280)
    for memory, descriptors, threads in mpilaunch.Batch(result).passed(FLAT, 3):
        assert memory < 4 << 20
        # Threads of a pool start as they are needed, and no more than it has; a leak would be one a save.
        assert max(descriptors, threads) < 10


def test_memory_descriptors_and_threads_stay_flat(mpi: str, owners: int) -> None:
    for memory, descriptors, threads in mpilaunch.batch(CASES, mpi).passed(FLAT, owners):
        assert memory < 4 << 20
        # Threads of a pool start as they are needed, and no more than it has; a leak would be one a save.
        assert max(descriptors, threads) < 10


#: How owners end with a save in flight, the launcher's exit code, and the newest step then; None: either.
ENDS = {
    "block": (0, 1),
    "close": (0, 1),
    "exception": (1, 1),
    "exit": (0, 1),
    "end": (0, 1),
    "handled": (3, 1),
    "told": (0, None),
    "interrupted": (0, 1),
    "forked": (0, 2),
    "killed": (None, None),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_save_in_flight_ends_well_however_the_program_does(tmp_path: Path, mpi: str, how: str) -> None:
    code, newest = ENDS[how]
    result = mpilaunch.run(ENDING, 3, mpi, [how, str(tmp_path / "run")], timeout=60)
    assert code is None or result.returncode == code, result.output
    if code == 0:
        assert all((report or {}).get("durable", True) for report in result.reports)
    store = open_store(tmp_path / "run")
    steps = [generation.step for generation in store.generations() if generation.status == "live"]
    assert steps
    assert newest is None or steps[-1] == newest
    assert store.verify().ok
    found = store.read(step=steps[-1])
    assert found["n"] == steps[-1]
    assert all((found["w"][role] == steps[-1]).all() for role in range(3))
