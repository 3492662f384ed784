"""slurm/array.sbatch and slurm/gates.sbatch on a real Slurm; all scripts under shellcheck."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import training
import virtual
from training import SCRIPTS, Training

#: A gate that is quick, and is about nodes; `all` is the long form.
SHORT = ("resume-equivalence", "--topology", "tree")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="absent: shellcheck")
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run(["shellcheck", *SCRIPTS.glob("*.sbatch")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


#: What a program does, what somebody does to its job, and what becomes of that: state, restarts.
ENDS = {
    "done": ("exit 0", None, "COMPLETED", "0"),
    "crashed": ("exit 1", None, "FAILED", "0"),
    "overtaken": ("exit 5", None, "FAILED", "0"),
    "told to stop": ("exit 75", None, "PENDING", "1"),
    "killed by the signal that asks to stop": ("kill -USR1 $$", None, "PENDING", "1"),
    "killed by a signal that nobody told the script of": ("kill -TERM $$", None, "FAILED", "0"),
    "told to stop, and killed by it": ("sleep 100", ["--signal=USR1", "--batch"], "PENDING", "1"),
    "cancelled, and leaving with 75": ("trap 'exit 75' TERM; sleep 100 & wait", [], "CANCELLED", "0"),
}


def test_the_script_starts_again_what_is_to_be_started_again(cluster: virtual.Cluster, tmp_path: Path) -> None:
    environ = {**os.environ, "SLURM_MPI_TYPE": "none", "SLURM_WAIT": "3"}
    options = ["--nodes=1", "--ntasks-per-node=1", "--time=10"]
    jobs = {
        how: cluster.submit(
            *options, SCRIPTS / "train.sbatch", "sh", "-c", f"echo begun; {program}", cwd=tmp_path, env=environ
        )
        for how, (program, *_) in ENDS.items()
    }
    for how, (_, cancel, _, _) in ENDS.items():
        if cancel is not None:
            log = tmp_path / f"train-{jobs[how]}.out"
            cluster.until(lambda log=log: log.exists() and "begun" in log.read_text(), 30, f"{how}: it has begun")
            cluster.run("scancel", *cancel, jobs[how])
    for how, (_, _, state, restarts) in ENDS.items():
        job = jobs[how]
        cluster.until(lambda job=job, state=state: cluster.state(job) == state, 30, f"{how}: job {job} is {state}")
        assert cluster.job(job)["Restarts"] == restarts, how
        cluster.run("scancel", job)


@pytest.mark.parametrize(("restarts", "requeues"), [(None, True), ("99", True), ("100", False)])
def test_the_script_gives_up_after_a_hundred_restarts(restarts: str | None, requeues: bool, tmp_path: Path) -> None:
    for name, text in (("srun", "exit 75"), ("scontrol", f"echo $@ > {tmp_path}/asked")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    environ |= {} if restarts is None else {"SLURM_RESTART_COUNT": restarts}
    done = subprocess.run(
        ["bash", SCRIPTS / "train.sbatch", "true"], env=environ, capture_output=True, text=True, timeout=30
    )
    assert (tmp_path / "asked").exists() == requeues
    assert done.returncode == (75 if requeues else 1), done.stdout
    assert ("not started again" in done.stdout) != requeues


def test_the_script_without_a_program_says_how_it_is_used() -> None:
    done = subprocess.run(["bash", SCRIPTS / "train.sbatch"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "usage: sbatch train.sbatch" in done.stderr


def test_of_an_array_only_the_run_that_was_stopped_starts_again(
    cluster: virtual.Cluster, mpi: str, tmp_path: Path
) -> None:
    run = Training(cluster, mpi, tmp_path / "run")
    run.say("pace", 0.1)
    # The script runs `train.py` where it was submitted.
    (run.folder / "train.py").write_text(
        "import os, runpy, sys\n"
        "os.environ['PACED'] += '/' + os.environ['SLURM_ARRAY_TASK_ID']\n"
        f"runpy.run_path({str(Path(training.__file__).with_name('paced.py'))!r}, run_name='__main__')\n"
    )
    for task in ("0", "1"):
        (run.folder / task).mkdir()
        (run.folder / task / "pace").write_text("0.1")
    job = cluster.submit("--array=0-1", "--time=10", "array.sbatch", cwd=run.folder, env=run.environ)
    seen = [run.folder / task / "seen" for task in ("0", "1")]
    cluster.until(lambda: all(one.exists() and "saved" in one.read_text() for one in seen), 60, "both runs save")
    cluster.run("scancel", "--signal=USR1", "--batch", f"{job}_0")
    cluster.until(lambda: cluster.state(f"{job}_0") == "PENDING", 30, "run 0 is requeued")
    assert cluster.job(f"{job}_0")["Restarts"] == "1"
    assert cluster.state(f"{job}_1") == "RUNNING"
    assert cluster.job(f"{job}_1")["Restarts"] == "0"
    cluster.run("scancel", job)
    stores = sorted(path.name for path in (run.folder / "runs" / "array").iterdir())
    assert stores == ["0", "1"]


def gates(cluster: virtual.Cluster, mpi: str, folder: Path, *arguments: str, wait: float) -> None:
    """Run the script on four nodes; check the report that it leaves."""
    (folder / "store").mkdir()
    job = cluster.submit(
        "--time=30", "--output=log", SCRIPTS / "gates.sbatch", folder / "store", *arguments,
        cwd=folder, env=training.environment(mpi),
    )  # fmt: skip
    cluster.until(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), wait, f"job {job} has ended")
    said = (folder / "log").read_text()
    assert cluster.state(job) == "COMPLETED", said
    report = json.loads((folder / f"gates-{job}.json").read_bytes())
    assert report["ok"]
    assert len(report["hosts"]) == 4
    assert report["launcher"]["kind"] == "srun"
    training.told.append(f"{mpi}: {len(report['checks'])} checks of gates on 4 nodes: {report['seconds']:.0f} s")


def test_gates_on_four_nodes(cluster: virtual.Cluster, mpi: str, tmp_path: Path) -> None:
    gates(cluster, mpi, tmp_path, *SHORT, wait=60)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_all_gates_on_four_nodes(cluster: virtual.Cluster, mpi: str, tmp_path: Path) -> None:
    gates(cluster, mpi, tmp_path, wait=540)
