"""Saves that are refused for values, moments, absent owners, a caller's code, and the file system.

test_refusals_saving.py says what must come.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
from scene import LENGTH, Model, Scene, at, failing, opened, patched, snapshot

import mpickpt
from mpickpt import PerOwner, Split, _native
from mpickpt.errors import StoreError
from mpickpt.store.directory import Directory

if TYPE_CHECKING:
    from mpi4py import MPI


# --- values that are not finite


@rank.case
@at(2, 3, 5)
def a_nan_in_one_owners_share(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner's last row."""
    with Scene(comm, directory) as scene:
        rows = np.array(scene.rows(), "float32")
        if scene.role == scene.last:
            rows[-1] = np.nan
        return scene.save({**scene.good(3), "m": Split(rows, length=LENGTH)})


@rank.case
@at(3)
def an_infinity_in_a_replicated_array(comm: MPI.Intracomm, directory: Path) -> Any:
    """At all owners alike, in float16."""
    with Scene(comm, directory) as scene:
        w = np.zeros((40, 10), "float16")
        w[30, 4:] = -np.inf
        return scene.save({**scene.good(3), "w": w})


@rank.case
@at(3)
def a_nan_in_every_owners_share(comm: MPI.Intracomm, directory: Path) -> Any:
    """All find one of their own at the same time, and all raise the same."""
    with Scene(comm, directory) as scene:
        return scene.save({**scene.good(3), "m": Split(np.full(len(scene.rows()), np.nan, "float32"), length=LENGTH)})


@rank.case
@at(2, 3, 5)
def a_nan_in_a_value(comm: MPI.Intracomm, directory: Path) -> Any:
    """A loss that diverged, at all owners alike."""
    with Scene(comm, directory) as scene:
        return scene.save({**scene.good(3), "lr": {"losses": [1.0, float("nan")]}})


@rank.case
@at(3)
def a_nan_in_something_of_one_owners_own(comm: MPI.Intracomm, directory: Path) -> Any:
    """In the array that is the last owner's."""
    with Scene(comm, directory) as scene:
        own = np.array([1.0, np.nan if scene.role == scene.last else 2.0])
        return scene.save({**scene.good(3), "rng": PerOwner(own)})


