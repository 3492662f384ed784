"""SIGSTOP of an owner at each failpoint of a save, and SIGCONT later.

Proven each time, for owner 0 and for another: the others raise DeadlineError naming it within the deadline plus two
seconds; or, where it had committed, or had published as owner 0, the save is published and their next call raises so.
When it goes on, it learns the same of the save in which it was stopped, raises for the calls that it has missed, and
then all save together again. What is listed is whole, and nothing is left behind.
"""

from __future__ import annotations

from typing import Any

import crashkit
import mpilaunch
import pytest
from stoppedkit import DEADLINE, SLACK, Outcomes, Plan, check_end, check_lost, run_all, values

OWNERS = 3
JOBS = {"openmpi": 7, "mpich": 3}


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
def outcomes() -> Outcomes:
    """What every owner saw, by MPI and name of the plan: all jobs run side by side, for they mostly wait."""
    return run_all(JOBS, plans_of, OWNERS, lambda count: 40 + 15 * count)


def pairs() -> list[Any]:
    """Every plan on Open MPI, and a selection on MPICH."""
    found = [(mpi, plan) for mpi in mpilaunch.MPIS for plan in plans_of(mpi) if plan["name"] not in DOUBTS]
    return [pytest.param(mpi, plan, id=f"{mpi}-{plan['name'].replace(' ', '-')}") for mpi, plan in found]


@pytest.mark.parametrize(("mpi", "plan"), pairs(), indirect=["mpi"])
def test_stopped_at_a_failpoint(mpi: str, outcomes: Outcomes, plan: Plan) -> None:
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
def test_stopped_in_doubt(mpi: str, outcomes: Outcomes, doubt: str) -> None:
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
