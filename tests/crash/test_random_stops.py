"""Hundreds of saves while owners are stopped at random failpoints and at random moments, and go on later.

Proven: a generation is listed if and only if every owner says saved, with the root that is listed; otherwise every
owner raises DeadlineError. What is listed verifies, nothing else is left in the store, and once nothing disturbs any
more, all save again. The seed is printed; MPICKPT_TEST_SEED plays it again (as far as moments can be).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import crashkit
import mpilaunch
import pytest

PROGRAM = Path(__file__).with_name("random_stops_program.py")
OWNERS = 3
DEADLINE = 0.3
CONFIGURATIONS = [(mpi, write) for mpi in mpilaunch.MPIS for write in ("each", "gather")]
Outcomes = list[list[Any]]


def disturb(job: mpilaunch.Running, seed: int) -> None:
    """Continue who is stopped, after a while; stop others at any moment, until the owners have made their calls."""
    draw = random.Random(seed)
    while not all((job.folder / f"begun.{role}").exists() for role in range(OWNERS)):
        if job.process.poll() is not None:
            return
        time.sleep(0.005)
    pids = [job.pid(role) for role in range(OWNERS)]
    goes_on: dict[int, float] = {}
    following = time.monotonic()
    while job.process.poll() is None:
        now = time.monotonic()
        for pid in pids:
            if mpilaunch._state(pid) != "T":
                goes_on.pop(pid, None)
            elif now > goes_on.setdefault(pid, now + DEADLINE * 3 * draw.random() ** 2):
                _signal(pid, signal.SIGCONT)
        if now > following and not any((job.folder / f"calm.{role}").exists() for role in range(OWNERS)):
            _signal(draw.choice(pids), signal.SIGSTOP)
            following = now + draw.expovariate(1 / (5 * DEADLINE))
        time.sleep(0.005)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def play(folder: Path, calls: int) -> tuple[int, dict[tuple[str, str], tuple[Path, list[Outcomes]]]]:
    """Run all configurations side by side; give the seed, and for each the store and every owner's outcomes."""
    seed = int(os.environ.get("MPICKPT_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"MPICKPT_TEST_SEED={seed}")
    found = {}
    with contextlib.ExitStack() as stack:
        jobs = []
        for mpi, write in CONFIGURATIONS:
            with contextlib.suppress(mpilaunch.Unavailable):  # the tests of this MPI are skipped and say so
                store = folder / f"{mpi}-{write}"
                args = [str(store), str(seed), str(calls), write, str(DEADLINE)]
                job = stack.enter_context(mpilaunch.start(PROGRAM, OWNERS, mpi, args, timeout=30 + 3 * calls))
                thread = threading.Thread(target=disturb, args=(job, seed), daemon=True)
                thread.start()
                jobs.append((mpi, write, store, job, thread))
        for mpi, write, store, job, thread in jobs:
            reports = job.wait().ok()
            thread.join(10)
            assert all(report.get("end") for report in reports)
            found[mpi, write] = (store, [report["outcomes"] for report in reports])
    return seed, found


def check(store: Path, outcomes: list[Outcomes], seed: int) -> Counter[str]:
    """Check that all owners and the store agree on every save; count the outcomes."""
    listed = crashkit.listed(store)
    counts: Counter[str] = Counter()
    for step, owners in enumerate(zip(*outcomes, strict=True), 1):
        said = [(kind, text if kind == "saved" else "") for kind, text in owners]
        expected = ("saved", listed[step]) if step in listed else ("DeadlineError", "")
        told = "\n".join(f"owner {role}: {kind}\n{text}" for role, (kind, text) in enumerate(owners))
        assert said == [expected] * OWNERS, f"seed {seed}, step {step}, listed: {listed.get(step)}\n{told}"
        counts[expected[0]] += 1
    assert outcomes[0][-1][0] == "saved", f"seed {seed}: not all saved once nothing disturbed them any more"
    assert crashkit.leftovers(store) == [], f"seed {seed}"
    return counts


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return play(tmp_path_factory.mktemp("stops"), 100)


@pytest.mark.parametrize("write", ["each", "gather"])
def test_outcomes_and_roots_agree_in_100_calls(mpi: str, write: str, hundred: Any) -> None:
    seed, found = hundred
    counts = check(*found[mpi, write], seed)
    assert counts["saved"] > 10, counts
    assert counts["DeadlineError"] > 10, counts


@pytest.mark.long
@pytest.mark.parametrize("turn", range(3))
def test_outcomes_and_roots_agree_in_300_calls(tmp_path: Path, turn: int) -> None:
    seed, found = play(tmp_path, 300)
    for store, outcomes in found.values():
        counts = check(store, outcomes, seed)
        assert min(counts["saved"], counts["DeadlineError"]) > 30, counts