@rank.case
@at(3)
def a_nan_of_another_owner_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 writes, and names whose it is."""
    with Scene(comm, directory, write="gather") as scene:
        rows = np.array(scene.rows(), "float32")
        rows[0] = np.nan if scene.role == scene.last else rows[0]
        return scene.save({**scene.good(3), "m": Split(rows, length=LENGTH)})


# --- moments


@rank.case
@at(2, 3, 5)
def a_step_that_goes_back(comm: MPI.Intracomm, directory: Path) -> Any:
    """Step 1 after step 2."""
    with Scene(comm, directory) as scene:
        return scene.save(scene.good(3), step=1, cursor=30)


@rank.case
@at(3)
def a_cursor_that_goes_back(comm: MPI.Intracomm, directory: Path) -> Any:
    """A cursor that began anew."""
    with Scene(comm, directory) as scene:
        return scene.save(scene.good(3), step=3, cursor=5)


@rank.case
@at(2, 3, 5)
def a_step_that_is_published_already(comm: MPI.Intracomm, directory: Path) -> Any:
    """The same step with another cursor."""
    with Scene(comm, directory) as scene:
        return scene.save(scene.good(3), step=2, cursor=25)


@rank.case
@at(3)
def a_step_that_another_process_published(comm: MPI.Intracomm, directory: Path) -> Any:
    """The step and cursor that were resumed: this process has not saved them."""
    with Scene(comm, directory) as scene:
        scene.ckpt = scene.open()
        state = scene.good(0)
        scene.ckpt.resume(state)
        return scene.save(state, step=2, cursor=20)


@rank.case
@at(2, 3)
def the_same_save_again(comm: MPI.Intracomm, directory: Path) -> Any:
    """Not a refusal: the same root, and nothing is written."""
    with Scene(comm, directory) as scene:
        before = scene.together(scene.tree)
        first = scene.ckpt.save(scene.good(2), step=2, cursor=20)
        again = scene.ckpt.save(scene.good(2), step=2, cursor=20)
        unchanged = scene.together(scene.tree) == before
        newest = scene.ckpt.latest()
        assert newest is not None
        return [first.root, again.root == first.root, newest.root == first.root, again.step, unchanged]


@rank.case
@at(3)
def a_step_below_zero(comm: MPI.Intracomm, directory: Path) -> Any:
    """At all owners."""
    with Scene(comm, directory) as scene:
        return scene.save(scene.good(3), step=-1)


@rank.case
@at(3)
def a_cursor_that_is_no_whole_number_at_one_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """A float at owner 1."""
    with Scene(comm, directory) as scene:
        return scene.save(scene.good(3), cursor=30.5 if scene.role == 1 else 30)  # type: ignore[arg-type]


@rank.case
@at(2, 3, 5)
def a_save_before_resume_on_a_store_that_holds_something(comm: MPI.Intracomm, directory: Path) -> Any:
    """A training loop that forgot to resume."""
    return opened(comm, directory)


@rank.case
@at(2, 3)
def no_communicator_under_a_launcher(comm: MPI.Intracomm, directory: Path) -> Any:
    """Every process would be the only owner of the same store. One that was split off is meant to be."""
    from mpi4py import MPI

    found = rank.attempt(lambda: mpickpt.Checkpointer(directory / "run"))
    found["itself"] = rank.attempt(lambda: mpickpt.Checkpointer(directory / "run", MPI.COMM_SELF))
    found["made"] = (directory / "run").exists()
    own = comm.Split(comm.Get_rank())
    with mpickpt.Checkpointer(directory / f"run{comm.Get_rank()}", own) as ckpt:
        found["split off"] = [own.Get_size(), ckpt.resume({"x": 1}).fresh]
    own.Free()
    rank.meet(comm)
    return found


# --- what cannot be saved


def _unsaveable(comm: MPI.Intracomm, directory: Path, what: Any) -> Any:
    """The last owner's state holds something that has no exact form."""
    with Scene(comm, directory) as scene:
        state = scene.good(3)
        if scene.role == scene.last:
            state["odd"] = what
        return scene.save(state)


@rank.case
@at(3)
def an_array_of_objects(comm: MPI.Intracomm, directory: Path) -> Any:
    """It would need pickle."""
    return _unsaveable(comm, directory, np.array([{}, None], dtype=object))


@rank.case
@at(3)
def a_longdouble(comm: MPI.Intracomm, directory: Path) -> Any:
    """It has no exact form on disk."""
    return _unsaveable(comm, directory, {"deep": [np.zeros(2, np.longdouble)]})


@rank.case
@at(3)
def a_container_that_holds_itself(comm: MPI.Intracomm, directory: Path) -> Any:
    """Without end."""
    loop: dict[str, Any] = {"w": np.zeros(1)}
    loop["loop"] = loop
    return _unsaveable(comm, directory, loop)


@rank.case
@at(3)
def a_function(comm: MPI.Intracomm, directory: Path) -> Any:
    """It would need pickle."""
    return _unsaveable(comm, directory, print)


@rank.case
@at(3)
def a_python_generator(comm: MPI.Intracomm, directory: Path) -> Any:
    """Its place cannot be saved."""
    return _unsaveable(comm, directory, (number for number in range(3)))


@rank.case
@at(3)
def a_random_generator_without_a_state(comm: MPI.Intracomm, directory: Path) -> Any:
    """The operating system's randomness."""
    return _unsaveable(comm, directory, PerOwner(random.SystemRandom()))


# --- what a caller's code does


@rank.case
@at(2, 3, 5)
def state_dict_raises_at_one_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """The others wait for nobody."""
    with Scene(comm, directory) as scene:
        model = Model(3, reading="no gradient yet" if scene.role == scene.last else "")
        return scene.save({**scene.good(3), "model": model})


