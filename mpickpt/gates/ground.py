"""What every gate stands on: where it works, how it starts owners, how it compares them with the oracle."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mpickpt.gates.launch import Ended, Launcher
from mpickpt.gates.oracle import Oracle
from mpickpt.gates.problem import FAN_OUT, LENGTH
from mpickpt.gates.report import Report

TOPOLOGIES: Final = ("star", "tree")


@dataclass
class Ground:
    """One run of the gates.

    Parameters
    ----------
    folder : Path
        An empty folder on the file system that is judged, seen by all hosts.
    launcher : Launcher
    report : Report
    topologies : tuple of str
        Of the checkpoints, and of the sums; each check runs on each.
    owners : tuple of int
        Owner counts that the operator asked for; empty: each gate's own.
    """

    folder: Path
    launcher: Launcher
    report: Report
    topologies: tuple[str, ...] = TOPOLOGIES
    owners: tuple[int, ...] = ()

    def place(self, *names: str) -> str:
        """Give the path of a store of the present gate."""
        return str(self.folder / self.report.gate / "-".join(names))

    def copy(self, store: str, *names: str) -> str:
        """Copy a whole store to a place of its own."""
        to = self.place(*names)
        shutil.copytree(store, to, symlinks=True)
        return to

    def count(self, usual: int) -> int:
        """Give how many owners a gate uses that has one count."""
        return self.owners[0] if self.owners else usual

    def path(self, *usual: int) -> tuple[int, ...]:
        """Give the owner counts that a gate goes through which has several."""
        return self.owners if len(self.owners) > 1 else usual

    def train(self, name: str, learner: str, topology: str, owners: int, to: int, **more: Any) -> dict[str, Any]:
        """Make the task of training a learner up to a step in the store of a name; `more` goes into the task."""
        store = more.pop("store", None) or self.place(name, learner, topology)
        return {
            "id": more.pop("id", f"{name} {learner} {topology}"),
            "do": "train",
            "learner": learner,
            "combine": topology,
            "store": store,
            "owners": owners,
            "to": to,
            "options": {**shape(topology), **more.pop("options", {})},
            **more,
        }


def shape(topology: str) -> dict[str, Any]:
    """Give the options of a `Checkpointer` that make a topology."""
    return {"topology": "tree", "fan_out": FAN_OUT} if topology == "tree" else {}


def tree_digest(store: str) -> dict[str, str]:
    """Digest every file of a store, by its path in it; links are their targets' names."""
    found = {}
    for path in sorted(Path(store).rglob("*")):
        name = str(path.relative_to(store))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = ""
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """List what is missing, new, or has other bytes."""
    return [f"{name} changed" for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]


def differences(ended: Ended, task: dict[str, Any], oracle: Oracle, field: str = "held") -> list[str]:
    """List where what the owners of a training hold is not, bit for bit, what the oracle says.

    Parameters
    ----------
    field : {"held", "resumed"}
        At its end, or just after it was resumed.
    """
    name, owners = task["id"], task["owners"]
    problem = ended.problem(name, owners)
    if problem is not None:
        return [problem]
    found: list[str] = []
    whole = oracle.regions()
    for role, end in enumerate(ended.ends(name, owners)):
        assert end is not None
        if "refused" in end:
            found.append(f"owner {role} was refused: {end['refused']['class']}: {end['refused']['message']}")
            continue
        if end[field].keys() != whole.keys():
            found.append(f"owner {role} holds {sorted(end[field])}, not {sorted(whole)}")
            continue
        if field == "held" and end["ended"] != oracle.step:
            found.append(f"owner {role} ended at step {end['ended']}, not {oracle.step}")
        for region, (at, text) in end[field].items():
            first, size = _extent(task["learner"], region, role, owners)
            expected = whole[region][4 * first : 4 * (first + size)]
            if (at, bytes.fromhex(text)) != (first, expected):
                found.append(f"owner {role}: {region}[{first}:{first + size}] is {text}, not {expected.hex()}")
    return found


def _extent(learner: str, region: str, role: int, owners: int) -> tuple[int, int]:
    """Say which elements of a region an owner must hold: its share of the coordinates, or all."""
    if region in ("opt/p1", "opt/p2"):
        return 0, 1
    if region == "model/w" and learner in ("sgd", "optimizer-only"):
        return 0, LENGTH
    small, rest = divmod(LENGTH, owners)
    return small * role + min(role, rest), small + (role < rest)


def began(ended: Ended, task: dict[str, Any], step: int, cursor: int) -> list[str]:
    """List the owners of a training that did not go on from this step and cursor."""
    return [
        f"owner {role} went on from step {end.get('began')}, cursor {end.get('cursor')}, not {step}, {cursor}"
        for role, end in enumerate(ended.ends(task["id"], task["owners"]))
        if end is not None and (end.get("began"), end.get("cursor")) != (step, cursor)
    ]


def stored(store: str, oracle: Oracle) -> list[str]:
    """List where the newest checkpoint of a store, read without MPI, is not what the oracle says."""
    import numpy as np

    import mpickpt

    opened = mpickpt.open_store(store)
    found: list[str] = []
    for region, expected in oracle.regions().items():
        array = opened.read(names=[region])[region]
        if np.asarray(array, "<f4").tobytes() != expected:
            found.append(f"{store}: {region} in the files is not what it must be")
    report = opened.verify()
    return found + [f"{store}: {verdict.path} is damaged" for verdict in report.failed]


def roots(store: str) -> list[int]:
    """List the steps of the generations on the lineage."""
    import mpickpt

    return [one.step for one in mpickpt.open_store(store).generations() if one.status == "live"]


def pairs(learners: Sequence[str], topologies: Sequence[str]) -> list[tuple[str, str]]:
    """Give every learner with every topology."""
    return [(learner, topology) for topology in topologies for learner in learners]
