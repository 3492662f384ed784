"""Events under mpirun: the sums are right, the slowest owner is named, and a bar knows what all have written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

CASES = Path(__file__).with_name("events_cases.py")
BYTES = 4 * 64 * (1 << 14) + 8 * 70_000


def sound(event: dict[str, Any], owners: int) -> None:
    """Check what holds for every save."""
    assert event["owners"] == owners
    assert BYTES < event["bytes"] <= BYTES + 32 * owners
    assert event["throughput"] == pytest.approx(event["bytes"] / event["seconds"])
    assert sum(event["phases"].values()) == pytest.approx(event["seconds"])
    assert sum(event["fractions"].values()) == pytest.approx(1)
    assert all(0 <= part <= event["seconds"] for part in event["phases"].values())
    assert event["mean"]["write"] > 0  # the slowest owner of a gathered save may have written nothing
    assert event["mean"]["sync"] > 0
    assert 0 <= event["slowest"] < owners
    busy = sum(part for name, part in event["phases"].items() if name != "waiting")
    assert sum(event["mean"].values()) <= busy * (1 + 1e-6)


@pytest.mark.parametrize("which", ["star", "tree", "gather"])
def test_the_sums_are_right(mpi: str, owners: int, which: str) -> None:
    found = mpilaunch.batch(CASES, mpi).passed("saves_are_told_once", owners)
    assert [told[which] for told in found[1:]] == [[]] * (owners - 1), "owner 0 alone writes events"
    told = found[0][which]
    assert [(event["event"], event["step"]) for event in told] == [
        ("resumed", 0),
        ("durable", 1),
        ("staged", 2),
        ("durable", 2),
        ("durable", 3),
    ]
    saves = [event for event in told if event["event"] == "durable"]
    for event in saves:
        sound(event, owners)
    assert len({event["bytes"] for event in saves}) == 1
    assert [event["background"] for event in saves] == [False, True, False]
    if which == "gather":
        assert {event["slowest"] for event in saves} == {0}


def test_the_slowest_owner_is_named(mpi: str, owners: int) -> None:
    first, *others = mpilaunch.batch(CASES, mpi).passed("the_slowest_owner_is_named", owners)
    assert others == [[]] * (owners - 1)
    for event, slowest in zip(first[-2:], (owners - 1, 0), strict=True):
        sound(event, owners)
        assert event["slowest"] == slowest
        assert event["phases"]["sync"] >= 0.5
        # The others waited for owner 0 first, and the time counts from the first one's beginning.
        assert event["seconds"] >= (0.8 if owners > 1 else 0.5)
        if owners > 1:
            assert event["phases"]["waiting"] >= 0.25
            assert event["mean"]["sync"] < event["phases"]["sync"]


def test_the_bar_knows_what_all_have_written(mpi: str, owners: int) -> None:
    first, *others = mpilaunch.batch(CASES, mpi).passed("the_bar_knows_what_all_have_written", owners)
    assert others == [[]] * (owners - 1)
    lines = [line for line in first if line.startswith("saving step 1")]
    shares = [int(share) for line in lines for share in re.findall(r"\]  (\d+) %", line)]
    assert shares == sorted(shares)
    assert shares[-1] == 100, lines


def test_events_that_cannot_be_written_fail_nothing(mpi: str, owners: int) -> None:
    case = "events_that_cannot_be_written_fail_nothing"
    assert mpilaunch.batch(CASES, mpi).passed(case, owners) == [[1, 2]] * owners
