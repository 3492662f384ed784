"""Owners that misbehave somewhere in a tree, and trees in the store that are not what their parents record.

Eight owners, at most two children each: 0 has 1 and 5; 1 has 2 and 4; 2 has 3; 5 has 6 and 7. test_tree_refusals.py
says what must come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
from scene import LENGTH, Scene, patched, snapshot
from treekit import reseal

from mpickpt import Sharded, Split
from mpickpt.cluster import publish
from mpickpt.cluster.channel import Call, Kind
from mpickpt.cluster.messages import HEADER, Abort
from mpickpt.errors import StateError
from mpickpt.format.commitment import Commitment

if TYPE_CHECKING:
    from mpi4py import MPI

INNER, LEAF = 2, 3
DEADLINE = 2.0


class Tree(Scene):
    """A scene in a tree."""

    def __init__(self, comm: MPI.Intracomm, directory: Path, **options: Any) -> None:
        super().__init__(comm, directory, topology="tree", fan_out=2, **options)


# --- commitments


def _lying(comm: MPI.Intracomm, directory: Path, lies: dict[int, dict[str, Any]]) -> Any:
    """Save while the commitments of some roles say something else in some fields."""
    with Tree(comm, directory) as scene:
        state, lie = scene.good(3), lies.get(scene.role, {})

        def commitment(**fields: Any) -> Commitment:
            prefix = {name: value for name, value in lie.items() if name in fields["prefix"].__dataclass_fields__}
            fields["prefix"] = dataclasses.replace(fields["prefix"], **prefix)
            changed = {n: value(fields[n]) if callable(value) else value for n, value in lie.items() if n not in prefix}
            return Commitment(**{**fields, **changed})

        def save() -> str:
            with patched(publish, "Commitment", commitment if lie else Commitment):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return scene.refused(save, state)


@rank.case
def a_role_too_many(comm: MPI.Intracomm, directory: Path) -> Any:
    """An inner owner says that it speaks for one more."""
    return _lying(comm, directory, {INNER: {"size": 3}})


@rank.case
def a_role_too_few(comm: MPI.Intracomm, directory: Path) -> Any:
    """An inner owner says that it speaks for itself alone: the leaf below it is left out."""
    return _lying(comm, directory, {INNER: {"size": 1}})


@rank.case
def a_leaf_that_claims_another_role(comm: MPI.Intracomm, directory: Path) -> Any:
    """The role of an owner in another subtree."""
    return _lying(comm, directory, {LEAF: {"role": 7}})


@rank.case
def two_roles_swapped(comm: MPI.Intracomm, directory: Path) -> Any:
    """Siblings, each under the other's role: together they name all roles that there are."""
    return _lying(comm, directory, {6: {"role": 7}, 7: {"role": 6}})


@rank.case
def a_subtree_of_another_step(comm: MPI.Intracomm, directory: Path) -> Any:
    """An inner owner commits to the capture of the step before."""
    return _lying(comm, directory, {INNER: {"step": 2}})


@rank.case
def a_leaf_of_another_cursor(comm: MPI.Intracomm, directory: Path) -> Any:
    """A leaf has consumed fewer inputs."""
    return _lying(comm, directory, {LEAF: {"cursor": 29}})


@rank.case
def a_subtree_of_another_epoch(comm: MPI.Intracomm, directory: Path) -> Any:
    """An owner below the root belongs to another continuation of the run."""
    return _lying(comm, directory, {5: {"epoch": 2}})


@rank.case
def a_cover_that_says_something_else(comm: MPI.Intracomm, directory: Path) -> Any:
    """All boxes tile; an inner owner's sum does not say so."""
    return _lying(comm, directory, {INNER: {"cover": lambda cover: cover ^ 1}})


