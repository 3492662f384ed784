"""What parents make of their children's commitments, and what a commitment says (docs/protocol.md, Publish 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mpickpt.cluster.attempt import Attempt, Sums
from mpickpt.cluster.channel import Call, Kind
from mpickpt.cluster.timings import SIZE, Timings
from mpickpt.errors import FormatError, MomentError, TopologyError
from mpickpt.format.commitment import Commitment, SharedShard
from mpickpt.format.manifest import ChildRecord, ShardRecord
from mpickpt.format.prefix import MAX_BOUNDS, Prefix
from mpickpt.state.plan import shared_boxes
from mpickpt.state.region import Box

_REPORT: Final = "report this: that owner runs another program or another version of mpickpt"


@dataclass(frozen=True, slots=True)
class Heard:
    """The children's commitments, added up."""

    children: tuple[ChildRecord, ...]
    shared: tuple[tuple[int, SharedShard], ...]
    sums: Sums
    timings: tuple[Timings, ...]


def hear(call: Call, attempt: Attempt, gathered: bool) -> Heard:
    """Wait for the children's commitments and add them up; of gathered captures there are no manifests to record.

    Raises
    ------
    TopologyError, MomentError
        If a commitment is of another role, subtree or capture, or comes twice.
    """
    sizes = dict(call.place.children)
    found: dict[int, Commitment] = {}
    timings: list[Timings] = []

    def take(role: int, body: bytes) -> None:
        try:
            child = Commitment.unpack(body[:-SIZE])
        except FormatError as error:
            error.role, error.advice = role, _REPORT
            raise
        found[role] = _checked(child, role, sizes[role], attempt.prefix)
        # It may have lain here for as long as this owner wrote.
        timings.append(Timings.unpack(body[-SIZE:], call.came[role]))
        call.heard.add(role)

    call.from_children(Kind.COMMIT, take)
    children, shared, sums = [], [], Sums()
    for role in sorted(found):
        child = found[role]
        sums += Sums(child.cover, child.held, child.copies)
        if not gathered:
            digest = f"{attempt.algorithm}:{child.digest.hex()}"
            children.append(ChildRecord(role, child.size, digest, child.cover, child.bounds))
        if child.shared is not None:
            shared.append((role, child.shared))
    return Heard(tuple(children), tuple(shared), sums, tuple(timings))


def _checked(child: Commitment, role: int, size: int, prefix: Prefix) -> Commitment:
    """Refuse a commitment of another role, subtree or capture."""
    if (child.role, child.size) != (role, size):
        raise TopologyError(
            "a commitment claims another place in the topology",
            role=role,
            expected=f"role {role} with {size} role(s) in its subtree",
            found=f"role {child.role} with {child.size}",
            unharmed="earlier generations",
            advice=_REPORT,
        )
    if child.prefix != prefix:
        names = [n for n in prefix.__dataclass_fields__ if getattr(child.prefix, n) != getattr(prefix, n)]
        raise MomentError(
            f"a commitment is of another capture: other {', '.join(names)}",
            role=role,
            expected=", ".join(f"{n} {getattr(prefix, n)}" for n in names),
            found=", ".join(f"{n} {getattr(child.prefix, n)}" for n in names),
            unharmed="earlier generations",
            advice=_REPORT,
        )
    return child


def shared_records(attempt: Attempt, shared: Sequence[tuple[int, SharedShard]]) -> list[ShardRecord]:
    """Give the records of the children's `.r` shards, by role; their pieces follow from the rule."""
    agreed, records = attempt.agreed, []
    for role, told in shared:
        pieces = shared_boxes(agreed.declarations, agreed.schema, attempt.owners, attempt.writers, role)
        records.append(ShardRecord(role, *told, tuple((ordinal, box.lo, box.hi) for ordinal, box in pieces)))
    return records


def bounds_of(
    attempt: Attempt, own: Sequence[ShardRecord], children: Sequence[ChildRecord]
) -> tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] | None:
    """Bound what a subtree holds of each region that follows no rule; None where that is too much to tell."""
    schema = attempt.agreed.schema
    around: dict[int, Box] = {}
    pieces = [piece for record in own for piece in record.pieces]
    for child in children:
        if child.bounds is None:
            return None
        pieces.extend(child.bounds)
    for ordinal, lo, hi in pieces:
        region = schema[ordinal]
        if region.kind == "per_owner" or region.rule is not None:
            continue
        known = around.get(ordinal)
        if known is not None:
            lo, hi = tuple(map(min, known.lo, lo)), tuple(map(max, known.hi, hi))
        around[ordinal] = Box(tuple(lo), tuple(hi))
        if len(around) > MAX_BOUNDS:
            return None
    return tuple((ordinal, around[ordinal].lo, around[ordinal].hi) for ordinal in sorted(around))
