"""Restoration: all owners hand over exactly one saved state, or all refuse and nothing of the caller's was touched.

The steps, each with its failpoints, are those of docs/protocol.md, "Restore":

1. agree and choose      resume.entered, resume.chosen
2. manifests             (in the reader)
3. contract, placement, schema
4. read and verify into private memory     resume.read
5. one round: the outcome of all           resume.told, resume.agreed
6. copy into the destinations              resume.filled
7. one round more: all have filled theirs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mpickpt import canonical, failpoints
from mpickpt.cluster.agree import agree
from mpickpt.cluster.channel import Call, Kind, Line, merge_outcomes
from mpickpt.errors import (
    CheckpointError,
    ContractError,
    CoverageError,
    FormatError,
    IntegrityError,
    MomentError,
    NonFiniteError,
    PlacementError,
    SchemaError,
    from_record,
)
from mpickpt.format.manifest import Manifest
from mpickpt.state.capture import Capture, Node, Restored
from mpickpt.state.contract import Contract, side_by_side
from mpickpt.state.declare import Declarations
from mpickpt.state.layout import OnResize
from mpickpt.state.region import Box, Region, Schema
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation, Want
from mpickpt.store.reader import memory_for
from mpickpt.store.threads import Pool
from mpickpt.store.writer import Progress

#: A region, the boxes of it that are wanted, and what becomes of per-owner bytes at another owner count.
_Asked: TypeAlias = tuple[Region, list[Box], OnResize]


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked `resume` for."""

    step: int | None = None
    root: str | None = None
    repartition: bool = False
    readonly: bool = False
    level: str = "full"


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


