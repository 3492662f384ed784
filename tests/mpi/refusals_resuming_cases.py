"""Every way in which a resume is refused, made to happen on real owners.

test_refusals_resuming.py says what must come.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forge
import numpy as np
import rank
from scene import LENGTH, Model, Scene, at, failing, snapshot
from spoil import DAMAGE, flip, root_or_file

import mpickpt
from mpickpt import Contract, PerOwner, Sharded, Spec, Split, _native

if TYPE_CHECKING:
    from mpi4py import MPI


# --- damage


def _damaged(scene: Scene, path: Path | None, damage: Callable[[Path], None], **more: Any) -> dict[str, Any]:
    """Damage a file, resume, mend it, resume: the older generation is whole all the while."""
    kept = scene.together(lambda: path.read_bytes() if path is not None and path.is_file() else None)
    scene.together(lambda: damage(path) if path is not None else None)

    def follow() -> Any:
        scene.together(lambda: path.write_bytes(kept) if path is not None else None)
        return scene.resumes()

    scene.steps = [1]
    state = scene.good(7)
    return scene.resume(state, follow=follow, **more)


@rank.case
@at(3)
def a_file_is_damaged(comm: MPI.Intracomm, directory: Path) -> Any:
    """One file after the other, in one way after the other."""
    found = {}
    with Scene(comm, directory) as scene:
        for name, (kind, damage) in DAMAGE.items():
            older = kind not in ("claim", "run.json")  # without these nothing of the store verifies
            found[name] = _damaged(scene, root_or_file(scene, kind), damage, older=older)
    return found


@rank.case
@at(2, 5)
def a_shard_of_the_last_owner_has_one_other_bit(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 does not read it, and refuses all the same."""
    with Scene(comm, directory) as scene:
        path = root_or_file(scene, "shard").with_name(f"{scene.last:06}.safetensors")
        return _damaged(scene, path, flip)


@rank.case
@at(3)
def both_generations_are_damaged(comm: MPI.Intracomm, directory: Path) -> Any:
    """There is none to go on from, and the refusal says so."""
    with Scene(comm, directory) as scene:
        for step in (1, 2):
            scene.together(lambda s=step: flip(root_or_file(scene, "shard", s)))
        return scene.resume(scene.good(7), older=False, follow=lambda: None)


@rank.case
@at(2, 3)
def the_newest_is_damaged_and_the_one_before_is_taken(comm: MPI.Intracomm, directory: Path) -> Any:
    """What the refusal advises works, and gives that state."""
    with Scene(comm, directory) as scene:
        scene.together(lambda: flip(root_or_file(scene, "shard")))
        scene.steps = [1]

        def follow() -> Any:
            state = scene.good(7)
            found = scene.open().resume(state, step=1, readonly=True)
            return [found.step, found.cursor, snapshot(state) == snapshot(scene.good(1))]

        return scene.resume(scene.good(7), follow=follow)


@rank.case
@at(3)
def the_directory_of_roots_is_missing(comm: MPI.Intracomm, directory: Path) -> Any:
    """There is a claim: this is no empty store."""
    with Scene(comm, directory) as scene:
        scene.together(lambda: shutil.rmtree(scene.path / "roots"))
        return scene.resume(scene.good(7), older=False, follow=lambda: None)


@rank.case
@at(3)
def a_generation_is_removed_while_it_is_read(comm: MPI.Intracomm, directory: Path) -> Any:
    """Rotated: the root is gone too."""
    return _removed(comm, directory, root=True)


@rank.case
@at(3)
def the_data_of_a_generation_go_while_it_is_read(comm: MPI.Intracomm, directory: Path) -> Any:
    """Damage: the root is still there."""
    return _removed(comm, directory, root=False)


def _removed(comm: MPI.Intracomm, directory: Path, root: bool) -> Any:
    with Scene(comm, directory) as scene:
        gone = directory / "gone"

        def remove() -> None:
            if scene.role == 0:
                name = root_or_file(scene, "root")
                shutil.rmtree(scene.path / "data" / name.stem)
                if root:
                    name.unlink()
                gone.touch()
            scene.until(gone)

        ckpt, state = scene.open(), scene.good(7)

        def resume() -> str:
            with rank.fault("resume.chosen", remove):
                return str(ckpt.resume(state))

        before = snapshot(state)
        found = rank.attempt(resume)
        found["arrays"] = snapshot(state) == before
        return found


