"""Who writes what: every byte of the state once, whatever number of owners holds it (docs/protocol.md, Publish 3).

A region that all owners declare as replicated is written in shares by the root and its children, into their second
shards; one that only some declare, by the first of them; of a box in R copies, copy k writes rows shares(rows, R)[k].
Pieces are views of the caller's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mpickpt.errors import StateError
from mpickpt.state.coverage import POINT
from mpickpt.state.region import Box, Region, Schema, share_of

if TYPE_CHECKING:
    from mpickpt.state.capture import Capture, Holding, Part
    from mpickpt.state.declare import Declarations, Entry


@dataclass(slots=True)
class Piece:
    """The bytes of one box, in one owner's memory.

    Parameters
    ----------
    ordinal : int
        The region's place in the schema.
    region : Region
        The region.
    box : Box
        The box; ``Box((), ())`` for opaque bytes.
    data : numpy.ndarray or bytes
        An array of the box's shape, of any strides and byte order; or opaque bytes.
    """

    ordinal: int
    region: Region
    box: Box
    data: np.ndarray[Any, Any] | bytes


#: A region of fewer bytes that all owners hold is written whole by one of the writers: cut into shares, thousands of
#: small arrays would become a multiple of small pieces, and every reader would pay for each.
WHOLE_BYTES: Final = 256 << 10


def shared_box(region: Region, ordinal: int, writers: int, index: int) -> Box | None:
    """Give what writer number `index` writes of a region that all owners hold; None for nothing.

    Parameters
    ----------
    region : Region
        A replicated array or a value.
    ordinal : int
        Its place in the schema.
    writers : int
        How many writers there are: the root and its children.
    index : int
        The writer's number among them, the root 0.

    Returns
    -------
    Box or None
        Rows of axis 0; of an array below `WHOLE_BYTES` or a value the whole, at writer ``ordinal % writers``.
    """
    shape = region.shape
    if not shape:
        return POINT if ordinal % writers == index else None
    whole = Box.whole(shape)
    if region.nbytes < WHOLE_BYTES:
        return whole if ordinal % writers == index and not whole.empty else None
    if writers > 1:
        whole = whole.rows(*share_of(shape[0], writers, index))
    return None if whole.empty else whole


def shared_boxes(
    declarations: Declarations, schema: Schema, owners: int, writers: Sequence[int], role: int
) -> list[tuple[int, Box]]:
    """List what a writer's `.r` shard holds, as (ordinal, box): it follows from the rule, so the root can tell.

    Parameters
    ----------
    declarations : Declarations
        The agreed ones.
    schema : Schema
        Their schema.
    owners : int
        How many owners there are.
    writers : sequence of int
        The roles that write such shards: the root, then its children.
    role : int
        The writer.
    """
    if role not in writers:
        return []
    index = writers.index(role)
    found = []
    for ordinal, region in enumerate(schema):
        entry = declarations.entries[region.name]
        if entry.mode == "replicated" and entry.count == owners:
            box = shared_box(region, ordinal, len(writers), index)
            if box is not None:
                found.append((ordinal, box))
    return found


def _array(part: Part, region: Region, role: int) -> np.ndarray[Any, Any]:
    if not isinstance(part.array, np.ndarray):
        raise StateError("a Spec is a destination and has no bytes to save", role=role, region=region.name)
    return part.array


def _bytes(holding: Holding, role: int) -> bytes:
    if holding.data is None:
        raise StateError("an opaque region without its bytes", role=role, region=holding.region.name)
    return holding.data


def _piece(ordinal: int, part: Part, box: Box, region: Region, role: int) -> Piece:
    array = _array(part, region, role)
    return Piece(ordinal, region, box, array if box == part.box else array[box.relative(part.box)])


def _boxes(holding: Holding, ordinal: int, role: int) -> list[Piece]:
    k, copies = holding.copy
    found = []
    for part in holding.parts:
        box = part.box
        if copies > 1 and box.lo:
            box = box.rows(*share_of(box.hi[0] - box.lo[0], copies, k))
        elif copies > 1 and k:
            continue  # a 0-d box: copy 0 writes it
        if not box.empty:
            found.append(_piece(ordinal, part, box, holding.region, role))
    return found


def _replicated(holding: Holding, ordinal: int, box: Box | None, role: int) -> list[Piece]:
    if box is None or box.empty:
        return []
    if holding.region.shape is None:
        return [Piece(ordinal, holding.region, POINT, _bytes(holding, role))]
    return [_piece(ordinal, holding.parts[0], box, holding.region, role)]


def _whole(region: Region) -> Box:
    return POINT if region.shape is None else Box.whole(region.shape)


def plan(
    capture: Capture,
    declarations: Declarations,
    schema: Schema,
    role: int,
    owners: int,
    writers: Sequence[int],
) -> tuple[list[Piece], list[Piece]]:
    """Plan what one owner writes.

    Parameters
    ----------
    capture : Capture
        What it holds.
    declarations : Declarations
        The agreed ones of all owners.
    schema : Schema
        Their schema.
    role : int
        This owner's role.
    owners : int
        How many owners there are.
    writers : sequence of int
        The roles that write regions which all hold: the root, then its children.

    Returns
    -------
    (own, shared)
        Pieces of its own shard and of its `.r` shard, ordered by region; empty boxes give none.

    Raises
    ------
    StateError
        If a `Spec` stands where bytes are to be saved.
    """
    own: list[Piece] = []
    shared: list[Piece] = []
    index = writers.index(role) if role in writers else None
    for holding in capture.holdings:
        region = holding.region
        entry: Entry = declarations.entries[region.name]
        ordinal = schema.ordinal(region.name)
        if holding.mode == "per_owner":
            own.append(Piece(ordinal, region, POINT, _bytes(holding, role)))
        elif holding.mode == "boxes":
            own += _boxes(holding, ordinal, role)
        elif entry.count == owners:
            if index is not None:
                shared += _replicated(holding, ordinal, shared_box(region, ordinal, len(writers), index), role)
        elif role == entry.first:
            own += _replicated(holding, ordinal, _whole(region), role)
    return own, shared
