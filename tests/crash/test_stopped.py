"""SIGSTOP of an owner at each failpoint of a save, and SIGCONT later.

Proven each time, for owner 0 and for another: the others raise DeadlineError naming it within the deadline plus two
seconds; or, where it had committed, or had published as owner 0, the save is published and their next call raises so.
When it goes on, it learns the same of the save in which it was stopped, raises for the calls that it has missed, and
then all save together again. What is listed is whole, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import crashkit
import mpilaunch
import pytest

PROGRAM = Path(__file__).with_name("stopped_program.py")
DEADLINE = 2.0
SLACK = 2.0
OWNERS = 3
JOBS = {"openmpi": 7, "mpich": 3}
Plan = dict[str, Any]


def stop(point: str, role: int, **more: Any) -> Plan:
    name = " ".join([point, f"owner {role}", *(f"{key}={value}" for key, value in more.items())])
    return {"name": name, "stop": {role: point}, **more}


PLANS = [
    *(stop(point, role) for point in crashkit.POINTS for role in (0, 1) if crashkit.POINTS[point].when(role)),
    # Two calls are missed.
    *(stop(point, role, calls=2) for point, role in [("save.agreed", 0), ("writer.chunk", 1), ("save.committed", 1)]),
    stop("commit.placed", 0, calls=2),
    # A committed owner is watched no more, though another takes longer than the deadline.
    stop("save.committed", 1, slow=2),
    # Owner 0 writes for all.
    *(stop(point, 0, write="gather") for point in ("save.agreed", "writer.chunk", "commit.closed", "commit.placed")),
    *(stop(point, 1, write="gather") for point in ("save.agreed", "save.committed")),
]
MPICH = ("save.entered", "writer.chunk", "commit.closed", "save.committed", "commit.placed", "save.released")
DOUBTS: dict[str, Plan] = {
    "the one who doubts": {"stop": {0: "save.compared", 1: crashkit.DOUBT}},
    "owner 0 as it makes an abort final": {"stop": {2: "writer.created", 0: crashkit.DOUBT}},
}


def plans_of(mpi: str) -> list[Plan]:
    plans = [*PLANS, *({"name": name, **plan} for name, plan in DOUBTS.items())]
    if mpi == "mpich":
        plans = [plan for plan in plans if set(plan["stop"].values()) & {*MPICH, crashkit.DOUBT}]
    return plans


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What every owner saw, by MPI and name of the plan: all jobs run side by side, for they mostly wait."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with contextlib.ExitStack() as stack:
        jobs = []
        for mpi, count in JOBS.items():
            with contextlib.suppress(mpilaunch.Unavailable):  # the tests of this MPI are skipped and say so
                for share in range(count):
                    plans = plans_of(mpi)[share::count]
                    env = {"CRASH": json.dumps(plans)}
                    job = mpilaunch.start(PROGRAM, OWNERS, mpi, env=env, timeout=40 + 15 * len(plans))
                    jobs.append((mpi, plans, stack.enter_context(job)))
        for mpi, plans, job in jobs:
            result = job.wait()
            for plan in plans:
                reports = [((one or {}).get("outcomes") or {}).get(plan["name"]) for one in result.reports]
                found[mpi, plan["name"]] = [report or {"output": result.output} for report in reports]
    return found


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


def pairs() -> list[Any]:
    """Every plan on Open MPI, and a selection on MPICH."""
    found = [(mpi, plan) for mpi in mpilaunch.MPIS for plan in plans_of(mpi) if plan["name"] not in DOUBTS]
    return [pytest.param(mpi, plan, id=f"{mpi}-{plan['name'].replace(' ', '-')}") for mpi, plan in found]


@pytest.mark.parametrize(("mpi", "plan"), pairs(), indirect=["mpi"])
def test_stopped_at_a_failpoint(mpi: str, outcomes: dict[tuple[str, str], list[dict[str, Any]]], plan: Plan) -> None:
    ((late, point),) = plan["stop"].items()
    missed = plan.get("calls", 1)
    published = crashkit.POINTS[point].when(late) == "after"
    found = values(outcomes[mpi, plan["name"]])
    others = [one for role, one in enumerate(found) if role != late]
    roots: dict[int, str] = {}
    if published:
        first = [one["calls"].pop(0) for one in found]
        assert len({call.get("value") for call in first}) == 1, first
        roots = {3: first[0]["value"]}
        assert roots[3], first
    for one in others:
        assert len(one["calls"]) == missed
        records = [check_lost(call, late, DEADLINE + SLACK) for call in one["calls"]]
        assert records == [call["raised"]["record"] for call in others[0]["calls"]]
        assert all(record["message"] == "an owner is silent" for record in records)
    assert len(found[late]["calls"]) == missed
    for call in found[late]["calls"]:
        check_lost(call, late)
    for call in found[late]["calls"][1:]:
        assert call["seconds"] < SLACK
    check_end(found, roots)


@pytest.mark.parametrize("doubt", DOUBTS)
def test_stopped_in_doubt(mpi: str, outcomes: dict[tuple[str, str], list[dict[str, Any]]], doubt: str) -> None:
    """Two are lost, one of them as it asks the store: the last one decides alone, and they hear so when they go on."""
    found = values(outcomes[mpi, doubt])
    stops = DOUBTS[doubt]["stop"]
    (awake,) = set(range(OWNERS)) - set(stops)
    # Two deadlines where one owner's silence is told by the silence of another.
    record = check_lost(found[awake]["calls"][0], 0, 2 * DEADLINE + SLACK)
    assert record["message"] == "an owner is silent"
    for role in stops:
        (call,) = found[role]["calls"]
        assert call["raised"]["record"]["class"] == "DeadlineError"
        assert call["raised"]["record"]["role"] in stops
    check_end(found, {})
