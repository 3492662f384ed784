"""Every row of the table of resuming (docs/refusals.md), made by corrupting real checkpoints or by asking otherwise.

Each row has a copy of a store of two generations of its own. All owners must refuse, with the class of its row, before
one of them has trained a step, with their arrays as they were, and with every file of the store as it was, by digest.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpickpt.format.records import record
from mpickpt.gates import forging
from mpickpt.gates.forging import Record, ShardFile, data_of, forge, newest
from mpickpt.gates.ground import Ground, changed, differences, tree_digest
from mpickpt.gates.launch import Ended
from mpickpt.gates.oracle import replay

OWNERS = 4
SAVED = 2
LEARNER = "adam"


@dataclass(frozen=True)
class Row:
    """One row: what is done to the store, what is asked for, and the class of the refusal.

    Attributes
    ----------
    refusal : str
        The class.
    change : callable
        Changes the files of a copy of the store.
    task : mapping
        What is different in the task that resumes.
    owners : int
        How many owners more than at the save.
    device : mapping
        What is different in the last owner's device; the store is then one whose devices are bound.
    says : str
        What the message must contain.
    """

    refusal: str
    change: Callable[[str], None] = lambda store: None
    task: Mapping[str, Any] = field(default_factory=dict)
    owners: int = 0
    device: Mapping[str, str] = field(default_factory=dict)
    says: str = ""


# -- damage: digests as they were


def _file(store: str, kind: str) -> Path:
    root = newest(store)
    if kind == "root":
        return root
    if kind == "claim":
        return max(Path(store, "epochs").glob("*.json"))
    if kind == "manifest":
        return max(data_of(root).rglob("*.json"))
    return max(path for path in data_of(root).rglob("*.safetensors") if ".r." not in path.name)


def _missing(kind: str) -> Callable[[str], None]:
    return lambda store: _file(store, kind).unlink()


def _cut(kind: str) -> Callable[[str], None]:
    return lambda store: os.truncate(_file(store, kind), _file(store, kind).stat().st_size - 5)


def _flip(kind: str) -> Callable[[str], None]:
    def change(store: str) -> None:
        data = bytearray(_file(store, kind).read_bytes())
        data[len(data) * 2 // 3] ^= 0x10
        _file(store, kind).write_bytes(data)

    return change


def _grow(store: str) -> None:
    with open(_file(store, "shard"), "ab") as file:
        file.write(b"\0" * 16)


def _of_another_save(store: str) -> None:
    shard = _file(store, "shard")
    (older,) = (p for p in Path(store, "data").glob(f"*/*/{shard.name}") if p.parents[1] != shard.parents[1])
    shard.write_bytes(older.read_bytes())


def _roots_gone(store: str) -> None:
    shutil.rmtree(Path(store, "roots"))


def _continued(store: str) -> None:
    """Let another job have continued the run from its first generation: what came after is off the lineage."""
    claim, first = _file(store, "claim"), min(Path(store, "roots").glob("*.json"))
    made, prefix = forging.read(claim), forging.read(first)["prefix"]
    digest = json.loads(first.read_bytes().split(b"\n")[1])["digest"]
    made |= {"from_epoch": prefix["epoch"], "from_step": prefix["step"], "from_root": digest, "nonce": "another"}
    made["epoch"] += 1
    made["lineage"].append([made["epoch"], prefix["epoch"], prefix["step"]])
    claim.with_name(f"{made['epoch']:08}.json").write_bytes(record(made, "blake3")[0])


def _stale(store: str) -> None:
    """Let the newest root say that the generation before it is of a later epoch: its own is stale."""

    def root(record: Record) -> None:
        record["parent"]["epoch"] = record["prefix"]["epoch"] + 7

    forge(store, root=root)


# -- forgery: digests made right again


def _number(region: str, value: float) -> Callable[[str], None]:
    def shards(shard: ShardFile) -> None:
        shard.poke(region, struct.pack("<f", value))

    return lambda store: forge(store, shards=shards)


def _cursor_reset(store: str) -> None:
    """Say everywhere that the newest generation's inputs begin again."""

    def shards(shard: ShardFile) -> None:
        shard.header["__metadata__"]["cursor"] = "0"

    def records(record: Record) -> None:
        record["prefix"]["cursor"] = 0

    forge(store, shards=shards, groups=records, root=records)


