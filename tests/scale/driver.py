"""Publish and restore for any number of simulated owners, in one process and with the library's own code.

    python tests/scale/driver.py --owners 1000 10000 200000 --fan-out 16 --json FILE

All owners save once (their declarations are new), save again (nothing has changed: the usual save), and restore that
generation with new Checkpointers. The store is a directory in memory (`--store`, /dev/shm by default), with real files:
syncs are called and counted, but cost nothing there. What is counted is explained in docs/scale.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import stepkit
from held import held_by
from world import COUNTED, Owner, World, world_of

import mpickpt
from mpickpt.cluster.topology import Place, Topology
from mpickpt.format.manifest import Manifest

_NUMBER = re.compile(rb"(?<=[\[,:])[0-9]+(?=[\],}])")
_SHARED = np.arange(64, dtype=np.float32)


@dataclass
class Measured:
    """What came of one run.

    Attributes
    ----------
    counts : dict
        By call: an array of shape (owners, len(COUNTED)).
    table : dict
        Everything else, as it goes into the JSON file.
    """

    topology: Topology
    counts: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    table: dict[str, Any] = field(default_factory=dict)


def state(owner: Owner, step: int) -> dict[str, Any]:
    """Give an owner's state: boxes that follow no rule, shares by the rule, replicas, values, something of its own."""
    role, owners = owner.role, owner.world.topology.owners
    boxes = np.full((2, 8), role + step, np.float32)
    return {
        "model": {"w": mpickpt.Sharded(boxes, shape=(2 * owners, 8), at=(2 * role, 0)), "b": _SHARED},
        "opt": {"m": mpickpt.Split(np.full(4, step, np.float32), length=4 * owners), "lr": 0.1, "steps": step},
        "rng": mpickpt.PerOwner({"seed": 100_000 + role % 100_000}),
    }


def check_state(owner: Owner, found: Any, step: int) -> None:
    """See that a restored state is the one that was saved."""
    there = state(owner, step)
    np.testing.assert_array_equal(found["model"]["w"], there["model"]["w"].parts[0][0])
    np.testing.assert_array_equal(found["opt"]["m"], there["opt"]["m"].array)
    np.testing.assert_array_equal(found["model"]["b"], _SHARED)
    assert (found["opt"]["lr"], found["opt"]["steps"], found["rng"]) == (0.1, step, there["rng"].content)


def measure(owners: int, fan_out: int, path: Path) -> Measured:
    """Save, save again and restore with so many owners; the store is made at `path`."""
    topology = Topology.of("tree", owners, fan_out)
    measured = Measured(topology)
    begun, store = time.monotonic(), path / "run"
    manifests: dict[str, tuple[int, int]] = {}

    def encode(manifest: Manifest, algorithm: str = "blake3") -> tuple[bytes, str]:
        found = real(manifest, algorithm)
        size = len(found[0]), len(_NUMBER.sub(b"0", found[0]))
        manifests[manifest.kind] = tuple(map(max, size, manifests.get(manifest.kind, (0, 0))))  # type: ignore
        return found

    def first(owner: Owner) -> None:
        assert owner.wires is not None
        owner.things = mpickpt.Checkpointer(store, owner.wires, keep=None, events=False)
        owner.things.save(state(owner, 1), step=1)

    def again(owner: Owner) -> None:
        owner.things.save(state(owner, 2), step=2)

    def close(owner: Owner) -> None:
        owner.things.close()

    def restore(owner: Owner) -> None:
        assert owner.wires is not None
        owner.things = mpickpt.Checkpointer(store, owner.wires, keep=None, events=False)
        check_state(owner, owner.things.resume(state(owner, 0)).state, 2)

    real = Manifest.encode
    with pytest.MonkeyPatch.context() as patch, world_of(topology) as world:
        patch.setattr(Manifest, "encode", encode)
        world.wire()
        _call(measured, world, "first save", first)
        _call(measured, world, "save", again)
        world.run(close)
        for owner in world.owners:
            owner.things = None
        gc.collect()  # a Checkpointer and what it has made refer to each other
        world.wire()
        _call(measured, world, "restore", restore)
    measured.table |= {
        "owners": owners,
        "fan_out": fan_out,
        "height": max(topology.place(role).height for role in _sample(topology)),
        "manifests": {
            kind: {"bytes": size, "bytes, numbers aside": aside} for kind, (size, aside) in sorted(manifests.items())
        },
        "wall seconds": round(time.monotonic() - begun, 1),
        "resident bytes of the process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bytes of the store": sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        if owners <= 10_000
        else None,
    }
    return measured


