"""Every operation of the file system in a save fails, hangs, or succeeds with a lost reply, in simulated time.

One after the other, each operation of owner 0 and of another owner. All owners are told the same, and what is true;
what a refusal says is complete; earlier generations are whole; nothing is left behind; the next save works. A thread
that hangs for ever is left to itself, and the calls after it have others.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import outcomes
import pytest
from simulation import DEADLINE, Plan, Story, World, play

from mpickpt.cluster import deciding, publish
from mpickpt.errors import DeadlineError, InDoubtError, StoreError
from mpickpt.format import names

CASES = {
    "each": {"write": "each"},
    "gather": {"write": "gather"},
    "link": {"write": "each", "link": True},
    "first": {"write": "each", "resume": False},  # the first save of all: run.json and the claim come before it
}


def cases(*quick: str) -> pytest.MarkDecorator:
    """Run a test with some of the cases, and with the others in the long run."""
    marks = {True: [], False: [pytest.mark.long]}
    return pytest.mark.parametrize("case", [pytest.param(c, marks=marks[c in quick]) for c in CASES])


#: What is done for comfort, for a name that decides nothing, or after reading: its failure harms nobody. (The open is
#: that of the file which is made and removed before the last look at the claims: without it they can be read too. And
#: where the first look fails at listing them, there is a second one.)
UNHARMFUL = {"op.unlink", "op.lstat", "op.close", "op.open", "op.listdir"}
UNKNOWN = "StoreError(0) published, durability unknown: the sync of the directory failed"


class Nth(Plan):
    """Disturb the `nth` operation of an owner in a call, of all or of one kind; `name` tells which it was, or None."""

    def __init__(
        self,
        owner: int,
        call: int,
        nth: int,
        act: Callable[[World], None],
        *,
        lost: bool = False,
        on: bool = False,
        only: str = "op.",
    ) -> None:
        super().__init__(self._at, self._after)
        self.owner, self.call, self.nth, self.act = owner, call, nth, act
        self.lost, self.on, self.only = lost, on, only
        self.name: str | None = None
        self.calls = Counter[int]()
        self.count = self.index = 0
        self.hit: object = None

    def _at(self, world: World, owner: int, name: str) -> None:
        self.calls[owner] += name == "save.entered"
        if owner != self.owner or self.calls[owner] != self.call or not name.startswith(self.only):
            return
        self.count += 1
        if self.count == self.nth or (self.on and self.count > self.nth):
            if self.name is None:
                self.name, self.index = name, len(world.trace)
            self.hit = world.here()
            if not self.lost:
                self.act(world)

    def _after(self, world: World, owner: int, name: str) -> None:
        if self.lost and self.hit is world.here() and self.hit is not None:
            self.hit = None
            self.act(world)


def sweep(
    path: Path,
    act: Callable[[World], None],
    case: str,
    calls: int = 3,
    owners: Sequence[int] = (0, 1),
    least: int = 10,
    **more: Any,
) -> Iterator[tuple[Nth, Story]]:
    """Play a save once for each operation of owner 0 and of owner 1, of which there are at least so many."""
    call = 1 if case == "first" else 2
    for owner in (0,) if case == "gather" else owners:  # gathering, owner 0 alone writes
        for nth in range(1, 1000):
            plan = Nth(owner, call, nth, act, **more)
            story = play(path / f"{owner}-{nth}", plan, calls=calls, calm=calls - call, seed=nth, **CASES[case])
            if plan.name is None:
                assert nth > least, f"owner {owner} comes to {nth - 1} operations only"
                break
            yield plan, story


def fail(number: int) -> Callable[[World], None]:
    """Let an operation fail."""

    def act(world: World) -> None:
        raise OSError(number, os.strerror(number))

    return act


def check_refusal(plan: Nth, story: Story, number: int) -> None:
    """Check that all owners raise one and the same StoreError, and that it says what a person needs."""
    call, errors = plan.call, story.errors.get(plan.call, {})
    assert len(errors) == story.owners, story.text()
    records = [error.to_record() for error in errors.values()]
    assert all(record == records[0] for record in records), f"{records}\n{story.text()}"
    error = errors[2]  # it has come over the channel
    assert isinstance(error, StoreError), story.text()
    assert error.errno == number, error
    assert error.role == plan.owner, error
    assert error.host
    assert error.path is not None
    # Of a new store the directories above it are synced too.
    place = str(story.path.parent)
    assert error.path.startswith(place) or place.startswith(error.path), error
    assert error.unharmed, error
    assert error.advice, error
    assert story.seconds[call][0] < 0.1 * DEADLINE, "a failure is not waited for"


def check_failures(path: Path, case: str, number: int, lost: bool) -> tuple[Counter[str], Counter[str]]:
    """Let each operation fail in turn; count those that were told, and those that did no harm."""
    refused, unnoticed = Counter[str](), Counter[str]()
    for plan, story in sweep(path, fail(number), case, lost=lost):
        assert plan.name is not None
        # What a failed removal leaves harms nobody: `mpickpt sweep` takes it. And the temporary name of a root that was
        # placed by link may be the only durable one.
        unknown = any(text.startswith(UNKNOWN) for text in story.outcomes[plan.call].values())
        removal = plan.name == "op.unlink" or story.saved(plan.call)
        story.check(clean=not removal and not (unknown and case == "link"))
        assert story.saved(plan.call + 1), story.text()
        if story.saved(plan.call):
            unnoticed[plan.name] += 1
        else:
            refused[plan.name] += 1
            check_refusal(plan, story, number)
    assert refused["op.fsync"], refused
    assert refused["op.write"], refused
    return refused, unnoticed


_QUICK = {
    ("each", errno.EIO),
    ("each", errno.ENOSPC),
    ("gather", errno.EIO),
    ("link", errno.EIO),
    ("first", errno.ENOSPC),
}
_FAILURES = [(case, number) for case in CASES for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT)]


@pytest.mark.parametrize(
    ("case", "number"),
    [pytest.param(*one, marks=[] if one in _QUICK else [pytest.mark.long]) for one in _FAILURES],
    ids=[f"{case}-{errno.errorcode[number]}" for case, number in _FAILURES],
)
def test_an_operation_fails_all_say_so_and_the_next_save_works(ram: Path, case: str, number: int) -> None:
    unnoticed = check_failures(ram, case, number, lost=False)[1]
    assert set(unnoticed) <= UNHARMFUL | ({"op.open", "op.fstat"} if case == "first" else set())


@cases("each", "link")
def test_an_operation_succeeds_but_its_reply_is_lost(ram: Path, case: str) -> None:
    """A rename or link that did happen is found out, and nobody need be told; anything else is a failure."""
    check_failures(ram, case, errno.EIO, lost=True)
    # Who makes a folder is chance, and so is which operation is the n-th: no placing may be missed.
    placing = "op.link" if case == "link" else "op.rename"
    (ram / "placing").mkdir()
    placed = sweep(ram / "placing", fail(errno.EIO), case, lost=True, only=placing, owners=(0,), least=1)
    assert [story.saved(plan.call) for plan, story in placed] == [True]


@cases("each", "link")
def test_a_sync_of_roots_that_failed_is_never_tried_again(ram: Path, case: str) -> None:
    """Not even by the owner that asks the store what holds: a second one can succeed after the data is lost."""
    unknown = 0
    for plan, story in sweep(ram, fail(errno.EIO), case):
        error = story.errors.get(plan.call, {}).get(0)
        if plan.name == "op.fsync" and outcomes.told(error).startswith(UNKNOWN) and "/roots/" in str(error.path):
            unknown += 1
            assert outcomes.VOID not in outcomes.roots(story.path)[plan.call]
            following = [(owner, name) for _, owner, name in story.world.trace[plan.index :]]
            for owner in range(3):
                until = following.index((owner, "save.entered"))
                assert (owner, "op.fsync") not in following[:until], story.text()
    assert unknown == 1


@cases("each", "gather")
def test_an_operation_hangs_for_three_deadlines(ram: Path, case: str) -> None:
    """A writer that makes no progress is cut off; a sync, and what is not the writer's, is waited for."""
    for plan, story in sweep(ram, lambda world: world.sleep(3 * DEADLINE), case, calls=4):
        story.check()
        for call in range(plan.call + 1, 5):
            assert story.saved(call), f"the threads are used up\n{story.text()}"
        check_hang(plan, story)
        if plan.name == "op.fsync":
            assert story.saved(plan.call), f"a sync has ten deadlines\n{story.text()}"


