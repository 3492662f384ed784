"""Owners are stopped, slowed and killed at random, in simulated time: all are told the same, and it is what is true.

Every failpoint and every operation of the file system is a place where an owner may be stopped with all its threads
for up to six deadlines, or one of its threads may be slow. Whatever happens, a root is listed if and only if all that
finish say saved, with its digest; nothing is left behind; and once nothing disturbs any more, all save again. The seed
of a schedule that fails is printed, and plays it again.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import outcomes
import pytest
from simulation import Plan, Story, World, play, random_stops

CALLS = 7
WAYS = {
    "each-rename": {"write": "each"},
    "each-link": {"write": "each", "link": True},
    "gather-rename": {"write": "gather"},
    "gather-link": {"write": "gather", "link": True},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """How shards are written and files are placed."""
    return WAYS[request.param]


def random_kills(seed: int) -> Plan:
    """Kill up to two owners, and stop others."""
    random_, stops = random.Random(f"kills {seed}"), random_stops(seed)
    left = [random_.choice([1, 1, 2])]

    def at(world: World, owner: int, name: str) -> None:
        if left[0] and random_.random() < 0.002:
            left[0] -= 1
            world.kill(random_.randrange(3))
            world.sleep(0)
        stops.at(world, owner, name)

    return Plan(at)


def stopped(path: Path, seed: int, **way: Any) -> Story:
    """Play one schedule of stops, and check it."""
    story = play(
        path, random_stops(seed), calls=CALLS, calm=2, seed=seed, pause=lambda w: 2 * w.random.random() ** 4, **way
    )
    story.check()
    for call in (CALLS - 1, CALLS):
        assert story.saved(call), f"call {call} was not disturbed\n{story.text()}"
    foreign = [text for call in story.outcomes.values() for text in call.values() if not _expected(text)]
    assert not foreign, f"{foreign}\n{story.text()}"
    return story


def _expected(text: str) -> bool:
    return text.startswith(("saved ", "DeadlineError("))


def kinds(story: Story) -> Counter[str]:
    """Count how calls ended: saved, void or abort."""
    there, found = outcomes.roots(story.path), Counter[str]()
    for call in story.outcomes:
        void = outcomes.VOID in there.get(call, [])
        found["saved" if story.saved(call) else "void" if void else "abort"] += 1
    return found


def _stops(path: Path, seeds: range, way: dict[str, Any]) -> None:
    count = Counter[str]()
    for seed in seeds:
        count += kinds(stopped(path / str(seed), seed, **way))
    print(f"seeds {seeds}: {dict(count)}")
    assert min(count["saved"], count["void"], count["abort"]) > 0, f"the schedules do not reach everything: {count}"


def test_all_owners_and_the_store_agree_whoever_is_stopped_when(ram: Path, way: dict[str, Any]) -> None:
    _stops(ram, range(40), way)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_owners_and_the_store_agree_in_a_thousand_schedules(ram: Path, way: dict[str, Any]) -> None:
    _stops(ram, range(1000, 2000), way)


@pytest.mark.parametrize("owners", [1, 2, 5])
def test_other_owner_counts_agree_too(ram: Path, owners: int) -> None:
    for seed in range(20):
        stopped(ram / str(seed), seed, owners=owners)


@pytest.mark.parametrize(("owners", "fan_out"), [(4, 1), (7, 2)])
def test_in_a_tree_all_agree_too(ram: Path, owners: int, fan_out: int) -> None:
    """Owners in the middle hear and speak in both directions."""
    for seed in range(25):
        stopped(ram / str(seed), seed, owners=owners, fan_out=fan_out)


def _kills(path: Path, seeds: range, way: dict[str, Any]) -> None:
    count = Counter[str]()
    for seed in seeds:
        where = path / str(seed)
        story = play(where, random_kills(seed), calls=5, calm=1, seed=seed, **way)
        story.check(clean=False)
        killed = [owner for owner in range(story.owners) if story.world.killed(owner)]
        count.update(f"killed {owner}" for owner in killed)
        # The next start resumes from what was complete, and saves.
        again = play(where, Plan(), seed=seed, first=6, calls=2, **way)
        again.check(clean=False)
        assert again.saved(6), again.text()
        assert again.saved(7), again.text()
    print(f"seeds {seeds}: {dict(count)}")
    assert len(count) == 3, f"not every owner was killed: {count}"


def test_whoever_is_killed_when_the_others_agree_and_the_next_start_goes_on(ram: Path, way: dict[str, Any]) -> None:
    _kills(ram, range(25), way)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_whoever_is_killed_when_in_a_thousand_schedules(ram: Path, way: dict[str, Any]) -> None:
    _kills(ram, range(1000, 2000), way)


def test_a_seed_plays_the_same_schedule_again(ram: Path) -> None:
    first, second = (
        play(ram / name, random_stops(7), calls=4, seed=7, pause=lambda w: w.random.random()) for name in "ab"
    )
    assert [(time, owner, name) for time, owner, name in first.world.trace] == second.world.trace
    assert first.seconds == second.seconds
