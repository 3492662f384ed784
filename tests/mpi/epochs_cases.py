"""Who may go on from what: rivals, older jobs, generations off the lineage, damage that is gone past, on real owners.

The rival, or the older job, is one owner alone in the process of owner 0. test_epochs.py says what must come.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forge
import rank
from scene import Scene, at, snapshot
from spoil import DAMAGE, flip, root_or_file

import mpickpt
from mpickpt import Contract, errors, open_store
from mpickpt.cluster import claims
from mpickpt.store import fencing
from mpickpt.store.directory import Directory

if TYPE_CHECKING:
    from mpi4py import MPI


class Alone:
    """A job of one owner on the same store."""

    def __init__(self, scene: Scene) -> None:
        self.ckpt = mpickpt.Checkpointer(scene.path, alone=True, keep=None, deadline=scene.options["deadline"])
        self.run = self.ckpt.resume(repartition=True)

    def save(self) -> None:
        """Publish the next step."""
        self.ckpt.save(self.run.state, step=self.run.step + 1, cursor=self.run.cursor + 10)


def rival(scene: Scene) -> None:
    """Continue the run from elsewhere, and leave."""
    with Alone(scene).ckpt:
        pass


def goes_on(scene: Scene, whole: bool = False) -> Callable[[], Any]:
    """Resume again after the refusal; give the step, and that of the save that follows.

    `whole`: the newest generation is that of one owner alone.
    """

    def follow() -> list[Any]:
        scene.ckpt = scene.open()
        found = scene.ckpt.resume(None if whole else scene.good(7), repartition=whole)
        scene.publish(found.step + 1)
        return [found.step, scene.open().resume(scene.good(7)).step]

    return follow


def listed(scene: Scene) -> Any:
    """List (epoch, step, status) of all generations."""
    return scene.together(lambda: [(one.epoch, one.step, one.status) for one in open_store(scene.path).generations()])


# --- saves


@rank.case
@at(2, 3, 5)
def a_newer_job_has_continued_the_run(comm: MPI.Intracomm, directory: Path) -> Any:
    """Between two saves."""
    with Scene(comm, directory) as scene:
        scene.together(lambda: rival(scene))
        return scene.save(scene.good(3), follow=goes_on(scene))


def _meanwhile(comm: MPI.Intracomm, directory: Path, point: str) -> Any:
    with Scene(comm, directory) as scene:
        with rank.fault(point, lambda: rival(scene), role=0, comm=comm):
            found = scene.save(scene.good(3), follow=goes_on(scene))
        found["listed"] = listed(scene)
        return found


@rank.case
@at(2, 3)
def a_newer_job_continues_while_this_one_writes(comm: MPI.Intracomm, directory: Path) -> Any:
    """Its claim stands before the root is published: it never is."""
    return _meanwhile(comm, directory, "save.shards-written")


@rank.case
@at(2, 3)
def a_newer_job_continues_just_before_the_root_is_in_place(comm: MPI.Intracomm, directory: Path) -> Any:
    """After the last look: the root slips through, and is listed as orphaned."""
    return _meanwhile(comm, directory, "commit.written")


@rank.case
@at(3)
def a_save_after_a_resume_that_only_looked(comm: MPI.Intracomm, directory: Path) -> Any:
    """`readonly=True` takes no epoch and writes nothing; so nothing can be saved."""
    with Scene(comm, directory) as scene:
        ckpt, before = scene.open(), scene.together(scene.tree)
        ckpt.resume(scene.good(7), readonly=True)
        after = scene.together(scene.tree)
        found = scene.refused(lambda: ckpt.save(scene.good(3), step=3, cursor=30).root, {}, follow=goes_on(scene))
        return found | {"looking changed": before != after}


# --- resumes


@rank.case
@at(2, 3, 5)
def a_rival_claims_first(comm: MPI.Intracomm, directory: Path) -> Any:
    """While this one reads."""
    with Scene(comm, directory) as scene, rank.fault("resume.read", lambda: rival(scene), role=0, comm=comm):
        return scene.resume(scene.good(7), follow=goes_on(scene))


def _older(comm: MPI.Intracomm, directory: Path, point: str) -> Any:
    with Scene(comm, directory) as scene:
        older = scene.together(lambda: Alone(scene))
        with rank.fault(point, lambda: older.save(), role=0, comm=comm):
            found = scene.resume(scene.good(7), follow=goes_on(scene, whole=True))
        if older is not None:
            found["older job"] = rank.attempt(older.save)
            older.ckpt.close()
        found["listed"] = listed(scene)
        return found


@rank.case
@at(2, 3)
def an_older_job_saves_while_this_one_reads(comm: MPI.Intracomm, directory: Path) -> Any:
    """That save is acknowledged, and is not lost: the claim goes on from it."""
    return _older(comm, directory, "resume.read")


@rank.case
@at(3)
def an_older_job_saves_just_before_the_claim(comm: MPI.Intracomm, directory: Path) -> Any:
    """After the last look before it: there is a second claim."""
    return _older(comm, directory, "claim.listed")


@rank.case
@at(2, 3)
def a_generation_off_the_lineage(comm: MPI.Intracomm, directory: Path) -> Any:
    """Step 2, after the run went on from step 1: by its step and by its root."""
    with Scene(comm, directory) as scene:
        root = scene.ckpt.generations()[-1].root
        scene.ckpt = scene.open()
        scene.ckpt.resume(scene.good(7), step=1)
        scene.steps = [1]
        found = {"by step": scene.resume(scene.good(7), step=2, follow=lambda: None)}
        found["by root"] = scene.resume(scene.good(7), root=root, follow=goes_on(scene))
        return found


@rank.case
@at(3)
def a_root_of_another_past(comm: MPI.Intracomm, directory: Path) -> Any:
    """Its digests are right, but it tells of other epochs, or of a later generation before it."""
    with Scene(comm, directory) as scene:
        scene.ckpt = scene.open()
        scene.ckpt.resume(scene.good(7))
        scene.publish(3)
        path, found = root_or_file(scene, "root", 3), {}
        kept = scene.together(path.read_bytes)
        for name, change in _PASTS.items():
            scene.together(lambda change=change: _forge(path, change))
            found[name] = scene.resume(scene.good(7), follow=lambda: None)
            scene.together(lambda: path.write_bytes(kept))
        return found


def _forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    record = forge.read(path)
    change(record)
    path.write_bytes(forge.seal(record)[0])


_PASTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "other epochs": lambda root: root.update(lineage=[[1, None, None], [2, 1, 1]]),
    "a later generation before it": lambda root: root["parent"].update(step=3, epoch=2),
    "an older epoch": lambda root: root.update(lineage=[[1, None, None]]),
}


@rank.case
@at(2, 3)
def nobody_hears_whether_the_claim_was_made(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 is silent before it claims: the others make the claim void, and it refuses as they do."""
    with Scene(comm, directory, deadline=1.0) as scene:
        with rank.fault("claim.listed", lambda: rank.stop(3.0), role=0, comm=comm):
            found = scene.resume(scene.good(7), follow=goes_on(scene))
        store = Directory(scene.path)
        found["void"] = scene.together(lambda: [claim.void is not None for claim in store.claims()])
        return found


