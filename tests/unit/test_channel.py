"""The channel's rules one by one, for an owner in the middle of a tree, with a scripted clock and scripted neighbours.

The numbers are those of docs/protocol.md. What owners of a star do together is in tests/crash.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mpickpt import canonical
from mpickpt.cluster import channel, mailbox
from mpickpt.cluster.channel import Call, Kind, Line, Outcome
from mpickpt.cluster.messages import HEADER, Abort
from mpickpt.cluster.topology import Topology
from mpickpt.errors import (
    CheckpointError,
    CoverageError,
    DeadlineError,
    DisagreementError,
    InDoubtError,
    StateError,
    StoreError,
    TopologyError,
)
from mpickpt.store.threads import Pool

DEADLINE = 3.0
ME, PARENT, CHILDREN = 1, 0, (2, 3)


class Wire:
    """A transport of which a test writes and reads the other end."""

    name = "scripted"
    hosts = dict.fromkeys(range(7), "n1")

    def __init__(self) -> None:
        self.arriving: list[tuple[int, bytes]] = []
        self.sent: list[tuple[int, Kind, int, bytes]] = []
        self.gone: frozenset[int] = frozenset()

    def send(self, role: int, message: bytes) -> None:
        kind, number = HEADER.unpack_from(message)
        self.sent.append((role, Kind(kind), number, message[HEADER.size :]))

    def poll(self) -> list[tuple[int, bytes]]:
        arrived, self.arriving = self.arriving, []
        return arrived

    def dead(self) -> frozenset[int]:
        return self.gone

    def close(self, patience: float) -> None:
        pass

    def come(self, source: int, kind: Kind, body: bytes = b"", number: int = 1) -> None:
        self.arriving.append((source, HEADER.pack(kind, number) + body))

    def told(self, kind: Kind, role: int) -> list[bytes]:
        """Give what was sent of a kind to a neighbour."""
        return [body for to, sent, _, body in self.sent if (to, sent) == (role, kind)]

    def aborts(self, role: int) -> list[Abort]:
        return [Abort.unpack(body) for body in self.told(Kind.ABORT, role)]


class World:
    """Time goes on only while the owner sleeps; `at` and `always` say what happens meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wire = Wire()
        self.events: list[tuple[float, Callable[[], Any]]] = []
        self.always: Callable[[], Any] = lambda: None
        self.line = Line(self.wire, Topology.of("tree", 7, 2).place(ME), DEADLINE, "n0", Pool(2, "channel"))
        assert self.line.place.parent == PARENT
        assert tuple(role for role, _ in self.line.place.children) == CHILDREN

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.always()
        for event in [event for event in self.events if event[0] <= self.now]:
            self.events.remove(event)
            event[1]()

    def at(self, time: float, event: Callable[[], Any]) -> None:
        self.events.append((time, event))

    def alive(self, *roles: int, number: int = 1) -> None:
        """Let neighbours give signs of life all the time."""
        self.always = lambda: [self.wire.come(role, Kind.BEAT, bytes(8), number) for role in roles]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    clock = types.SimpleNamespace(monotonic=lambda: world.now, sleep=world.sleep)
    monkeypatch.setattr(mailbox, "time", clock)
    monkeypatch.setattr(channel, "time", clock)
    world.alive(PARENT, *CHILDREN)
    yield world
    world.line.pool.close(1)


def for_ever() -> bool:
    return False


def commit(call: Call) -> None:
    """Commit, and wait for ever."""
    with call:
        call.committed()
        call.wait(for_ever)


def raised(call: Call, ready: Callable[[], bool] = for_ever) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught, call:
        call.wait(ready)
    return caught.value


def test_c2_lower_numbers_are_dropped_and_are_no_sign_of_life(world: World) -> None:
    world.line.number = 4
    world.alive(PARENT, *CHILDREN, number=4)
    error = raised(world.line.call())
    assert isinstance(error, DeadlineError)
    assert DEADLINE < world.now < DEADLINE + 0.1
    assert world.line.counts["dropped"] > 100


@pytest.mark.parametrize("source", [PARENT, CHILDREN[0]])
def test_c4_a_higher_number_ends_the_call_and_is_kept_for_its_own(world: World, source: int) -> None:
    world.at(0.5, lambda: world.wire.come(source, Kind.READY, b"later", number=2))
    world.at(0.6, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(StateError("x", role=ME)).pack()))
    error = raised(world.line.call())
    assert world.now < 0.7
    if source == PARENT:  # it is gone: its word is not awaited
        assert isinstance(error, DeadlineError)
        assert error.role == ME
        assert error.message == "this owner missed the end of a collective call: owner 0 is at a later one"
    with world.line.call() as call:
        assert call.number == 2
        assert call.take(source, Kind.READY) == (Kind.READY, b"later")