def _root(change: Callable[[Record], Any]) -> Callable[[str], None]:
    return lambda store: forge(store, root=lambda record: change(record) and None)


def _twice(record: Record) -> None:
    record["shards"].append(dict(record["shards"][-1]))


def _leaves(record: Record) -> None:
    record["shards"][0]["file"] = "../../escape.safetensors"


def _contract(name: str, value: Any) -> dict[str, Any]:
    return {"contract": {name: value}}


def _devices(owners: int, **last: str) -> dict[str, Any]:
    """Bind the devices, told as data: the last owner's is what `last` says."""
    devices = [{"product": "H200", "uuid": f"GPU-{role}"} for role in range(owners)]
    return {"devices": [*devices[:-1], {**devices[-1], **last}], "contract": {"device": "uuid"}}


ROWS: dict[str, Row] = {
    "a shard that is missing": Row("IntegrityError", _missing("shard"), says="missing"),
    "a shard that is cut": Row("IntegrityError", _cut("shard"), says="truncated"),
    "a shard that goes on": Row("IntegrityError", _grow, says="longer"),
    "a shard with one other bit": Row("IntegrityError", _flip("shard")),
    "a shard of another save": Row("IntegrityError", _of_another_save),
    "a manifest that is missing": Row("IntegrityError", _missing("manifest"), says="missing"),
    "a manifest with one other bit": Row("IntegrityError", _flip("manifest")),
    "a root with one other bit": Row("IntegrityError", _flip("root")),
    "a claim with one other bit": Row("IntegrityError", _flip("claim")),
    "a claim that is missing": Row("IntegrityError", _missing("claim")),
    "the directory of roots is missing": Row("IntegrityError", _roots_gone, says="no directory of roots"),
    "a NaN, digests right": Row("NonFiniteError", _number("opt/m", math.nan), says="nan"),
    "an infinity, digests right": Row("NonFiniteError", _number("model/w", math.inf), says="inf"),
    "a reset cursor, digests right": Row("MomentError", _cursor_reset, says="cursor"),
    "a generation off the lineage": Row("EpochError", _continued, {"resume": {"step": SAVED}}, says="lineage"),
    "a stale epoch, digests right": Row("EpochError", _stale),
    "a newer format, digests right": Row("FormatError", _root(lambda r: r.update(format=2)), says="newer"),
    "an unknown key, digests right": Row("FormatError", _root(lambda r: r.update(extra=1)), says="unknown"),
    "two records of one file, digests right": Row("FormatError", _root(_twice)),
    "a name that leaves the store, digests right": Row("FormatError", _root(_leaves), says="name"),
    "an owner too many in the manifest, digests right": Row("FormatError", _root(lambda r: r.update(owners=99))),
    "another program": Row("ContractError", task=_contract("identity.program", "another"), says="identity.program"),
    "another initial state": Row("ContractError", task=_contract("identity.initial", 7), says="identity.initial"),
    "another rate": Row("ContractError", task=_contract("identity.rate", 0.5), says="identity.rate"),
    "other inputs": Row("ContractError", task=_contract("identity.inputs", "other"), says="identity.inputs"),
    "another dtype of sums": Row("ContractError", task=_contract("numerics.dtype", "float64"), says="numerics.dtype"),
    "another combine order": Row("ContractError", task=_contract("numerics.combine", "any"), says="numerics.combine"),
    "another combine tree": Row("ContractError", task=_contract("numerics.tree", 16), says="numerics.tree"),
    "another device product": Row("ContractError", device={"product": "A100"}, says="device.product"),
    "another device uuid": Row("ContractError", device={"uuid": "GPU-99"}, says="device.uuid"),
    "an owner more, not asked for": Row("PlacementError", owners=1, says="number of owners"),
    "an owner less, not asked for": Row("PlacementError", owners=-1, says="number of owners"),
    "an owner more, where it is bound": Row(
        "PlacementError", task={**_contract("placement", "bound"), "resume": {"repartition": True}}, owners=1
    ),
    "other regions": Row("SchemaError", task={"learner": "momentum", "contract_of": LEARNER}, says="opt/v"),
    "a step that never was": Row("NotFoundError", task={"resume": {"step": 99}}, says="99"),
    "a root that never was": Row("NotFoundError", task={"resume": {"root": "blake3:" + "ab" * 32}}),
}
"""The rows, each by the situation that it is."""

