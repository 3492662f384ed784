"""What the file system does: of many that race for one name one wins, everywhere seen alike; what a sync costs."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from mpickpt.gates.ground import Ground
from mpickpt.gates.launch import Ended
from mpickpt.store.commit import TEMPORARY, Way
from mpickpt.store.filesystem import probe

OWNERS = 4
ROUNDS = 50
SYNCS = 20


def run(ground: Ground) -> None:
    """Run the gate."""
    owners = ground.count(OWNERS)
    promise = probe(str(ground.folder))
    told = f"{promise.kind}, placing by {promise.way.value}, durable: {promise.durable}"
    ground.report.check(
        "a file can be placed without replacing, and outlives the machine's power",
        [f"{told}: what is saved here is gone with the machine"] if promise.durable == "none" else [],
        told,
    )
    ways = [way for way, there in ((Way.RENAME, promise.no_replace), (Way.LINK, promise.link)) if there]
    tasks = [_race(ground, way.value, way, owners, promise.fence) for way in ways]
    control = _race(ground, "no-exclusion", promise.way, owners, promise.fence) | {"build": "no-exclusion"}
    sync = {**tasks[0], "id": "sync", "do": "sync", "rounds": SYNCS, "store": ground.place("sync")}
    for task in (*tasks, control, sync):
        os.mkdir(task["store"])
    ended = ground.launcher.run([*tasks, control, sync])
    for task in tasks:
        ground.report.check(f"{ROUNDS} races of {owners} for one name by {task['way']}", _faults(ended, task, owners))
    ground.report.control("no-exclusion", _faults(ended, control, owners))
    problem = ended.problem("sync", owners)
    seconds = sorted(x for end in ended.ends("sync", owners) if end is not None for x in end["seconds"])
    middle = f"{1e3 * seconds[len(seconds) // 2]:.2f} ms in the middle, {1e3 * seconds[-1]:.1f} ms at worst"
    ground.report.check(f"{owners} owners sync files and directory", [problem] if problem else [], middle)


def _race(ground: Ground, name: str, way: Way, owners: int, fence: bool) -> dict[str, Any]:
    return {
        "id": name, "do": "race", "store": ground.place(name), "owners": owners, "rounds": ROUNDS,
        "way": way.value, "fence": fence,
    }  # fmt: skip


def _faults(ended: Ended, task: dict[str, Any], owners: int) -> list[str]:
    """List rounds that not exactly one has won, or whose winner not everybody sees."""
    problem = ended.problem(task["id"], owners)
    if problem is not None:
        return [problem]
    winners: dict[int, list[int]] = {number: [] for number in range(task["rounds"])}
    for role, end in enumerate(ended.ends(task["id"], owners)):
        assert end is not None
        for number in end["won"]:
            winners[number].append(role)
    found = [f"round {number} was won by owners {won}" for number, won in winners.items() if len(won) != 1]
    seen = Counter(
        (event["round"], event["content"]) for events in ended.of(task["id"], "seen")[:owners] for event in events
    )
    for number, won in winners.items():
        if len(won) == 1 and seen[number, f"{number} {won[0]}\n"] != owners:
            found.append(f"round {number} was won by owner {won[0]}, which not every owner sees")
    left = sorted(path.name for path in Path(task["store"]).glob(f"{TEMPORARY}*"))
    return found + [f"{name} was left behind" for name in left]
