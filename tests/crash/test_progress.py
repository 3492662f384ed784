"""A slow save that makes progress is never cut off; a writer that makes none is. In simulated time.

`deadline` is a limit of silence and of no progress, not of duration; a sync, which shows no progress, has ten of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulation import DEADLINE, Plan, Story, World, play

CALL = 2
LENGTH = 9 << 20
"""Of float32: three chunks of 4 MiB an owner at three owners."""


def slow(owner: int, name: str, seconds: Callable[[int], float]) -> Plan:
    """Let the k-th operation or failpoint of a name, in an owner's second save, take so many deadlines."""
    calls, seen = Counter[int](), Counter[int]()

    def at(world: World, who: int, what: str) -> None:
        calls[who] += what == "save.entered"
        if (who, what) == (owner, name) and calls[who] == CALL:
            seen[who] += 1
            world.sleep(seconds(seen[who]) * DEADLINE)

    return Plan(at)


def check(story: Story, saved: bool, owner: int = 0) -> None:
    """Check how the second save ended; the others always save."""
    story.check()
    for call in (CALL - 1, CALL + 1):
        assert story.saved(call), story.text()
    if saved:
        assert story.saved(CALL), story.text()
    else:
        found = set(story.outcomes[CALL].values())
        assert found == {f"DeadlineError({owner}) the writer of this owner made no progress"}, story.text()


@pytest.mark.parametrize(("write", "owner"), [("each", 0), ("each", 1), ("gather", 0)])
def test_a_save_that_takes_many_deadlines_and_makes_progress_is_not_cut_off(ram: Path, write: str, owner: int) -> None:
    story = play(ram, slow(owner, "writer.chunk", lambda _: 0.9), length=LENGTH, write=write)
    check(story, saved=True)
    assert min(story.seconds[CALL].values()) > (6 if write == "gather" else 2) * DEADLINE, story.seconds


@pytest.mark.parametrize(("write", "owner"), [("each", 0), ("each", 1), ("gather", 0)])
def test_a_writer_that_stops_between_two_chunks_is_cut_off(ram: Path, write: str, owner: int) -> None:
    """Both threads that write stop; with `write="gather"` it is owner 0's while it writes for another."""
    late = 6 if write == "gather" else 2
    story = play(ram, slow(owner, "writer.chunk", lambda k: 2.5 * (k >= late)), length=LENGTH, write=write)
    check(story, saved=False, owner=owner)
    assert max(story.seconds[CALL].values()) < 2.2 * DEADLINE, story.seconds


@pytest.mark.parametrize(("write", "owner"), [("each", 0), ("each", 1), ("gather", 0)])
@pytest.mark.parametrize(("deadlines", "saved"), [(5, True), (11, False)])
def test_a_sync_has_ten_deadlines(ram: Path, write: str, owner: int, deadlines: float, saved: bool) -> None:
    """Each sync has them: of an owner's two shards, and of shards that owner 0 syncs at the same time."""
    story = play(ram, slow(owner, "writer.synced", lambda k: deadlines / k), write=write)
    check(story, saved, owner)
    if saved:
        assert min(story.seconds[CALL].values()) > 1.4 * deadlines * DEADLINE, story.seconds
    else:
        assert max(story.seconds[CALL].values()) < 11.5 * DEADLINE, story.seconds


@pytest.mark.parametrize("point", ["commit.written", "commit.synced", "save.doubt"])
def test_a_manifest_a_root_or_a_void_may_take_as_long_as_a_sync(ram: Path, point: str) -> None:
    owner = 1 if point == "save.doubt" else 0
    plan = slow(owner, point, lambda _: 5)
    if owner:
        plain = plan.at

        def at(world: World, who: int, what: str) -> None:
            if (who, what) == (0, "save.compared") and world.now < 1:
                world.freeze(0, 2 * DEADLINE)
                world.sleep(0)
            plain(world, who, what)

        plan.at = at
    story = play(ram, plan)
    story.check()
    assert story.saved(CALL + 1), story.text()
    if not owner:
        assert story.saved(CALL), story.text()


@pytest.mark.parametrize("point", ["save.agreed", "writer.chunk", "save.committed", "commit.written"])
def test_a_machine_that_is_suspended_is_not_taken_for_silence(ram: Path, point: str) -> None:
    """All owners stop at once, for many deadlines: when they go on, nobody has been silent, and no writer hung."""
    suspended: list[float] = []

    def at(world: World, who: int, what: str) -> None:
        if what == point and not suspended:
            suspended.append(world.now)
            for owner in range(3):
                world.freeze(owner, 20 * DEADLINE)
            world.sleep(0)

    story = play(ram, Plan(at))
    story.check()
    assert suspended
    assert all(story.saved(call) for call in (1, 2, 3)), story.text()
    assert story.world.now > 20 * DEADLINE


def test_an_owner_that_enters_late_is_waited_for_within_the_deadline_only(ram: Path) -> None:
    late: list[float] = []

    def entering(delay: float) -> Plan:
        done: list[int] = []

        def at(world: World, who: int, what: str) -> None:
            if (who, what) == (1, "save.entered") and not done:
                done.append(1)
                late.append(delay)
                world.sleep(delay * DEADLINE)

        return Plan(at)

    options: dict[str, Any] = {"calls": 2, "calm": 1}
    story = play(ram / "late", entering(0.8), **options)
    assert story.saved(1), story.text()
    story = play(ram / "too late", entering(1.6), **options)
    assert set(story.outcomes[1].values()) == {"DeadlineError(1) an owner is silent"}, story.text()
    assert story.saved(2), story.text()
    assert late == [0.8, 1.6]