@cases("each")
def test_an_operation_hangs_for_ever(ram: Path, case: str) -> None:
    """All are told within ten deadlines and a little, and the saves after it have other threads."""
    for plan, story in sweep(ram, lambda world: world.sleep(1e9), case, calls=6):
        story.check(clean=False)
        for call in range(plan.call + 1, 7):
            assert story.saved(call), f"the threads are used up\n{story.text()}"
        check_hang(plan, story)


def check_hang(plan: Nth, story: Story) -> None:
    """Check how a save with a hung operation ended, and when."""
    errors = story.errors.get(plan.call, {})
    for owner, error in errors.items():
        assert isinstance(error, DeadlineError), story.text()
        assert error.role == plan.owner, f"{error}\n{story.text()}"
        # The hung owner itself also waits a little for the removal of its files.
        limit = (11.2 if story.seconds[plan.call][owner] > 3 else 1.2) + (1 if owner == plan.owner else 0)
        assert story.seconds[plan.call][owner] < limit * DEADLINE, story.text()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@cases("each")
def test_from_an_operation_on_everything_fails_at_one_owner(ram: Path, case: str, number: int) -> None:
    """Even the void cannot be written, nor anything be removed: nobody is told what is not true."""
    for plan, story in sweep(ram, fail(number), case, on=True):
        story.check(clean=False)
        assert story.saved(plan.call + 1), story.text()
        for error in story.errors.get(plan.call, {}).values():
            assert isinstance(error, StoreError | InDoubtError), story.text()


@pytest.mark.parametrize("few", [0, 4], ids=["by workers", "by the manifest's list"])
def test_folders_are_synced_behind_the_manifest_that_lies_in_one_of_them(
    ram: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(names, "FOLDER", 1)
    monkeypatch.setattr(deciding, "FOLDER", 1)
    monkeypatch.setattr(publish, "_FEW", few)
    story = play(ram, Plan(), owners=7, fan_out=2, calls=1)
    assert story.saved(1), story.text()
    mine = [name for _, owner, name in story.world.trace if owner == 1]
    behind = mine[mine.index("save.heard") :]
    told = [name for name in behind if name in ("op.fsync", "commit.closed", "save.committed")]
    assert told == ["op.fsync", "commit.closed", *["op.fsync"] * 3, "save.committed"]
