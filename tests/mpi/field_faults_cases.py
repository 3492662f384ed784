"""Faults that users of such systems met, made to happen on real owners; each case is named after what went wrong there.

A case checks by itself that the fault does not come, and gives what must be equal at all owners.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forge
import ml_dtypes
import numpy as np
import rank
from scene import Scene, at, counted, failing, patched, snapshot

import mpickpt
from mpickpt import PerOwner, Sharded, Spec, Split, _native
from mpickpt.cluster import gather, transport
from mpickpt.cluster.channel import Kind
from mpickpt.store import directory as directories
from mpickpt.store import keeping, threads, writer

if TYPE_CHECKING:
    from mpi4py import MPI

MIB = 1 << 20


def refusal(call: Any, cls: str) -> dict[str, Any]:
    """Make a call that must be refused, without waiting for anybody; give the record."""
    found = rank.attempt(call)
    assert "raised" in found, f"not refused: {found}"
    record = found["raised"].get("record")
    assert record is not None, found["raised"]["traceback"]
    assert record["class"] == cls, record
    assert found["seconds"] < 3.0
    return dict(record)


def listed(scene: Scene) -> list[int]:
    """Give the steps that are published, as owner 0 sees them."""
    steps = scene.together(lambda: [g.step for g in mpickpt.open_store(scene.path).generations()])
    return list(scene.comm.bcast(steps))


def attempts(scene: Scene) -> list[str]:
    """Give the directories of attempts."""
    names = scene.together(lambda: sorted(path.name for path in (scene.path / "data").iterdir()))
    return list(scene.comm.bcast(names))


def shard_of(scene: Scene, step: int, file: str) -> Path:
    """Find a file of a step's generation."""
    (root,) = (scene.path / "roots").glob(f"{step:012}-*.json")
    return scene.path / "data" / root.stem / "00000" / file


def big(scene: Scene, mebibytes: int, step: int) -> dict[str, Any]:
    """Give one strided region of so many MiB an owner: its rows are columns in memory."""
    rows = mebibytes * MIB // 8 // 1024
    whole = np.arange(rows * 1024, dtype=np.float64).reshape(1024, rows) + 1000.0 * scene.role + step
    return {"big": Sharded(whole.T, shape=(rows * scene.owners, 1024), at=(rows * scene.role, 0))}


# --- saving


@rank.case
@at(3)
def the_writers_error_is_swallowed(comm: MPI.Intracomm, directory: Path) -> Any:
    """1. A thread of the writer fails at one owner's third chunk: the save reports success, and a file is short."""
    with Scene(comm, directory) as scene:
        state = {**scene.good(3), **big(scene, 16, 3)}

        real = _native.write_chunks

        def third(*arguments: Any) -> bool:
            if scene.role == scene.last:
                real(*arguments[:10], 2, *arguments[11:])  # two chunks are written
            return scene.role == scene.last

        with failing(_native, "write_chunks", errno.EIO, third):
            record = refusal(lambda: scene.ckpt.save(state, step=3, cursor=30), "StoreError")
        assert record["role"] == scene.last
        assert listed(scene) == [1, 2]
        scene.ckpt.save(state, step=3, cursor=30)
        scene.steps.append(3)
        return [record, listed(scene), scene.together(scene.verified) in (True, None)]


@rank.case
@at(2, 3)
def step_counter_and_weights_are_of_different_steps(comm: MPI.Intracomm, directory: Path) -> Any:
    """2. One owner saves after its update and the others before: no generation mixes two steps."""
    with Scene(comm, directory) as scene:
        step = 4 if scene.role == scene.last else 3
        record = refusal(lambda: scene.ckpt.save(scene.good(step), step=step, cursor=30), "DisagreementError")
        for step in (1, 2):
            state = scene.good(0)
            found = scene.open().resume(state, step=step, readonly=True)
            assert (found.step, found.cursor) == (step, 10 * step)
            assert snapshot(state) == snapshot(scene.good(step))
            assert found.value("lr") == 0.5**step
        return record


