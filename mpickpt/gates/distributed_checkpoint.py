"""SIGKILL around the rename that publishes, and copies that differ: what was called saved is there, and nothing else.

Each kill is of one owner at one named place of the third save, in processes of its own. Fresh processes then resume,
must find exactly the oracle's state of the step that they resume, must not have lost a step that any owner had been
told was saved, and train on to the end of an uninterrupted run.
"""

from __future__ import annotations

from typing import Any

from mpickpt.gates.ground import Ground, differences, roots, stored
from mpickpt.gates.launch import Ended
from mpickpt.gates.oracle import replay

OWNERS = 4
KILLED, END = 3, 5
KILLS: dict[str, tuple[int, str, str, tuple[int, ...]]] = {
    "owner 0 before the rename": (0, "save.compared", "commit.closed", (2,)),
    "owner 0 after the rename": (0, "save.compared", "commit.placed", (2, 3)),
    "owner 0 before it says so": (0, "save.compared", "save.root-published", (3,)),
    "the last owner while it writes": (-1, "save.agreed", "writer.written", (2,)),
    "the last owner after it committed": (-1, "save.committed", "save.committed", (2, 3)),
}
"""Role, failpoint that must have been passed, failpoint where SIGKILL comes, steps that may then be the newest."""


def run(ground: Ground) -> None:
    """Run the gate."""
    owners = ground.count(OWNERS)
    killed = [(t, name, rule) for t in ground.topologies for name, rule in KILLS.items()]
    cases: list[tuple[str, dict[str, Any], Ended]] = []
    for number, (topology, name, rule) in enumerate(killed):
        cases.append(_kill(ground, f"killed-{number}", f"{name}, {topology}", "adam", topology, owners, rule))
    # A build that gives its word before it has published: killed before the rename, it has lost a step.
    early = _kill(
        ground, "early", "early-word", "adam", ground.topologies[0], owners, KILLS["owner 0 before the rename"],
        build="early-word",
    )  # fmt: skip

    again = [{**task, "to": END, "kill": None, "build": None} for _, task, _ in (*cases, early)]
    copies = [ground.train("copies", "sgd", t, owners, END - 1, diverge=KILLED) for t in ground.topologies]
    blind = ground.train(
        "blind", "sgd", ground.topologies[0], owners, KILLED, diverge=KILLED, build="copies-not-compared"
    )
    ended = ground.launcher.run([*again, *copies, blind])

    for (name, _, before), task, (_, _, rule) in zip(cases, again, killed, strict=False):
        ground.report.check(f"SIGKILL to {name}", _faults(before, ended, task, rule[3]))
    for task, topology in zip(copies, ground.topologies, strict=True):
        ground.report.check(f"copies that differ publish nothing, {topology}", _diverged(ended, task, owners))
    ground.report.control("early-word", _faults(early[2], ended, again[-1], KILLS["owner 0 before the rename"][3]))
    ground.report.control("copies-not-compared", _diverged(ended, blind, owners))


def _kill(
    ground: Ground,
    place: str,
    name: str,
    learner: str,
    topology: str,
    owners: int,
    rule: tuple[int, str, str, tuple[int, ...]],
    build: str | None = None,
) -> tuple[str, dict[str, Any], Ended]:
    """Train in processes of which one is killed in the third save."""
    role, after, at, _ = rule
    kill = {"role": role % owners, "step": KILLED, "after": after, "at": at}
    task = ground.train(place, learner, topology, owners, END, kill=kill, build=build, id=place)
    # Where the launcher does not end the others at once, they find out by themselves, within this deadline.
    return name, task, ground.launcher.run([task], deadline=min(10.0, ground.launcher.deadline / 4))


def _faults(before: Ended, ended: Ended, task: dict[str, Any], newest: tuple[int, ...]) -> list[str]:
    problem = ended.problem(task["id"], task["owners"])
    if problem is not None:
        return [problem]
    ends = [end for end in ended.ends(task["id"], task["owners"]) if end is not None]
    told = max((event["step"] for seen in before.of(task["id"], "saved") for event in seen), default=0)
    if all(before.ends(task["id"], task["owners"])):
        return ["nobody was killed: every owner came to its end"]
    steps = {int(end.get("began", -1)) for end in ends}
    if len(steps) != 1 or -1 in steps:
        refused = [end["refused"]["message"] for end in ends if "refused" in end]
        return [f"owners went on from different steps: {steps}", *refused[:1]]
    (step,) = steps
    found = [] if step in newest else [f"resumed at step {step}, where {newest} may be"]
    if step < told:
        found.append(f"step {told} was called saved, and step {step} was resumed")
    found += differences(ended, task, replay(task["learner"], task["combine"], [(task["owners"], step)]), "resumed")
    whole = replay(task["learner"], task["combine"], [(task["owners"], END)])
    found += differences(ended, task, whole)
    return found or stored(task["store"], whole)


def _diverged(ended: Ended, task: dict[str, Any], owners: int) -> list[str]:
    """Judge a save whose last owner's copy differs in one bit, and the saves before and after it."""
    problem = ended.problem(task["id"], owners)
    found = [problem] if problem else []
    for role, seen in enumerate(ended.of(task["id"], "diverged")[:owners]):
        for event in seen or [{}]:
            refused = event.get("refused")
            if refused is None:
                found.append(f"owner {role}: copies that differ were published: {event.get('published')}")
            elif (refused["class"], refused.get("region")) != ("ReplicaError", "model/w"):
                found.append(f"owner {role}: refused as {refused['class']} of {refused.get('region')}")
    expected = list(range(1, task["to"] + 1))
    if not found and roots(task["store"]) != expected:
        found.append(f"published are steps {roots(task['store'])}, not {expected}")
    return found or differences(ended, task, replay("sgd", task["combine"], [(owners, task["to"])]))
