"""A power cut at any instant of saves by several owners: every state that it may leave of a store is built and judged.

The system calls of real jobs under mpirun are recorded (`powercut.trace`), and every state that a crash may leave is
built from them under three models (`powercut.disk`). In each: what an owner had told of is there and resumes bit for
bit, what is listed verifies, nothing else is listed, a sweep harms nothing, and the next save works (`powercut.judge`).

Each sync that is made is needed, as dropping it from the record shows, or is explained here and in docs/durability.md;
and each mistake of `powercut.mistakes`, planted in a job, is found.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from powercut import tally
from powercut.disk import Crashes, Model
from powercut.judge import Judges
from powercut.mistakes import MISTAKES
from powercut.proof import Account, Job, NotKilled, Recording, Scenario, check, record
from powercut.trace import syncs

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is absent")

KEEP: Final[dict[str, Any]] = {"keep": 2}


def one(**more: Any) -> Scenario:
    """One job, of three saves: the third rotates the first away."""
    owners, keep = more.pop("owners", 3), more.pop("least", 2)
    return Scenario((Job(**{"saves": 3, "options": KEEP, **more}),), owners, keep)


SCENARIOS: Final = {
    "each": one(),
    "link": one(way="link"),
    "direct": one(direct=True),
    "gather": one(options={**KEEP, "write": "gather"}),
    "gather-link": one(options={**KEEP, "write": "gather"}, way="link"),
    "tree": one(fan_out=2, owners=5, saves=2),
    "tree-link": one(fan_out=2, owners=5, saves=2, way="link"),
    "rotate-before": one(options={**KEEP, "rotate": "before"}, least=1),
    # Owner 1 fails before it commits; owner 0 after others have, and makes a void of it; then a sweep.
    "failed": one(saves=2, fail=[{"name": "save.shards-written", "do": "raise", "role": 1}], sweep=True),
    "voided": one(saves=2, fail=[{"name": "save.heard", "do": "raise", "role": 0}], sweep=True),
    "second-job": Scenario((Job(1, KEEP), Job(2, KEEP, sweep=True))),
    "fence": one(fence=True),
    "fence-link": one(fence=True, way="link"),
}
#: Scenario, model, and which share of the states is judged in the short run.
CASES: Final = [
    ("each", Model.WEAK, 0.4),
    ("each", Model.ORDERED, 0.6),
    ("link", Model.WEAK, 0.12),
    ("link", Model.ORDERED, 0.3),
    ("direct", Model.WEAK, 0.06),
    ("direct", Model.ORDERED, 0.12),
    ("gather", Model.WEAK, 0.12),
    ("gather-link", Model.WEAK, 0.06),
    ("gather-link", Model.ORDERED, 0.12),
    ("tree", Model.WEAK, 0.08),
    ("tree-link", Model.WEAK, 0.06),
    ("tree-link", Model.ORDERED, 0.12),
    ("rotate-before", Model.WEAK, 0.06),
    ("rotate-before", Model.ORDERED, 0.2),
    ("failed", Model.WEAK, 0.12),
    ("voided", Model.WEAK, 0.12),
    ("voided", Model.ORDERED, 0.2),
    ("second-job", Model.WEAK, 0.1),
    ("fence", Model.FENCE, 0.08),
    ("fence-link", Model.FENCE, 0.06),
]
#: Before which operation a first job is killed, in the short run: each is the sync of what it has just made, so that
#: the next job meets what is not durable.
KILLED: Final = {
    "path made": ("fsync", "/disk", 1),
    "directories made": ("fsync", "/one", 1),
    "run.json placed": ("fsync", "/one", 2),
    "claim placed": ("fsync", "/epochs", 1),
    "attempt made": ("fsync", "/data", 1),
    "root placed": ("fsync", "/roots", 1),
}


_recorded: dict[str, Recording] = {}


def recording(name: str, memory: Path) -> Recording:
    """Record a scenario, once."""
    if name not in _recorded:
        _recorded[name] = record(SCENARIOS[name], memory / "recorded" / name)
    return _recorded[name]


def judged(found: Recording, judges: Judges, model: Model, share: float = 1.0, breadth: int = 12) -> Account:
    """Judge a share of the states of a recording, drawn by a fixed seed."""
    crashes = Crashes(found.ops, found.directories, model, breadth)
    draw = random.Random(1)
    before = judges.distinct
    account = check(found, judges, (one for one in crashes.states() if draw.random() < share), crashes)
    tally.add("distinct crash states", judges.distinct - before, len(account.failures))
    assert not account.failures, f"{len(account.failures)} of {account.states}; the first:\n{account.failures[0]}"
    return account


@pytest.mark.parametrize(("name", "model", "share"), CASES, ids=[f"{name}-{model.value}" for name, model, _ in CASES])
def test_a_power_cut_loses_nothing_that_was_told(
    memory: Path, judges: Judges, name: str, model: Model, share: float
) -> None:
    found = recording(name, memory)
    account = judged(found, judges, model, share)
    assert account.states > 50, account


def test_the_direct_scenario_writes_past_the_cache(memory: Path) -> None:
    """What ends at no whole page goes through it, by a write of its own."""
    sizes = {len(op.data) for op in recording("direct", memory).ops if op.kind == "data"}
    assert 8192 in sizes


@pytest.mark.parametrize("what", KILLED)
def test_a_power_cut_after_a_job_that_went_on_from_what_a_killed_one_left(
    memory: Path, judges: Judges, what: str
) -> None:
    """What a killed job has made but not synced, the next one relies on only after it has synced it itself."""
    killed(memory / what, judges, KILLED[what])


def killed(folder: Path, judges: Judges, where: tuple[str, str, int], share: float = 0.5, breadth: int = 2) -> None:
    job = Job(1, KEEP, kill=(0, *where))
    found = record(Scenario((job, Job(1, KEEP)), owners=1), folder)
    judged(found, judges, Model.WEAK, share, breadth)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_power_cut_after_a_job_killed_before_every_operation(memory: Path, judges: Judges) -> None:
    number = 0
    with contextlib.suppress(NotKilled):
        while True:
            killed(memory / f"killed-{number}", judges, ("", "", number + 1), 1.0, 40)
            number += 1
    assert number > 80


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_a_hundred_thousand_crash_states(memory: Path, judges: Judges) -> None:
    breadth = 40  # which gives 65,000 of them, and the next one 130,000 with these
    while judges.distinct < 100_000:
        for name, model, _ in CASES:
            if judges.distinct < 100_000:
                judged(recording(name, memory), judges, model, breadth=breadth)
        breadth *= 4


# --- the tests of the tests


#: Syncs that can be left out without any state showing it, by what is synced, and why they are made all the same.
EXPLAINED: Final = {
    "probe": "the file system is asked whether it can sync at all, before anything is written; nothing of it stays",
    "store": "before and after run.json is placed, and each covers for the other: whoever finds a run.json, even if "
    "its maker was killed, relies on the directories beside it; its own name, if lost, costs a warning",
    "epochs": "the last one, when how the job ended is written down: lost, it counts as a job that was killed",
}


def kind_of(path: str) -> str:
    """Tell what a path of a store is."""
    inner = path.split("/disk/")[-1]
    for pattern, kind in (
        (r"\.tmp-probe", "probe"),
        (r"/roots/", "root"),
        (r"/epochs/", "claim"),
        (r"/one/\.tmp", "run.json"),
        (r"/data/.*\.safetensors", "shard"),
        (r"/data/.*\.json", "manifest"),
        (r"/data/[^/]+/[0-9]+$", "folder"),
        (r"/data/[^/]+$", "attempt"),
        (r"/(data|roots|epochs)$", "directory"),
    ):
        if re.search(pattern, inner):
            return inner.rsplit("/", 1)[-1] if kind == "directory" else kind
    return {"runs/one": "store", "runs": "parent"}.get(inner, "above")


@pytest.mark.parametrize("name", ["each", *(pytest.param(one, marks=pytest.mark.long) for one in ("link", "tree"))])
def test_every_sync_is_needed_or_explained(memory: Path, judges: Judges, name: str) -> None:
    found = recording(name, memory)
    needed, spared = Counter[str](), Counter[str]()
    for index in syncs(found.ops):
        crashes = Crashes(found.ops, found.directories, Model.WEAK)
        account = check(found, judges, crashes.without(index), crashes, most=1)
        (needed if account.failures else spared)[kind_of(found.ops[index].path)] += 1
    assert spared.keys() <= EXPLAINED.keys(), spared
    assert spared["epochs"] <= 1, spared
    kinds = ("above", "parent", "run.json", "claim", "shard", "manifest", "folder", "attempt", "data", "root")
    assert all(needed[kind] for kind in (*kinds, "roots", "epochs")), needed
    tally.add("syncs found to be needed", sum(needed.values()))


#: Which job shows a mistake, where the usual one does not. In each thread every second sync from the third on fails,
#: and its repetition does not.
SHOWN_BY: Final[dict[str, dict[str, Any]]] = {
    "sync_retried": {"inject": ("-e", "inject=fsync:error=EIO:when=3+2")},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(memory: Path, judges: Judges, mistake: str) -> None:
    scenario = one(
        mistake=mistake, saves=2 if mistake != "rotated_before_publication" else 3, **SHOWN_BY.get(mistake, {})
    )
    found = record(scenario, memory / mistake)
    crashes = Crashes(found.ops, found.directories, Model.WEAK)
    latest_first = reversed(list(crashes.states()))  # most of it shows once something was told
    account = check(found, judges, latest_first, crashes, most=1)
    assert account.failures, f"{mistake} was not found in {account.states} states"
    tally.add("planted mistakes found", 1)