def _sample(topology: Topology) -> list[int]:
    """Choose owners whose memory is looked at: the root, one of each level below it, and the last."""
    path = [0]
    while children := topology.place(path[-1]).children:
        path.append(children[0][0])
    return sorted({*path, topology.owners - 1})


def _call(measured: Measured, world: World, name: str, job: Callable[[Owner], None]) -> None:
    """Let all owners do a job, and note what it took."""
    topology = world.topology
    peaks = dict.fromkeys(_sample(topology), 0)

    def look(owner: Owner) -> None:
        if owner.role in peaks:
            peaks[owner.role] = max(peaks[owner.role], held_by(owner))

    world.watched, world.look = frozenset(peaks), look
    begun, clock = time.process_time(), time.monotonic()
    world.run(job)
    seconds = time.process_time() - begun
    print(
        f"{topology.owners} owners, {name}: {seconds:.0f} s of processor, {time.monotonic() - clock:.0f} s",
        file=sys.stderr,
    )
    counts = np.array([owner.counts for owner in world.owners])
    measured.counts[name] = counts
    measured.table[name] = {
        "largest": dict(zip(COUNTED, counts.max(0).tolist(), strict=True)),
        "largest, owner 0 aside": dict(zip(COUNTED, counts[1:].max(0).tolist(), strict=True)),
        "total": dict(zip(COUNTED, counts.sum(0).tolist(), strict=True)),
        "operations": dict(sorted(world.operations.items())),
        "longest message": dict(sorted(world.longest.items())),
        "shortest message": dict(sorted(world.shortest.items())),
        "in a row": {
            "messages": max(owner.steps for owner in world.owners),
            "syncs": max(owner.syncs for owner in world.owners),
            "syncs of folders": max(owner.folders for owner in world.owners),
        },
        "memory": {str(role): {"level": topology.place(role).height, "bytes": peak} for role, peak in peaks.items()},
        "processor seconds": round(seconds, 2),
        "processor seconds of an owner": {
            "root": round(world.owners[0].seconds, 6),
            "inner": _median(world, lambda place: place.role > 0 and len(place.children) == topology.fan_out),
            "leaf": _median(world, lambda place: not place.children),
        },
    }


def _median(world: World, which: Callable[[Place], bool]) -> float | None:
    """Give the median of the processor seconds of some owners, of the first thousands of roles."""
    found = [owner.seconds for owner in world.owners[:5000] if which(world.topology.place(owner.role))]
    return round(float(np.median(found)), 6) if found else None


def _one(owners: int, fan_out: int, store: str) -> dict[str, Any]:
    stepkit.install()  # so that the file operations of lists are counted
    gc.disable()  # a hundred million objects that live on: the collector would walk through them again and again
    path = Path(tempfile.mkdtemp(prefix="mpickpt-scale-", dir=store))
    try:
        return measure(owners, fan_out, path).table
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Run for each owner count in a process of its own, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--owners", type=int, nargs="+", default=[1000])
    parser.add_argument("--fan-out", type=int, default=16)
    parser.add_argument("--store", default="/dev/shm")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tables = []
    for owners in options.owners:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # raises if the process is killed
            tables.append(pool.submit(_one, owners, options.fan_out, options.store).result())
        print(json.dumps(tables[-1], indent=1), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
