"""The race between root and void in trees, in simulated time: what each owner is told is what stands in ``roots/``.

One owner, the root, an inner one or a leaf, is stopped for about a deadline at one of the places between the first
commitment and the last release, or killed there; others are slow at random. So voids of several owners in doubt, each
at another level, race with the root and with each other. The seed of a schedule that fails is printed, and plays it
again.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import outcomes
import pytest
from simulation import DEADLINE, Plan, Story, World, play

from mpickpt.cluster.topology import Topology

SHAPES = {"5 by 2": (5, 2), "7 by 2": (7, 2), "8 by 3": (8, 3)}
CALLS = 4
PLACES = [
    "save.heard",
    "save.manifest-written",
    "save.committed",
    "save.compared",
    "commit.written",
    "commit.synced",
    "commit.closed",
    "commit.placed",
    "commit.directory-synced",
    "save.root-published",
    "save.released",
    "save.doubt",
    "op.rename",
    "op.fsync",
]


class Race(Plan):
    """In each disturbed call one owner stops, or dies, at one place, and others are a little slow everywhere."""

    def __init__(self, seed: int, owners: int, kills: bool) -> None:
        super().__init__(self._at)
        self.random = random.Random(f"race {seed}")
        self.owners = owners
        self.kill_in = self.random.randrange(1, CALLS - 1) if kills else 0
        self.calls: Counter[int] = Counter()
        self.chosen: dict[int, tuple[int, str, int]] = {}
        self.left: dict[int, int] = {}
        self.doubted: set[int] = set()

    def _choose(self, call: int) -> tuple[int, str, int]:
        """Choose who stops in a call, and where: the root and its children more often than leaves."""
        if call not in self.chosen:
            role = self.random.choice([0, 0, 1, self.random.randrange(self.owners)])
            self.chosen[call] = role, self.random.choice(PLACES), self.random.choice([1, 1, 1, 2, 3])
        return self.chosen[call]

    def _at(self, world: World, owner: int, name: str) -> None:
        self.calls[owner] += name == "save.entered"
        call = self.calls[owner]
        if name == "save.doubt":
            self.doubted.add(call)
        role, place, occurrence = self._choose(call)
        if (owner, name) == (role, place):
            self.left[call] = self.left.get(call, occurrence) - 1
            if self.left[call] == 0:
                if call == self.kill_in:
                    world.kill(owner)
                else:
                    # About a deadline: then those in doubt reach the store when this owner does.
                    world.freeze(owner, DEADLINE * self.random.uniform(0.9, 1.3) + self.random.choice([0, 0, 2]))
                world.sleep(0)
        if self.random.random() < 0.05:
            world.sleep(DEADLINE * self.random.uniform(0, 0.1))


def race(path: Path, seed: int, shape: str, kills: bool) -> tuple[Story, Race]:
    """Play one schedule over a tree, and check it."""
    owners, fan_out = SHAPES[shape]
    assert not Topology.of("tree", owners, fan_out).star
    plan = Race(seed, owners, kills)
    story = play(path, plan, owners=owners, calls=CALLS, calm=2, seed=seed, fan_out=fan_out)
    story.check(clean=not kills)
    for call, there in outcomes.roots(path).items():
        if outcomes.VOID in there:  # all raise exactly what it says
            assert len(set(story.outcomes[call].values())) == 1, story.text()
    if not kills:
        for call in (CALLS - 1, CALLS):
            assert story.saved(call), f"call {call} was not disturbed\n{story.text()}"
    return story, plan


def races(path: Path, seeds: range, shape: str, kills: bool) -> Counter[str]:
    """Play many schedules; count how their calls ended."""
    count = Counter[str]()
    for seed in seeds:
        story, plan = race(path / str(seed), seed, shape, kills)
        there = outcomes.roots(story.path)
        for call, told in story.outcomes.items():
            voids = there.get(call, []).count(outcomes.VOID)
            saved = sum(text.startswith("saved ") for text in told.values())
            end = "void" if voids else "saved by all" if saved == len(told) else "abort"
            count[f"doubt, {end}" if call in plan.doubted else end] += 1
        count["killed"] += any(map(story.world.killed, range(story.owners)))
    print(f"{shape}, seeds {seeds}: {dict(count)}")
    return count


@pytest.mark.parametrize("kills", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_owners_of_a_tree_are_told_is_what_stands_in_roots(ram: Path, shape: str, kills: bool) -> None:
    count = races(ram, range(20), shape, kills)
    assert min(count["doubt, void"], count["doubt, saved by all"]) > 0, f"the schedules do not reach it: {count}"
    assert (count["killed"] > 0) == kills


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_owners_of_a_tree_are_told_is_what_stands_in_roots_in_1500_schedules(
    ram: Path, shape: str, kills: bool
) -> None:
    count = races(ram, range(1000, 1250), shape, kills)
    assert min(count["doubt, void"], count["doubt, saved by all"]) > 0, f"the schedules do not reach it: {count}"
