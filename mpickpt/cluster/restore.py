"""Restoration: all owners hand over exactly one saved state, or all refuse and nothing of the caller's was touched.

The steps, each with its failpoints, are those of docs/protocol.md, "Restore":

1. agree and choose      resume.entered, resume.chosen
2. manifests             (in the reader)
3. contract, placement, schema
4. read and verify into private memory     resume.read
5. one round: the outcome of all           resume.told, resume.agreed
6. copy into the destinations              resume.filled
7. one round more: all have filled theirs

With `low_memory` nothing is kept in step 4 of what can be read right into the caller's arrays, and step 6 reads and
verifies it once more, to there. Where that fails these arrays are undefined, which all owners hear in step 7.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from mpickpt import failpoints
from mpickpt.cluster import claims, passing
from mpickpt.cluster.agree import agree
from mpickpt.cluster.channel import Call, Line
from mpickpt.cluster.eligible import Applicant, check_moment, check_schema, resize_refused
from mpickpt.cluster.outcome import agree_on_outcome
from mpickpt.cluster.request import DAMAGE, Decider, Decision, Request
from mpickpt.errors import CheckpointError, SchemaError
from mpickpt.format.manifest import Manifest
from mpickpt.state.capture import Capture, Node, Restored
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.state.layout import OnResize
from mpickpt.state.nest import filled_alone, in_place
from mpickpt.state.region import Box, Region, Schema
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation, Want
from mpickpt.store.memory import memory_for, memory_for_all
from mpickpt.store.progress import Progress
from mpickpt.store.threads import Pool

#: What a refusal says of the destinations once they are being filled.
_FILLED: Final = "the store; the arrays of the destination may hold the checkpoint already"
_AGAIN: Final = "do not train on from here: resume again, or start again, once what was damaged is whole"
_UNDEFINED: Final = "the store; what the arrays of the destination hold is undefined: they were being read into"

#: A region, the boxes of it that are wanted, and what becomes of per-owner bytes at another owner count.
_Asked: TypeAlias = tuple[Region, list[Box], OnResize]


@dataclass(slots=True)
class Resumed:
    """What one owner got: a generation's moment and the private copies of its pieces, or a fresh start."""

    step: int
    cursor: int
    epoch: int
    fresh: bool
    root: str | None
    restored: Restored
    containers: dict[str, str]
    accepted: list[list[str]] = field(default_factory=list)
    #: Bytes of the generation's arrays, each counted once.
    nbytes: int = 0


