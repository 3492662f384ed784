"""Bytes that all owners need, passed on down a tree: what happens where reading, passing on or taking goes wrong.

Eight owners, at most two children each: 0 has 1 and 5; 1 has 2 and 4; 2 has 3; 5 has 6 and 7. test_passing.py says what
must come.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
import treekit
from scene import Scene, patched, snapshot

import mpickpt
from mpickpt.cluster import passing
from mpickpt.cluster.channel import Call, Kind
from mpickpt.store.shard import Shard

if TYPE_CHECKING:
    from mpi4py import MPI

rank.on_a_host_of_its_own()

INNER, LEAF = 1, 3
BIG = 40 << 20
"""Bytes of an array that makes many blocks."""
TREE: dict[str, Any] = {"topology": "tree", "fan_out": 2}


def _big(step: int) -> np.ndarray[Any, Any]:
    return np.arange(BIG // 8, dtype=np.int64) + step


def _state(role: int, step: int) -> dict[str, Any]:
    """Give a state of which nearly all is held alike."""
    return {"big": _big(step), "small": np.full(3, step), "n": step, "rng": mpickpt.PerOwner(role)}


@rank.case
def many_blocks_in_bounded_memory(comm: MPI.Intracomm, directory: Path) -> Any:
    """Ten times what an owner may hold; each passes on what it gets, and holds little of it."""
    return _counted(comm, directory)


@rank.case
def on_one_host(comm: MPI.Intracomm, directory: Path) -> Any:
    """The same on one host, and then with one owner elsewhere."""
    with patched(socket, "gethostname", lambda: "node"):
        together = _counted(comm, directory / "together")
    with patched(socket, "gethostname", lambda: f"node{comm.Get_rank() == LEAF}"):
        apart = _counted(comm, directory / "apart")
    return [together, apart]


def _counted(comm: MPI.Intracomm, directory: Path) -> list[Any]:
    """Give whether all came back, the most blocks held, messages sent, and `.r` shards opened."""
    role, path, held, opened = comm.Get_rank(), directory / "run", [0], []
    with mpickpt.Checkpointer(path, comm, **TREE) as ckpt:
        ckpt.save(_state(role, 1), step=1)
    real_step, real_open = passing._Passing._step, Shard.__init__

    def step(self: Any) -> bool:
        found = real_step(self)
        sent = sum(map(len, self.sent.values()))
        held[0] = max(held[0], len(self.blocks) + len(self.arrived) + sent)
        return found

    def open_(self: Shard, file: str, *args: Any) -> None:
        opened.append(file)
        real_open(self, file, *args)

    patches = patched(Shard, "__init__", open_), patched(passing._Passing, "_step", step)
    with mpickpt.Checkpointer(path, comm, **TREE) as ckpt, patches[0], patches[1]:
        before = ckpt._others.counts["sent"]
        run = ckpt.resume(_state(role, 0))
        sent = ckpt._others.counts["sent"] - before
    same = run.state["big"].tobytes() == _big(1).tobytes() and run.state["n"] == 1 and run.state["rng"] == role
    return [same, held[0], sent, sum(file.endswith(".r.safetensors") for file in opened)]


@rank.case
def a_slow_leaf(comm: MPI.Intracomm, directory: Path) -> Any:
    """It takes longer over each block than the deadline would allow for all of them: it makes progress."""
    role, path = comm.Get_rank(), directory / "run"
    with mpickpt.Checkpointer(path, comm, **TREE) as ckpt:
        ckpt.save(_state(role, 1), step=1)
    free, real = threading.Event(), Shard.check_chunk

    def check(self: Shard, *args: Any) -> None:
        free.wait(0.3 if role == LEAF else 0)
        real(self, *args)

    with mpickpt.Checkpointer(path, comm, deadline=1.0, **TREE) as ckpt, patched(Shard, "check_chunk", check):
        run = ckpt.resume(_state(role, 0))
    return run.state["big"].tobytes() == _big(1).tobytes()


def _refused(comm: MPI.Intracomm, directory: Path, disturb: Callable[[Scene], Any], **options: Any) -> Any:
    """Resume while something is wrong; nothing of the destination may change, and then it works."""
    with Scene(comm, directory, begin=False, **TREE, **options) as scene:
        scene.ckpt = scene.open()
        scene.ckpt.save(_state(scene.role, 1), step=1)
        state = _state(scene.role, 0)

        def follow() -> bool:
            return bool(scene.open().resume(_state(scene.role, 0)).state["big"].tobytes() == _big(1).tobytes())

        ckpt = scene.open()
        with disturb(scene):
            found = scene.refused(lambda: ckpt.resume(state).step, state, follow=lambda: None, older=False)
        rank.meet(comm)
        found["same"] = snapshot(state) == snapshot(_state(scene.role, 0))
        found["next"] = follow()
        return found


class _Flipped:
    """One other bit in the middle of a file of what all hold alike, for as long as the with-block runs."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.path = sorted(scene.path.glob("data/*/00000/*.r.safetensors"))[-1]

    def _flip(self) -> None:
        data = bytearray(self.path.read_bytes())
        data[len(data) // 2] ^= 4
        self.path.write_bytes(data)

    def __enter__(self) -> None:
        self.scene.together(self._flip)

    def __exit__(self, *_: object) -> None:
        self.scene.together(self._flip)


@rank.case
def a_damaged_file_of_what_all_need(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 finds it, and all raise so."""
    return _refused(comm, directory, _Flipped)


@rank.case
def a_byte_that_changes_on_its_way(comm: MPI.Intracomm, directory: Path) -> Any:
    """An inner owner passes on another byte than it got: who gets it finds out, and nobody is handed anything."""

    def disturb(scene: Scene) -> Any:
        real, count = Call.send, [0]

        def send(self: Call, role: int, kind: Kind, body: bytes = b"") -> None:
            if kind is Kind.BLOCK and scene.role == INNER and role == 2:
                count[0] += 1
                if count[0] == 3:
                    body = body[:-1000] + bytes([body[-1000] ^ 1]) + body[-999:]
            real(self, role, kind, body)

        return patched(Call, "send", send)

    return _refused(comm, directory, disturb)


@rank.case
def a_block_that_is_left_out(comm: MPI.Intracomm, directory: Path) -> Any:
    """An inner owner loses one."""

    def disturb(scene: Scene) -> Any:
        real, count = Call.send, [0]

        def send(self: Call, role: int, kind: Kind, body: bytes = b"") -> None:
            if kind is Kind.BLOCK and scene.role == INNER and role == 2:
                count[0] += 1
                if count[0] == 3:
                    return
            real(self, role, kind, body)

        return patched(Call, "send", send)

    return _refused(comm, directory, disturb)


def _without_memory(comm: MPI.Intracomm, directory: Path, role: int) -> Any:
    def disturb(scene: Scene) -> Any:
        from mpickpt.cluster import restore
        from mpickpt.errors import StoreError
        from mpickpt.store.memory import memory_for_all

        def none(boxes: Any) -> Any:
            raise StoreError("there is no memory for the checkpoint", errno=12)

        return patched(restore, "memory_for_all", none if scene.role == role else memory_for_all)

    return _refused(comm, directory, disturb)


@rank.case
def a_leaf_without_memory(comm: MPI.Intracomm, directory: Path) -> Any:
    """One owner cannot even begin; the others do not wait for it with their blocks."""
    return _without_memory(comm, directory, LEAF)


@rank.case
def an_inner_owner_without_memory(comm: MPI.Intracomm, directory: Path) -> Any:
    """Its children wait for no blocks either."""
    return _without_memory(comm, directory, INNER)


@rank.case
def an_inner_owner_that_stops(comm: MPI.Intracomm, directory: Path) -> Any:
    """In the middle of passing on, for longer than a deadline."""

    def disturb(scene: Scene) -> Any:
        real, count = Call.send, [0]

        def send(self: Call, role: int, kind: Kind, body: bytes = b"") -> None:
            if kind is Kind.BLOCK and scene.role == INNER:
                count[0] += 1
                if count[0] == 4:
                    rank.stop(3.0)
            real(self, role, kind, body)

        return patched(Call, "send", send)

    return _refused(comm, directory, disturb, deadline=1.0)


@rank.case
def what_only_some_want(comm: MPI.Intracomm, directory: Path) -> Any:
    """Two pipelines' halves: what all hold alike is passed on, the rest each reads for itself."""
    role, path = comm.Get_rank(), directory / "run"
    half = {"first" if role % 2 else "second": np.full(5, 7.0)}

    def state(fill: float) -> dict[str, Any]:
        return {"all": np.full(100, fill), **{name: array + fill for name, array in half.items()}, "n": 3 * fill}

    with mpickpt.Checkpointer(path, comm, **TREE) as ckpt:
        ckpt.save(state(2.0), step=1)
    with mpickpt.Checkpointer(path, comm, **TREE) as ckpt, treekit.opens(path) as opened:
        found = ckpt.resume(state(0.0)).state
    same = all(np.array_equal(found[name], array) for name, array in state(2.0).items())
    return [same, sorted({name.rpartition("/")[2] for name in opened if name.endswith(".safetensors")})]


if __name__ == "__main__":
    rank.main()