@rank.case
def a_commitment_that_comes_twice(comm: MPI.Intracomm, directory: Path) -> Any:
    """A leaf commits twice; its parent's other child has none, so the parent waits for nobody else meanwhile."""
    with Tree(comm, directory) as scene:
        state, real, both = scene.good(3), Call.up, directory / "both"

        def up(self: Call, kind: Kind, body: bytes = b"") -> None:
            if kind is Kind.COMMIT and scene.role == 6:
                scene.until(both)  # the parent must still wait when the second comes
            real(self, kind, body)
            if kind is Kind.COMMIT and scene.role == 7:
                real(self, kind, body)

        real_sort, seen = Call._sort, []

        def sort(self: Call, source: int, kind: Kind, number: int, body: bytes) -> None:
            real_sort(self, source, kind, number, body)
            if scene.role == 5 and kind is Kind.COMMIT and source == 7:
                seen.append(number)
                if len(seen) == 2:
                    both.touch()

        def save() -> str:
            with patched(Call, "up", up), patched(Call, "_sort", sort):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return scene.refused(save, state)


# --- owners that are not there, and messages from the dead


@rank.case
def a_subtree_that_does_not_come(comm: MPI.Intracomm, directory: Path) -> Any:
    """An inner owner never calls save."""
    with Tree(comm, directory, deadline=DEADLINE) as scene:
        state, ended = scene.good(3), [directory / f"ended.{role}" for role in range(scene.owners)]

        def follow() -> Any:
            missed = rank.attempt(lambda: scene.ckpt.save(scene.good(3), step=3, cursor=30)) if absent else None
            rank.meet(comm)
            return [missed, scene.publish(4)]

        absent = scene.role == INNER

        def save() -> str:
            if absent:
                for role in range(scene.owners):
                    if role != INNER:
                        scene.until(ended[role])
                return "absent"
            try:
                return scene.ckpt.save(state, step=3, cursor=30).root
            finally:
                ended[scene.role].touch()

        return scene.refused(save, state, follow=follow)


@rank.case
def messages_of_a_dead_call(comm: MPI.Intracomm, directory: Path) -> Any:
    """Before each of its messages an owner repeats those of the save before, and an abort of it: nobody minds."""
    with Tree(comm, directory) as scene:
        real, sent = Call.send, []

        def record(self: Call, role: int, kind: Kind, body: bytes = b"") -> None:
            sent.append((role, HEADER.pack(kind, self.number) + body))
            real(self, role, kind, body)

        with patched(Call, "send", record):
            scene.publish(3)
        dead = Abort(StateError("the dead speak")).pack()

        def repeat(self: Call, role: int, kind: Kind, body: bytes = b"") -> None:
            for to, message in sent:
                if to == role:
                    self.line.transport.send(role, message)
            self.line.transport.send(role, HEADER.pack(Kind.ABORT, self.number - 1) + dead)
            real(self, role, kind, body)

        before = scene.ckpt._saves.counts["dropped"]
        with patched(Call, "send", repeat if scene.role in (INNER, LEAF, 5) else real):
            scene.publish(4)
        rank.meet(comm)
        return [scene.publish(5), scene.ckpt._saves.counts["dropped"] - before, scene.together(scene.verified)]


# --- what is held


def _box(comm: MPI.Intracomm, directory: Path, rows: dict[int, int]) -> Any:
    """Save rows of a region, one an owner, of which some are others' than should be."""
    with Tree(comm, directory) as scene:
        row = rows.get(scene.role, scene.role)
        return scene.save({**scene.good(3), "box": Sharded(np.ones((1, 4)), shape=(8, 4), at=(row, 0))})


@rank.case
def a_leafs_row_that_lies_where_anothers_does(comm: MPI.Intracomm, directory: Path) -> Any:
    """As many bytes as there should be, in a subtree far from the owner whose row is held twice."""
    return _box(comm, directory, {LEAF: 7})


