"""Arrays of every kind of dtype in any boxes: one owner to two and two to one, on the host; files moved about by hand.

Files: renamed, moved elsewhere and named to the reader, reached by links, or joined again, they restore exactly.
Exchanged, cut, or with pieces whose places in a file were exchanged, they are refused. An element whose bytes were
split over two files by hand is refused, with every digest made right again: a piece is whole elements.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mpickpt.gates import forging
from mpickpt.gates.forging import ShardFile
from mpickpt.gates.ground import Ground, changed, shape, tree_digest
from mpickpt.gates.launch import Ended
from mpickpt.gates.regions import BOXES, SHAPES, Held
from mpickpt.store.events import NAME as EVENTS
from mpickpt.store.generation import Generation, Want


def run(ground: Ground) -> None:
    """Run the gate."""
    control = _task(ground, "pieces-moved", 1, "rows", "columns")
    saves = [_task(ground, boxes, 1, boxes, boxes, topology=t) for t in ground.topologies for boxes in BOXES]
    ground.launcher.run([*saves, control])
    # Each store goes to two owners in other boxes than it was saved in, and is saved there in others again.
    turned = dict(zip(BOXES, (*BOXES[1:], BOXES[0]), strict=True))
    apart = [{**task, "owners": 2, "boxes": turned[task["save"]], "save": task["save"]} for task in saves]
    apart_control = {**control, "owners": 2, "boxes": "rows", "build": "pieces-moved"}
    two = ground.launcher.run([*apart, apart_control])
    for task in apart:
        detail = f"{task['topology']}: saved by one owner in {task['save']}, restored by two in {task['boxes']}"
        ground.report.check(detail, _faults(two, task, 1))
    ground.report.control("pieces-moved, one owner to two", _faults(two, apart_control, 1))

    joined = [{k: v for k, v in task.items() if k != "save"} | {"owners": 1} for task in apart]
    base = apart[0]["store"]
    handled, before = _handled(ground, base)
    one = ground.launcher.run([*joined, *handled])
    for task, was in zip(joined, apart, strict=True):
        detail = f"{task['topology']}: saved by two owners in {was['save']}, restored by one in {task['boxes']}"
        ground.report.check(detail, _faults(one, task, 2))
    for task in handled:
        faults = _refused(one, task) if task["refusal"] else _faults(one, task, 2)
        moved = changed(before[task["id"]], tree_digest(task["store"]))
        if not task["refusal"]:  # whoever goes on takes an epoch, and says so: no other file is new or another
            moved = [one for one in moved if not one.startswith(("epochs/", f"{EVENTS} "))]
        ground.report.check(task["id"], faults + moved)
    ground.report.check("files renamed and moved elsewhere, named to the reader", _renamed(ground, base, {}))
    shards = sorted(Path(base, "data").glob("*2-e*/*/*0?.safetensors"))
    names = [str(path.relative_to(path.parents[1])) for path in shards[:2]]
    ground.report.check(
        "two files named to the reader as each other are refused",
        [] if "IntegrityError" in "".join(_renamed(ground, base, dict(zip(names, names[::-1], strict=True)))) else
        ["they were taken"],
    )  # fmt: skip


def _task(ground: Ground, name: str, owners: int, boxes: str, save: str, topology: str = "star") -> dict[str, Any]:
    return {
        "id": f"{name} {topology}", "do": "regions", "store": ground.place(name, topology), "owners": owners,
        "boxes": boxes, "save": save, "topology": topology, "options": shape(topology),
    }  # fmt: skip


def _faults(ended: Ended, task: dict[str, Any], step: int) -> list[str]:
    problem = ended.problem(task["id"], task["owners"])
    if problem is not None:
        return [problem]
    found = []
    for role, end in enumerate(ended.ends(task["id"], task["owners"])):
        assert end is not None
        if "refused" in end:
            found.append(f"owner {role} was refused: {end['refused']['class']}: {end['refused']['message']}")
        else:
            found += [f"owner {role}: {text}" for text in end["wrong"]]
            found += [f"owner {role} went on from step {end['began']}"] if end["began"] != step else []
    return found


def _refused(ended: Ended, task: dict[str, Any]) -> list[str]:
    problem = ended.problem(task["id"], task["owners"])
    ends = [] if problem else [end for end in ended.ends(task["id"], task["owners"]) if end is not None]
    found = [problem] if problem else []
    for end in ends:
        if "refused" not in end:
            found.append("it was restored")
        elif (end["refused"]["class"] not in task["refusal"]) or not end["untouched"]:
            found.append(f"{end['refused']['class']}: {end['refused']['message']}, untouched: {end['untouched']}")
    return found


# -- by hand


def _handled(ground: Ground, base: str) -> tuple[list[dict[str, Any]], dict[str, dict[str, str]]]:
    """Make copies of a store of two owners and move its files about; gives the tasks that resume them, and digests."""
    tasks, before = [], {}
    for number, (name, (change, refusal)) in enumerate(HANDS.items()):
        store = ground.copy(base, f"by-hand-{number}")
        change(forging.data_of(forging.newest(store)))
        task = _task(ground, name, 1, "alike", "") | {"id": name, "store": store, "refusal": refusal}
        del task["save"]
        tasks.append(task)
        before[name] = tree_digest(store)
    return tasks, before


def _own(data: Path) -> list[Path]:
    return sorted(path for path in data.rglob("*.safetensors") if ".r." not in path.name)


def _linked(data: Path) -> None:
    away = data.parents[1].with_suffix(".files")
    away.mkdir()
    for number, path in enumerate(_own(data)):
        moved = away / f"moved-{number}"
        moved.write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(moved)


def _exchanged(data: Path) -> None:
    one, other = _own(data)
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def _cut(data: Path, join: bool) -> None:
    path = _own(data)[0]
    whole, at = path.read_bytes(), path.stat().st_size * 2 // 3 | 1
    path.write_bytes(whole[:at])
    rest = path.with_name(path.name + ".2")
    rest.write_bytes(whole[at:])
    if join:
        path.write_bytes(path.read_bytes() + rest.read_bytes())


def _forged(data: Path, change: Any) -> None:
    """Change the shards that hold a piece of both twins, and make all digests right."""

    def shards(shard: ShardFile) -> None:
        if shard.entries("twin-a"):
            change(shard)

    forging.forge(data.parents[1], shards=shards)


def _swapped(shard: ShardFile) -> None:
    """Exchange the places of two pieces of one size in a file, bytes and offsets together."""
    a, b = (shard.entries(name)[0] for name in ("twin-a", "twin-b"))
    (at, end), (to, _) = shard.header[a]["data_offsets"], shard.header[b]["data_offsets"]
    size = end - at
    kept = shard.payload[at:end]
    shard.payload[at:end] = shard.payload[to : to + size]
    shard.payload[to : to + size] = kept
    shard.header[a]["data_offsets"], shard.header[b]["data_offsets"] = [to, to + size], [at, end]


def _crossed(shard: ShardFile) -> None:
    """Exchange only the offsets of two pieces of one size."""
    a, b = (shard.entries(name)[0] for name in ("twin-a", "twin-b"))
    mine, theirs = shard.header[a], shard.header[b]
    mine["data_offsets"], theirs["data_offsets"] = theirs["data_offsets"], mine["data_offsets"]


def _split(shard: ShardFile) -> None:
    """Move the last byte of owner 0's last element of a piece to the front of owner 1's piece."""
    name = shard.entries("twin-a")[0]
    begin, end = shard.header[name]["data_offsets"]
    if shard.role == 0:
        del shard.payload[end - 1]
        shard.header[name]["data_offsets"] = [begin, end - 1]
    else:
        shard.payload.insert(begin, 0)
        shard.header[name]["data_offsets"] = [begin, end + 1]
    by = -1 if shard.role == 0 else 1
    for other, entry in shard.header.items():
        if other != "__metadata__" and other != name and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [at + by for at in entry["data_offsets"]]


HANDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "files moved elsewhere, links in their places": (_linked, ()),
    "a file cut in two and joined again": (lambda data: _cut(data, True), ()),
    "a file cut in two": (lambda data: _cut(data, False), ("IntegrityError",)),
    "two files exchanged": (_exchanged, ("IntegrityError",)),
    "places of two pieces exchanged, digests right": (lambda data: _forged(data, _swapped), ("FormatError",)),
    "offsets of two pieces exchanged, digests right": (lambda data: _forged(data, _crossed), ("FormatError",)),
    "an element split over two files, digests right": (lambda data: _forged(data, _split), ("FormatError",)),
}
"""What is done to the files of a generation of two owners, and how it is refused; restored exactly where it is not."""


def _renamed(ground: Ground, base: str, exchanged: dict[str, str]) -> list[str]:
    """Scatter a generation's files under new names, name them to a reader, and compare every element."""
    import numpy as np

    from mpickpt.errors import CheckpointError
    from mpickpt.state.region import Box
    from mpickpt.store.memory import memory_for

    root = forging.newest(base)
    away = Path(ground.place("scattered" + "-exchanged" * bool(exchanged)))
    bindings: dict[str, str] = {}
    for number, path in enumerate(sorted(forging.data_of(root).rglob("*.*"))):
        file = str(path.relative_to(forging.data_of(root)))
        to = away / f"{number % 2}" / f"file {number}"
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
        bindings[file] = os.fspath(to)
    bindings |= {name: bindings[other] for name, other in exchanged.items()}
    (away / "the root").write_bytes(root.read_bytes())
    try:
        generation = Generation.at(os.fspath(away / "the root"), bindings, data=os.devnull)
        found: list[str] = []
        for name in SHAPES:
            region = generation.schema[generation.schema.ordinal(name)]
            box = Box.whole(region.shape or ())
            out = memory_for(region, box)
            generation.read([Want(generation.schema.ordinal(name), box, out)], [])
            part = Held(name, "alike", 0, 1)
            part.array[...] = np.asarray(out)
            found += part.wrong()
    except CheckpointError as error:
        return [f"{type(error).__name__}: {error.message}"]
    return found
