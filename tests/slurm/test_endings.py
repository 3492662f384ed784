"""Endings at a bad moment: a second signal, no time for the save, an array's last task, a node that is lost unseen."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import virtual
from training import SCRIPTS, Training

#: A program that is no MPI's.
PLAIN = {**os.environ, "SLURM_MPI_TYPE": "none", "SLURM_WAIT": "3"}
#: Seconds until Slurm ends a job of one minute: it looks every half minute.
LIMIT = 60 + 30 + 30


# -- signals


def test_a_second_signal_on_the_way_out_changes_nothing(cluster: virtual.Cluster, mpi: str, tmp_path: Path) -> None:
    run = Training(cluster, mpi, tmp_path / "run")
    run.say("pace", 0.1)
    run.say("again", "SIGUSR1")  # to each task, between `close` and MPI.Finalize
    run.submit()
    run.trains(saves=1)
    cluster.run("scancel", "--signal=USR1", run.job)
    run.until(lambda: cluster.job(run.job)["Restarts"] == "1", "it is started again")
    assert "exit code 75: starting again" in run.log(), run.log()
    assert run.starts()[-1].last == run.starts()[-1].saves[-1]["saved"]
    cluster.run("scancel", run.job)


def test_a_signal_that_kills_tasks_while_they_import_starts_them_again(
    cluster: virtual.Cluster, tmp_path: Path
) -> None:
    program = ["sh", "-c", "echo begun; sleep 100"]
    options = ["--nodes=1", "--ntasks-per-node=2", "--time=10"]
    job = cluster.submit(*options, SCRIPTS / "train.sbatch", *program, cwd=tmp_path, env=PLAIN)
    log = tmp_path / f"train-{job}.out"
    cluster.until(lambda: log.exists() and log.read_text().count("begun") == 2, 30, "both tasks have begun")
    cluster.run("scancel", "--signal=USR1", job)  # to the tasks alone: nobody tells the script
    cluster.until(lambda: cluster.job(job)["Restarts"] == "1", 30, "it is started again")
    assert "exit code 138, by the signal that asks to stop: starting again" in log.read_text()
    assert "told to stop" not in log.read_text()
    cluster.run("scancel", job)


# -- the script alone, with tools of the test's own


class Tools:
    """The script between a Slurm that is a few lines of shell: each tool's lines, and what scontrol was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
        self.environ |= {"SLURMD_NODENAME": "n1", "SLURM_JOB_NUM_NODES": "2"}
        self.put("scontrol", f'echo "$@" >> {folder}/asked')
        self.put("squeue", "echo RUNNING")

    def put(self, name: str, lines: str) -> None:
        """Make a tool."""
        (self.folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (self.folder / name).chmod(0o755)

    def asked(self) -> list[str]:
        """Give what scontrol was asked."""
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """Run the script; end it, if it has not ended by then."""
        command = ["bash", SCRIPTS / "train.sbatch", "true"]
        with subprocess.Popen(command, env=self.environ, stdout=subprocess.PIPE, text=True) as script:
            try:
                yield script
            finally:
                script.kill()


def until(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Give the tools."""
    return Tools(tmp_path)


#: What squeue says of an array whose last task, number 3, has the array's own id, 7: of all tasks, if asked for that.
ARRAY = """\
case "$*" in
    *"-j 7_3 -o %A") echo 7 ;;
    *"-j 7_3 -o %r") echo TimeLimit ;;
    *"-j 9 -o %r") echo TimeLimit ;;
    *) printf 'None\\nTimeLimit\\n' ;;