@rank.case
def two_rows_that_only_look_like_a_tiling(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 6 holds a row of another subtree, owner 7 that of owner 6, and nobody the last: each count is right."""
    return _box(comm, directory, {6: 3, 7: 6})


@rank.case
def a_copy_that_diverged_deep_in_the_tree(comm: MPI.Intracomm, directory: Path) -> Any:
    """One number of a replicated array, at a leaf."""
    with Tree(comm, directory) as scene:
        w = np.arange(200_000.0).reshape(400, 500)
        w[399, 499] = -1.0 if scene.role == LEAF else 7.0
        return scene.save({**scene.good(3), "w": w})


@rank.case
def two_copies_of_a_box_that_diverged(comm: MPI.Intracomm, directory: Path) -> Any:
    """Hybrid sharding: the same box at an inner owner and at a leaf of another subtree."""
    with Tree(comm, directory) as scene:
        box = np.zeros((4, 4))
        box[3, 2] = 5.0 if scene.role == 7 else 0.0
        held: list[Any] = [(box, (0, 0))] if scene.role in (INNER, 7) else []
        copies = Sharded(held, shape=(4, 4), dtype="float64", replica=(int(scene.role == 7), 2))
        return scene.save({**scene.good(3), "copies": copies})


@rank.case
def a_nan_deep_in_the_tree(comm: MPI.Intracomm, directory: Path) -> Any:
    """In a leaf's share."""
    with Tree(comm, directory) as scene:
        rows = np.array(scene.rows(), "float32")
        rows[0] = np.nan if scene.role == LEAF else rows[0]
        return scene.save({**scene.good(3), "m": Split(rows, length=LENGTH)})


# --- what is in the store


def _forged(comm: MPI.Intracomm, directory: Path, change: Callable[[Scene], None]) -> Any:
    """Change the newest generation's tree, verify, resume, mend it, resume."""
    with Tree(comm, directory) as scene:
        kept: dict[Path, bytes] = {}

        def forge() -> None:
            kept.update({path: path.read_bytes() for path in scene.path.rglob("*.json")})
            change(scene)

        def mend() -> None:
            for path, data in kept.items():
                path.write_bytes(data)

        def follow() -> Any:
            scene.together(mend)
            return scene.resumes()

        scene.together(forge)
        report = scene.ckpt.verify()
        scene.steps = [1]
        found = scene.resume(scene.good(7), follow=follow)
        found["verdicts"] = [one.to_json() for one in report.failed]
        found["good"] = snapshot(scene.good(2)) is not None and scene.ckpt.verify().ok
        return found


@rank.case
def a_manifest_of_another_save(comm: MPI.Intracomm, directory: Path) -> Any:
    """A leaf's, whole, from the generation before."""

    def swap(scene: Scene) -> None:
        old, new = sorted(scene.path.glob(f"data/*/00000/{LEAF:06}.json"))
        new.write_bytes(old.read_bytes())

    return _forged(comm, directory, swap)


@rank.case
def a_manifest_of_a_sibling(comm: MPI.Intracomm, directory: Path) -> Any:
    """Under a record that names it, with right digests all the way up."""

    def rename(record: dict[str, Any]) -> None:
        record["role"] = record["shards"][0]["role"] = 4

    return _forged(comm, directory, lambda scene: reseal(scene.path, 2, LEAF, rename))


@rank.case
def a_manifest_of_another_size(comm: MPI.Intracomm, directory: Path) -> Any:
    """An inner owner's has one child more, whose sum is nothing; its parent says two roles."""

    def grow(record: dict[str, Any]) -> None:
        (child,) = record["children"]
        record["children"].append({**child, "role": 4, "cover": "0" * 64})
        record["size"] = 3

    return _forged(comm, directory, lambda scene: reseal(scene.path, 2, INNER, grow))


@rank.case
def a_manifest_of_another_capture(comm: MPI.Intracomm, directory: Path) -> Any:
    """A leaf's prefix has another cursor, with right digests all the way up."""

    def turn(record: dict[str, Any]) -> None:
        record["prefix"]["cursor"] -= 1

    return _forged(comm, directory, lambda scene: reseal(scene.path, 2, LEAF, turn))


@rank.case
def a_cover_that_its_pieces_do_not_give(comm: MPI.Intracomm, directory: Path) -> Any:
    """A leaf's manifest claims another sum, and so do all above it."""

    def claim(record: dict[str, Any]) -> None:
        record["cover"] = f"{int(record['cover'], 16) ^ 1:064x}"

    return _forged(comm, directory, lambda scene: reseal(scene.path, 2, LEAF, claim))


if __name__ == "__main__":
    rank.main()