def resume(
    line: Line,
    directory: Directory,
    contract: Contract,
    device: Mapping[str, Any],
    refuses: Callable[[str], bool],
    pool: Pool,
    flatten: Callable[[], Capture | None],
    request: Request,
    decider: Decider,
    prepare: Callable[[Capture | None, Resumed], Callable[[], None]],
    touching: Callable[[], None],
    watched: Callable[[Progress, int], None] = lambda progress, wanted: None,
) -> Resumed:
    """Restore. Collective.

    Parameters
    ----------
    device : mapping
        What this owner computes on.
    flatten : callable
        Gives this owner's destination, or None for whole regions; may raise StateError.
    decider : Decider
        Chooses the generation and takes the epoch, at owner 0.
    prepare : callable
        In a worker: looks whether the caller's destinations can be filled, and gives what fills them, once all
        owners have agreed.
    touching : callable
        Is told when the destinations begin to be written: what fails from here on leaves no state to train from.
    watched : callable
        Is told of this owner's reading, and of the bytes that it will read.
    """
    with line.call() as call:
        failpoints.reach("resume.entered")
        capture = flatten()
        mine = _declared(capture, call.place.role, contract)
        facts = {
            "path": directory.path,
            "step": request.step,
            "root": request.root,
            "repartition": request.repartition,
            "readonly": request.readonly,
            "level": request.level,
            "low_memory": request.low_memory,
            "on_damage": request.on_damage,
            "accept": dict(request.accept),
            "state": "None" if capture is None else "given",
            **request.alike,
        }

        def choose(union: Declarations | None) -> Decision:
            directory.expected = None if union is None else union.schema
            return decider.choose(request)

        decision, union = agree(call, "resume", facts, mine, "", choose, passing.alike(capture, line.host))
        directory.expected = None if union is None else union.schema
        failpoints.reach("resume.chosen")
        alike = decision["alike"]
        for attempt in itertools.count():
            outcome: CheckpointError | None = None
            found: Resumed | None = None
            fill: Callable[[], None] | None = None
            straight: passing.Reads | None = None
            if decision["fresh"]:
                found = Resumed(0, 0, decision["epoch"], True, None, Restored(), {})
                fill = prepare(capture, found)
            else:
                progress = Progress()
                place = call.place
                applicant = Applicant(
                    contract, device, place.role, place.owners, line.host, request.repartition, request.accept
                )
                reader = _Reader(directory, applicant, refuses, request, progress, pool, decider.chosen)
                try:
                    planned = call.run(reader.plan, decision, capture, union, alike, working=progress)
                    straight = planned.straight
                    watched(progress, planned.reads.nbytes)
                    values = passing.read(call, planned.reads, request.level, progress, pool, refuses, attempt)
                    found = call.run(reader.finish, planned, values)
                    # What one owner cannot take, nobody takes: this comes before the outcome is told.
                    fill = call.run(prepare, capture, found)
                except CheckpointError as error:
                    if error.host is None:
                        error.role = None  # whose file it is, its path tells; named is who found it, with its host
                    outcome = error.at(place.role, line.host)
                    passing.decline(call, outcome.complete(call.unharmed), attempt)
            failpoints.reach("resume.read")

            def judge(error: CheckpointError, decision: dict[str, Any] = decision) -> dict[str, Any] | None:
                if not isinstance(error, DAMAGE):
                    return None
                instead = decider.instead(request, decision, error)
                if instead is None:
                    decider.advise(error, decision["name"])
                return None if instead is None else {"instead": instead}

            def settle(error: CheckpointError, claim: Any = decision["claim"]) -> CheckpointError | bytes:
                return claims.settle(directory, claim, line.host, error)

            def conclude(
                decision: dict[str, Any] = decision, accepted: Sequence[Sequence[str]] = found.accepted if found else ()
            ) -> dict[str, Any]:
                return decider.conclude(decision, accepted)

            result = agree_on_outcome(call, outcome, conclude, judge, settle if decision["claim"] else None)
            if "instead" not in result:
                break
            decision = result["instead"]
        assert found is not None
        assert fill is not None
        found.epoch = result["epoch"]
        touching()
        with _undefined(call, straight):
            failpoints.reach("resume.agreed")
            if straight is not None:
                outcome = _read_straight(call, straight, request.level, pool, refuses, attempt + 1)
            if outcome is None:
                try:
                    fill()
                except CheckpointError as error:
                    outcome = error.at(call.place.role, line.host)
            failpoints.reach("resume.filled")
            if not found.fresh:
                # The caller's own code runs in there (load_state_dict). Where it fails, no owner may begin to train.
                agree_on_outcome(call, outcome, dict)
        call.over()
        return found


@contextmanager
def _undefined(call: Call, straight: passing.Reads | None) -> Iterator[None]:
    """Have every refusal of a with-block, wherever it comes from, say what became of the destinations."""
    call.unharmed = _FILLED if straight is None else _UNDEFINED
    try:
        yield
    except CheckpointError as error:
        if straight is not None:
            error.unharmed, error.advice = _UNDEFINED, _AGAIN
        raise


def _read_straight(
    call: Call, reads: passing.Reads, level: str, pool: Pool, refuses: Callable[[str], bool], attempt: int
) -> CheckpointError | None:
    """Read right into the caller's arrays what was verified before; gives this owner's refusal, if there is one."""
    try:
        passing.read(call, reads, level, Progress(), pool, refuses, attempt)
    except CheckpointError as error:
        if error.host is None:
            error.role = None
        error.unharmed, error.advice = _UNDEFINED, _AGAIN
        passing.decline(call, error.at(call.place.role, call.line.host), attempt)
        return error
    return None


def _declared(capture: Capture | None, role: int, contract: Contract) -> Declarations:
    """Declare what a destination asks for; open prefixes travel as containers."""
    if capture is None:
        capture = Capture([], {}, Node("dict", "", {}, []), [])
    asked = Capture(capture.holdings, dict.fromkeys(capture.open_prefixes, "object"), capture.nest, [])
    return Declarations.of(asked, role, contract, {})


def _wants(ordinal: int, boxes: Sequence[Box], arrays: Sequence[np.ndarray[Any, Any] | None]) -> list[Want]:
    return [
        Want(ordinal, box, array)
        for box, array in zip(boxes, arrays, strict=True)
        if not (box.empty if array is None else array.size == 0)
    ]


@dataclass(frozen=True, slots=True)
class _Planned:
    """What one owner is about to read, and where it goes."""

    capture: Capture | None
    restored: Restored
    reads: passing.Reads
    accepted: list[list[str]]
    #: What is read a second time, once all have agreed: right into the caller's arrays (`low_memory`).
    straight: passing.Reads | None


