"""Saves that are refused for what owners declare, hold or commit to.

The owners differ, boxes do not tile, copies are not equal, commitments lie. test_refusals_saving.py says what must
come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import rank
from scene import LENGTH, Scene, at, opened, patched

import mpickpt
from mpickpt import Contract, PerOwner, Sharded, Split, Value
from mpickpt.cluster import publish
from mpickpt.cluster.channel import Call, Kind
from mpickpt.format.commitment import Commitment
from mpickpt.store.directory import Directory

if TYPE_CHECKING:
    from mpi4py import MPI


# --- owners differ


@rank.case
@at(2, 3, 5)
def another_shape(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner has one number more in a replicated array."""
    with Scene(comm, directory) as scene:
        return scene.save({**scene.good(3), "w": np.zeros(7 if scene.role == scene.last else 6)})


@rank.case
@at(3)
def another_dtype(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner splits in float64 what the others split in float32."""
    with Scene(comm, directory) as scene:
        dtype = "float64" if scene.role == scene.last else "float32"
        return scene.save({**scene.good(3), "m": Split(np.zeros(len(scene.rows()), dtype), length=LENGTH)})


@rank.case
@at(3)
def another_kind(comm: MPI.Intracomm, directory: Path) -> Any:
    """A name is a value at owner 0 and of each owner's own at the others."""
    with Scene(comm, directory) as scene:
        return scene.save({**scene.good(3), "lr": 0.1 if scene.role == 0 else PerOwner(0.1)})


@rank.case
@at(3)
def sharded_at_one_owner_and_replicated_at_another(comm: MPI.Intracomm, directory: Path) -> Any:
    """The same shape and dtype, but not held in the same way."""
    with Scene(comm, directory) as scene:
        w = np.zeros(6)
        return scene.save({**scene.good(3), "w": Sharded(w, shape=(6,), at=(0,)) if scene.role == 1 else w})


@rank.case
@at(3)
def another_number_of_copies(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 1 believes that there are two copies."""
    with Scene(comm, directory) as scene:
        replica = (1, 2) if scene.role == 1 else (0, 1)
        box = Sharded(np.zeros((1, 4)), shape=(3, 4), at=(scene.role, 0), replica=replica)
        return scene.save({**scene.good(3), "box": box})


@rank.case
@at(3)
def another_container(comm: MPI.Intracomm, directory: Path) -> Any:
    """A list at owner 0, a tuple at the others."""
    with Scene(comm, directory) as scene:
        inner = [np.zeros(2)] if scene.role == 0 else (np.zeros(2),)
        return scene.save({**scene.good(3), "inner": inner})


@rank.case
@at(3)
def thirty_regions_differ(comm: MPI.Intracomm, directory: Path) -> Any:
    """More differences than anybody reads."""
    with Scene(comm, directory) as scene:
        size = 3 if scene.role == 1 else 2
        return scene.save({**scene.good(3), "many": {f"{k:02}": np.zeros(size) for k in range(30)}})


@rank.case
@at(2, 3, 5)
def another_step(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner is a step behind."""
    with Scene(comm, directory) as scene:
        return scene.save(scene.good(3), step=4 if scene.role == scene.last else 3)


@rank.case
@at(3)
def another_cursor(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner has counted its own inputs only."""
    with Scene(comm, directory) as scene:
        return scene.save(scene.good(3), cursor=30 // (1 + (scene.role == scene.last)))


@rank.case
@at(5)
def step_and_cursor_of_each_owner_its_own(comm: MPI.Intracomm, directory: Path) -> Any:
    """Every owner has another step and another cursor."""
    with Scene(comm, directory) as scene:
        return scene.save(scene.good(3), step=3 + scene.role, cursor=30 + scene.role)


@rank.case
@at(3)
def another_contract(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner was started with another rate, and without a field of the numerics."""
    last = comm.Get_rank() == comm.Get_size() - 1
    contract = Contract(identity={"lr": 0.2 if last else 0.1}, numerics={} if last else {"sum": "tree"})
    return opened(comm, directory, contract=contract)


@rank.case
@at(3)
def other_options(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 1 gathers, has another digest and allows NaN."""
    odd = comm.Get_rank() == 1
    options: dict[str, Any] = {"write": "gather", "digest": "sha256", "nonfinite": "allow"} if odd else {}
    return opened(comm, directory, **options)


@rank.case
@at(2, 3)
def another_path(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner names another directory."""
    with Scene(comm, directory) as scene:
        there = directory / "elsewhere" if scene.role == scene.last else scene.path
        ckpt = mpickpt.Checkpointer(there, comm, deadline=10.0)
        scene.opened.append(ckpt)
        state = scene.good(3)
        found = scene.refused(lambda: ckpt.save(state, step=3, cursor=30).root, state)
        found["elsewhere"] = (directory / "elsewhere").exists()
        return found


@rank.case
@at(3)
def a_path_that_is_another_directory_on_each_node(comm: MPI.Intracomm, directory: Path) -> Any:
    """The same name, but the last owner's is on its own disk: it does not see what owner 0 has made."""
    with Scene(comm, directory) as scene:
        state, real = scene.good(3), Directory.data_of

        def local(self: Directory, name: str) -> str:
            return real(self, name).replace("/run/", "/local/")

        def save() -> str:
            with patched(Directory, "data_of", local if scene.role == scene.last else real):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return scene.refused(save, state)


# --- boxes


@rank.case
@at(2, 3, 5)
def a_gap(comm: MPI.Intracomm, directory: Path) -> Any:
    """Nobody holds the last row."""
    with Scene(comm, directory) as scene:
        box = Sharded(np.ones((1, 4)), shape=(scene.owners + 1, 4), at=(scene.role, 0))
        return scene.save({**scene.good(3), "box": box})


@rank.case
@at(2, 3, 5)
def an_overlap(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner holds two columns of row 0 as well."""
    with Scene(comm, directory) as scene:
        parts = [(np.ones((1, 4)), (scene.role, 0))]
        if scene.role == scene.last:
            parts.append((np.ones((1, 2)), (0, 1)))
        return scene.save({**scene.good(3), "box": Sharded(parts, shape=(scene.owners, 4))})


@rank.case
@at(2, 3, 5)
def a_shift_with_the_same_byte_count(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner's row is held where its neighbour's lies: as many bytes as there should be."""
    with Scene(comm, directory) as scene:
        row = scene.role - (scene.role == scene.last)
        return scene.save({**scene.good(3), "box": Sharded(np.ones((1, 4)), shape=(scene.owners, 4), at=(row, 0))})


@rank.case
@at(2, 3)
def a_copy_doubled_while_another_is_missing(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owners 0 and 1 both hold copy 0 of two: as many bytes as there should be."""
    with Scene(comm, directory) as scene:
        box: Any = (np.ones((2, 2)), (0, 0))
        held = Sharded([box] if scene.role < 2 else [], shape=(2, 2), dtype="float64", replica=(0, 2))
        return scene.save({**scene.good(3), "copies": held})


@rank.case
@at(2, 3)
def copies_in_different_boxes(comm: MPI.Intracomm, directory: Path) -> Any:
    """Both copies tile the region, but are not cut alike."""
    with Scene(comm, directory) as scene:
        parts: list[Any] = [[(np.ones((2, 2)), (0, 0))], [(np.ones((1, 2)), (0, 0)), (np.ones((1, 2)), (1, 0))]]
        mine = parts[scene.role] if scene.role < 2 else []
        replica = (min(scene.role, 1), 2)
        return scene.save({**scene.good(3), "copies": Sharded(mine, shape=(2, 2), dtype="float64", replica=replica)})


@rank.case
@at(3)
def a_box_that_leaves_its_region(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner's box ends behind the region."""
    with Scene(comm, directory) as scene:
        column = 1 if scene.role == scene.last else 0
        return scene.save({**scene.good(3), "box": Sharded(np.ones((1, 4)), shape=(3, 4), at=(scene.role, column))})


@rank.case
@at(3)
def a_split_that_is_not_this_owners_share(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 1 gives one row less than the rule says."""
    with Scene(comm, directory) as scene:
        rows = len(scene.rows()) - (scene.role == 1)
        return scene.save({**scene.good(3), "m": Split(np.zeros(rows, "float32"), length=LENGTH)})


@rank.case
@at(3)
def a_gap_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    """As `a_gap`; owner 0 writes everything."""
    with Scene(comm, directory, write="gather") as scene:
        return scene.save({**scene.good(3), "box": Sharded(np.ones((1, 4)), shape=(4, 4), at=(scene.role, 0))})


# --- copies


def _differing(array: np.ndarray[Any, Any], index: tuple[int, ...], scene: Scene, value: Any) -> np.ndarray[Any, Any]:
    """Put `value` into one place of the last owner's array."""
    if scene.role == scene.last:
        array[index] = value
    return array


@rank.case
@at(2, 3, 5)
def a_number_in_the_middle_of_a_big_array_differs(comm: MPI.Intracomm, directory: Path) -> Any:
    """One of 1.5 million, far behind the first block."""
    with Scene(comm, directory) as scene:
        big = np.arange(1_500_000.0).reshape(1500, 1000)
        return scene.save({**scene.good(3), "w": _differing(big, (1234, 567), scene, -1.0)})


@rank.case
@at(3)
def a_float16_differs(comm: MPI.Intracomm, directory: Path) -> Any:
    """In the smallest float of NumPy's own."""
    with Scene(comm, directory) as scene:
        return scene.save({**scene.good(3), "w": _differing(np.ones(70000, "float16"), (66000,), scene, 1.5)})


@rank.case
@at(3)
def a_bfloat16_differs(comm: MPI.Intracomm, directory: Path) -> Any:
    """In a float that NumPy has not."""
    with Scene(comm, directory) as scene:
        w = np.ones((3, 5), ml_dtypes.bfloat16)
        return scene.save({**scene.good(3), "w": _differing(w, (2, 3), scene, 2.0)})


@rank.case
@at(3)
def a_number_in_a_strided_array_differs(comm: MPI.Intracomm, directory: Path) -> Any:
    """The array is every second column of a transposed one: its index is the caller's, not memory's."""
    with Scene(comm, directory) as scene:
        w = np.zeros((400, 300), "int32").T[:, ::2]
        return scene.save({**scene.good(3), "w": _differing(w, (299, 1), scene, 7)})


@rank.case
@at(3)
def a_sign_of_zero_differs_in_a_big_endian_array(comm: MPI.Intracomm, directory: Path) -> Any:
    """Equal as numbers, not as bits; in memory the other way round."""
    with Scene(comm, directory) as scene:
        return scene.save({**scene.good(3), "w": _differing(np.zeros(6, ">f8"), (4,), scene, -0.0)})


@rank.case
@at(2, 3, 5)
def a_value_differs(comm: MPI.Intracomm, directory: Path) -> Any:
    """A learning rate."""
    with Scene(comm, directory) as scene:
        return scene.save({**scene.good(3), "lr": 0.5 if scene.role == scene.last else 0.25})


@rank.case
@at(3)
def a_number_deep_in_a_value_differs(comm: MPI.Intracomm, directory: Path) -> Any:
    """A tuple in a list in a dict: 1 and True are two values."""
    with Scene(comm, directory) as scene:
        odd = True if scene.role == scene.last else 1
        return scene.save({**scene.good(3), "lr": Value({"plan": [("warm", 0.1), ("hold", odd)], "name": "x" * 300})})


@rank.case
@at(3)
def a_long_value_differs_at_its_end(comm: MPI.Intracomm, directory: Path) -> Any:
    """A list too long to be shown."""
    with Scene(comm, directory) as scene:
        return scene.save({**scene.good(3), "lr": [*range(50000), int(scene.role == scene.last)]})


@rank.case
@at(2, 3)
def two_copies_of_a_box_differ(comm: MPI.Intracomm, directory: Path) -> Any:
    """Hybrid sharding: owner 1's copy of the box has one other number."""
    with Scene(comm, directory) as scene:
        box = np.zeros((4, 4))
        if scene.role == 1:
            box[3, 2] = 5.0
        parts: list[Any] = [(box, (4, 0))] if scene.role < 2 else []
        rest: list[Any] = [(np.zeros((4, 4)), (0, 0))] if scene.role < 2 else []
        copies = Sharded(parts + rest, shape=(8, 4), dtype="float64", replica=(min(scene.role, 1), 2))
        return scene.save({**scene.good(3), "copies": copies})


@rank.case
@at(3)
def a_number_differs_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 writes, but every copy is compared where it lies."""
    with Scene(comm, directory, write="gather") as scene:
        return scene.save({**scene.good(3), "w": _differing(np.zeros(6), (5,), scene, 1.0)})


# --- commitments that lie


def _save_lying(scene: Scene, lie: Callable[..., Commitment]) -> dict[str, Any]:
    """Save while the last owner's commitment lies; the next save is honest."""
    state = scene.good(3)

    def save() -> str:
        with patched(publish, "Commitment", lie if scene.role == scene.last else Commitment):
            return scene.ckpt.save(state, step=3, cursor=30).root

    return scene.refused(save, state)


@rank.case
@at(2, 3, 5)
def a_commitment_of_another_role(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner says that it is owner 0."""
    with Scene(comm, directory) as scene:
        return _save_lying(scene, lambda **fields: Commitment(**{**fields, "role": 0}))


@rank.case
@at(2, 3, 5)
def a_commitment_of_a_subtree_one_role_too_large(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner says that it speaks for two."""
    with Scene(comm, directory) as scene:
        return _save_lying(scene, lambda **fields: Commitment(**{**fields, "size": 2}))


@rank.case
@at(3)
def a_commitment_of_another_role_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner says that it is owner 1."""
    with Scene(comm, directory, write="gather") as scene:
        return _save_lying(scene, lambda **fields: Commitment(**{**fields, "role": 1}))


PREFIX = {
    "run": "f" * 32,
    "schema": "blake3:" + "0" * 64,
    "contract": "blake3:" + "0" * 64,
    "step": 2,
    "cursor": 29,
    "epoch": 2,
    "call": 99,
    "attempt": "e" * 16,
}


@rank.case
@at(3)
def a_commitment_of_another_capture(comm: MPI.Intracomm, directory: Path) -> Any:
    """One field of the last owner's prefix after the other is that of another capture."""
    found = {}
    with Scene(comm, directory) as scene:
        for name, other in PREFIX.items():

            def lie(name: str = name, other: Any = other, **fields: Any) -> Commitment:
                prefix = dataclasses.replace(fields.pop("prefix"), **{name: other})
                return Commitment(prefix=prefix, **fields)

            step = scene.steps[-1] + 1

            def save(step: int = step, lie: Any = lie) -> str:
                with patched(publish, "Commitment", lie if scene.role == scene.last else Commitment):
                    return scene.ckpt.save(scene.good(step), step=step, cursor=10 * step).root

            found[name] = scene.refused(save, None)
    return found


@rank.case
@at(3)
def a_commitment_that_is_cut(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner sends half of one."""

    class Half(Commitment):
        def pack(self) -> bytes:
            return super().pack()[:200]

    with Scene(comm, directory) as scene:
        return _save_lying(scene, Half)


@rank.case
@at(3, 5)
def a_commitment_that_comes_twice(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 1 sends its commitment twice; the last owner commits only once owner 0 has got both."""
    with Scene(comm, directory) as scene:
        state, both = scene.good(3), directory / "both"
        real_up, real_sort, seen = Call.up, Call._sort, []

        def up(self: Call, kind: Kind, body: bytes = b"") -> None:
            if kind is Kind.COMMIT and scene.role == scene.last:
                scene.until(both)
            real_up(self, kind, body)
            if kind is Kind.COMMIT and scene.role == 1:
                real_up(self, kind, body)

        def sort(self: Call, source: int, kind: Kind, number: int, body: bytes) -> None:
            real_sort(self, source, kind, number, body)
            if scene.role == 0 and kind is Kind.COMMIT and source == 1:
                seen.append(number)
                if len(seen) == 2:
                    both.touch()

        def save() -> str:
            with patched(Call, "up", up), patched(Call, "_sort", sort):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return scene.refused(save, state)


def _lying_sum(comm: MPI.Intracomm, directory: Path, name: str) -> Any:
    with Scene(comm, directory) as scene:
        return _save_lying(scene, lambda **fields: Commitment(**{**fields, name: fields[name] ^ 1}))


@rank.case
@at(3)
def a_false_sum_of_what_is_in_files(comm: MPI.Intracomm, directory: Path) -> Any:
    """The boxes tile; the number does not say so."""
    return _lying_sum(comm, directory, "cover")


@rank.case
@at(3)
def a_false_sum_of_what_is_held(comm: MPI.Intracomm, directory: Path) -> Any:
    """The boxes tile; the number does not say so."""
    return _lying_sum(comm, directory, "held")


@rank.case
@at(3)
def a_false_sum_of_copies(comm: MPI.Intracomm, directory: Path) -> Any:
    """The copies are equal; the number does not say so."""
    return _lying_sum(comm, directory, "copies")


if __name__ == "__main__":
    rank.main()
