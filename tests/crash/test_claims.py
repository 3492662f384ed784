"""Two real jobs on one store: one gets the claim, the older one is fenced, and a crash around a claim does no harm."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import crashkit
import mpilaunch
import pytest

import mpickpt
from mpickpt import failpoints
from mpickpt.cluster.wiring import Wiring
from mpickpt.store.directory import Directory
from mpickpt.store.lineage import counting

TWO = Path(__file__).with_name("claiming_program.py")
ONE = Path(__file__).with_name("stopping_program.py")
ROUNDS = 50
OWNERS = 2
AROUND = (
    "resume.entered", "resume.chosen", "resume.read", "claim.listed", "commit.written", "commit.synced",
    "commit.closed", "commit.placed", "commit.directory-synced", "claim.placed", "claim.looked", "resume.agreed",
    "resume.filled",
)  # fmt: skip
"""The failpoints that owner 0 comes to in a resume, in this order."""


def two(folder: Path, mpi: str, mode: str) -> list[list[dict[str, Any]]]:
    """Run both jobs; give by round what owner 0 of each came to: all owners of a job come to the same."""
    jobs = [
        mpilaunch.start(TWO, OWNERS, mpi, [str(folder), who, mode, str(ROUNDS)], timeout=150.0, folder=folder / who)
        for who in "ab"
    ]
    try:
        found = []
        for job in jobs:
            reports = [report["rounds"] for report in job.wait().ok()]
            assert all(report == reports[0] for report in reports), reports
            found.append(reports[0])
    finally:
        for job in jobs:
            job.kill()
    return [list(each) for each in zip(*found, strict=True)]


def stores(folder: Path, steps: tuple[int, ...]) -> None:
    """Make the stores of all rounds: every second one is empty."""
    for number in range(ROUNDS):
        if number % 2:
            crashkit.publish(folder / f"run-{number}", OWNERS, steps)


def test_of_two_jobs_held_just_before_the_claim_one_gets_it(tmp_path: Path, mpi: str) -> None:
    stores(tmp_path, (1, 2))
    for number, each in enumerate(two(tmp_path, mpi, "barrier")):
        won = [one for one in each if one["resumed"].startswith("well")]
        lost = [one for one in each if one["resumed"] == "EpochError another job has continued this run first"]
        assert (len(won), len(lost)) == (1, 1), each
        assert won[0]["epoch"] == 1 + number % 2
        assert lost[0]["same"], "the loser's arrays are as they were"
        claims = Directory(tmp_path / f"run-{number}").claims()
        assert [claim.epoch for claim in claims] == list(range(1, 2 + number % 2)), "a claim for each continuation"


def test_with_random_delays_only_the_newest_epoch_publishes_on(tmp_path: Path, mpi: str) -> None:
    stores(tmp_path, (1, 2))
    fenced = 0
    for number, each in enumerate(two(tmp_path, mpi, "delays")):
        store = tmp_path / f"run-{number}"
        listed = mpickpt.open_store(store).generations()
        live = {one.root for one in listed if one.status == "live"}
        newest = counting(Directory(store).claims())[-1].epoch
        for one in each:
            said = [text for _, text in one.get("saves", [])] + ([one["last"]] if "last" in one else [])
            fenced += sum(text.startswith("EpochError") for text in said)
            # Whatever was acknowledged is on the lineage; and the older one is told at its next save.
            assert {text.partition(" ")[2] for text in said if text.startswith("well")} <= live, each
            assert one.get("last", "EpochError").startswith("well") == (one.get("epoch") == newest), each
        assert [one.step for one in listed if one.status == "live"] == sorted(
            {one.step for one in listed if one.status == "live"}
        )
        mpickpt.open_store(store).verify_all().raise_for_damage()
    assert fenced > 10, "the delays do not bring the jobs together"


@pytest.mark.parametrize(("point", "slips"), [("save.compared", False), ("commit.closed", True)])
def test_a_job_that_is_stopped_before_its_publication_cannot_publish_on(
    tmp_path: Path, mpi: str, point: str, slips: bool
) -> None:
    """The new job saves the very step that the old one tried."""
    store = tmp_path / "run"
    crashkit.publish(store, OWNERS, (1, 2))
    with mpilaunch.start(ONE, OWNERS, mpi, [str(store), point], folder=tmp_path / "old") as old:
        old.wait_stopped(0)
        for other in range(1, OWNERS):
            old.signal(other, signal.SIGSTOP)
            old.wait_stopped(other)
        new = mpilaunch.run(ONE, OWNERS, mpi, [str(store)], folder=tmp_path / "new").ok()
        assert [(one["step"], one["epoch"]) for one in new] == [(2, 3)] * OWNERS
        before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
        for each in range(OWNERS):
            old.signal(each, signal.SIGCONT)
        late = old.wait().ok()
    assert all("a newer job has continued this run" in one["refused"] for one in late), late
    assert all(("listed as orphaned" in one["refused"]) == slips for one in late), late
    # Of its own attempt, if nothing can name its files any more, the old job removes them.
    own = "none" if slips else "data/000000000003-e00000002-"
    kept = {path: data for path, data in before.items() if not path.name.startswith(".tmp-") and own not in str(path)}
    assert all(path.read_bytes() == data for path, data in kept.items()), "what stood there is as it was"
    listed = [(one.epoch, one.step, one.status) for one in mpickpt.open_store(store).generations()]
    orphan = [(2, 3, "orphaned")] if slips else []
    assert listed == [(1, 1, "live"), (1, 2, "live"), *orphan, (3, 3, "live")]
    assert {one["saved"] for one in new} == {mpickpt.open_store(store).generation(3).root}
    removed = Directory(store).sweep(orphans=True)
    assert bool(removed)
    assert [one.status for one in mpickpt.open_store(store).generations()] == ["live"] * 3


@pytest.mark.parametrize("point", AROUND)
def test_a_crash_around_the_claim_does_no_harm(tmp_path: Path, mpi: str, point: str) -> None:
    """Owner 0 is killed, and with it the job; the next start gets what was saved, and saves on."""
    store = tmp_path / "run-0"
    crashkit.publish(store, OWNERS, (1, 2))
    job = mpilaunch.run(
        TWO, OWNERS, mpi, [str(tmp_path), "a", "crash", "1"], {"POINT": point}, folder=tmp_path / "killed"
    )
    assert job.returncode != 0, f"nobody was killed: {point} is not reached\n{job.output}"
    claimed = len(Directory(store).claims())
    assert claimed == (1 if AROUND.index(point) < AROUND.index("commit.placed") else 2)
    crashkit.check_crashed(store, tmp_path, OWNERS, (1, 2))
    newest = Directory(store).claims()[-1]
    assert (newest.epoch, newest.from_epoch, newest.from_step) == (claimed + 1, 1, 2)
    assert all(generation.status == "live" for generation in mpickpt.open_store(store).generations())


def test_what_an_older_job_rotates_just_before_the_claim_is_told_as_rotated(tmp_path: Path) -> None:
    """It is no trouble of the file system, and nothing is claimed. Found by chaos with rivals."""
    store = tmp_path / "run"
    crashkit.publish(store, 1, (1,))

    def rotate(point: str) -> None:
        if point == "resume.read":
            for path in (store / "roots").glob("0*.json"):
                path.unlink()

    def resume(wiring: Wiring) -> None:
        with mpickpt.Checkpointer(store, wiring) as ckpt:
            failpoints.hook = rotate
            ckpt.resume(crashkit.state(0, 1, 0))

    with pytest.raises(mpickpt.NotFoundError, match="rotated"):
        crashkit.local(1, resume)
    assert len(Directory(store).claims()) == 1
