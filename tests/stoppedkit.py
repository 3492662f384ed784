"""Cases of stopped owners, many in one job: starting them, running them in an owner, and checking what it tells."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import mpilaunch
import rank

Plan: TypeAlias = dict[str, Any]
Outcomes: TypeAlias = dict[tuple[str, str], list[dict[str, Any]]]
"""What every owner saw, by MPI and name of the plan."""

PROGRAM = Path(__file__).parent / "crash" / "stopped_program.py"
DEADLINE = 2.0
SLACK = 2.0


def run_all(
    jobs: Mapping[str, int],
    plans_of: Callable[[str], Sequence[Plan]],
    owners: int,
    timeout: Callable[[int], float],
    program: Path = PROGRAM,
) -> Outcomes:
    """Run all plans of each MPI, in so many jobs side by side, for they mostly wait; `timeout` is of a job's plans."""
    found: Outcomes = {}
    with contextlib.ExitStack() as stack:
        started = []
        for mpi, count in jobs.items():
            with contextlib.suppress(mpilaunch.Unavailable):  # the tests of this MPI are skipped and say so
                for share in range(count):
                    plans = plans_of(mpi)[share::count]
                    env = {"CRASH": json.dumps(plans)}
                    job = mpilaunch.start(program, owners, mpi, env=env, timeout=timeout(len(plans)))
                    started.append((mpi, plans, stack.enter_context(job)))
        for mpi, plans, job in started:
            result = job.wait()
            for plan in plans:
                reports = [((one or {}).get("outcomes") or {}).get(plan["name"]) for one in result.reports]
                found[mpi, plan["name"]] = [report or {"output": result.output} for report in reports]
    return found


def run_plans(case: Callable[[Any, Path, Plan], Any]) -> None:
    """Run the plans of this job in one of its owners: ``case(comm, directory, plan)``, each in its own directory."""
    comm = rank.world()
    outcomes: dict[str, Any] = {}
    for number, plan in enumerate(json.loads(os.environ["CRASH"])):
        directory = rank.folder() / f"case-{number}"
        if comm.Get_rank() == 0:
            directory.mkdir()
        rank.meet(comm)
        outcomes[plan["name"]] = rank.attempt(lambda at=directory, plan=plan: case(comm, at, plan))
        rank.report(outcomes=outcomes)
        if "raised" in outcomes[plan["name"]]:
            comm.Abort(1)  # the others may wait for this owner
        rank.clear()


def values(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give what each owner returned; none may have raised outside the calls."""
    for role, one in enumerate(found):
        assert "raised" not in one, f"owner {role}: {one['raised']['traceback']}"
    for role, one in enumerate(found):
        assert "value" in one, f"owner {role} did not come to the end of this: {one['output']}"
    return [one["value"] for one in found]


def check_lost(call: dict[str, Any], role: int, within: float | None = None) -> dict[str, Any]:
    """Check that a call raised because of one owner; give the refusal's record."""
    assert "raised" in call, call
    record = call["raised"].get("record") or {}
    assert record.get("class") == "DeadlineError", call["raised"]["traceback"]
    assert record["role"] == role, record
    assert record["host"]
    assert record["unharmed"]
    assert record["advice"]
    assert within is None or call["seconds"] < within, call["seconds"]
    return record


def check_end(found: list[dict[str, Any]], published: dict[int, str]) -> None:
    """Check that all saved together at last, and what is listed then: the newest two, for so many are kept."""
    step, root = found[0]["last"]
    assert [one["last"] for one in found] == [[step, root]] * len(found)
    expected = sorted({**published, step: root}.items())[-2:]
    listed = [(step, root) for step, root in found[0]["listed"] if step > 2]
    assert listed == [(step, root) for step, root in expected if step > 2]
    assert found[0]["left"] == []
