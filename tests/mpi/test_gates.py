"""The gates pass here, on Open MPI and MPICH, on star and tree; every broken build is caught; a hang is a failure.

Each MPI runs all gates once: on trees under the one, on stars under the other, and both on both in the long form.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

import mpickpt
from mpickpt.gates import ground, launch, oracle, problem
from mpickpt.gates.gate import GATES
from mpickpt.gates.parameter_partitioning import PATHS
from mpickpt.gates.refusals import ROWS
from mpickpt.gates.report import NotRun, Report

TOPOLOGY = {"openmpi": "tree", "mpich": "star"}
SOURCES = sorted(Path(mpickpt.__file__).parent.glob("gates/*.py"))


def command(mpi: str | None, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command as an operator would: nothing of tests/ can be imported. None: where no MPI is needed."""
    env = mpilaunch.environment(mpi or "mpich", environ)
    python = sys.executable if mpi is None else mpilaunch.python_of(mpi)
    env["PYTHONPATH"] = str(Path(mpickpt.__file__).parents[1])
    return subprocess.run(
        [str(python), "-m", "mpickpt", "gate", *arguments],
        env=env, cwd="/", capture_output=True, text=True, timeout=280,
    )  # fmt: skip


@functools.cache
def report(mpi: str, topology: str) -> dict[str, Any]:
    """Run all gates; give the report, with the command's exit code and what it printed."""
    with tempfile.TemporaryDirectory(prefix="mpickpt-gates-") as folder:
        where = Path(folder) / "report.json"
        done = command(mpi, "all", "--store", folder, "--topology", topology, "--report", str(where))
        assert where.exists(), done.stdout + done.stderr
        return {**json.loads(where.read_bytes()), "code": done.returncode, "printed": done.stdout}


def checks(found: dict[str, Any], gate: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in found["checks"] if check["gate"] == gate}


def judge(found: dict[str, Any], gate: str) -> None:
    """Check that a gate passed and that it had a control, which was caught."""
    mine = checks(found, gate)
    durable = found["driver"]["file_system"]["durable"]
    # Only on a file system in memory the gate must fail, for this and for nothing else.
    failed = {name for name, check in mine.items() if not check["ok"]}
    in_memory = gate == "file-system" and durable == "none"
    expected = {"a file can be placed without replacing, and outlives the machine's power"} if in_memory else set()
    assert failed == expected, [check for check in mine.values() if not check["ok"]]
    controls = [check for check in mine.values() if check["control"]]
    assert controls, "a gate without a control"
    assert all(check["detail"].startswith("caught: ") for check in controls)
    assert len(mine) > len(controls)


@pytest.mark.parametrize("gate", GATES)
def test_gate_passes_and_its_broken_builds_are_caught(mpi: str, gate: str) -> None:
    judge(report(mpi, TOPOLOGY[mpi]), gate)


def test_report_says_with_what_where_and_how(mpi: str) -> None:
    found = report(mpi, TOPOLOGY[mpi])
    assert found["code"] == (0 if found["ok"] else 1)
    assert found["gates"] == list(GATES)
    assert found["topologies"] == [TOPOLOGY[mpi]]
    assert found["driver"]["mpickpt"] == mpickpt.__version__
    assert found["driver"]["file_system"]["way"] in ("renameat2", "link")
    (host,) = found["hosts"]
    assert {"openmpi": "Open MPI", "mpich": "MPICH"}[mpi] in host["mpi"]
    assert host["host"]
    assert host["mpi4py"]
    assert host["numpy"]
    lines = found["printed"].splitlines()
    assert len([line for line in lines if line.startswith(("ok ", "caught ", "FAILED "))]) == len(found["checks"])
    assert f"{len(found['checks'])} checks" in lines[-1]


def test_learners_go_through_the_owner_counts_that_are_promised(mpi: str) -> None:
    assert {name: PATHS[name] for name in ("momentum", "adam")} == {"momentum": (4, 3, 5), "adam": (4, 2, 7)}
    assert PATHS["sgd"] == PATHS["optimizer-only"] == (4, 3)
    names = checks(report(mpi, TOPOLOGY[mpi]), "parameter-partitioning")
    assert {f"{learner}, {TOPOLOGY[mpi]}: {' -> '.join(map(str, path))} owners" for learner, path in PATHS.items()} <= (
        names.keys()
    )


