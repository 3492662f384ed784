"""What people do by mistake, and what Slurm does when there is no time left: refused, said, nothing harmed."""

from __future__ import annotations

import time
from pathlib import Path

import mpilaunch
import virtual
from training import EVERY, EXAMPLE, OWNERS, Training, told

WRONG = {"openmpi": "pmi2", "mpich": "none"}


def test_of_two_jobs_on_one_store_the_newer_one_trains_on(
    cluster: virtual.Cluster, mpi: str, whole: Path, tmp_path: Path
) -> None:
    older = Training(cluster, mpi, tmp_path / "run")
    saved = mpilaunch.run(EXAMPLE, OWNERS, mpi, [str(older.store), "--steps", str(EVERY)])
    assert saved.returncode == 0, saved.output
    older.say("pace", 0.3)
    older.every = 1000  # it makes no save, which would find the claim: only what `due` sees can end it
    first = older.submit()
    older.trains(saves=0)
    older.every = EVERY
    second = older.submit()
    older.trains(saves=1)

    older.job = first
    older.ended("FAILED")
    assert cluster.job(first)["ExitCode"] == "5:0"
    assert cluster.job(first)["Restarts"] == "0"
    assert older.log(first).count("EpochError") == 1
    one, other = older.starts()
    assert (one.job, one.resumed, one.saves) == (first, EVERY, [])
    assert (other.job, other.resumed) == (second, EVERY)
    claimed = older.claimed(3)
    assert claimed is not None
    late = [at for at in one.asked if at >= claimed + 1]
    assert len(one.asked) - len(late) > 0
    told.append(
        f"{mpi}: two jobs on one store: the older one called due last {one.asked[-1] - claimed:.2f} s after the claim "
        f"of the newer one; calls a second or more after it: {len(late)}"
    )
    assert len(late) <= 2

    older.job = second
    older.say("pace", 0)
    older.ended("COMPLETED")
    older.check_equal(whole)


def test_the_wrong_mpi_is_one_clear_error(cluster: virtual.Cluster, mpi: str, tmp_path: Path) -> None:
    run = Training(cluster, mpi, tmp_path / "run")
    run.environ["SLURM_MPI_TYPE"] = WRONG[mpi]
    run.submit()
    run.ended("FAILED")
    assert run.cluster.job(run.job)["Restarts"] == "0"
    assert run.cluster.job(run.job)["ExitCode"] == "1:0"
    said = run.log()
    assert said.count("StateError") == 1, said
    assert "Traceback" not in said, said
    assert said.count("start Open MPI with `srun --mpi=pmix`, MPICH with `srun --mpi=pmi2`") == 1, said
    assert not run.store.exists()


def test_a_save_that_would_not_end_in_time_is_not_begun(cluster: virtual.Cluster, mpi: str, tmp_path: Path) -> None:
    run = Training(cluster, mpi, tmp_path / "run")
    run.say("takes", 20)
    run.say("pace", 0.1)
    run.environ["MPICKPT_END_TIME"] = str(time.time() + 20)
    run.submit()
    run.until(lambda: cluster.job(run.job)["Restarts"] == "1", "it is to be started again")
    start = run.starts()[-1]
    assert start.steps, "it did not train"
    assert not start.saves
    assert not list((run.store / "roots").iterdir())
    said = [line for line in run.log().splitlines() if "no save is begun any more" in line]
    assert len(said) == 1, run.log()
    told.append(f"{mpi}: {said[0]}")
    cluster.run("scancel", run.job)