# --- damage that is gone past


@rank.case
@at(3)
def on_damage_previous(comm: MPI.Intracomm, directory: Path) -> Any:
    """One file of step 2 after the other is damaged: all owners go on from step 1, and save step 2 again."""
    found = {}
    for name, (kind, damage) in DAMAGE.items():
        if kind in ("claim", "run.json"):
            continue
        place = directory / name.replace(" ", "-")
        scene_path = scene_of(comm, place)
        with Scene(comm, place) as scene:
            assert scene.path == scene_path
            scene.together(lambda s=scene, k=kind, d=damage: d(root_or_file(s, k)))
            found[name] = gone_past(scene)
    return found


def scene_of(comm: MPI.Intracomm, place: Path) -> Path:
    """Make a directory, at owner 0, for a scene."""
    if comm.Get_rank() == 0:
        place.mkdir()
    rank.meet(comm)
    return place / "run"


def gone_past(scene: Scene) -> dict[str, Any]:
    """Go on from the newest generation that verifies, and save."""
    warned: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mpickpt").addHandler(handler)
    state = scene.good(7)
    try:
        scene.ckpt = scene.open()
        run = scene.ckpt.resume(state, on_damage="previous")
    finally:
        logging.getLogger("mpickpt").removeHandler(handler)
    same = snapshot(state) == snapshot(scene.good(run.step))
    scene.publish(run.step + 1)
    again = scene.open().resume(scene.good(7)).step
    return {"step": run.step, "epoch": run.epoch, "same": same, "again": again, "warned": warned, "list": listed(scene)}