class _Reader:
    """One owner's reading of one generation, into private memory."""

    def __init__(
        self,
        directory: Directory,
        applicant: Applicant,
        refuses: Callable[[str], bool],
        request: Request,
        progress: Progress,
        pool: Pool,
        chosen: Manifest | None,
    ) -> None:
        self.pool = pool
        self.chosen = chosen
        self.directory = directory
        self.applicant = applicant
        self.refuses = refuses
        self.request = request
        self.role = applicant.role
        self.owners = applicant.owners
        self.progress = progress

    def plan(
        self,
        decision: Mapping[str, Any],
        capture: Capture | None,
        union: Declarations | None,
        alike: Mapping[str, bool],
    ) -> _Planned:
        generation = Generation(self.directory, decision["name"], decision["digest"], root=self.chosen, pool=self.pool)
        root = generation.root
        accepted = self.applicant.check(generation)
        check_moment(root, generation.path)
        if capture is not None and union is not None:
            check_schema(union, generation.schema, generation.path)
        same = root.owners == self.owners
        restored = Restored()
        wants: list[Want] = []
        opaque: list[int] = []
        schema = generation.schema
        plan = self._whole(schema, "") if capture is None else self._asked(capture, schema)
        # What is only copied from shares one stretch of memory; what the caller keeps has its own.
        copied = {} if capture is None else in_place(capture)
        straight = filled_alone(capture) if capture is not None and self.request.low_memory else {}
        copied = {name: arrays for name, arrays in copied.items() if name not in straight}
        # Read a second time: what goes straight to where it belongs. What owner 0 reads for all must be the same for
        # all, whatever each does with it; so what is kept here of that is passed on again, and let go.
        again: list[Want] = []
        low_memory = self.request.low_memory
        common = passing.wanted_by_all(capture, union, schema, self.owners, alike)
        held = {h.region.name for h in capture.holdings} if capture is not None and low_memory else set()
        staged = [(region, box) for region, boxes, _ in plan if region.name in copied for box in boxes]
        staging = iter(memory_for_all(staged))
        for region, boxes, on_resize in plan:
            name = region.name
            ordinal = schema.ordinal(name)
            if region.kind == "per_owner" and not same:
                if on_resize == "refuse":
                    raise resize_refused(name, root.owners, self.owners, generation.path)
                if on_resize == "drop":
                    restored.dropped.add(name)
                continue
            if region.shape is None:
                opaque.append(ordinal)
                continue
            if name in straight:
                arrays = straight[name]
                wants += _wants(ordinal, boxes, [None] * len(boxes))
                again += _wants(ordinal, boxes, arrays)
            else:
                if name in copied:
                    arrays = list(itertools.islice(staging, len(boxes)))
                else:
                    arrays = [memory_for(region, box) for box in boxes]
                wants += _wants(ordinal, boxes, arrays)
                if low_memory and ordinal in common and name in held:
                    again += _wants(ordinal, boxes, [None] * len(boxes))
            restored.arrays[name] = arrays
        role = self.role if same else None
        reads = passing.Reads(generation, wants, opaque, common, role)
        second = passing.Reads(generation, again, [], common, role) if low_memory else None
        return _Planned(capture, restored, reads, accepted, second)

    def finish(self, planned: _Planned, values: Mapping[int, bytes]) -> Resumed:
        generation, restored, capture = planned.reads.generation, planned.restored, planned.capture
        root = generation.root
        for ordinal in planned.reads.opaque:
            region = generation.schema[ordinal]
            if ordinal in values:
                restored.opaque[region.name] = values[ordinal]
            elif capture is not None:
                raise SchemaError(
                    "this owner's part of a per-owner region is not in the checkpoint",
                    region=region.name,
                    path=generation.path,
                    expected=f"one that owner {self.role} saved",
                    found="none",
                    unharmed="all arrays: nothing was filled",
                    advice="leave the region out of this owner's state, or start a new store",
                )
        at, accepted = root.prefix, planned.accepted
        digest, containers = generation.digest, root.containers
        nbytes = generation.schema.nbytes
        return Resumed(at.step, at.cursor, at.epoch, False, digest, restored, containers, accepted, nbytes)

    def _asked(self, capture: Capture, schema: Schema) -> list[_Asked]:
        """List what this owner's destination asks for."""
        plan: list[_Asked] = [(h.region, [part.box for part in h.parts], h.on_resize) for h in capture.holdings]
        for prefix in capture.open_prefixes:
            plan += self._whole(schema, prefix)
        return plan

    def _whole(self, schema: Schema, prefix: str) -> list[_Asked]:
        """List all regions at or below a path, whole."""
        below = f"{prefix}/" if prefix else ""
        return [
            (region, [] if region.shape is None else [Box.whole(region.shape)], "drop")
            for region in schema
            if region.name == prefix or region.name.startswith(below)
        ]