def test_c4_after_the_commitment_only_the_parents_higher_number_counts(world: World) -> None:
    asked: list[CheckpointError] = []
    call = world.line.call()
    call.decided_by(lambda error: asked.append(error) or b"blake3:00")  # type: ignore[func-returns-value]
    world.at(0.5, lambda: world.wire.come(CHILDREN[0], Kind.READY, number=2))
    world.at(1.0, lambda: world.wire.come(PARENT, Kind.READY, number=2))
    with pytest.raises(Outcome) as outcome:
        commit(call)
    assert outcome.value.release == b"blake3:00"
    assert 1.0 <= world.now < 1.5
    assert [error.role for error in asked] == [ME]
    # The children wait for the same word.
    assert [world.wire.told(Kind.RELEASE, child) for child in CHILDREN] == [[b"blake3:00"]] * 2
    assert not world.wire.aborts(PARENT)


@pytest.mark.parametrize("kind", [Kind.RELEASE, Kind.RESULT])
def test_c3_a_last_word_in_the_mailbox_comes_before_any_judgement(world: World, kind: Kind) -> None:
    world.always = lambda: None

    def late() -> None:
        world.now += 10 * DEADLINE
        world.wire.come(PARENT, kind, b"well", number=1)
        world.wire.come(PARENT, Kind.READY, number=2)

    world.at(0.1, late)
    with world.line.call() as call:
        assert call.from_parent(kind) == (kind, b"well")


@pytest.mark.parametrize("silent", [PARENT, *CHILDREN])
def test_c5_the_neighbour_that_is_silent_is_named(world: World, silent: int) -> None:
    world.alive(*({PARENT, *CHILDREN} - {silent}))
    world.at(4.0, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(StateError("the parent's word")).pack()))
    call = world.line.call()
    error = raised(call)
    if silent == PARENT:
        assert isinstance(error, DeadlineError)
        assert (error.role, error.host) == (PARENT, "n1")
        assert world.now < DEADLINE + 0.1
    else:
        assert error.message == "the parent's word"
        (told,) = world.wire.aborts(PARENT)
        assert isinstance(told.error, DeadlineError)
        assert told.error.role == silent
    for role in (PARENT, *CHILDREN):  # the silent one too
        assert world.wire.aborts(role)


@pytest.mark.parametrize(
    ("opening", "other", "due"), [(Kind.READY, Kind.WORD, CHILDREN[0]), (Kind.WORD, Kind.READY, ME)]
)
def test_c7_another_call_under_the_same_number_is_refused_at_once(
    world: World, opening: Kind, other: Kind, due: int
) -> None:
    world.at(0.5, lambda: world.wire.come(CHILDREN[0], other))
    world.at(1.0, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(StateError("the parent's word")).pack()))
    with pytest.raises(StateError), world.line.call(opening=opening) as call:
        call.wait(for_ever)
    assert world.now < 1.1
    (told,) = world.wire.aborts(PARENT)
    assert isinstance(told.error, DisagreementError)
    assert told.error.message.startswith(f"owners made different calls: due at owner {due}, another one at owner ")
    assert told.error.roles == tuple(sorted((ME, CHILDREN[0])))


def test_c5_the_dead_are_named_at_once(world: World) -> None:
    world.wire.gone = frozenset({PARENT})
    error = raised(world.line.call())
    assert isinstance(error, DeadlineError)
    assert error.message == "an owner has died"
    assert world.now < 0.1


def test_c5_one_beat_a_second_on_every_edge_with_the_bytes_below(world: World) -> None:
    world.always = lambda: [
        world.wire.come(PARENT, Kind.BEAT, bytes(8)),
        *(world.wire.come(child, Kind.BEAT, (100 * child).to_bytes(8, "little")) for child in CHILDREN),
    ]
    with world.line.call() as call:
        call.working = types.SimpleNamespace(done=9, payload=7, syncing=0, cancel=lambda: None)
        call.wait(lambda: world.now > 10)
    for role in (PARENT, *CHILDREN):
        beats = world.wire.told(Kind.BEAT, role)
        assert 8 <= len(beats) <= 10
        assert int.from_bytes(beats[-1], "little") == 507


def test_c5_a_child_that_has_committed_is_watched_only_while_it_is_asked(world: World) -> None:
    world.alive(PARENT, CHILDREN[1])
    call = world.line.call()
    call.heard.add(CHILDREN[0])
    call.wait(lambda: world.now > 3 * DEADLINE)
    world.at(5 * DEADLINE, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(StateError("x")).pack()))
    with pytest.raises(StateError), call:
        call.from_children(Kind.ANSWER)
    (told,) = world.wire.aborts(PARENT)
    assert told.error.role == CHILDREN[0]
    assert isinstance(told.error, DeadlineError)


def test_a_second_message_of_one_kind_from_one_child_is_refused(world: World) -> None:
    world.at(0.1, lambda: [world.wire.come(CHILDREN[0], Kind.READY) for _ in range(2)])
    world.at(0.2, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(TopologyError("twice")).pack()))
    with pytest.raises(TopologyError), world.line.call() as call:
        call.from_children(Kind.READY)