esac"""


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"SLURM_JOB_ID": "9"}, "9"),
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "9"),
    ],
    ids=["a job", "the last task of an array", "a job that was submitted from within an array's task"],
)
def test_at_the_time_limit_the_script_asks_at_once_and_once(environ: dict[str, str], name: str, tools: Tools) -> None:
    tools.environ |= environ
    tools.put("squeue", ARRAY)
    go, begun = tools.folder / "go", tools.folder / "begun"
    tools.put("srun", f"touch {begun}; until [ -e {go} ]; do sleep 0.05; done; exit 75")
    with tools.running() as script:
        until(begun.exists)
        script.terminate()
        until(tools.asked)  # while the tasks are still in their save
        assert script.poll() is None
        go.touch()
        said, _ = script.communicate(timeout=30)
    assert script.returncode == 75
    assert tools.asked() == [f"requeue {name}"]
    assert said.count("time limit: starting again") == 1


def test_a_signal_before_the_tasks_are_started_is_heeded(tools: Tools) -> None:
    # squeue is asked before srun is started; the signal comes while it runs, and nothing is started then.
    tools.environ |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    go, begun = tools.folder / "go", tools.folder / "begun"
    asks = f"touch {begun}; until [ -e {go} ]; do sleep 0.05; done; echo 7"
    tools.put("squeue", f'case "$*" in *%A) {asks} ;; *) echo RUNNING ;; esac')
    tools.put("srun", f"touch {tools.folder / 'started'}")
    with tools.running() as script:
        until(begun.exists)
        script.send_signal(signal.SIGUSR1)
        go.touch()
        said, _ = script.communicate(timeout=30)
    assert "told to stop (USR1)" in said
    assert tools.asked() == ["requeue 7_3"], said
    assert not (tools.folder / "started").exists()


@pytest.mark.parametrize(
    ("code", "here", "everywhere", "state", "again"),
    [
        (14, 0, 1, "RUNNING", True),
        (14, 0, 0, "RUNNING", False),
        (14, 1, 1, "RUNNING", False),  # this srun cannot do what is asked: nothing is known
        (14, 0, 1, "COMPLETING", False),
        (5, 0, 1, "RUNNING", False),
        (0, 0, 1, "RUNNING", False),
        (75, 0, 0, "RUNNING", True),
        (75, 0, 0, "COMPLETING", False),
        (138, 0, 0, "RUNNING", True),
        (143, 0, 0, "RUNNING", False),
    ],
)
def test_which_endings_start_the_job_again(
    code: int, here: int, everywhere: int, state: str, again: bool, tools: Tools
) -> None:
    tools.put("squeue", f"echo {state}")
    tools.put(
        "srun",
        f'case "$*" in *--nodelist=n1*) exit {here} ;; *--nodes=2*) exit {everywhere} ;; *) exit {code} ;; esac',
    )
    with tools.running() as script:
        said, _ = script.communicate(timeout=30)
    assert script.returncode == code
    assert tools.asked() == (["requeue 7"] if again else []), said
    assert ("a node does not answer" in said) == (again and code == 14)


# -- a real Slurm


@contextmanager
def losing(cluster: virtual.Cluster, job: str) -> Iterator[str]:
    """End everything at once on a node of a job that is not its script's; Slurm finds out by itself. Gives the node."""
    found = cluster.job(job)
    nodes = cluster.run("scontrol", "show", "hostnames", found["NodeList"]).split()
    lost = next(node for node in nodes if node != found["BatchHost"])
    cluster._order("kill", lost)
    try:
        yield lost
    finally:
        cluster.run("scontrol", "update", f"nodename={lost}", "state=down", "reason=killed")
        cluster.start(lost)