def test_every_row_of_the_table_of_resuming_is_made(mpi: str) -> None:
    names = checks(report(mpi, TOPOLOGY[mpi]), "refusals")
    assert {f"{row}, {TOPOLOGY[mpi]}" for row in ROWS} <= names.keys()
    assert {row.refusal for row in ROWS.values()} >= {
        "IntegrityError", "FormatError", "PlacementError", "ContractError", "MomentError", "EpochError",
        "NonFiniteError", "SchemaError", "NotFoundError",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("topology", ["both"])
def test_all_gates_on_star_and_tree(mpi: str, topology: str) -> None:
    found = report(mpi, topology)
    for gate in GATES:
        judge(found, gate)
    assert found["topologies"] == list(ground.TOPOLOGIES)


def test_owner_counts_can_be_asked_for(mpi: str, tmp_path: Path) -> None:
    done = command(mpi, "parameter-partitioning", "--store", str(tmp_path), "--owners", "2,5", "--topology", "star")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "adam, star: 2 -> 5 owners" in done.stdout


# --- what cannot pass


def fake(tmp_path: Path, script: str) -> dict[str, str]:
    """Put a program named srun on the path."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


def test_a_launcher_that_hangs_is_killed_with_all_below_it_and_is_a_failure(tmp_path: Path) -> None:
    hangs = f"trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/below; sleep 600; sleep 600' & wait; wait; wait"
    begun = time.monotonic()
    done = command(
        None, "file-system", "--store", str(tmp_path / "store"), "--launcher", "srun", "--deadline", "1.5",
        "--report", str(tmp_path / "report.json"), **fake(tmp_path, hangs),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - begun < 60
    assert "FAILED  file-system: 50 races" in done.stdout
    assert "killed at its deadline" in done.stdout
    pid = int((tmp_path / "below").read_text())
    assert mpilaunch._state(pid) in ("gone", "Z")
    assert json.loads((tmp_path / "report.json").read_bytes())["ok"] is False


def test_a_launcher_that_starts_nobody_is_a_failure_of_every_gate(tmp_path: Path) -> None:
    done = command(
        None, "all", "--store", str(tmp_path / "store"), "--launcher", "srun", "--json",
        **fake(tmp_path, "echo srun: error: no nodes; exit 1"),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    for gate in GATES:
        assert any(not check["ok"] for check in found["checks"] if check["gate"] == gate), gate
    controls = [check for check in found["checks"] if check["control"]]
    assert controls
    assert not any(check["ok"] for check in controls), "what was not run was not caught"
    assert "no nodes" in done.stdout
    assert found["hosts"] == []


def test_srun_and_its_arguments_reach_the_owners(mpi: str, tmp_path: Path) -> None:
    mpirun = mpilaunch.python_of(mpi).parent / "mpirun"
    script = f'printf "%s\\n" "$*" >> {tmp_path}/arguments; n=$2; shift 3; exec {mpirun} -n $n "$@"'
    done = command(
        mpi, "file-system", "--store", str(tmp_path / "store"), "--launcher", "srun", "--launcher-args", "--mpi=pmix",
        "--owners", "3", **fake(tmp_path, script),
    )  # fmt: skip
    assert "ok      file-system: 50 races of 3" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "arguments").read_text().startswith("-n 3 --mpi=pmix ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["all"],
        ["none", "--store", "x"],
        ["all", "--store", "x", "--owners", "3,0"],
        ["all", "--store", "x", "--owners", "1"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert command(None, *arguments).returncode == 2


def test_a_control_that_is_not_caught_fails_the_gate_and_an_empty_report_does_not_pass() -> None:
    said: list[str] = []
    report = Report(said.append)
    assert not report.ok
    report.gate = "g"
    assert report.check("sound", [])
    assert report.ok
    assert report.control("broken", ["it differs"])
    assert report.ok
    assert not report.control("broken too", [])
    assert not report.ok
    assert not report.control("not run", ["it differs", NotRun("owner 1 did not come to the end of it")])
    assert said[0] == "ok      g: sound"
    assert said[2] == "FAILED  g: broken too  (a broken build was not caught)"


# --- the oracle


def imported(source: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(source.read_text())))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_oracle_shares_nothing_with_the_learners_but_the_problem() -> None:
    mine = {name for name in imported(Path(oracle.__file__)) if name.startswith("mpickpt")}
    assert mine <= {"mpickpt.gates", "mpickpt.gates.problem"} | {f"mpickpt.gates.problem.{n}" for n in dir(problem)}
    assert not {n for n in imported(Path(problem.__file__)) if n.startswith("mpickpt")}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_gates_import_nothing_of_the_tests(source: Path) -> None:
    tests = {path.stem for path in mpilaunch.HERE.rglob("*.py")} | {"tests", "pytest", "hypothesis"}
    assert not {name.split(".")[0] for name in imported(source)} & tests


def test_oracle_is_a_learner_that_learns_and_whose_order_of_sums_counts() -> None:
    def loss(w: list[Any]) -> float:
        x, y = problem.inputs()
        return float((((x @ w) - y) ** 2).mean())

    for learner in problem.LEARNERS:
        one = oracle.replay(learner, "star", [(4, 40)])
        assert loss(one.w) < 0.75 * loss(list(problem.initial())), learner
        assert one.cursor == 40 * problem.BATCH
        parts = oracle.replay(learner, "star", [(4, 20), (4, 20)])
        assert parts.regions() == one.regions()
        others = [oracle.replay(learner, "star", [(3, 40)]), oracle.replay(learner, "tree", [(7, 40)])]
        others.append(oracle.replay(learner, "star", [(7, 40)]))
        different = {one.regions()["model/w"], *(other.regions()["model/w"] for other in others)}
        assert len(different) == 4, "an oracle that cannot tell placements apart"


def test_killed_launchers_leave_nothing_below_them(tmp_path: Path) -> None:
    process = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & sleep 600 & wait"], start_new_session=True)
    limit = time.monotonic() + 20
    while len(list(launch.below(process.pid))) < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    pids = list(launch.below(process.pid))
    assert len(pids) == 2
    launch.kill(process)
    assert process.returncode == -signal.SIGTERM
    while any(mpilaunch._state(pid) not in ("gone", "Z") for pid in pids) and time.monotonic() < limit:
        time.sleep(0.01)
    assert all(mpilaunch._state(pid) in ("gone", "Z") for pid in pids)
