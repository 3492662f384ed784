"""Owners are stopped and slowed at random while they resume, in simulated time: the claim in the store decides for all.

On an empty store the round of the claim is the last one. So either all owners go on under the epoch whose claim stands,
or none does, whoever was stopped when; and once nothing disturbs any more, all resume and save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import outcomes
import pytest
from simulation import DEADLINE, Actor, random_stops, simulated

import mpickpt
from mpickpt.cluster.topology import Topology
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CheckpointError
from mpickpt.store.directory import Directory


def resumed(path: Path, seed: int, owners: int, fan_out: int | None, saved: bool) -> str:
    """Play one schedule: a disturbed resume, then a calm one and a save; tell how the first one ended."""
    first: dict[int, str] = {}
    later: list[str] = []
    with simulated(seed, random_stops(seed)) as world:
        wires = Wiring.local(owners, None if fan_out is None else Topology.of("tree", owners, fan_out))
        here: list[int] = []

        def meet(place: int) -> None:
            here.append(place)
            world.wait(lambda: here.count(place) >= owners)

        def owner(role: int) -> Callable[[], None]:
            def program() -> None:
                checkpointer = mpickpt.Checkpointer(path, wires[role], deadline=DEADLINE, keep=None)
                if saved:
                    checkpointer.resume(outcomes.state(role, owners, 0))
                    checkpointer.save(outcomes.state(role, owners, 1), step=1)
                meet(0)
                world.calm = False
                try:
                    first[role] = f"epoch {checkpointer.resume(outcomes.state(role, owners, 0)).epoch}"
                except CheckpointError as error:
                    first[role] = outcomes.told(error)
                meet(1)
                world.quieten()
                run = checkpointer.resume(outcomes.state(role, owners, 0))
                later.append(checkpointer.save(outcomes.state(role, owners, 2), step=run.step + 2).root)

            return program

        mains = [Actor(owner(role), f"owner-{role}", owner=role) for role in range(owners)]
        for main in mains:
            main.start()
        world.run(mains, 300.0)
    trace = "\n".join(f"{at:8.4f} owner {who} {name}" for at, who, name in world.trace[-200:])
    assert not world.failures, (seed, world.failures, first, trace)
    assert len(later) == owners, (seed, first, trace)
    assert len(set(later)) == 1, (seed, first, trace)
    epochs = {text for text in first.values() if text.startswith("epoch ")}
    refused = {text for text in first.values() if not text.startswith(("epoch ", "InDoubtError"))}
    taken = {claim.epoch: claim.void is None for claim in Directory(path).claims()}
    assert len(epochs) <= 1, (seed, first, trace)
    for text in epochs:
        assert taken[int(text.split()[1])], (seed, first, taken, trace)
    if not saved:  # otherwise one more round follows, in which all tell that their arrays are filled
        assert not (epochs and refused), (seed, first, taken, trace)
    return "resumed" if epochs else "void" if not all(taken.values()) else "refused"


@pytest.mark.parametrize(("owners", "fan_out", "saved"), [(3, None, False), (5, 2, False), (3, None, True)])
def test_either_all_go_on_under_the_claim_that_stands_or_nobody(
    ram: Path, owners: int, fan_out: int | None, saved: bool
) -> None:
    count = Counter(resumed(ram / str(seed), seed, owners, fan_out, saved) for seed in range(80))
    assert min(count["resumed"], count["void"], count["refused"]) > 0, f"the schedules do not reach everything: {count}"