def test_a_node_that_is_lost_before_slurm_knows_starts_the_job_again(cluster: virtual.Cluster, tmp_path: Path) -> None:
    program = [
        "sh",
        "-c",
        "echo begun; [ $SLURM_PROCID = 0 ] && until [ -e go ]; do sleep 0.1; done && exit 14; sleep 100",
    ]
    options = ["--nodes=3", "--ntasks-per-node=2", "--time=10"]
    job = cluster.submit(*options, SCRIPTS / "train.sbatch", *program, cwd=tmp_path, env=PLAIN)
    log = tmp_path / f"train-{job}.out"
    cluster.until(lambda: log.exists() and log.read_text().count("begun") == 6, 30, "all tasks have begun")
    with losing(cluster, job):
        (tmp_path / "go").touch()
        cluster.until(lambda: cluster.job(job)["Restarts"] == "1", 60, "it is started again")
        assert "and a node does not answer: starting again" in log.read_text(), log.read_text()
        cluster.run("scancel", job)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_run_that_loses_a_node_goes_on_elsewhere(
    cluster: virtual.Cluster, mpi: str, whole: Path, tmp_path: Path
) -> None:
    run = Training(cluster, mpi, tmp_path / "run")
    run.say("pace", 0.1)
    run.submit()
    run.trains(saves=1)
    with losing(cluster, run.job) as lost:
        cluster.until(lambda: cluster.job(run.job)["Restarts"] == "1", 120, "it is started again")
        run.say("pace", 0)
        run.again()  # Slurm has it wait for its start once it has given up the node, which takes it a minute here
        cluster.until(lambda: len(run.starts()) == 2, 120, "it goes on")
        assert lost not in run.nodes()
        run.ended("COMPLETED")
        run.check_equal(whole)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("late", [False, True], ids=["within its grace", "with a step that outlasts its grace"])
def test_a_run_that_is_preempted_goes_on_behind_the_other_job(
    cluster: virtual.Cluster, mpi: str, whole: Path, tmp_path: Path, late: bool
) -> None:
    run = Training(cluster, mpi, tmp_path / "run")
    run.say("pace", 0.1)
    run.submit()
    run.trains(saves=1)
    if late:
        run.say("pace", 200)
    nodes = f"--nodelist={','.join(run.nodes())}"
    options = ["--partition=urgent", nodes, "--exclusive", "--output=/dev/null", "--wrap=sleep 1"]
    other = cluster.submit(*options, cwd=tmp_path, env=PLAIN)
    run.until(lambda: cluster.job(run.job)["Restarts"] == "1", "it is started again")
    before = run.starts()[-1]
    assert (before.last > before.saves[-1]["saved"]) == late, "what it had trained is saved, if there was time"
    cluster.until(lambda: cluster.state(other) == "COMPLETED", LIMIT, "the other job has ended")
    run.say("pace", 0)
    run.again()
    run.ended("COMPLETED")
    run.check_equal(whole)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_step_that_outlasts_the_time_limit_is_trained_again(
    cluster: virtual.Cluster, mpi: str, whole: Path, tmp_path: Path
) -> None:
    run = Training(cluster, mpi, tmp_path / "run")
    run.say("pace", 0.1)
    run.submit("--time=1", "--signal=B:CONT@1")  # none before the limit
    run.trains(saves=1)
    run.say("pace", 200)
    cluster.until(lambda: cluster.job(run.job)["Restarts"] == "1", LIMIT, "it is started again")
    assert "time limit: starting again" in run.log()
    run.say("pace", 0)
    run.again()
    run.ended("COMPLETED")
    run.check_equal(whole)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_task_of_an_array_goes_on_after_the_time_limit(cluster: virtual.Cluster, tmp_path: Path) -> None:
    options = ["--array=0-1", "--nodes=1", "--ntasks-per-node=1", "--time=1", "--signal=B:CONT@1", "--output=%a.out"]
    program = ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"]
    job = cluster.submit(*options, SCRIPTS / "train.sbatch", *program, cwd=tmp_path, env=PLAIN)
    for task in ("0", "1"):
        name = f"{job}_{task}"
        cluster.until(lambda name=name: cluster.job(name)["Restarts"] == "1", LIMIT, f"{name} is started again")
        assert (tmp_path / f"{task}.out").read_text().count("time limit: starting again") == 1
    assert [cluster.job(f"{job}_{task}")["Restarts"] for task in ("0", "1")] == ["1", "1"]
    cluster.run("scancel", job)