@rank.case
@at(2, 3)
def a_staging_buffer_is_used_again_before_it_was_written(comm: MPI.Intracomm, directory: Path) -> Any:
    """3. Strided memory goes through pooled buffers: here there is one, and every chunk needs it."""
    for write in ("each", "gather"):
        (directory / write).mkdir(exist_ok=True)
        rank.meet(comm)
        with Scene(comm, directory / write, write=write) as scene:
            state = big(scene, 20, 1)
            scene.ckpt = mpickpt.Checkpointer(directory / write / "big", comm, write=write, deadline=10.0)
            scene.opened.append(scene.ckpt)

            def one(size: int, limit: int = 0) -> threads.Buffers:
                return threads.Buffers(size, size)

            with patched(writer, "Buffers", one):
                scene.ckpt.save(state, step=1)
            found = {"big": Sharded(np.zeros_like(state["big"].parts[0][0]), shape=state["big"].shape, at=(0, 0))}
            found["big"].parts = [(found["big"].parts[0][0], state["big"].parts[0][1])]
            scene.ckpt.resume(found)
            assert np.array_equal(found["big"].parts[0][0], state["big"].parts[0][0])
    return True


@rank.case
@at(2, 3, 5)
def one_name_holds_different_values_on_different_ranks(comm: MPI.Intracomm, directory: Path) -> Any:
    """4. A random state and a tensor that are not the same everywhere: all but one would be dropped without a word."""
    with Scene(comm, directory) as scene:
        random.seed(scene.role)
        state = {**scene.good(3), "random": random.getstate()}
        first = refusal(lambda: scene.ckpt.save(state, step=3, cursor=30), "ReplicaError")
        assert first["region"] == "random"
        state = {**scene.good(3), "w": np.arange(6.0) + scene.role}
        second = refusal(lambda: scene.ckpt.save(state, step=3, cursor=30), "ReplicaError")
        assert second["region"] == "w"
        state = {**scene.good(3), "random": PerOwner(random.getstate())}
        scene.ckpt.save(state, step=3, cursor=30)
        return [first, second, listed(scene)]


@rank.case
@at(2, 3, 5)
def rank_0_gathers_every_ranks_plan_at_every_save(comm: MPI.Intracomm, directory: Path) -> Any:
    """5. The cost grows with the ranks, and is paid again although nothing has changed."""
    with Scene(comm, directory, begin=False) as scene:
        ckpt = scene.open()
        regions = {f"layer{k:03}": np.full(3, float(k)) for k in range(300)}

        def save(step: int) -> dict[str, list[int]]:
            with counted(Kind.DECLARE) as declared, counted(Kind.READY) as ready, counted(Kind.COMMIT) as committed:
                ckpt.save({**regions, "m": scene.good(step)["m"]}, step=step)
            return {"declared": declared, "ready": ready, "committed": committed}

        first, second = save(1), save(2)
        if scene.role == 0:
            return None
        assert len(first["declared"]) == 1
        assert second["declared"] == []
        assert second["ready"][0] < 1000, "300 regions are named by one digest"
        return second["committed"]


@rank.case
@at(3)
def the_older_checkpoint_is_deleted_before_the_new_one_is_durable(comm: MPI.Intracomm, directory: Path) -> Any:
    """6. With keep=1 there is a moment without any checkpoint; a save that fails in it loses the run."""
    with Scene(comm, directory, keep=1, begin=False) as scene:
        left: list[tuple[list[str], str]] = []

        def look() -> None:
            last = [name for name in rank.reached if name.startswith("commit.")][-1]
            left.append((sorted(os.listdir(scene.path / "roots")), last))

        rank.failpoint("rotate.roots-removed", look, again=True)
        scene.ckpt = scene.open()
        for step in range(1, 5):
            scene.publish(step)
        with failing(_native, "pwrite_all", errno.ENOSPC):  # also waits for the rotation after step 4
            record = refusal(lambda: scene.ckpt.save(scene.good(5), step=5, cursor=50), "StoreError")
        rank.clear()
        if scene.role == 0:
            assert len(left) == 3
            for roots, last in left:
                assert len(roots) == 1, "no moment without a checkpoint"
                assert last == "commit.directory-synced", "what is left is durable"
        assert listed(scene) == [4]
        scene.steps = [4]
        assert scene.together(scene.verified) in (True, None)
        return record


