"""Two jobs on one store: of two that claim at once one goes on; an older one that comes late publishes nothing.

The older job is held at a named place of its third save, as if it were stopped. A newer job resumes, trains and saves
that very step. Then the older one goes on: it must be refused at all owners, and the lineage is the newer one's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mpickpt.gates.ground import Ground, began, differences, stored
from mpickpt.gates.launch import Ended, Start
from mpickpt.gates.oracle import replay
from mpickpt.gates.problem import BATCH

OWNERS = 4
HELD, END = 3, 5
RACES = 5
HOLDS = {"before it looks for a newer claim": "save.compared", "just before the rename": "commit.closed"}
"""Where owner 0 of the older job is held."""


def run(ground: Ground) -> None:
    """Run the gate."""
    owners = ground.count(OWNERS)
    cases = [(topology, name, "") for topology in ground.topologies for name in HOLDS]
    cases.append((ground.topologies[0], next(iter(HOLDS)), "not-fenced"))
    old, new = [], []
    for number, (topology, name, build) in enumerate(cases):
        hold = {"role": 0, "step": HELD, "after": "save.compared", "at": HOLDS[name], "go": _mark(ground, "go", number)}
        task = ground.train(f"late-{number}", "adam", topology, owners, HELD, hold=hold, build=build)
        old.append(task)
        new.append({**task, "to": END, "hold": None, "build": None, "begin": _mark(ground, "begin", number)})
    races = [
        ground.train(
            f"race-{number}", "momentum", ground.topologies[number % len(ground.topologies)], owners, 2,
            hold={"role": 0, "step": 0, "after": "resume.read", "at": "resume.read", "go": _mark(ground, "r", number)},
        )
        for number in range(RACES)
    ]  # fmt: skip

    patience = ground.launcher.deadline / 2  # an owner that is held is silent: nobody may give it up meanwhile
    older = ground.launcher.begin([*old, *races], deadline=patience)
    newer = ground.launcher.begin([*new, *races], deadline=patience)
    try:
        for task, other in zip(old, new, strict=True):
            _until(lambda t=task: _seen(older, t, "held"), patience, older, newer)  # type: ignore[misc]
            _touch(other["begin"])
            _until(lambda t=other: _seen(newer, t, "end"), patience, older, newer)  # type: ignore[misc]
            _touch(task["hold"]["go"])
        for task in races:
            _until(lambda t=task: _seen(older, t, "held") and _seen(newer, t, "held"), patience, older, newer)  # type: ignore[misc]
            _touch(task["hold"]["go"])
    finally:
        ended, ended_new = older.wait(), newer.wait()

    for (topology, name, build), task, other in zip(cases, old, new, strict=True):
        faults = _late(ended, task, ended_new, other, 1 if HOLDS[name] == "commit.closed" else 0)
        if build:
            ground.report.control(build, faults)
        else:
            ground.report.check(f"an older job held {name}, {topology}", faults)
    for number, task in enumerate(races):
        ground.report.check(f"two jobs claim at once, race {number + 1}", _race(ended, ended_new, task))


def _mark(ground: Ground, name: str, number: int) -> str:
    return ground.place(f"{name}-{number}.mark")


def _touch(path: str) -> None:
    with open(path, "x"):
        pass


def _seen(start: Start, task: dict[str, Any], event: str) -> bool:
    return any(one["task"] == task["id"] and one["event"] in (event, "raised") for one in start.events(0))


def _until(condition: Callable[[], bool], patience: float, *starts: Start) -> None:
    """Wait for a condition; a job that has ended, or patience gone, is found out when the events are judged."""
    limit = time.monotonic() + patience
    while not condition() and time.monotonic() < limit and all(start.process.poll() is None for start in starts):
        time.sleep(0.01)


def _late(ended: Ended, old: dict[str, Any], ended_new: Ended, new: dict[str, Any], orphans: int) -> list[str]:
    """Judge an older job that came late, and the newer one."""
    import mpickpt

    owners = old["owners"]
    whole = replay(old["learner"], old["combine"], [(owners, END)])
    found = began(ended_new, new, HELD - 1, (HELD - 1) * BATCH) + differences(ended_new, new, whole)
    problem = ended.problem(old["id"], owners)
    found += [problem] if problem else []
    for role, end in enumerate(ended.ends(old["id"], owners)):
        if end is not None and end.get("refused", {}).get("class") != "EpochError":
            found.append(f"owner {role} of the older job: {end.get('refused', 'saved its step as if it were alone')}")
    for role, seen in enumerate(ended.of(old["id"], "saved")[:owners]):
        if any(event["step"] >= HELD for event in seen):
            found.append(f"owner {role} of the older job was told that step {HELD} is saved")
    if found:
        return found
    generations = mpickpt.open_store(old["store"]).generations()
    live = [one.step for one in generations if one.status == "live"]
    orphaned = [one.step for one in generations if one.status == "orphaned"]
    if live != list(range(1, END + 1)) or orphaned != [HELD] * orphans:
        found.append(f"live are steps {live}, orphaned {orphaned}")
    return found + stored(old["store"], whole)


def _race(ended: Ended, other: Ended, task: dict[str, Any]) -> list[str]:
    """Judge two jobs that were let go just before the claim: one trains, the other does not begin."""
    owners = task["owners"]
    found = [problem for job in (ended, other) if (problem := job.problem(task["id"], owners)) is not None]
    if found:
        return found
    winners = []
    for number, job in enumerate((ended, other)):
        ends = [end for end in job.ends(task["id"], owners) if end is not None]
        refused = {end["refused"]["class"] for end in ends if "refused" in end}
        if not refused:
            winners.append(job)
        elif refused != {"EpochError"} or any(end["trained"] or not end["untouched"] for end in ends):
            found.append(f"job {number} was refused as {sorted(refused)}, trained {ends[0]['trained']} steps")
    if len(winners) != 1:
        found.append(f"{len(winners)} jobs went on")
        return found
    whole = replay(task["learner"], task["combine"], [(owners, task["to"])])
    return found + differences(winners[0], task, whole) + stored(task["store"], whole)