@rank.case
@at(3)
def an_input_output_error_while_reading(comm: MPI.Intracomm, directory: Path) -> Any:
    """At the last owner alone."""
    with Scene(comm, directory) as scene:
        ckpt, state = scene.open(), scene.good(7)

        def shard(fd: int, *_: Any) -> bool:
            return scene.role == scene.last and os.readlink(f"/proc/self/fd/{fd}").endswith(".safetensors")

        def resume() -> str:
            with failing(_native, "pread_full", errno.EIO, shard):
                return str(ckpt.resume(state))

        return scene.refused(resume, state, follow=scene.resumes)


# --- malformed


def _set(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    def change(root: dict[str, Any]) -> None:
        root.update(fields)

    return change


def _shard(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda root: change(root["shards"])


def _raw(text: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return text


def _no_digest(data: bytes) -> bytes:
    return data.split(b"\n")[0] + b"\n"


def _null_digest(data: bytes) -> bytes:
    return data.split(b"\n")[0] + b'\n{"digest":null}\n'


def _not_json(data: bytes) -> bytes:
    return forge.seal(data.split(b"\n")[0][:-1])[0]


def _doubled_key(data: bytes) -> bytes:
    return forge.seal(b'{"format":1,' + data.split(b"\n")[0][1:])[0]


def _deep(data: bytes) -> bytes:
    return forge.seal(data.split(b"\n")[0][:-1] + b',"zz":' + b"[" * 20000 + b"]" * 20000 + b"}")[0]


def _huge(data: bytes) -> bytes:
    return forge.seal(data.split(b"\n")[0].replace(b'"size":3', b'"size":' + b"9" * 5000))[0]


MALFORMED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a newer format": ("record", _set(format=2)),
    "an unknown key": ("record", _set(surprise=1)),
    "another owner count": ("record", _set(owners=4)),
    "a role twice": ("record", lambda root: root["children"].append(dict(root["children"][0]))),
    "a role that cannot be": ("record", lambda root: root["children"][0].update(role=7)),
    "two records of one file": ("record", _shard(lambda shards: shards.append({**shards[0], "role": 1}))),
    "a shard less than there is": ("record", _shard(lambda shards: shards.pop(0))),
    "a name that leaves the store": ("record", _shard(lambda shards: shards[0].update(file="../../../run.json"))),
    "no digest of a shard": ("record", _shard(lambda shards: shards[0].update(digest=None))),
    "no digest": ("bytes", _no_digest),
    "a digest that is null": ("bytes", _null_digest),
    "no JSON": ("bytes", _not_json),
    "a key twice": ("bytes", _doubled_key),
    "nesting without end": ("bytes", _deep),
    "a number of thousands of digits": ("bytes", _huge),
}


@rank.case
@at(3)
def a_root_is_malformed(comm: MPI.Intracomm, directory: Path) -> Any:
    """In one way after the other, with a digest that is right, where there is one."""
    found = {}
    with Scene(comm, directory) as scene:
        for name, (form, change) in MALFORMED.items():

            def damage(path: Path, form: str = form, change: Callable[[Any], Any] = change) -> None:
                data = path.read_bytes()
                if form == "bytes":
                    path.write_bytes(change(data))
                else:
                    record = json.loads(data.split(b"\n")[0])
                    change(record)
                    path.write_bytes(forge.seal(record)[0])

            found[name] = _damaged(scene, root_or_file(scene, "root"), damage)
    return found


@rank.case
@at(2, 3)
def a_cursor_that_was_reset(comm: MPI.Intracomm, directory: Path) -> Any:
    """The root says that the generation before it had consumed more inputs."""
    with Scene(comm, directory) as scene:

        def damage(path: Path) -> None:
            record = forge.read(path)
            record["parent"]["cursor"] = 10_000
            path.write_bytes(forge.seal(record)[0])

        return _damaged(scene, root_or_file(scene, "root"), damage)


# --- another owner count


def _elsewhere(comm: MPI.Intracomm, directory: Path, owners: int, look: Callable[[Scene], Any], **options: Any) -> Any:
    """Save with all owners of `comm`, then let so many of them look."""
    with Scene(comm, directory, **options):
        pass
    few = comm.Split(0 if comm.Get_rank() < owners else 1, comm.Get_rank())
    found = None
    if comm.Get_rank() < owners:
        with Scene(few, directory, begin=False, **options) as scene:
            scene.steps = [1, 2]
            found = look(scene)
    rank.meet(comm)
    few.Free()
    return found


def _whole(scene: Scene) -> dict[str, Any]:
    """Give a destination for any number of owners; `rng` keeps its own."""
    owners = 3
    return {
        "w": np.zeros(6),
        "m": Split(np.zeros(len(scene.rows()), "float32"), length=LENGTH),
        "box": Sharded(
            [(np.zeros((owners, 4)), (0, 0))] if scene.role == 0 else [], shape=(owners, 4), dtype="float64"
        ),
        "lr": 0.0,
        "rng": PerOwner(np.random.default_rng(5), on_resize="keep"),
        "model": Model(0),
    }


def _repartitioned(scene: Scene) -> list[Any]:
    state = _whole(scene)
    found = scene.open().resume(state, repartition=True)
    return [found.step, state["m"].array.tolist() == [float(row + 2) for row in scene.rows()]]


@rank.case
@at(3)
def another_owner_count(comm: MPI.Intracomm, directory: Path) -> Any:
    """Three saved, two resume, and nobody asked for it."""
    return _elsewhere(comm, directory, 2, lambda s: s.resume(_whole(s), follow=lambda: _repartitioned(s)))


@rank.case
@at(3)
def another_owner_count_where_the_placement_is_bound(comm: MPI.Intracomm, directory: Path) -> Any:
    """Not even when asked for."""
    contract = Contract(placement="bound")
    return _elsewhere(
        comm, directory, 2, lambda s: s.resume(_whole(s), repartition=True, follow=lambda: None), contract=contract
    )


@rank.case
@at(3)
def another_owner_count_and_something_of_each_owners_own(comm: MPI.Intracomm, directory: Path) -> Any:
    """Nobody can tell whose random state a new owner would get."""

    def look(scene: Scene) -> Any:
        state = {**_whole(scene), "rng": PerOwner(np.random.default_rng(5))}
        return scene.resume(state, repartition=True, follow=lambda: _repartitioned(scene))

    return _elsewhere(comm, directory, 2, look)


# --- another learner


@rank.case
@at(2, 3, 5)
def another_contract(comm: MPI.Intracomm, directory: Path) -> Any:
    """Another rate, an optimizer less, another order of sums: all are listed."""
    saved = Contract(identity={"model": "mlp", "opt": {"name": "adam", "lr": 0.1}}, numerics={"sum": "tree"})
    now = Contract(identity={"model": "mlp", "opt": {"lr": 0.2}}, numerics={"sum": "ring"})
    with Scene(comm, directory, contract=saved) as scene:
        return scene.resume(scene.good(7), ckpt=scene.open(contract=now))


def _device(role: int, product: str = "H200") -> dict[str, str]:
    return {"product": product, "uuid": f"GPU-{role}"}


@rank.case
@at(2, 3)
def another_device_product(comm: MPI.Intracomm, directory: Path) -> Any:
    """Two owners were given another kind of device; both are named in one refusal."""
    contract = Contract(device="product")
    with Scene(comm, directory, contract=contract, device=_device(comm.Get_rank())) as scene:
        product = "A100" if scene.role in (0, scene.last) else "H200"
        other = scene.open(device=_device(scene.role + 9, product))
        return scene.resume(scene.good(7), ckpt=other)


@rank.case
@at(3)
def another_device_uuid(comm: MPI.Intracomm, directory: Path) -> Any:
    """The very same devices, but two owners have changed theirs; owner 0 has written for all."""
    contract = Contract(device="uuid")
    with Scene(comm, directory, contract=contract, device=_device(comm.Get_rank()), write="gather") as scene:
        return scene.resume(scene.good(7), ckpt=scene.open(device=_device((0, 2, 1)[scene.role])))


@rank.case
@at(3)
def a_device_that_was_never_told(comm: MPI.Intracomm, directory: Path) -> Any:
    """What was saved with a free device tells none, and now one is bound."""
    with Scene(comm, directory) as scene:
        bound = scene.open(contract=Contract(device="product"), device=_device(scene.role))
        return scene.resume(scene.good(7), ckpt=bound)


@rank.case
@at(3)
def everything_that_differs_at_once(comm: MPI.Intracomm, directory: Path) -> Any:
    """Identity, numerics, owner count and the device of one owner: one refusal lists them side by side."""
    saved = Contract(identity={"lr": 0.1, "inputs": "a"}, numerics={"tree": 2}, placement="ask", device="product")
    now = Contract(identity={"lr": 0.2, "inputs": "a"}, numerics={"tree": 4}, placement="ask", device="product")
    device = _device(comm.Get_rank())
    with Scene(comm, directory, contract=saved, device=device) as scene:
        part = comm.Split(0 if scene.role < 2 else 1, scene.role)
        found = None
        if scene.role < 2:
            product = "A100" if scene.role == 1 else "H200"
            few = mpickpt.Checkpointer(
                scene.path, part, contract=now, device=_device(scene.role, product), deadline=4.0, keep=None
            )
            scene.opened.append(few)
            accept = {"identity.inputs": "no difference, and passed over"}
            found = rank.attempt(lambda: str(few.resume({"w": np.zeros(6)}, accept=accept)))
        rank.meet(comm)
        part.Free()
        return found


@rank.case
@at(3)
def a_change_that_is_accepted_but_for_one_field(comm: MPI.Intracomm, directory: Path) -> Any:
    """What is accepted is no difference; what is not accepted is refused all the same."""
    saved = Contract(identity={"lr": 0.1, "data": "old"}, numerics={"tree": 2})
    with Scene(comm, directory, contract=saved) as scene:
        now = scene.open(contract=Contract(identity={"lr": 0.2, "data": "new"}, numerics={"tree": 2}))
        return scene.resume(scene.good(7), ckpt=now, accept={"identity.lr": "decayed by hand"})


@rank.case
@at(3)
def accepted_changes_are_recorded(comm: MPI.Intracomm, directory: Path) -> Any:
    """Three fields are accepted: the run goes on, its claim tells them, and the next one has nothing to accept."""
    saved = Contract(identity={"lr": 0.1}, numerics={"tree": 2}, device="product")
    device = _device(comm.Get_rank())
    with Scene(comm, directory, contract=saved, device=device) as scene:
        now = Contract(identity={"lr": 0.2, "note": "new"}, numerics={"tree": 2}, device="product")
        product = "A100" if scene.role == 0 else "H200"
        scene.ckpt = scene.open(contract=now, device=_device(scene.role, product))
        accept = {"identity.lr": "decayed", "identity.note": "named", "device.product": "moved", "numerics.tree": "-"}
        state = scene.good(0)
        found = scene.ckpt.resume(state, accept=accept)
        whole = snapshot(state) == snapshot(scene.good(2))
        for step in (3, 4):
            scene.publish(step)
        scene.open(contract=now, device=_device(scene.role, product)).resume(scene.good(0))
        told = scene.together(
            lambda: [json.loads(p.read_bytes().split(b"\n")[0]).get("accepted")
                     for p in sorted((scene.path / "epochs").glob("*.json"))]
        )  # fmt: skip
        return [found.step, whole, told]


@rank.case
@at(2)
def accept_that_says_no_reason(comm: MPI.Intracomm, directory: Path) -> Any:
    """A change without a reason is none that anybody could understand later."""
    with Scene(comm, directory) as scene:
        return scene.resume(scene.good(7), accept={"identity.lr": ""})


@rank.case
@at(3)
def contracts_that_differ_between_owners(comm: MPI.Intracomm, directory: Path) -> Any:
    """One owner was started with another rate than the others."""
    with Scene(comm, directory, contract=Contract(identity={"lr": 0.1})) as scene:
        lr = 0.2 if scene.role == 1 else 0.1
        return scene.resume(scene.good(7), ckpt=scene.open(contract=Contract(identity={"lr": lr})))


# --- another destination


@rank.case
@at(2, 3, 5)
def a_destination_that_differs_in_everything(comm: MPI.Intracomm, directory: Path) -> Any:
    """Another shape, another dtype, a region that is missing, one that is too many, another kind."""
    with Scene(comm, directory) as scene:
        state = scene.good(7)
        state["w"] = np.zeros(7)
        state["m"] = Split(np.zeros(len(scene.rows()), "float64"), length=LENGTH)
        state["lr"] = np.zeros(())
        state["more"] = np.zeros(1)
        del state["box"]
        return scene.resume(state)


@rank.case
@at(3)
def a_destination_of_another_dtype_at_one_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """The owners do not agree on what they want."""
    with Scene(comm, directory) as scene:
        state = {**scene.good(7), "w": np.zeros(6, "float32" if scene.role == 1 else "float64")}
        return scene.resume(state)


@rank.case
@at(3)
def a_spec_of_a_smaller_float(comm: MPI.Intracomm, directory: Path) -> Any:
    """Nothing is cast without a word."""
    with Scene(comm, directory) as scene:
        return scene.resume({**scene.good(7), "w": Spec((6,), "bfloat16")})


@rank.case
@at(3)
def a_random_generator_of_another_kind(comm: MPI.Intracomm, directory: Path) -> Any:
    """At the last owner, after all else has been read well."""
    with Scene(comm, directory) as scene:
        bits = np.random.MT19937(1) if scene.role == scene.last else np.random.PCG64(1)
        return scene.resume({**scene.good(7), "rng": PerOwner(np.random.Generator(bits))})


@rank.case
@at(3)
def something_of_its_own_that_an_owner_never_saved(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner saved none, and asks for it."""
    with Scene(comm, directory) as scene:
        state = scene.good(3)
        if scene.role == scene.last:
            del state["rng"]
        scene.ckpt.save(state, step=3, cursor=30)

        def follow() -> int:
            found = scene.good(7)
            if scene.role == scene.last:
                del found["rng"]
            return scene.open().resume(found).step

        return scene.resume(scene.good(7), follow=follow)


# --- what is not there


@rank.case
@at(2, 3)
def a_step_that_never_was(comm: MPI.Intracomm, directory: Path) -> Any:
    """Asked for by number."""
    with Scene(comm, directory) as scene:
        return scene.resume(scene.good(7), step=99)


@rank.case
@at(3)
def a_root_that_never_was(comm: MPI.Intracomm, directory: Path) -> Any:
    """Asked for by digest."""
    with Scene(comm, directory) as scene:
        return scene.resume(scene.good(7), root="blake3:" + "ab" * 32)


@rank.case
@at(3)
def a_root_that_is_no_digest(comm: MPI.Intracomm, directory: Path) -> Any:
    """A mistyped argument."""
    with Scene(comm, directory) as scene:
        return scene.resume(scene.good(7), root="newest")


@rank.case
@at(3)
def a_step_of_an_empty_store(comm: MPI.Intracomm, directory: Path) -> Any:
    """A particular one was asked for: a fresh start would be another answer."""
    with Scene(comm, directory, begin=False) as scene:
        found = rank.attempt(lambda: scene.open().resume({"w": np.zeros(1)}, step=1).step)
        return found


@rank.case
@at(2, 3, 5)
def nothing_to_resume(comm: MPI.Intracomm, directory: Path) -> Any:
    """No refusal: a fresh start at all owners, and read-only nothing is made."""
    with Scene(comm, directory, begin=False) as scene:
        state = scene.good(7)
        before = snapshot(state)
        looked = scene.open().resume(state, readonly=True)
        made = scene.together(scene.path.exists)
        found = scene.open().resume(state)
        same = snapshot(state) == before and found.state is state
        return [looked.fresh, made, found.fresh, found.step, found.cursor, found.epoch, found.root, same]


# --- values that are not finite


def _nonfinite(comm: MPI.Intracomm, directory: Path, change: Callable[[Scene, dict[str, Any]], None]) -> Any:
    """Save something that is not finite where that is allowed; resume it where it is refused."""
    with Scene(comm, directory, nonfinite="allow") as scene:
        state = scene.good(3)
        change(scene, state)
        scene.ckpt.save(state, step=3, cursor=30)

        def follow() -> int:
            return scene.open(nonfinite="allow").resume(scene.good(7)).step

        return scene.resume(scene.good(7), ckpt=scene.open(nonfinite="refuse"), follow=follow)


@rank.case
@at(2, 3)
def a_saved_nan_of_one_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """In the last owner's share: every digest is right."""

    def change(scene: Scene, state: dict[str, Any]) -> None:
        if scene.role == scene.last:
            state["m"].array[-1] = np.nan

    return _nonfinite(comm, directory, change)


@rank.case
@at(3)
def a_saved_infinity_in_a_value(comm: MPI.Intracomm, directory: Path) -> Any:
    """A value that all owners hold."""

    def change(scene: Scene, state: dict[str, Any]) -> None:
        state["lr"] = float("inf")

    return _nonfinite(comm, directory, change)


# --- owners differ


@rank.case
@at(3)
def another_step_at_one_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 1 asks for the step before."""
    with Scene(comm, directory) as scene:
        return scene.resume(scene.good(7), step=1 if scene.role == 1 else 2)


@rank.case
@at(5)
def every_argument_of_each_owner_its_own(comm: MPI.Intracomm, directory: Path) -> Any:
    """Twenty-four differences from owner 0, of which twenty are named."""
    with Scene(comm, directory) as scene:
        odd, role = scene.role > 0, scene.role
        there = directory / f"run{role}" if odd else scene.path
        ckpt = mpickpt.Checkpointer(there, comm, deadline=4.0)
        scene.opened.append(ckpt)
        found = scene.resume(
            None if odd else scene.good(7),
            ckpt=ckpt,
            step=role if odd else None,
            root=f"blake3:{role:064x}" if odd else None,
            repartition=odd,
            readonly=odd,
        )
        found["made"] = sorted(path.name for path in directory.iterdir())
        return found


# --- what a caller's code does


@rank.case
@at(2, 3, 5)
def load_state_dict_raises_at_one_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """All have read well; the last owner's object does not take what it gets. Nobody may begin to train."""
    with Scene(comm, directory) as scene:
        loading = "another layout" if scene.role == scene.last else ""
        state = {**scene.good(7), "model": Model(7, loading=loading)}
        return scene.resume(state)


@rank.case
@at(3)
def an_interrupt_of_one_owner_while_it_reads(comm: MPI.Intracomm, directory: Path) -> Any:
    """Ctrl-C at owner 1: it goes on there, the others are refused."""
    return _interrupted(comm, directory, "resume.read")


@rank.case
@at(3)
def an_interrupt_of_one_owner_while_it_fills(comm: MPI.Intracomm, directory: Path) -> Any:
    """Ctrl-C at owner 1, after all have agreed: the others do not train on without it."""
    return _interrupted(comm, directory, "resume.agreed")


def _interrupted(comm: MPI.Intracomm, directory: Path, point: str) -> Any:
    with Scene(comm, directory) as scene:
        ckpt, state = scene.open(), scene.good(7)

        def interrupt() -> None:
            raise KeyboardInterrupt

        def resume() -> str:
            try:
                with rank.fault(point, interrupt, role=1, comm=comm):
                    return str(ckpt.resume(state))
            except KeyboardInterrupt:
                return "interrupted"

        return scene.refused(resume, state, follow=scene.resumes)


def _absent(comm: MPI.Intracomm, directory: Path, role: int) -> Any:
    with Scene(comm, directory, deadline=0.6) as scene:
        role %= scene.owners
        ckpt, state = scene.open(), scene.good(7)

        def resume() -> str:
            return "did not call" if scene.role == role else str(ckpt.resume(state))

        def follow() -> Any:
            missed = None
            if scene.role == role:
                missed = rank.attempt(lambda: str(ckpt.resume(state)))
            rank.meet(comm)
            return [missed, ckpt.resume(state).step]

        return scene.refused(resume, state, follow=follow)


@rank.case
@at(2, 3, 5)
def the_last_owner_never_calls_resume(comm: MPI.Intracomm, directory: Path) -> Any:
    """Nobody waits for it for ever."""
    return _absent(comm, directory, -1)


@rank.case
@at(2, 3)
def owner_0_never_calls_resume(comm: MPI.Intracomm, directory: Path) -> Any:
    """The owner that chooses is the one that is missing."""
    return _absent(comm, directory, 0)


if __name__ == "__main__":
    rank.main()