def resume(
    line: Line,
    directory: Directory,
    contract: Contract,
    refuses: Callable[[str], bool],
    pool: Pool,
    flatten: Callable[[], Capture | None],
    request: Request,
    decide: Callable[[], dict[str, Any]],
    chosen: Callable[[], Manifest | None],
    conclude: Callable[[], dict[str, Any]],
    advise: Callable[[CheckpointError, str], None],
    prepare: Callable[[Capture | None, Resumed], Callable[[], None]],
) -> Resumed:
    """Restore. Collective.

    Parameters
    ----------
    flatten : callable
        Gives this owner's destination, or None for whole regions; may raise StateError.
    decide : callable
        At owner 0, in a worker: chooses the generation.
    chosen : callable
        Gives the root that was chosen, where this owner has read it.
    conclude : callable
        At owner 0, in a worker, once all owners have verified theirs: makes the claim where there is none.
    advise : callable
        At owner 0, in a worker: says in a refusal of damage which older generation is good.
    prepare : callable
        In a worker: looks whether the caller's destinations can be filled, and gives what fills them, once all
        owners have agreed.
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
            "state": "None" if capture is None else "given",
        }
        decision, union = agree(call, "resume", facts, mine, "", lambda _: decide())
        failpoints.reach("resume.chosen")
        outcome: CheckpointError | None = None
        found: Resumed | None = None
        fill: Callable[[], None] | None = None
        if decision["fresh"]:
            found = Resumed(0, 0, decision["epoch"], True, None, Restored(), {})
            fill = prepare(capture, found)
        else:
            progress = Progress()
            reader = _Reader(
                directory, contract, refuses, request, call.place.role, call.place.owners, progress, pool, chosen
            )
            try:
                found = call.run(reader.read, decision, capture, union, working=progress)
                # What one owner cannot take, nobody takes: this comes before the outcome is told.
                fill = call.run(prepare, capture, found)
            except CheckpointError as error:
                outcome = error.at(call.place.role, line.host)
        failpoints.reach("resume.read")
        result = _agree_on_outcome(call, outcome, conclude, lambda error: advise(error, decision["name"]))
        call.unharmed = "the store; the arrays of the destination may hold the checkpoint already"
        failpoints.reach("resume.agreed")
        assert found is not None
        assert fill is not None
        found.epoch = result["epoch"]
        try:
            fill()
        except CheckpointError as error:
            outcome = error.at(call.place.role, line.host)
        failpoints.reach("resume.filled")
        if not found.fresh:
            # The caller's own code runs in there (load_state_dict). Where it fails, no owner may begin to train.
            _agree_on_outcome(call, outcome, dict, lambda error: None)
        call.over()
        return found


def _declared(capture: Capture | None, role: int, contract: Contract) -> Declarations:
    """Declare what a destination asks for; open prefixes travel as containers."""
    if capture is None:
        capture = Capture([], {}, Node("dict", "", {}, []), [])
    asked = Capture(capture.holdings, dict.fromkeys(capture.open_prefixes, "object"), capture.nest, [])
    return Declarations.of(asked, role, contract, {})


def _agree_on_outcome(
    call: Call,
    mine: CheckpointError | None,
    conclude: Callable[[], dict[str, Any]],
    advise: Callable[[CheckpointError], None],
) -> dict[str, Any]:
    """Tell the own outcome and learn that of all: one refusal for all, or what owner 0 concludes."""
    if mine is not None:
        mine.complete(call.unharmed)
    worst = merge_outcomes(mine, call.from_children(Kind.OUTCOME))
    if call.place.parent is not None:
        call.up(Kind.OUTCOME, canonical.dumps(None if worst is None else worst.to_record()))
        failpoints.reach("resume.told")
        _, body = call.from_parent(Kind.RESULT)
    else:
        result: dict[str, Any] = {"error": None}
        if worst is None:
            try:
                result |= call.run(conclude)
            except CheckpointError as error:
                worst = error.at(0, call.line.host)
        elif isinstance(worst, IntegrityError | FormatError | CoverageError | MomentError | NonFiniteError):
            call.run(advise, worst)
        if worst is not None:
            result["error"] = worst.complete(call.unharmed).to_record()
        body = canonical.dumps(result)
    call.down(Kind.RESULT, body)
    result = canonical.loads(body, what="the result of all")
    if result["error"] is not None:
        call.over()
        if mine is not None and mine.role == result["error"].get("role"):
            mine.advice = result["error"].get("advice")
        if mine is not None and mine.to_record() == result["error"]:
            raise mine
        raise from_record(result["error"])
    return result


class _Reader:
    """One owner's reading of one generation, into private memory."""

    def __init__(
        self,
        directory: Directory,
        contract: Contract,
        refuses: Callable[[str], bool],
        request: Request,
        role: int,
        owners: int,
        progress: Progress,
        pool: Pool,
        chosen: Callable[[], Manifest | None],
    ) -> None:
        self.pool = pool
        self.chosen = chosen
        self.directory = directory
        self.contract = contract
        self.refuses = refuses
        self.request = request
        self.role = role
        self.owners = owners
        self.progress = progress

    def read(self, decision: Mapping[str, Any], capture: Capture | None, union: Declarations | None) -> Resumed:
        generation = Generation(
            self.directory, decision["name"], decision["digest"], root=self.chosen(), pool=self.pool
        )
        root = generation.root
        saved = Contract.from_json(root.contract, path=generation.path)
        self._check_contract(saved, generation.path)
        self._check_placement(saved, root.owners, generation.path)
        _check_moment(root, generation.path)
        if capture is not None and union is not None:
            _check_schema(union, generation.schema, generation.path)
        same = root.owners == self.owners
        restored = Restored()
        wants: list[Want] = []
        opaque: list[int] = []
        plan = self._whole(generation.schema, "") if capture is None else self._asked(capture, generation.schema)
        for region, boxes, on_resize in plan:
            ordinal = generation.schema.ordinal(region.name)
            if region.kind == "per_owner" and not same:
                if on_resize == "refuse":
                    raise _resize_refused(region.name, root.owners, self.owners, generation.path)
                if on_resize == "drop":
                    restored.dropped.add(region.name)
                continue
            if region.shape is None:
                opaque.append(ordinal)
                continue
            arrays = [memory_for(region, box) for box in boxes]
            restored.arrays[region.name] = arrays
            wants += [Want(ordinal, box, array) for box, array in zip(boxes, arrays, strict=True) if not box.empty]
        values = generation.read(
            wants,
            opaque,
            role=self.role if same else None,
            level=self.request.level,
            progress=self.progress,
            refuses=self.refuses,
        )
        for ordinal in opaque:
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
        prefix = root.prefix
        return Resumed(prefix.step, prefix.cursor, prefix.epoch, False, generation.digest, restored, root.containers)

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

    def _check_contract(self, saved: Contract, path: str) -> None:
        differences = self.contract.differences(saved)
        if differences:
            raise ContractError(
                "the checkpoint is of another contract:\n" + side_by_side(differences, "this run", "checkpoint"),
                path=path,
                expected=str({name: mine for name, mine, _ in differences}),
                found=str({name: theirs for name, _, theirs in differences}),
                unharmed="all arrays and the store",
                advice="give the contract that the run was saved with, or start a new store",
            )

    def _check_placement(self, saved: Contract, then: int, path: str) -> None:
        if then == self.owners:
            return
        policies = {saved.placement, self.contract.placement}
        if "bound" in policies:
            advice = "the contract binds the placement: start the run with that many owners"
        elif "ask" in policies and not self.request.repartition:
            advice = "call resume(..., repartition=True), or give Contract(placement='free') from the first save on"
        else:
            return
        raise PlacementError(
            "the checkpoint was saved by another number of owners",
            path=path,
            expected=f"{then} owners",
            found=f"{self.owners} owners",
            unharmed="all arrays and the store",
            advice=advice,
        )