@rank.case
@at(2, 5)
def two_generations_are_gone_past(comm: MPI.Intracomm, directory: Path) -> Any:
    """The root of step 4 and a shard of the last owner at step 3: all go on from step 2."""
    with Scene(comm, directory) as scene:
        scene.publish(3)
        scene.publish(4)
        scene.together(lambda: flip(root_or_file(scene, "root", 4)))
        shard = root_or_file(scene, "shard", 3).with_name(f"{scene.last:06}.safetensors")
        scene.together(lambda: flip(shard))
        return gone_past(scene)


@rank.case
@at(3)
def nothing_verifies_to_go_on_from(comm: MPI.Intracomm, directory: Path) -> Any:
    """All are damaged: refused, with `on_damage="previous"` too; and what was asked for by step is never replaced."""
    with Scene(comm, directory) as scene:
        scene.together(lambda: flip(root_or_file(scene, "shard", 2)))
        found = {"by step": scene.resume(scene.good(7), step=2, on_damage="previous", follow=lambda: None, older=False)}
        scene.together(lambda: flip(root_or_file(scene, "shard", 1)))
        found["both"] = scene.resume(scene.good(7), on_damage="previous", follow=lambda: None, older=False)
        return found


# --- a contract that is meant to differ


@rank.case
@at(3)
def a_difference_that_is_accepted(comm: MPI.Intracomm, directory: Path) -> Any:
    """It is recorded in the claim; a second difference that nobody accepted is refused alone."""
    with Scene(comm, directory, contract=Contract(identity={"lr": 0.1, "model": "net"})) as scene:
        accept = {"identity.lr": "warm restart"}
        other = scene.open(contract=Contract(identity={"lr": 0.2, "model": "other"}))
        found = scene.resume(scene.good(7), ckpt=other, accept=accept, follow=lambda: None)
        ckpt = scene.open(contract=Contract(identity={"lr": 0.2, "model": "net"}))
        found["step"] = ckpt.resume(scene.good(7), accept=accept).step
        ckpt.save(scene.good(3), step=3, cursor=30)
        newest = scene.together(lambda: sorted((scene.path / "epochs").iterdir())[-1].read_text().splitlines()[0])
        found["accepted"] = newest and json.loads(newest)["accepted"]
        # From now on the new contract is the run's.
        found["after"] = scene.open(contract=Contract(identity={"lr": 0.2, "model": "net"})).resume(scene.good(7)).step
        return found


# --- what a claim tells


@rank.case
@at(2)
def a_claim_tells_who_and_why(comm: MPI.Intracomm, directory: Path) -> Any:
    """And how the job before ended; and owner 0 can look for a newer one at most once a second."""
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "3", "SLURM_JOB_NODELIST": "n[1-2]"}
    os.environ |= slurm
    try:
        with Scene(comm, directory) as scene:
            looks: list[int] = []
            scene.together(lambda: rival(scene))
            mine, real = scene.ckpt._lineage.claims, fencing.fenced

            def counting(directory: Directory, epoch: int) -> errors.EpochError | None:
                looks.append(epoch)
                return real(directory, epoch)

            fencing.fenced, claims._LOOKS = counting, 3600.0
            try:
                told = [scene.together(mine.fenced) for _ in range(3)]
            finally:
                fencing.fenced, claims._LOOKS = real, 1.0
            scene.together(lambda: rival(scene))
            newest = Directory(scene.path).claims()
            return {
                "told": [type(one).__name__ for one in told],
                "looks": len(looks),
                "claims": [
                    [one.job, one.restarts, one.nodes, one.host != "", one.time[:2], one.reason, one.stopped]
                    for one in newest
                ],
            }
    finally:
        for name in slurm:
            del os.environ[name]


if __name__ == "__main__":
    rank.main()
