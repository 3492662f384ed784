"""SIGSTOP in a tree, at each failpoint of a save: of the root, of an inner owner, of a leaf; and SIGCONT later.

Seven owners, at most two children each: 0 has 1 and 4, 1 has 2 and 3, 4 has 5 and 6. Proven each time: no owner reports
success for a generation that is not published; the others raise one and the same refusal, naming the stopped owner,
within two deadlines and two seconds; or, where the store had decided already, the save is published and their next call
raises so. When it goes on, it learns the same, and then all save together again.
"""

from __future__ import annotations

from typing import Any

import crashkit
import mpilaunch
import pytest
from stoppedkit import DEADLINE, SLACK, Outcomes, Plan, check_end, check_lost, run_all, values

OWNERS = 7
TREE = {"topology": "tree", "fan_out": 2}
ROOT, INNER, LEAF = 0, 1, 3
JOBS = {"openmpi": 5, "mpich": 2}

PLANS: list[Plan] = [
    {"name": f"{point} owner {role}", "stop": {role: point}, "options": TREE}
    for point in crashkit.POINTS
    for role in (ROOT, INNER, LEAF)
    if crashkit.POINTS[point].when(role)
]
MPICH = ("save.agreed", "writer.chunk", "save.heard", "save.committed", "commit.placed")


def plans_of(mpi: str) -> list[Plan]:
    return [plan for plan in PLANS if mpi == "openmpi" or set(plan["stop"].values()) & set(MPICH)]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """What every owner saw, by MPI and name of the plan: all jobs run side by side, for they mostly wait."""
    return run_all(JOBS, plans_of, OWNERS, lambda count: 60 + 20 * count)


def pairs() -> list[Any]:
    found = [(mpi, plan) for mpi in mpilaunch.MPIS for plan in plans_of(mpi)]
    return [pytest.param(mpi, plan, id=f"{mpi}-{plan['name'].replace(' ', '-')}") for mpi, plan in found]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mpi", "plan"), pairs(), indirect=["mpi"])
def test_stopped_at_a_failpoint(mpi: str, outcomes: Outcomes, plan: Plan) -> None:
    ((late, point),) = plan["stop"].items()
    found = values(outcomes[mpi, plan["name"]])
    others = [one for role, one in enumerate(found) if role != late]
    roots: dict[int, str] = {}
    if crashkit.POINTS[point].when(late) == "after":
        first = [one["calls"].pop(0) for one in found]
        assert len({call.get("value") for call in first}) == 1, first
        roots = {3: first[0]["value"]}
        assert roots[3], first
    for one in others:
        # The parent hears nothing for a deadline; who hears it from there may have begun to wait a little later.
        records = [check_lost(call, late, DEADLINE + SLACK) for call in one["calls"]]
        assert len(records) == 1
        assert records == [others[0]["calls"][0]["raised"]["record"]]
        assert records[0]["message"] == "an owner is silent"
    (call,) = found[late]["calls"]
    check_lost(call, late)
    check_end(found, roots)
