"""Between commitment and release the store decides, in simulated time: void or root, for everybody, owner 0 too.

Owner 0 is stopped, killed, interrupted, or cut off from the store at each place where it matters, and so is an owner
that doubts. Whoever can ask the store is told what is true; who cannot says so (InDoubtError) and removes nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import outcomes
import pytest
from simulation import DEADLINE, Plan, Story, World, play

from mpickpt.state import coverage

CALL = 2
SILENT = "DeadlineError(0) an owner is silent"
BEFORE_THE_NAME = ["save.heard", "save.compared", "commit.written", "commit.synced", "commit.closed"]
AFTER_THE_NAME = ["commit.placed", "commit.directory-synced", "save.root-published", "save.released"]

READING = ("op.open", "op.fstat", "op.read", "op.close", "op.lstat", "op.fsync", "op.unlink", "op.listdir")

Act = Callable[[World, int], None]


class Points(Plan):
    """In the second save, let something happen when an owner comes to a failpoint, and from then on, if `on`.

    Owner 0 writes no group manifest: where it comes to ``commit.*``, it publishes the root.
    """

    def __init__(self, *rules: tuple[int, str, Act]) -> None:
        super().__init__(self._at)
        self.rules = list(rules)
        self.calls: dict[int, int] = {}
        self.broken: dict[int, Callable[[str], None]] = {}

    def _at(self, world: World, owner: int, name: str) -> None:
        self.calls[owner] = self.calls.get(owner, 0) + (name == "save.entered")
        if self.calls[owner] != CALL:
            return
        if owner in self.broken and name.startswith("op."):
            self.broken[owner](name)
        for rule in list(self.rules):
            if rule[:2] == (owner, name):
                self.rules.remove(rule)
                rule[2](world, owner)

    def cut_off(self, number: int = errno.EIO, spare: tuple[str, ...] = ()) -> Act:
        """Let every operation of an owner fail from now on, but for `spare`."""

        def fail(name: str) -> None:
            if name not in spare:
                raise OSError(number, os.strerror(number))

        def act(world: World, owner: int) -> None:
            self.broken[owner] = fail

        return act


def freeze(deadlines: float) -> Act:
    """Stop an owner for so long."""

    def act(world: World, owner: int) -> None:
        world.freeze(owner, deadlines * DEADLINE)
        world.sleep(0)

    return act


def kill(world: World, owner: int) -> None:
    """Let nothing of an owner run any more."""
    world.kill(owner)
    world.sleep(0)


def interrupt(world: World, owner: int) -> None:
    """Interrupt an owner, as Ctrl-C does."""
    raise KeyboardInterrupt


def then(*acts: Act) -> Act:
    """Do several things."""

    def act(world: World, owner: int) -> None:
        for one in acts:
            one(world, owner)

    return act


def told(path: Path, plan: Points, *, clean: bool = True, **options: object) -> tuple[Story, list[str]]:
    """Play three saves, of which the second is disturbed; check; give what each owner was told of it."""
    story = play(path / "run", plan, **options)  # type: ignore[arg-type]
    assert not plan.rules, f"not reached: {[rule[:2] for rule in plan.rules]}\n{story.text()}"
    story.check(clean=clean)
    if not any(map(story.world.killed, range(story.owners))):
        assert story.saved(CALL + 1), story.text()
    found = story.outcomes[CALL]
    return story, [found[owner].partition(" blake3:")[0] for owner in sorted(found)]


def listed(story: Story) -> list[str]:
    """Tell what stands under the names of the second save's attempts: ``root`` or ``void``."""
    there = outcomes.roots(story.path).get(CALL, [])
    return ["void" if one == outcomes.VOID else "root" for one in there]


@pytest.mark.parametrize("point", BEFORE_THE_NAME)
def test_owner_0_stopped_before_it_publishes_is_overtaken_by_a_void(ram: Path, point: str) -> None:
    story, found = told(ram, Points((0, point, freeze(4))))
    assert found == [SILENT] * 3
    assert listed(story) == ["void"]


@pytest.mark.parametrize("point", AFTER_THE_NAME)
def test_owner_0_stopped_after_it_published_has_saved(ram: Path, point: str) -> None:
    story, found = told(ram, Points((0, point, freeze(4))))
    assert found == ["saved"] * 3
    assert listed(story) == ["root"]
    assert max(story.seconds[CALL][owner] for owner in (1, 2)) < 1.2 * DEADLINE


