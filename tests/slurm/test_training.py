"""slurm/train.sbatch on a real Slurm: whatever happens to the job, the run ends where an uninterrupted one ends.

All runs of a session are begun first and proceed at once, each in a thread of the test process, since they wait most of
the time: for Slurm's looks at time limits, which come every half minute, above all.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import mpilaunch
import pytest
import virtual
from training import EVERY, Training, told

#: Over how many nodes the owners are spread.
SPREADS = (2, 4)

# -- what can happen to a run; each begins with a run that trains, and ends with one that trains, or is submitted


def signalled(run: Training) -> None:
    """A person has the run save and start anew."""
    begun = time.time()
    run.cluster.run("scancel", "--signal=USR1", run.job)
    ended = run.ended("PENDING")
    start = run.starts()[-1]
    assert start.last == start.saves[-1]["saved"], "the last step that was trained is not saved"
    assert "starting again" in run.log()
    told.append(
        f"{run.mpi}, {run.spread} nodes: from the signal to the end of the job {ended - begun:.2f} s, "
        f"of these the save {start.saves[-1]['seconds']:.2f} s"
    )
    run.again()


def time_limit(run: Training) -> None:
    """The time limit comes near: Slurm signals the script."""
    run.say("pace", 0.6)
    before = run.log().count("told to stop (USR1)")
    run.cluster.run("scontrol", "update", f"jobid={run.job}", "TimeLimit=1")
    run.ended("PENDING")
    start = run.starts()[-1]
    assert run.log().count("told to stop (USR1)") == before + 1
    assert start.last == start.saves[-1]["saved"]
    run.cluster.run("scontrol", "update", f"jobid={run.job}", "TimeLimit=10")
    run.say("pace", PACE)
    run.again()


def requeued(run: Training) -> None:
    """An administrator, or a preemption, has it start anew."""
    run.cluster.run("scontrol", "requeue", run.job)
    run.again()


def node_killed(run: Training) -> None:
    """The node with the script on it dies; Slurm starts the job on others."""
    node = run.nodes()[0]
    run.cluster.kill(node)
    try:
        run.again()
        run.ended("RUNNING")
        assert node not in run.nodes()
    finally:
        run.cluster.start(node)


def cancelled(run: Training) -> None:
    """A person cancels the job, and submits it again."""
    run.cluster.run("scancel", run.job)
    run.ended("CANCELLED")
    assert run.cluster.job(run.job)["Restarts"] == str(run.starts()[-1].restarts), "a cancelled job was started again"
    run.submit()


def killed_in_a_save(run: Training) -> None:
    """A task is killed in the middle of a save, as by the kernel when memory runs out; the job fails.

    The person submits it again, spread otherwise over nodes.
    """
    run.say("kill", "writer.written")
    run.ended("FAILED")
    assert not (run.folder / "kill").exists()
    run.spread = next(spread for spread in SPREADS if spread != run.spread)
    run.submit()


EVENTS: dict[str, Callable[[Training], None]] = {
    event.__name__: event for event in (signalled, time_limit, requeued, node_killed, cancelled, killed_in_a_save)
}
#: How the lineage says that a start has ended; what is killed cannot say.
ENDS = {"signalled": "SIGUSR1", "time_limit": "SIGUSR1", "requeued": "SIGTERM", "cancelled": "SIGTERM"}
PACE = 0.05


def go_through(run: Training, events: list[str], whole: Path) -> None:
    """Train, have the events happen, and come to the end."""
    what = f"{run.mpi}, {run.spread} nodes"
    run.say("pace", PACE)
    run.submit()
    for name in events:
        run.trains()
        assert len(run.nodes()) == run.spread
        EVENTS[name](run)
    run.trains(saves=1)
    run.say("pace", 0)
    run.ended("COMPLETED")
    run.check_equal(whole)
    redone = run.redone()
    told.append(
        f"{what}: steps done again after "
        + ", ".join(f"{name} {count}" for name, count in zip(events, redone, strict=True))
        + f"; a save every {EVERY}"
    )
    assert max(redone) <= EVERY
    check_lineage(run, events)


def check_lineage(run: Training, events: list[str]) -> None:
    """Check that the store tells of each start: which job, how often requeued, on which nodes, and how it ended."""
    epochs = json.loads(run.tool("ls", "--json", "--lineage", run.store))["epochs"]
    starts = [(one.job, one.restarts) for one in run.starts()]
    assert [(one["job"], one["restarts"]) for one in epochs] == starts
    assert all(one["nodes"].startswith("n[") for one in epochs)
    for name, epoch in zip(events, epochs, strict=False):
        assert (epoch["ended"] or "").startswith(ENDS.get(name, "")), (name, epoch["ended"])
        assert (epoch["ended"] is None) == (name not in ENDS), (name, epoch["ended"])


@pytest.fixture(scope="module")
def runs(
    cluster: virtual.Cluster, whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, int], Future[None]]]:
    """All events in a row on one store, for each MPI that is there, on each number of nodes."""
    folder = tmp_path_factory.mktemp("training")
    found = {}
    with ThreadPoolExecutor() as pool:
        for mpi, spread in itertools.product(mpilaunch.MPIS, SPREADS):
            try:
                mpilaunch.python_of(mpi)
            except mpilaunch.Unavailable:
                continue
            run = Training(cluster, mpi, folder / f"{mpi}-{spread}", spread)
            found[mpi, spread] = pool.submit(go_through, run, list(EVENTS), whole)
        yield found


@pytest.mark.parametrize("spread", SPREADS)
def test_all_of_it_in_a_row_ends_where_an_uninterrupted_run_ends(
    runs: dict[tuple[str, int], Future[None]], mpi: str, spread: int
) -> None:
    runs[mpi, spread].result(timeout=280)


@pytest.mark.long
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("event", EVENTS)
def test_each_by_itself(
    cluster: virtual.Cluster, mpi: str, event: str, spread: int, whole: Path, tmp_path: Path
) -> None:
    go_through(Training(cluster, mpi, tmp_path / "run", spread), [event], whole)
