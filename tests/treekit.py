"""What the programs of the tests on trees share: a state of every kind, what it must be, and counted opens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forge
import numpy as np
from sameness import require
from scene import patched

import mpickpt
from mpickpt import PerOwner, Sharded, Split, _native, shares
from mpickpt.format.fields import hex_cover
from mpickpt.format.manifest import Manifest
from mpickpt.format.names import manifest_file
from mpickpt.state.coverage import MASK
from mpickpt.state.region import Box

if TYPE_CHECKING:
    from mpi4py import MPI

#: Rows of what is split, whatever the number of owners.
LENGTH = 130
#: Rows of what each owner holds a copy of: where there are more owners, some of them write none of it.
COPIED = 40
#: Large enough that what all hold alike is written in shares of its rows.
LARGE = np.arange(400 * 256, dtype=np.float32).reshape(400, 256)
SMALL = np.arange(24, dtype=np.float64)


def state(role: int, owners: int, step: int, *, own: bool = True, copies: bool = True) -> dict[str, Any]:
    """Give an owner's state; at every owner count it is one and the same learner's, but for what is `own`."""
    rows = shares(LENGTH, owners)[role]
    mine = range(LENGTH - (role + 1) * LENGTH // owners, LENGTH - role * LENGTH // owners)
    found: dict[str, Any] = {
        "model": {
            # Boxes that follow no rule, in another order than the roles.
            "boxes": Sharded([(_rows(mine, step), (mine.start, 0))], shape=(LENGTH, 3), dtype=np.dtype("f4")),
            "copies": Sharded(_rows(range(COPIED), step), shape=(COPIED, 3), at=(0, 0), replica=(role, owners)),
            "large": LARGE + step,
            "small": SMALL + step,
        },
        "opt": {"m": Split(np.array(rows, np.float64) + step, length=LENGTH), "lr": 0.1 * step, "betas": (0.9, 0.99)},
    }
    if not copies:
        del found["model"]["copies"]
    if own:
        found["rng"] = PerOwner({"seed": role, "step": step})
    return found


def _rows(rows: range, step: int) -> np.ndarray[Any, Any]:
    return np.add.outer(np.array(rows, np.float32) + step, np.array([0, 0.25, 0.5], np.float32))


def check(found: dict[str, Any], role: int, owners: int, step: int, **kinds: bool) -> None:
    """See that a restored state is the one that was saved, bit for bit."""
    there = state(role, owners, step, **kinds)
    pairs = [
        (found["model"]["boxes"][0], there["model"]["boxes"].parts[0][0]),
        (found["model"]["large"], LARGE + step),
        (found["model"]["small"], SMALL + step),
        (found["opt"]["m"], there["opt"]["m"].array),
    ]
    if "copies" in there["model"]:
        pairs.append((found["model"]["copies"], there["model"]["copies"].parts[0][0]))
    for mine, theirs in pairs:
        require(mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes(), "an array differs", mine, theirs)
    require((found["opt"]["lr"], found["opt"]["betas"]) == (0.1 * step, (0.9, 0.99)), found["opt"])
    require("rng" not in there or found["rng"] == {"seed": role, "step": step}, found.get("rng"))


def saved(path: Path, comm: MPI.Intracomm, steps: tuple[int, ...], **options: Any) -> list[Any]:
    """Resume and save some steps; give, for each save, how many messages this owner sent, beats aside."""
    role, owners, sent = comm.Get_rank(), comm.Get_size(), []
    with mpickpt.Checkpointer(path, comm, **options) as ckpt:
        ckpt.resume(state(role, owners, 0))
        for step in steps:
            before = ckpt._saves.counts["sent"]
            ckpt.save(state(role, owners, step), step=step, cursor=10 * step)
            sent.append(ckpt._saves.counts["sent"] - before)
        require(ckpt.verify().ok, "what was saved does not verify")
    return sent


def difference(first: Path, second: Path) -> str:
    """Give what `mpickpt diff` says of the newest generations of two stores, if it is not that they are equal."""
    done = subprocess.run(
        [sys.executable, "-m", "mpickpt", "diff", str(first), str(second)], capture_output=True, text=True, check=False
    )
    equal = done.returncode == 0 and "equal: every region, bit for bit" in done.stdout
    return "" if equal else done.stdout + done.stderr


@contextlib.contextmanager
def syncing() -> Iterator[list[float]]:
    """Measure, as the one item of the list, for how many seconds this process has a sync or several in flight."""
    real, lock, seconds = _native.fsync, threading.Lock(), [0.0]
    flight: list[float] = [0, 0.0]  # how many, and since when there are any

    def fsync(fd: int) -> None:
        with lock:
            if flight[0] == 0:
                flight[1] = time.monotonic()
            flight[0] += 1
        try:
            real(fd)
        finally:
            with lock:
                flight[0] -= 1
                if flight[0] == 0:
                    seconds[0] += time.monotonic() - flight[1]

    with patched(_native, "fsync", fsync):
        yield seconds


@contextlib.contextmanager
def opens(path: Path) -> Iterator[list[str]]:
    """List the files below a store that this process opens to read, in order, with every repetition."""
    real, found = os.open, []

    def open_(file: Any, flags: int, *args: Any, **more: Any) -> int:
        name = os.path.relpath(os.fspath(file), path)
        if not flags & (os.O_CREAT | os.O_DIRECTORY) and name.startswith(("data/", "roots/")):
            found.append(name)
        return real(file, flags, *args, **more)

    os.open = open_
    try:
        yield found
    finally:
        os.open = real


def needed(
    path: Path, asked: dict[str, list[Box]], alike: Sequence[str], role: int | None
) -> tuple[set[str], set[str]]:
    """Say which files of the newest generation hold a byte that an owner needs, from the manifests alone.

    Parameters
    ----------
    asked : dict of str to list of Box
        What the owner wants for itself, by region.
    alike : sequence of str
        What all owners want whole, which owner 0 reads for all.
    role : int, optional
        Whose own bytes are wanted.

    Returns
    -------
    (set of str, set of str)
        Manifests and shards that are needed for `asked`, and shards for `alike`; below the attempt's directory.
    """
    generation = mpickpt.open_store(path).open()
    schema, mine, common = generation.schema, set(), set()

    def visit(manifest: Manifest, above: list[str]) -> None:
        for shard in manifest.shards:
            for ordinal, lo, hi in shard.pieces:
                name, box = schema[ordinal].name, Box(lo, hi)
                if name in alike:
                    common.add(shard.file)
                boxes = asked.get(name, ())
                own = schema[ordinal].kind == "per_owner" and shard.role == role
                if own or any(box.intersect(one) is not None for one in boxes):
                    mine.update([shard.file, *above])
        for child in manifest.children:
            visit(generation.child(child), [*above, manifest_file(child.role)])

    visit(generation.root, [])
    return mine, common


# --- forged trees


def reseal(store: Path, step: int, role: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the group manifest of a role, however deep, and make every digest above it right again.

    `change` gets the manifest; a cover that it changes is passed on to the records above, whose sums then fit.
    """
    (path,) = (store / "roots").glob(f"{step:012}-*.json")
    data = store / "data" / path.stem
    chain, roles = [(path, forge.read(path))], [0]
    while roles[-1] != role:
        (child,) = [c for c in chain[-1][1]["children"] if c["role"] <= role < c["role"] + c["size"]]
        below = data / manifest_file(child["role"])
        chain.append((below, forge.read(below)))
        roles.append(child["role"])
    before = int(chain[-1][1]["cover"], 16)
    change(chain[-1][1])
    grown = int(chain[-1][1]["cover"], 16) - before
    name = ""
    for place, (file, record) in reversed([*enumerate(chain)]):
        if place < len(chain) - 1:
            (child,) = [c for c in record["children"] if c["role"] == roles[place + 1]]
            child["digest"] = name
            if grown:
                child["cover"] = hex_cover((int(child["cover"], 16) + grown) & MASK)
                record["cover"] = hex_cover((int(record["cover"], 16) + grown) & MASK)
        text, name = forge.seal(record)
        file.write_bytes(text)
