"""SIGSTOP of an owner at each failpoint of a resume, for longer than the deadline.

Proven each time, for owner 0, an inner owner and a leaf: either all owners resume, or all refuse, the stopped one too
when it goes on; whoever is refused holds its own state, or is told that it may hold the checkpoint already; and all
then resume and save together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stoppedkit import Outcomes, Plan, run_all, values

PROGRAM = Path(__file__).with_name("stopped_resume_program.py")
POINTS = ("resume.entered", "resume.chosen", "resume.read", "resume.told", "resume.agreed", "resume.filled")
STAR, TREE = 3, 5
LATE = {STAR: (0, 1), TREE: (0, 1, 4)}
JOBS = {"openmpi": 3, "mpich": 1}


def plan(point: str, role: int, owners: int) -> Plan:
    options = {} if owners == STAR else {"topology": "tree", "fan_out": 2}
    return {"name": f"{owners} {point} owner {role}", "stop": {role: point}, "options": options}


PLANS = [
    plan(point, role, owners)
    for owners, roles in LATE.items()
    for point in POINTS
    for role in roles
    if (point, role) != ("resume.told", 0)  # owner 0 tells nobody
]
MPICH = ("resume.read", "resume.filled")


def plans_of(mpi: str, owners: int) -> list[Plan]:
    kept = [one for one in PLANS if one["name"].startswith(f"{owners} ")]
    return kept if mpi == "openmpi" else [one for one in kept if set(one["stop"].values()) & set(MPICH)]


@pytest.fixture(scope="module", params=(STAR, TREE), ids=("star", "tree"))
def outcomes(request: pytest.FixtureRequest) -> tuple[int, Outcomes]:
    """What every owner saw, by MPI and name of the plan."""
    owners = request.param
    return owners, run_all(JOBS, lambda mpi: plans_of(mpi, owners), owners, lambda count: 40 + 15 * count, PROGRAM)


def test_all_resume_or_all_refuse(mpi: str, outcomes: tuple[int, Outcomes]) -> None:
    owners, found = outcomes
    refused = 0
    for one in plans_of(mpi, owners):
        told = values(found[mpi, one["name"]])
        assert len({"raised" in each["outcome"] for each in told}) == 1, (one["name"], told)
        assert all(each["again"] == 2 for each in told), told
        for each in told:
            check(one, each)
        refused += "raised" in told[0]["outcome"]
    assert 2 * refused > len(plans_of(mpi, owners)), "the stops are too short to be noticed"


def check(plan: Plan, told: dict[str, Any]) -> None:
    """Check that an owner's arrays are as it was told."""
    if "value" in told["outcome"]:
        assert (told["outcome"]["value"], told["held"]) == (2, "saved"), (plan, told)
        return
    record = told["outcome"]["raised"]["record"]
    assert record["class"] == "DeadlineError", (plan, record)
    assert told["held"] == "before" or "may hold the checkpoint already" in record["unharmed"], (plan, told)
    assert told["held"] != "neither", (plan, told)