def test_c7_an_own_refusal_goes_up_and_the_parents_word_comes_down(world: World) -> None:
    mine, word = StateError("mine", role=ME), CoverageError("the first of all", role=5)
    world.at(0.5, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(word).pack()))
    with pytest.raises(CoverageError, match="the first of all"), world.line.call():
        raise mine
    assert [abort.error.message for abort in world.wire.aborts(PARENT)] == ["mine"]
    for child in CHILDREN:
        assert [abort.error.message for abort in world.wire.aborts(child)] == ["the first of all"]


def test_c7_a_parent_that_has_no_word_is_waited_for_within_the_deadline(world: World) -> None:
    world.alive(*CHILDREN)
    with pytest.raises(StateError, match="mine"), world.line.call():
        raise StateError("mine", role=ME)
    assert DEADLINE <= world.now < DEADLINE + 0.1
    for child in CHILDREN:
        assert [abort.error.message for abort in world.wire.aborts(child)] == ["mine"]


def test_c7_an_interrupt_is_told_and_not_held_up(world: World) -> None:
    with pytest.raises(KeyboardInterrupt), world.line.call():
        raise KeyboardInterrupt
    assert world.now == 0
    for role in (PARENT, *CHILDREN):
        (abort,) = world.wire.aborts(role)
        assert "KeyboardInterrupt" in abort.error.message


def test_p7_after_the_commitment_a_child_is_heard_only_if_its_void_is_durable(world: World) -> None:
    call = world.line.call()
    call.decided_by(lambda error: error)
    world.at(0.5, lambda: world.wire.come(CHILDREN[0], Kind.ABORT, Abort(StateError("no void")).pack()))
    world.at(1.5, lambda: world.wire.come(CHILDREN[1], Kind.ABORT, Abort(StateError("a void"), void=True).pack()))
    with pytest.raises(StateError, match="a void"):
        commit(call)
    assert call.abandoned
    for role in (PARENT, CHILDREN[0]):
        assert [(abort.error.message, abort.void) for abort in world.wire.aborts(role)] == [("a void", True)]


def test_p7_what_was_refused_before_the_commitment_still_counts(world: World) -> None:
    call = world.line.call()
    world.wire.come(CHILDREN[0], Kind.ABORT, Abort(StateError("before")).pack())
    world.at(0.5, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(StateError("before")).pack()))
    with pytest.raises(StateError, match="before"), call:
        call.committed()
    assert call.abandoned


def test_p8_silence_after_the_commitment_is_settled_by_the_store(world: World) -> None:
    world.alive(*CHILDREN)
    asked: list[CheckpointError] = []

    def settle(error: CheckpointError) -> CheckpointError:
        asked.append(error)
        return CoverageError("what the void says", role=6)

    call = world.line.call()
    call.decided_by(settle)
    with pytest.raises(CoverageError, match="what the void says"):
        commit(call)
    assert [type(error) for error in asked] == [DeadlineError]
    for role in (PARENT, *CHILDREN):
        assert [(abort.error.message, abort.void) for abort in world.wire.aborts(role)] == [
            ("what the void says", True)
        ]


def test_p8_a_store_that_does_not_answer_leaves_doubt_and_the_neighbours_ask_for_themselves(world: World) -> None:
    world.alive(*CHILDREN)

    def settle(error: CheckpointError) -> CheckpointError:
        raise StoreError("sync failed", path="/s/roots/x")

    call = world.line.call()
    call.decided_by(settle)
    with pytest.raises(InDoubtError, match=r"an owner is silent .*the store does not answer: sync failed"):
        commit(call)
    assert not call.abandoned
    for role in (PARENT, *CHILDREN):
        assert [(type(abort.error), abort.void, abort.doubt) for abort in world.wire.aborts(role)] == [
            (DeadlineError, False, True)
        ]


def test_p8_a_parent_in_doubt_makes_the_committed_ask(world: World) -> None:
    call = world.line.call()
    call.decided_by(lambda error: b"blake3:11")
    world.at(0.5, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(StoreError("lost"), doubt=True).pack()))
    with pytest.raises(Outcome):
        commit(call)


def test_p9_a_parents_abort_after_the_commitment_is_final_and_removes_nothing(world: World) -> None:
    call = world.line.call()
    call.decided_by(lambda error: pytest.fail("the store is not asked"))
    world.at(0.5, lambda: world.wire.come(PARENT, Kind.ABORT, Abort(StoreError("full", role=0)).pack()))
    with pytest.raises(StoreError, match="full"):
        commit(call)
    assert not call.abandoned


def test_messages_that_are_kept_are_of_one_later_call_each(world: World) -> None:
    for number in (2, 3):
        world.wire.come(PARENT, Kind.GO, bytes([number]), number)
    error = raised(world.line.call())
    assert isinstance(error, DeadlineError)
    world.always = lambda: None
    error = raised(world.line.call())  # it has its message, but the parent is at a later one still
    assert isinstance(error, DeadlineError)
    with world.line.call() as call:
        assert call.from_parent(Kind.GO) == (Kind.GO, b"\3")
    assert canonical.loads(canonical.dumps([1]), what="nothing") == [1]