@rank.case
@at(2, 3, 5)
def background_messages_share_a_communicator_with_the_training_loop(comm: MPI.Intracomm, directory: Path) -> Any:
    """7. Messages and collectives of the loop are under way while it saves: neither takes the other's."""
    from mpi4py import MPI

    with Scene(comm, directory) as scene:
        there = (scene.role + 1) % scene.owners
        got, total = np.zeros(1, "int64"), np.zeros(1, "int64")
        # A greedy receive, posted before the save: any message on this communicator would match it.
        receiving = comm.Irecv(got, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
        summing = comm.Iallreduce(np.array([scene.role + 1], "int64"), total)
        scene.publish(3)
        scene.open().resume(scene.good(0))
        sending = comm.Isend(np.array([scene.role], "int64"), there, tag=7)
        for request in (receiving, sending, summing):
            limit = time.monotonic() + 10
            while not request.Test():
                assert time.monotonic() < limit, "the loop's own message was lost"
                time.sleep(0.001)
        assert got[0] == (scene.role - 1) % scene.owners
        return [int(total[0]), listed(scene)]


@rank.case
@at(2, 3, 5)
def a_rank_with_nothing_to_write_skips_a_collective(comm: MPI.Intracomm, directory: Path) -> Any:
    """8. One owner has nothing, and owner 0 fails meanwhile: all hang."""
    with Scene(comm, directory, begin=False) as scene:
        ckpt = scene.open()
        state = {} if scene.role == scene.last else {"w": np.arange(4.0), "n": 3}
        with failing(_native, "pwrite_all", errno.EIO, lambda *_: scene.role == 0):
            record = refusal(lambda: ckpt.save(state, step=1), "StoreError")
        root = ckpt.save(state, step=1).root
        found = scene.open().resume({} if scene.role == scene.last else {"w": np.zeros(4), "n": 0})
        assert found.root == root
        assert scene.role == scene.last or found.state["w"].tolist() == [0.0, 1.0, 2.0, 3.0]
        return [record["role"], root]


@rank.case
@at(3)
def out_of_space_in_a_side_thread_is_success(comm: MPI.Intracomm, directory: Path) -> Any:
    """10. A thread meets a full disk in the middle: the file stays cut, and is taken later."""
    with Scene(comm, directory) as scene:
        state = {**scene.good(3), **big(scene, 12, 3)}
        before = attempts(scene)

        real = _native.write_chunks

        def later(*arguments: Any) -> bool:
            if scene.role == 1:
                real(*arguments[:10], 1, *arguments[11:])  # one chunk is written
            return scene.role == 1

        with failing(_native, "write_chunks", errno.ENOSPC, later):
            record = refusal(lambda: scene.ckpt.save(state, step=3, cursor=30), "StoreError")
        assert record["errno"] == errno.ENOSPC
        assert attempts(scene) == before, "a full disk must not stay full"
        assert listed(scene) == [1, 2]
        return record


@rank.case
@at(2, 3, 5)
def each_rank_names_the_directory_by_its_own_clock(comm: MPI.Intracomm, directory: Path) -> Any:
    """11. Two ranks straddle a second, and the shards part."""
    real, real_ns = time.time, time.time_ns
    with (
        patched(time, "time", lambda: real() + 1000.0 * comm.Get_rank()),
        patched(time, "time_ns", lambda: real_ns() + comm.Get_rank() * 10**12),
        Scene(comm, directory) as scene,
    ):
        roots = scene.together(lambda: sorted(path.stem for path in (scene.path / "roots").iterdir()))
        assert attempts(scene) == comm.bcast(roots)
        return listed(scene)


@rank.case
@at(2, 3)
def a_message_overflows_a_count(comm: MPI.Intracomm, directory: Path) -> Any:
    """12. Above 2 GiB counts overflow: data travel in chunks, and any longer message in parts."""
    with Scene(comm, directory, begin=False, write="gather") as scene:
        ckpt = scene.open()
        with counted(Kind.CHUNK) as chunks, patched(transport, "_PART", 300_000):
            ckpt.save({**big(scene, 9, 1), **{f"r{k}": np.zeros(1) for k in range(100)}}, step=1)
        assert scene.role == 0 or len(chunks) >= 3
        assert max(chunks, default=0) <= 4 * MIB + gather._PULL.size
        return listed(scene)


@rank.case
@at(2, 3)
def saved_is_logged_when_it_was_dispatched(comm: MPI.Intracomm, directory: Path) -> Any:
    """13. The log says "saved", and there is no checkpoint."""
    with Scene(comm, directory) as scene:
        seen: list[tuple[str, int]] = []

        class Looks(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                roots = [name for name in os.listdir(scene.path / "roots") if name.endswith(".json")]
                seen.append((record.getMessage().split(":")[0], len(roots)))

        log, handler = logging.getLogger("mpickpt"), Looks(logging.INFO)
        log.addHandler(handler)
        level = log.level
        log.setLevel(logging.INFO)
        try:
            scene.publish(3)
            with failing(_native, "preallocate", errno.EIO):
                refusal(lambda: scene.ckpt.save(scene.good(4), step=4, cursor=40), "StoreError")
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
        saved = [entry for entry in seen if entry[0].startswith("saved")]
        assert saved == ([("saved step 3", 3)] if scene.role == 0 else []), seen
        return True


@rank.case
@at(2, 3)
def a_second_save_of_a_step_overwrites_the_first(comm: MPI.Intracomm, directory: Path) -> Any:
    """14. Killed half-way, old metadata name new data."""
    with Scene(comm, directory) as scene:
        before = scene.together(scene.tree)
        record = refusal(lambda: scene.ckpt.save(scene.good(9), step=2, cursor=21), "ExistsError")
        assert scene.together(scene.tree) == before
        # A first try of step 3 fails half-way; the second one shares no file with it.
        tried: list[str] = []
        real = directories.Directory.attempt

        def attempt(self: Any, name: str) -> str:
            tried.append(name)
            return str(real(self, name))

        with patched(directories.Directory, "attempt", attempt):
            with failing(_native, "fsync", errno.EIO, lambda *_: scene.role == scene.last):
                refusal(lambda: scene.ckpt.save(scene.good(7), step=3, cursor=30), "StoreError")
            scene.publish(3)
        assert len(set(tried)) == (2 if scene.role == 0 else 0)
        state = scene.good(0)
        scene.open().resume(state)
        assert snapshot(state) == snapshot(scene.good(3))
        return [record, scene.together(scene.verified) in (True, None)]


@rank.case
@at(3)
def names_collide_or_are_refused(comm: MPI.Intracomm, directory: Path) -> Any:
    """15. Spaces, hyphens, slashes, quotes, brackets, letters beyond ASCII; names that differ only by how they join."""

    def fill(start: float) -> dict[str, Any]:
        count = iter(range(100))

        def one() -> Any:
            return np.array([start + next(count)])

        return {
            "a b": one(), "a-b": one(), "a.b": one(), "a/b": one(), "a": {"b": one(), "b/c": one()},
            "a/b/c": one(), 'quo"te': one(), "br[0:1]": one(), "ünïcödé 数": one(), "%2F": one(), "#1": one(),
            "list": [one(), {"0": one()}], "A": one(), "": one(), " ": one(), "..": one(), "n\nl": one(),
            "w" * 200: one(), "sum:": one(), "a,b": one(),
        }  # fmt: skip

    with Scene(comm, directory, begin=False) as scene:
        ckpt = scene.open()
        ckpt.save(fill(1.0), step=1)
        state = fill(500.0)
        found = scene.open().resume(state)
        assert snapshot(state) == snapshot(fill(1.0))
        whole = scene.open().resume(readonly=True)
        assert snapshot(whole.state) == snapshot(fill(1.0))
        return found.root


# --- restoring


@rank.case
@at(2, 3)
def a_float_is_cast_without_a_word(comm: MPI.Intracomm, directory: Path) -> Any:
    """16. A float32 tensor becomes the template's bfloat16."""
    with Scene(comm, directory) as scene:
        found = []
        others = [np.zeros(6, dtype) for dtype in (ml_dtypes.bfloat16, "complex128", ">f4")]
        for w in (*others, Spec((6,), "float16")):
            state = {**scene.good(7), "w": w}
            before = snapshot(state)
            record = refusal(lambda s=state: scene.open().resume(s), "SchemaError")
            assert snapshot(state) == before
            found.append(record["message"])
        return found


@rank.case
@at(3)
def a_flipped_bit_or_a_file_of_another_save_loads(comm: MPI.Intracomm, directory: Path) -> Any:
    """17. In the payload alone; and the shard of another owner or another save, as long as its own."""
    with Scene(comm, directory) as scene:
        path = shard_of(scene, 2, "000001.safetensors")
        kept = scene.together(path.read_bytes)

        def flip() -> None:
            data = bytearray(kept)
            data[4096 + 5] ^= 1
            path.write_bytes(data)

        others = {
            "payload": flip,
            "another owner's": lambda: path.write_bytes(path.with_name("000002.safetensors").read_bytes()),
            "another save's": lambda: path.write_bytes(shard_of(scene, 1, "000001.safetensors").read_bytes()),
        }
        found = []
        for damage in others.values():
            scene.together(damage)
            record = refusal(lambda: scene.open().resume(scene.good(7)), "IntegrityError")
            assert record["path"].endswith("000001.safetensors")
            found.append(record)
        scene.together(lambda: path.write_bytes(kept))
        assert scene.resumes() == [2, True]
        return found


@rank.case
@at(3)
def a_missing_checksum_counts_as_verified(comm: MPI.Intracomm, directory: Path) -> Any:
    """18. Null, empty, absent, or of no algorithm: of a shard, of a manifest, of the root."""
    with Scene(comm, directory) as scene:
        (root,) = (scene.path / "roots").glob("000000000002-*.json")
        kept = scene.together(root.read_bytes)
        found = []
        for value in (None, "", "none", "blake3:", "md5:" + "0" * 32):
            for kind in ("shards", "children"):

                def damage(kind: str = kind, value: Any = value) -> None:
                    record = forge.read(root)
                    record[kind][0]["digest"] = value
                    root.write_bytes(forge.seal(record)[0])

                scene.together(lambda: root.write_bytes(kept))
                scene.together(damage)
                found.append(refusal(lambda: scene.open().resume(scene.good(7)), "FormatError")["message"])
        first = b"" if kept is None else kept.split(b"\n")[0] + b"\n"
        for second in (b"", b"\n", b"{}\n", b'{"digest":""}\n'):
            scene.together(lambda s=second: root.write_bytes(first + s))
            record = rank.attempt(lambda: scene.open().resume(scene.good(7)))["raised"]["record"]
            assert record["class"] in ("FormatError", "IntegrityError")
            found.append(record["message"])
        return found


@rank.case
@at(2, 3)
def the_mere_existence_of_a_file_triggers_a_restart_from_it(comm: MPI.Intracomm, directory: Path) -> Any:
    """19. What an editor, a copier or a file system left beside the roots is none."""
    with Scene(comm, directory) as scene:

        def litter() -> None:
            roots = scene.path / "roots"
            (newest,) = roots.glob("000000000002-*.json")
            for name in ("latest", ".nfs0000001", newest.name + "~", newest.name + ".part", "9.json", ".tmp-abc"):
                (roots / name).write_bytes(newest.read_bytes())
            (scene.path / "data" / "000000000009-e00000001-abcdef0123456789").mkdir()

        scene.together(litter)
        return [scene.resumes(), listed(scene)]


@rank.case
@at(2, 3, 5)
def ranks_see_different_listings(comm: MPI.Intracomm, directory: Path) -> Any:
    """20. A network file system answers each from its cache: they choose different checkpoints, or hang."""
    with Scene(comm, directory) as scene:

        def stale(path: str) -> list[str]:
            raise AssertionError(f"owner {scene.role} has listed {path}")

        real = directories.names_in
        state = scene.good(0)
        with patched(directories, "names_in", real if scene.role == 0 else stale):
            ckpt = scene.open()
            found = ckpt.resume(state)
            ckpt.save(scene.good(3), step=3, cursor=30)
            newest = ckpt.latest()
        assert newest is not None
        assert snapshot(state) == snapshot(scene.good(2))
        return [found.root, found.step, newest.step]


@rank.case
@at(2, 3)
def the_next_job_reads_past_the_end_of_a_cut_file(comm: MPI.Intracomm, directory: Path) -> Any:
    """21. It was cut off in the middle of a write; the reader waits for the rest for ever."""
    with Scene(comm, directory, begin=False) as scene:
        ckpt = scene.open()
        ckpt.save(big(scene, 6, 1), step=1)
        path = shard_of(scene, 1, f"{scene.last:06}.safetensors")
        found = []
        for size in (0, 7, 4096, 4 * MIB + 100):
            scene.together(lambda s=size: os.truncate(path, s))
            found.append(refusal(lambda: scene.open().resume(big(scene, 6, 0)), "IntegrityError"))
        return found


@rank.case
@at(2, 3, 5)
def uneven_shards_and_ranks_that_own_nothing(comm: MPI.Intracomm, directory: Path) -> Any:
    """22. Six elements, two elements and none over these owners; then one owner less."""

    def state(scene: Scene, start: float) -> dict[str, Any]:
        found = {
            f"n{length}": Split(np.array(scene.rows(length), "float32") + start, length=length) for length in (6, 2, 0)
        }
        mine: list[Any] = [(np.full((1,), start), (0,))] if scene.role == 0 else []
        return {**found, "mine": Sharded(mine, shape=(1,), dtype="float64")}

    with Scene(comm, directory, begin=False) as scene:
        scene.open().save(state(scene, 1.0), step=1)
        again = state(scene, 9.0)
        root = scene.open().resume(again).root
        assert snapshot(again) == snapshot(state(scene, 1.0))
    few = comm.Split(0 if scene.role < scene.last else 1, scene.role)
    if scene.role < scene.last:
        with Scene(few, directory, begin=False) as fewer:
            again = state(fewer, 9.0)
            fewer.open().resume(again, repartition=True)
            assert snapshot(again) == snapshot(state(fewer, 1.0))
    rank.meet(comm)
    few.Free()
    return root


@rank.case
@at(2, 3)
def restore_end_at_once_restore_again_and_it_is_gone(comm: MPI.Intracomm, directory: Path) -> Any:
    """25. Starting and ending without a save removes nothing."""
    with Scene(comm, directory, keep=1) as scene:
        scene.publish(3)
    rank.meet(comm)

    def tree() -> Any:
        return {name: at for name, at in scene.tree().items() if not name.startswith("epochs")}  # each start claims one

    before = scene.together(tree)
    for _ in range(3):
        with mpickpt.Checkpointer(scene.path, comm, keep=1, deadline=10.0) as ckpt:
            state = scene.good(0)
            assert ckpt.resume(state).step == 3
            assert snapshot(state) == snapshot(scene.good(3))
    assert scene.together(tree) == before
    return True


# --- keeping


@rank.case
@at(2, 3)
def keep_1_deletes_all_or_the_one_just_written(comm: MPI.Intracomm, directory: Path) -> Any:
    """26. Clocks go back, a new run's checkpoint looks the oldest, the save after the rotation fails."""
    found: list[Any] = []
    for rotate in ("after", "before"):
        (directory / rotate).mkdir(exist_ok=True)
        rank.meet(comm)
        with Scene(comm, directory / rotate, keep=1, rotate=rotate, begin=False) as scene:
            scene.ckpt = scene.open()
            for step in range(1, 5):
                scene.publish(step)

                def age(step: int = step) -> None:
                    for path in scene.path.rglob("*"):
                        os.utime(path, (1e9 - step, 1e9 - step))

                scene.together(age)
            with failing(_native, "preallocate", errno.ENOSPC, lambda *_: scene.role == scene.last):
                refusal(lambda: scene.ckpt.save(scene.good(5), step=5, cursor=50), "StoreError")
            left = listed(scene)
            assert left[-1] == 4, left
            scene.publish(5)
        rank.meet(comm)  # the end waits for the last rotation
        scene.steps = listed(scene)
        assert scene.steps == [5] or (rotate == "before" and scene.steps == [4, 5])
        assert scene.together(scene.verified) in (True, None)
        found.append(scene.steps)
    return found


@rank.case
@at(2, 3)
def one_id_names_two_checkpoints_after_a_restart(comm: MPI.Intracomm, directory: Path) -> Any:
    """27. A step is saved again by the next job, and the same name means something else."""
    with Scene(comm, directory) as scene:
        first = scene.publish(3)
        # A restart that was given the step before, and comes to step 3 again with other numbers.
        ckpt = scene.open()
        ckpt.resume(scene.good(0))
        record = refusal(lambda: ckpt.save(scene.good(8), step=3, cursor=31), "ExistsError")
        state = scene.good(0)
        again = scene.open().resume(state, root=first)
        assert (again.root, again.step) == (first, 3)
        assert snapshot(state) == snapshot(scene.good(3))
        roots = scene.together(lambda: [g.root for g in mpickpt.open_store(scene.path).generations()])
        assert roots is None or len(set(roots)) == 3
        return [record, first]


@rank.case
@at(2, 3, 5)
def each_rank_rotates_on_its_own(comm: MPI.Intracomm, directory: Path) -> Any:
    """28. They remove different versions, and no whole one is left."""
    with Scene(comm, directory, keep=2, begin=False) as scene:

        def never(*_: Any) -> list[str]:
            raise AssertionError(f"owner {scene.role} rotates")

        real = keeping.remove_roots
        scene.ckpt = scene.open()
        with patched(keeping, "remove_roots", real if scene.role == 0 else never):
            for step in range(1, 6):
                scene.publish(step)
            scene.ckpt.close()
    rank.meet(comm)
    scene.steps = listed(scene)
    assert scene.together(scene.verified) in (True, None)
    return [scene.steps, len(attempts(scene))]


if __name__ == "__main__":
    rank.main()