@pytest.mark.parametrize("point", BEFORE_THE_NAME)
def test_owner_0_dead_before_it_published_leaves_a_void(ram: Path, point: str) -> None:
    story, found = told(ram, Points((0, point, kill)), clean=False)
    assert found == [SILENT] * 2
    assert listed(story) == ["void"]


@pytest.mark.parametrize("point", AFTER_THE_NAME)
def test_owner_0_dead_after_the_rename_has_saved_for_all(ram: Path, point: str) -> None:
    story, found = told(ram, Points((0, point, kill)), clean=False)
    assert found == ["saved"] * 2
    assert listed(story) == ["root"]


@pytest.mark.parametrize("point", ["save.agreed", "save.compared"])
def test_owners_remove_what_they_have_written_though_owner_0_is_dead(ram: Path, point: str) -> None:
    """Before their commitment, and after it once a void is durable: a full disk must not stay full."""
    story, _ = told(ram, Points((0, point, kill)), clean=False)
    (directory,) = outcomes.leftovers(story.path)
    left = [file.name for file in (story.path / directory).rglob("*.*")]
    assert not [name for name in left if not name.startswith("000000.")], left


def test_who_cannot_reach_the_store_says_so_and_the_other_doubtful_owner_decides(ram: Path) -> None:
    plan = Points((0, "save.compared", freeze(4)))
    plan.rules.append((1, "save.committed", plan.cut_off()))
    story, found = told(ram, plan)
    assert found[0] == found[2] == SILENT
    assert found[1].startswith("InDoubtError(1) nobody can tell whether the root was published: an owner is silent")
    assert listed(story) == ["void"]


def test_who_cannot_reach_the_store_says_so_though_it_is_published(ram: Path) -> None:
    plan = Points((0, "save.root-published", kill))
    plan.rules.append((1, "save.committed", plan.cut_off()))
    story, found = told(ram, plan, clean=False)
    assert found[0].startswith("InDoubtError(1)")
    assert found[1] == "saved"
    assert listed(story) == ["root"]  # and what it wrote is still there: `check` has read every byte of it


def test_owner_0_goes_on_publishing_though_another_cannot_tell(ram: Path) -> None:
    plan = Points((0, "commit.written", freeze(2)))
    plan.rules.append((1, "save.committed", plan.cut_off()))
    story, found = told(ram, plan, owners=2)
    assert found[0] == "saved"
    assert found[1].startswith("InDoubtError(1)")
    assert listed(story) == ["root"]


def test_a_disk_too_full_for_a_void_still_tells_that_the_root_stands(ram: Path) -> None:
    plan = Points((0, "save.root-published", kill))
    plan.rules.append((1, "save.committed", plan.cut_off(errno.ENOSPC, spare=READING)))
    story, found = told(ram, plan, clean=False)
    assert found == ["saved"] * 2
    assert listed(story) == ["root"]


def test_a_disk_too_full_for_the_root_and_for_the_void_leaves_no_doubt(ram: Path) -> None:
    """Nothing stands under the root's name, and nobody but owner 0 would put it there: its word is enough."""
    plan = Points()
    plan.rules.append((0, "save.compared", plan.cut_off(errno.ENOSPC, spare=READING)))
    story, found = told(ram, plan)
    assert found == ["StoreError(0) no space left: write failed (No space left on device)"] * 3
    assert listed(story) == []


def test_a_release_that_comes_while_the_store_does_not_answer_is_heard(ram: Path) -> None:
    plan = Points((0, "save.root-published", freeze(2)))
    plan.rules.append((1, "save.doubt", then(lambda world, owner: world.sleep(3 * DEADLINE), plan.cut_off())))
    story, found = told(ram, plan)
    assert found == ["saved"] * 3
    assert story.seconds[CALL][1] < 4.5 * DEADLINE


def test_owner_0_that_cannot_tell_whether_its_root_was_placed_lets_the_others_ask(ram: Path) -> None:
    plan = Points()
    plan.rules.append((0, "commit.closed", plan.cut_off()))
    story, found = told(ram, plan, clean=False)
    assert found[0].startswith("InDoubtError(0) nobody can tell whether the root was published: placing the file")
    assert found[1] == found[2]
    assert found[1].startswith("StoreError(0) placing the file, and finding out whether it was placed, failed")
    assert listed(story) == ["void"]


