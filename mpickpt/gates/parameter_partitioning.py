"""A learner goes on at other owner counts, whose shares meet no boundary of a file, bit for bit as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpickpt.gates.ground import Ground, began, differences, stored
from mpickpt.gates.launch import Ended
from mpickpt.gates.oracle import replay
from mpickpt.gates.problem import BATCH

PATHS = {"momentum": (4, 3, 5), "adam": (4, 2, 7), "sgd": (4, 3), "optimizer-only": (4, 3)}
"""The owner counts that each learner goes through, in fresh processes each time."""
STEPS = 2
"""At each of them."""
CONTROLS = {"powers-forgotten": "adam", "momentum-forgotten": "momentum", "pieces-moved": "momentum"}


def run(ground: Ground) -> None:
    """Run the gate."""
    trips = []
    for topology in ground.topologies:
        for learner, usual in PATHS.items():
            trips.append(("sound", learner, topology, ground.path(*usual)))
    for build, learner in CONTROLS.items():
        trips.append((build, learner, ground.topologies[0], ground.path(*PATHS[learner])[:2]))
    faults: dict[tuple[Any, ...], list[str]] = {trip: [] for trip in trips}
    for stage in range(max(len(trip[3]) for trip in trips)):
        under_way = [trip for trip in trips if len(trip[3]) > stage]
        tasks = [_task(ground, trip, stage) for trip in under_way]
        ended = ground.launcher.run(tasks)
        for trip, task in zip(under_way, tasks, strict=True):
            faults[trip] += _judge(ended, task, trip, stage)
    for trip in trips:
        build, learner, topology, counts = trip
        name = f"{learner}, {topology}: {' -> '.join(map(str, counts))} owners"
        if build == "sound":
            ground.report.check(name, faults[trip])
        else:
            ground.report.control(f"{build}, {name}", faults[trip])


def _task(ground: Ground, trip: tuple[str, str, str, Sequence[int]], stage: int) -> dict[str, Any]:
    build, learner, topology, counts = trip
    more = {"resume": {"repartition": True}}
    return ground.train(build, learner, topology, counts[stage], STEPS * (stage + 1), build=build, **more)


def _judge(ended: Ended, task: dict[str, Any], trip: tuple[str, str, str, Sequence[int]], stage: int) -> list[str]:
    _, learner, topology, counts = trip
    before = replay(learner, topology, [(owners, STEPS) for owners in counts[:stage]])
    faults = began(ended, task, STEPS * stage, STEPS * stage * BATCH)
    faults += differences(ended, task, before, "resumed")
    after = before.go(counts[stage], STEPS)
    faults += differences(ended, task, after)
    return faults or stored(task["store"], after)
