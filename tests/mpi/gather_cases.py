"""Captures that travel to owner 0: see test_gather.py."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
from safetensors import deserialize, safe_open
from sameness import filled_in_place, in_shards, numbers, open_run, refused, require, same, share_of

import mpickpt
from mpickpt import PerOwner, Sharded, Split
from mpickpt.cluster import attempt, gather, transport

if TYPE_CHECKING:
    from mpi4py import MPI


@contextlib.contextmanager
def narrow(chunk: int, part: int, window: int) -> Iterator[None]:
    """Let chunks and the parts of messages be so many bytes, and so many chunks be asked for at a time."""
    usual = attempt.arrange, attempt.layout, transport._PART, gather._WINDOW
    attempt.arrange = functools.partial(usual[0], chunk=chunk)
    attempt.layout = functools.partial(usual[1], chunk=chunk)
    transport._PART, gather._WINDOW = part, window  # type: ignore[misc]
    try:
        yield
    finally:
        attempt.arrange, attempt.layout, transport._PART, gather._WINDOW = usual  # type: ignore[misc]


def shards(path: Path) -> dict[str, tuple[dict[str, str], dict[str, bytes]]]:
    """Read all shards of the newest generation: metadata and bytes of each entry, by file name."""
    data = max(path.glob("data/*"))
    found = {}
    for file in sorted(data.glob("*/*.safetensors")):
        with safe_open(file, "numpy") as opened:
            metadata = opened.metadata()
        found[str(file.relative_to(data))] = metadata, {k: bytes(v["data"]) for k, v in deserialize(file.read_bytes())}
    return found


def mixed(comm: MPI.Intracomm, hold: bool) -> Any:
    """Hold something of every kind, most of it in many chunks."""
    me, owners = comm.Get_rank(), comm.Get_size()
    whole = whole_of(comm)
    if not hold:
        whole = {name: np.zeros_like(array) for name, array in whole.items()}
    tall = share_of(whole["split"], comm)
    return {
        "split": Split(np.asfortranarray(tall) if me % 2 else tall.copy(), length=len(whole["split"])),
        "equal": whole["equal"],
        "one": Sharded([(whole["one"], (0,))] if me == owners - 1 else [], shape=whole["one"].shape, dtype="u1"),
        "values": {"list": list(range(2000)) if hold else 0, "text": "\u00fc" * 700 if hold else ""},
        "own": PerOwner([me] * 500 if hold else None),
    }


def whole_of(comm: MPI.Intracomm) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "split": numbers((37 * comm.Get_size(), 201), "<i2", 1),
        "equal": numbers((60, 83), "<i8", 2),
        "one": numbers((70_001,), "|u1", 3),
    }


@rank.case
def hundreds_of_chunks_in_fragments(comm: MPI.Intracomm, directory: Path) -> list[int]:
    """Chunks of 1 KiB travel in parts of 300 bytes, a few at a time and all at once."""
    chunks = []
    for window in (4, 100_000):
        path = directory / str(window)
        with narrow(1024, 300, window), open_run(path, comm, write="gather", nonfinite="allow") as ckpt:
            ckpt.save(mixed(comm, True), step=1)
            same(ckpt.resume(mixed(comm, False)).state, mixed(comm, True))
        in_shards(comm, path, whole_of(comm))
        chunks.append(0)
        for metadata, entries in shards(path).values():
            require(metadata["chunk"] == "1024", "chunks of", metadata["chunk"])
            chunks[-1] += len(entries["mpickpt.crc32c"]) // 4
    return chunks


@rank.case
def the_files_are_the_same_whoever_writes(comm: MPI.Intracomm, directory: Path) -> list[str]:
    with narrow(4096, 1 << 20, 8):
        for write in ("each", "gather"):
            with open_run(directory / write, comm, write=write) as ckpt:
                ckpt.save(mixed(comm, True), step=1)
    each, gathered = shards(directory / "each"), shards(directory / "gather")
    require(each.keys() == gathered.keys(), "other files:", list(each), list(gathered))
    for name, (metadata, entries) in each.items():
        require(entries == gathered[name][1], name, "has other bytes")
        differ = {key for key in metadata if metadata[key] != gathered[name][0][key]}
        require(differ <= {"attempt"}, name, "has other metadata:", differ)
    files = [path.name for path in (directory / "gather").glob("data/*/*/*")]
    require(all(name.endswith(".safetensors") for name in files), "gather needs no group manifests:", files)
    return sorted(each)


@rank.case
def owners_with_nothing_to_send(comm: MPI.Intracomm, directory: Path) -> None:
    me, owners = comm.Get_rank(), comm.Get_size()
    whole = numbers((5, 3), "<i4", 1)
    for holder in {0, owners - 1, owners // 2}:
        path = directory / str(holder)
        with open_run(path, comm, write="gather") as ckpt:
            ckpt.save({"x": whole, "n": [holder]} if me == holder else {}, step=1)
            into = {"x": np.zeros_like(whole), "n": None} if me == holder else {}
            found = ckpt.resume(into).state
            same(found, {"x": whole, "n": [holder]} if me == holder else {})
            filled_in_place(into, found)
        in_shards(comm, path, {"x": whole})


@rank.case
def values_only(comm: MPI.Intracomm, directory: Path) -> None:
    """No array, nothing to cut; and one that no owner has anything of."""
    with open_run(directory / "run", comm, write="gather") as ckpt:
        ckpt.save({"n": 1, "own": PerOwner(comm.Get_rank())}, step=1)
        same(ckpt.resume({"n": 0, "own": PerOwner(None)}).state, {"n": 1, "own": comm.Get_rank()})
        ckpt.save({"e": np.zeros((0, 3))}, step=2)
        same(ckpt.resume({"e": np.ones((0, 3))}).state, {"e": np.zeros((0, 3))})
        ckpt.save({}, step=3)
        same(ckpt.resume({}).state, {})


@rank.case
def a_nan_of_another_owner_is_found_by_the_writer(comm: MPI.Intracomm, directory: Path) -> list[Any]:
    last = comm.Get_size() - 1
    whole = np.arange(8.0 * (last + 1)).reshape(-1, 2)
    bad = whole.copy()
    bad[-2, 1] = np.nan
    with open_run(directory / "run", comm, write="gather") as ckpt:
        good = ckpt.save({"x": Split(share_of(whole, comm), length=len(whole))}, step=1)
        call = functools.partial(ckpt.save, {"x": Split(share_of(bad, comm), length=len(bad))}, step=2)
        error = refused(mpickpt.NonFiniteError, call)
        require([g.root for g in ckpt.generations()] == [good.root], "the store was changed")
        ckpt.save({"x": Split(share_of(whole, comm), length=len(whole))}, step=2)
    return [error.role, error.region, str(error.found)]


def _peak(reset: bool = False) -> int:
    """Give the most memory in bytes that this process has held since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


@rank.case
def memory_of_the_writer(comm: MPI.Intracomm, directory: Path) -> dict[str, int]:
    """Each owner holds 80 MiB; what a save adds to the peak must not follow what all hold together."""
    rows = 80 * comm.Get_size()
    mine = np.full((80, 1 << 20), comm.Get_rank(), np.uint8)
    mine[:, ::4096] = np.arange(256, dtype=np.uint8)
    mine[:, 7] = np.arange(80)
    with open_run(directory / "run", comm, write="gather") as ckpt:
        ckpt.save({"x": Split(mine, length=rows)}, step=1)
        rank.meet(comm)
        before = _peak(reset=True)
        ckpt.save({"x": Split(mine, length=rows)}, step=2)
        grown = _peak() - before
        require(ckpt.verify(level="fast").ok, "does not verify")
    return {"grown": grown, "sent": mine.nbytes * (comm.Get_size() - 1)}


if __name__ == "__main__":
    rank.main()