def test_owner_0_whose_rename_did_happen_but_cannot_be_seen_has_saved_for_the_others(ram: Path) -> None:
    plan = Points((0, "commit.closed", lambda world, owner: setattr(plan, "after", lost)))

    def lost(world: World, owner: int, name: str) -> None:
        if (owner, name) == (0, "op.rename"):
            plan.after = lambda world, owner, name: None
            plan.cut_off()(world, owner)
            raise OSError(errno.EIO, "the reply is lost")

    story, found = told(ram, plan, clean=False)
    assert found[0].startswith("InDoubtError(0)")
    assert found[1:] == ["saved"] * 2
    assert listed(story) == ["root"]


def failure(number: int) -> Act:
    """Let the file system fail, as the owner sees it."""

    def act(world: World, owner: int) -> None:
        raise OSError(number, os.strerror(number))

    return act


def test_of_several_failures_at_once_all_raise_the_same(ram: Path) -> None:
    """Two owners fail, each in its own way, before either can hear of the other: owner 0 chooses."""
    story, found = told(
        ram,
        Points(
            (0, "save.agreed", freeze(0.5)),
            (1, "writer.created", failure(errno.ENOSPC)),
            (2, "writer.created", failure(errno.EIO)),
        ),
    )
    assert len(set(found)) == 1, found
    assert len({str(error) for error in story.errors[CALL].values()}) == 1


def test_an_abort_is_final_in_the_store_before_it_is_told_once_somebody_has_committed(ram: Path) -> None:
    """Owner 0 dies as it tells the others: who has committed finds the reason in the store, and not silence."""
    plan = Points(
        (2, "writer.created", then(lambda world, owner: world.sleep(0.3), failure(errno.ENOSPC))),
        (0, "commit.directory-synced", kill),
    )
    story, found = told(ram, plan, clean=False)
    assert found == ["StoreError(2) no space left: write of a shard failed (No space left on device)"] * 2
    assert listed(story) == ["void"]


def test_an_owner_that_has_committed_and_is_asked_is_watched_again(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums do not agree, and owner 0 asks all what they hold: one of them does not answer."""
    real = coverage.expected_cover
    wrong = [0, 1]
    monkeypatch.setattr(coverage, "expected_cover", lambda schema: real(schema) + (wrong.pop(0) if wrong else 0))
    story, found = told(ram, Points((1, "save.committed", freeze(4))))
    assert found == ["DeadlineError(1) an owner is silent"] * 3
    assert story.seconds[CALL][0] < 1.2 * DEADLINE


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("point", ["save.agreed", "save.heard"])
def test_an_interrupt_before_the_commitment_ends_the_save_for_all(ram: Path, owner: int, point: str) -> None:
    story, found = told(ram, Points((owner, point, interrupt)))
    for role in range(3):
        refusal = f"CheckpointError({owner}) an owner failed: KeyboardInterrupt"
        assert found[role].startswith("KeyboardInterrupt" if role == owner else refusal)
    assert "root" not in listed(story)
    assert max(story.seconds[CALL].values()) < 0.1 * DEADLINE, "nobody waits for one that is interrupted"


def test_an_interrupt_between_commitment_and_release_removes_nothing_that_a_root_names(ram: Path) -> None:
    story, found = told(ram, Points((1, "save.committed", interrupt)), clean=False)
    assert found[1].startswith("KeyboardInterrupt")
    assert found[0] == found[2]
    assert listed(story) == (["root"] if found[0] == "saved" else ["void"])


@pytest.mark.parametrize("point", ["save.root-published", "save.released"])
def test_an_interrupt_of_owner_0_after_it_published_takes_nothing_away(ram: Path, point: str) -> None:
    story, found = told(ram, Points((0, point, interrupt)))
    assert found[0].startswith("KeyboardInterrupt")
    assert found[1:] == ["saved"] * 2
    assert listed(story) == ["root"]
    assert max(story.seconds[CALL].values()) < 0.1 * DEADLINE, "the release need not be waited for"
