"""Five steps equal three and two in fresh processes: every learner, bit for bit, files included."""

from __future__ import annotations

from mpickpt.gates.ground import Ground, began, differences, pairs, stored
from mpickpt.gates.oracle import replay
from mpickpt.gates.problem import BATCH, LEARNERS

STEPS, CUT = 5, 3
OWNERS = 4
CONTROLS = {"powers-forgotten": "adam", "momentum-forgotten": "momentum", "cursor-reset": "sgd"}
"""Broken builds and the learner that each is tried on: Adam's powers start again, momentum does, the inputs do."""


def run(ground: Ground) -> None:
    """Run the gate."""
    owners = ground.count(OWNERS)
    cases = pairs(LEARNERS, ground.topologies)
    whole = [ground.train("whole", *case, owners, STEPS) for case in cases]
    first = [ground.train("parts", *case, owners, CUT) for case in cases]
    broken = [ground.train(build, learner, ground.topologies[0], owners, CUT) for build, learner in CONTROLS.items()]
    second = [{**task, "to": STEPS} for task in first]
    broken_on = [{**task, "to": STEPS, "build": build} for task, build in zip(broken, CONTROLS, strict=True)]

    uncut = ground.launcher.run(whole)
    ground.launcher.run([*first, *broken])
    ended = ground.launcher.run([*second, *broken_on])

    for (learner, topology), one, parts in zip(cases, whole, second, strict=True):
        oracle = replay(learner, topology, [(owners, STEPS)])
        faults = differences(uncut, one, oracle) + began(ended, parts, CUT, CUT * BATCH)
        faults += differences(ended, parts, oracle)
        faults += faults or stored(one["store"], oracle) + stored(parts["store"], oracle)
        ground.report.check(f"{learner}, {topology}: {STEPS} = {CUT} + {STEPS - CUT} on {owners} owners", faults)
    for (build, learner), task in zip(CONTROLS.items(), broken_on, strict=True):
        oracle = replay(learner, ground.topologies[0], [(owners, STEPS)])
        ground.report.control(f"{build}, {learner}", differences(ended, task, oracle))