CONTROLS = ("a reset cursor, digests right", "another rate")
"""Rows that a build which judges nothing takes for good."""


def run(ground: Ground) -> None:
    """Run the gate."""
    owners = ground.count(OWNERS)
    for topology in ground.topologies:
        base = ground.train("base", LEARNER, topology, owners, SAVED)
        bound = ground.train("bound", LEARNER, topology, owners, SAVED, **_devices(owners))
        ground.launcher.run([base, bound])
        tasks, before = _tasks(ground, topology, owners, base["store"], bound["store"])
        sound = ground.train("sound", LEARNER, topology, owners, SAVED + 1, store=base["store"])
        ended = ground.launcher.run([*tasks.values(), sound])
        for name, row in ROWS.items():
            task = tasks[name]
            faults = _faults(ended, task, row) + changed(before[task["store"]], tree_digest(task["store"]))
            ground.report.check(f"{name}, {topology}", faults)
        whole = replay(LEARNER, topology, [(owners, SAVED + 1)])
        ground.report.check(
            f"the checkpoint that none of this was done to, {topology}", differences(ended, sound, whole)
        )
        for name in CONTROLS if topology == ground.topologies[0] else ():
            ground.report.control(
                f"nothing-judged, {name}", _faults(ended, tasks[f"nothing-judged {name}"], ROWS[name])
            )


def _tasks(
    ground: Ground, topology: str, owners: int, base: str, bound: str
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, str]]]:
    """Make a store for every row, and the tasks that resume them; gives also the digests of all files."""
    tasks: dict[str, dict[str, Any]] = {}
    before: dict[str, dict[str, str]] = {}
    broken = [f"nothing-judged {name}" for name in CONTROLS] if topology == ground.topologies[0] else []
    for number, name in enumerate([*ROWS, *broken]):
        build = "nothing-judged" if name in broken else None
        row = ROWS[name.removeprefix("nothing-judged ")]
        store = ground.copy(bound if row.device else base, f"row-{number}", topology)
        row.change(store)
        before[store] = tree_digest(store)
        more = {"learner": LEARNER, **row.task, **(_devices(owners, **row.device) if row.device else {})}
        learner = more.pop("learner")
        tasks[name] = ground.train(
            "row", learner, topology, max(1, owners + row.owners), SAVED + 1, id=name, store=store, build=build, **more
        )
    return tasks, before


def _faults(ended: Ended, task: dict[str, Any], row: Row) -> list[str]:
    """List what is not as it must be: not refused, otherwise refused, trained, or arrays touched."""
    problem = ended.problem(task["id"], task["owners"])
    if problem is not None:
        return [problem]
    found = []
    records = []
    for role, end in enumerate(ended.ends(task["id"], task["owners"])):
        assert end is not None
        if end["trained"] or "refused" not in end:
            found.append(f"owner {role} trained {end['trained']} steps")
            continue
        records.append(end["refused"])
        if end["refused"]["class"] != row.refusal:
            found.append(f"owner {role}: {end['refused']['class']}, not {row.refusal}: {end['refused']['message']}")
        elif row.says not in end["refused"]["message"]:
            found.append(f"owner {role}: does not say {row.says!r}: {end['refused']['message']}")
        if not end["untouched"]:
            found.append(f"owner {role}: its arrays were touched")
    if records and any(record != records[0] for record in records):
        found.append("owners refused differently")
    return found