@rank.case
@at(3)
def a_mapping_raises_at_one_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """Code of the caller that mpickpt does not know of."""

    class Lazy(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("not loaded")

    with Scene(comm, directory) as scene:
        state = scene.good(3)
        return scene.save(Lazy(state) if scene.role == 1 else state)


def _interrupted(comm: MPI.Intracomm, directory: Path, point: str, role: int) -> Any:
    """Ctrl-C at one owner, at a failpoint of its own thread: it goes on there, the others are refused."""
    with Scene(comm, directory) as scene:
        role %= scene.owners

        def interrupt() -> None:
            raise KeyboardInterrupt

        state = scene.good(3)

        def save() -> str:
            try:
                with rank.fault(point, interrupt, role=role, comm=comm):
                    return scene.ckpt.save(state, step=3, cursor=30).root
            except KeyboardInterrupt:
                return "interrupted"

        return scene.refused(save, state)


@rank.case
@at(2, 3, 5)
def an_interrupt_of_one_owner_before_it_commits(comm: MPI.Intracomm, directory: Path) -> Any:
    """After agreement."""
    return _interrupted(comm, directory, "save.agreed", -1)


@rank.case
@at(3)
def an_interrupt_of_one_owner_after_it_has_committed(comm: MPI.Intracomm, directory: Path) -> Any:
    """Its files are under a commitment: nothing may remove them but a void."""
    with Scene(comm, directory) as scene:
        state = scene.good(3)

        def interrupt() -> None:
            raise KeyboardInterrupt

        def save() -> str:
            try:
                with rank.fault("save.committed", interrupt, role=scene.last, comm=comm):
                    return scene.ckpt.save(state, step=3, cursor=30).root
            except KeyboardInterrupt:
                return "interrupted"

        return _either(scene, save, state)


@rank.case
@at(3)
def an_interrupt_of_owner_0_before_it_publishes(comm: MPI.Intracomm, directory: Path) -> Any:
    """All have committed: the abort is made final as a void."""
    return _interrupted(comm, directory, "save.compared", 0)


@rank.case
@at(2, 3)
def an_interrupt_of_owner_0_after_it_has_published(comm: MPI.Intracomm, directory: Path) -> Any:
    """The root stands: the others hear so from the store or from owner 0, and its data stay."""
    with Scene(comm, directory, deadline=1.0) as scene:
        state = scene.good(3)

        def interrupt() -> None:
            raise KeyboardInterrupt

        def save() -> str:
            try:
                with rank.fault("save.root-published", interrupt, role=0, comm=comm):
                    return scene.ckpt.save(state, step=3, cursor=30).root
            except KeyboardInterrupt:
                return "interrupted"

        return _either(scene, save, state)


def _either(scene: Scene, save: Callable[[], str], state: Any) -> dict[str, Any]:
    """Make a save whose outcome the store decides; then the next one, and verify whatever is listed."""
    mine = snapshot(state)
    found = rank.attempt(save)
    found["arrays"] = snapshot(state) == mine
    names = scene.together(lambda: [g.step for g in mpickpt.open_store(scene.path).generations()])
    found["listed"] = [int(step) for step in scene.comm.bcast(names)]
    scene.steps = list(found["listed"])
    found["next"] = scene.publish(4)
    found["older"] = scene.together(scene.verified)
    return found


# --- owners that do not come


def _absent(comm: MPI.Intracomm, directory: Path, role: int) -> Any:
    """One owner never calls; afterwards it calls late, fails just that call, and all save together."""
    with Scene(comm, directory, deadline=0.6) as scene:
        role %= scene.owners
        state = scene.good(3)

        def save() -> str:
            return "did not call" if scene.role == role else scene.ckpt.save(state, step=3, cursor=30).root

        def follow() -> Any:
            missed = None
            if scene.role == role:
                missed = rank.attempt(lambda: scene.ckpt.save(state, step=3, cursor=30).root)
            rank.meet(comm)
            return [missed, scene.publish(4)]

        return scene.refused(save, state, follow=follow)


@rank.case
@at(2, 3, 5)
def the_last_owner_never_calls_save(comm: MPI.Intracomm, directory: Path) -> Any:
    """Nobody waits for it for ever."""
    return _absent(comm, directory, -1)


@rank.case
@at(2, 3, 5)
def owner_0_never_calls_save(comm: MPI.Intracomm, directory: Path) -> Any:
    """The owner that decides is the one that is missing."""
    return _absent(comm, directory, 0)


@rank.case
@at(3)
def a_writer_that_hangs(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner's file system takes a write and never answers: its thread polls, its writer does not move."""
    with Scene(comm, directory, deadline=0.6) as scene:
        free = threading.Event()
        real = _native.pwrite_all

        def hang(fd: int, data: Any, offset: int) -> None:
            free.wait(30)
            real(fd, data, offset)

        state = scene.good(3)

        def save() -> str:
            with patched(_native, "pwrite_all", hang if scene.role == scene.last else real):
                try:
                    return scene.ckpt.save(state, step=3, cursor=30).root
                finally:
                    free.set()

        return scene.refused(save, state)


@rank.case
@at(2, 3)
def nobody_can_tell_whether_the_root_was_published(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 is stopped before it publishes, and the others, in doubt, cannot reach the store."""
    with Scene(comm, directory, deadline=0.6) as scene:
        state = scene.good(3)

        def gone(self: Directory, name: str, error: Exception) -> None:
            raise StoreError("placing the file failed (Input/output error)", errno=errno.EIO, path=self.root_path(name))

        real = Directory.void

        def save() -> str:
            with (
                patched(Directory, "void", real if scene.role == 0 else gone),
                rank.fault("save.compared", "stop", role=0, seconds=2.0, comm=comm),
            ):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return _either(scene, save, state)


# --- the file system


def _store(
    comm: MPI.Intracomm,
    directory: Path,
    owner: Any,
    name: str,
    number: int,
    roles: Sequence[int],
    when: Callable[..., bool] = lambda *_: True,
    **options: Any,
) -> Any:
    """Save while a function of the operating system fails at some owners."""
    with Scene(comm, directory, **options) as scene:
        state = scene.good(3)
        here = scene.role in [role % scene.owners for role in roles]

        def save() -> str:
            if not here:
                return scene.ckpt.save(state, step=3, cursor=30).root
            with failing(owner, name, number, when):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return scene.refused(save, state)


@rank.case
@at(2, 3, 5)
def no_space_for_one_owners_shard(comm: MPI.Intracomm, directory: Path) -> Any:
    """Known before its first byte is written."""
    return _store(comm, directory, _native, "preallocate", errno.ENOSPC, [-1])


@rank.case
@at(2, 3, 5)
def no_space_for_any_shard(comm: MPI.Intracomm, directory: Path) -> Any:
    """All owners meet the full disk at the same time, and all raise the same."""
    return _store(comm, directory, _native, "preallocate", errno.ENOSPC, range(5))


@rank.case
@at(3)
def a_quota_that_is_used_up_while_writing(comm: MPI.Intracomm, directory: Path) -> Any:
    """At owner 1."""
    return _store(comm, directory, _native, "pwrite_all", errno.EDQUOT, [1])


@rank.case
@at(3)
def an_input_output_error_at_write(comm: MPI.Intracomm, directory: Path) -> Any:
    """At owner 0, whose shards the others do not see."""
    return _store(comm, directory, _native, "pwrite_all", errno.EIO, [0])


@rank.case
@at(3)
def an_input_output_error_at_sync(comm: MPI.Intracomm, directory: Path) -> Any:
    """At the last owner; it is not tried again."""
    return _store(comm, directory, _native, "fsync", errno.EIO, [-1])


@rank.case
@at(3)
def an_input_output_error_at_close(comm: MPI.Intracomm, directory: Path) -> Any:
    """At the last owner; NFS reports lost writes here."""
    with Scene(comm, directory) as scene:
        state = scene.good(3)
        real = os.close

        def close(fd: int) -> None:
            shard = os.readlink(f"/proc/self/fd/{fd}").endswith(".safetensors")
            real(fd)
            if shard and scene.role == scene.last:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        def save() -> str:
            with patched(os, "close", close):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return scene.refused(save, state)


@rank.case
@at(3)
def no_space_for_a_manifest(comm: MPI.Intracomm, directory: Path) -> Any:
    """At the last owner: its shard is written, and goes again."""

    def manifest(fd: int, *_: Any) -> bool:
        return os.readlink(f"/proc/self/fd/{fd}").endswith(".json")

    return _store(comm, directory, _native, "pwrite_all", errno.ENOSPC, [-1], manifest)


@rank.case
@at(3)
def no_space_for_another_owners_shard_under_gather(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 writes it."""

    def other(fd: int, *_: Any) -> bool:
        return os.readlink(f"/proc/self/fd/{fd}").endswith("000001.safetensors")

    return _store(comm, directory, _native, "preallocate", errno.ENOSPC, [0], other, write="gather")


@rank.case
@at(2, 3)
def no_space_for_the_root(comm: MPI.Intracomm, directory: Path) -> Any:
    """All have committed; not even a void fits. The data go all the same: a full disk must not stay full."""

    def root(fd: int, *_: Any) -> bool:
        return "/roots/" in os.readlink(f"/proc/self/fd/{fd}")

    return _store(comm, directory, _native, "pwrite_all", errno.ENOSPC, range(5), root)


@rank.case
@at(3)
def a_final_rename_that_fails(comm: MPI.Intracomm, directory: Path) -> Any:
    """The generation before stays the newest."""
    with Scene(comm, directory) as scene:
        failed: list[str] = []

        def once(source: str, target: str) -> bool:
            failed.append(target)
            return len(failed) == 1

        state = scene.good(3)

        def save() -> str:
            with failing(_native, "rename_noreplace", errno.EIO, once):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return scene.refused(save, state)


@rank.case
@at(2, 3)
def a_directory_sync_that_fails_after_the_root_is_in_place(comm: MPI.Intracomm, directory: Path) -> Any:
    """Published, durability unknown: nobody reports success, and the root and its data stay."""
    with Scene(comm, directory) as scene:
        state = scene.good(3)

        def roots(fd: int) -> bool:
            return os.readlink(f"/proc/self/fd/{fd}").endswith("/roots")

        def save() -> str:
            if scene.role:
                return scene.ckpt.save(state, step=3, cursor=30).root
            with failing(_native, "fsync", errno.EIO, roots):
                return scene.ckpt.save(state, step=3, cursor=30).root

        return _either(scene, save, state)


def _fresh(comm: MPI.Intracomm, directory: Path, save: Callable[[Scene], str], **more: Any) -> Any:
    """Save into a store that is not there yet."""
    with Scene(comm, directory, begin=False) as scene:
        scene.ckpt = scene.open()
        found = rank.attempt(lambda: save(scene))
        found["made"] = scene.together(lambda: sorted(str(p.relative_to(directory)) for p in directory.rglob("*")))
        found["next"] = scene.publish(1)
        return found


@rank.case
@at(2, 3)
def a_file_system_that_cannot_place_without_replacing(comm: MPI.Intracomm, directory: Path) -> Any:
    """Neither renameat2 nor link: refused before anything is written."""

    def save(scene: Scene) -> str:
        with failing(_native, "rename_noreplace", errno.EINVAL), failing(_native, "link", errno.EPERM):
            return scene.ckpt.save(scene.good(1), step=1).root

    return _fresh(comm, directory, save)


@rank.case
@at(2, 3)
def a_store_that_is_not_writable(comm: MPI.Intracomm, directory: Path) -> Any:
    """A file system that is mounted read-only."""

    def save(scene: Scene) -> str:
        with failing(os, "mkdir", errno.EROFS):
            return scene.ckpt.save(scene.good(1), step=1).root

    return _fresh(comm, directory, save)


@rank.case
@at(3)
def a_file_in_the_place_of_the_store(comm: MPI.Intracomm, directory: Path) -> Any:
    """It is left as it is."""
    with Scene(comm, directory, begin=False) as scene:
        scene.together(lambda: scene.path.write_bytes(b"precious"))
        ckpt = scene.open()
        found = rank.attempt(lambda: ckpt.save(scene.good(1), step=1).root)
        found["made"] = scene.together(lambda: scene.path.read_bytes() == b"precious")
        return found


if __name__ == "__main__":
    rank.main()