def _check_moment(root: Manifest, path: str) -> None:
    """Refuse a generation whose step or cursor is behind that of the generation before it."""
    if root.parent is None:
        return
    before, now = root.parent, root.prefix
    for field, then, here in (("step", before["step"], now.step), ("cursor", before["cursor"], now.cursor)):
        if here < then:
            raise MomentError(
                f"the checkpoint's {field} was reset: it is behind that of the generation before it",
                path=path,
                expected=f"{field} >= {then}",
                found=f"{field} {here}",
                advice="inputs would be trained on twice: take another generation, with resume(step=...)",
            )


def _resize_refused(region: str, then: int, now: int, path: str) -> PlacementError:
    return PlacementError(
        "a per-owner region cannot go to another number of owners",
        region=region,
        path=path,
        expected=f"{then} owners, as at the save",
        found=f"{now} owners",
        unharmed="all arrays and the store",
        advice="say what to do: PerOwner(x, on_resize='keep') or 'drop'",
    )


def _check_schema(union: Declarations, saved: Schema, path: str) -> None:
    """Compare what all owners together want with what was saved; list all differences."""
    wanted = union.schema
    open_prefixes = tuple(union.containers)
    lines: list[tuple[str, str, str]] = []
    for region in wanted:
        if region.name not in saved:
            lines.append((region.name, f"{_form(region)} in the destination", "nothing in the checkpoint"))
            continue
        there = saved[saved.ordinal(region.name)]
        if (there.kind, there.dtype, there.shape) != (region.kind, region.dtype, region.shape):
            lines.append((region.name, f"{_form(region)} in the destination", f"{_form(there)} in the checkpoint"))
    for region in saved:
        below = any(region.name == prefix or region.name.startswith(f"{prefix}/") for prefix in open_prefixes)
        if region.name not in wanted and not below and "" not in open_prefixes:
            lines.append((region.name, "nothing in the destination", f"{_form(region)} in the checkpoint"))
    if lines:
        text = "; ".join(f"{name}: {mine}, {theirs}" for name, mine, theirs in lines)
        raise SchemaError(
            f"the destination does not fit the checkpoint in {len(lines)} region(s): {text}",
            region=lines[0][0],
            path=path,
            expected=f"{lines[0][0]}: {lines[0][1]}",
            found=f"{lines[0][0]}: {lines[0][2]}",
            unharmed="all arrays: nothing was filled, and nothing is ever cast",
            advice="give the state in the form that was saved, or convert it: open_store(path).read() gives it as is",
        )


def _form(region: Region) -> str:
    if region.shape is None:
        return region.kind
    return f"{region.dtype} {region.shape}" + ("" if region.kind == "array" else f" ({region.kind})")
