"""One shard from arrays: a schema, pieces, a layout with small chunks, the file, the record of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpickpt.format.layout import Layout, PieceSpec, layout
from mpickpt.format.manifest import Prefix, ShardRecord
from mpickpt.state import dtypes
from mpickpt.state.plan import Piece
from mpickpt.state.region import Box, Region, Schema
from mpickpt.store.threads import Pool
from mpickpt.store.writer import Progress, ShardWriter, Written, write_shard

CONTRACT = "blake3:" + 64 * "0"


def array_schema(arrays: Mapping[str, np.ndarray[Any, Any]], *more: Region) -> Schema:
    """Whole arrays as regions."""
    regions = [Region(name, dtypes.name_of(a.dtype), a.shape, "array") for name, a in arrays.items()]
    return Schema([*regions, *more])


def whole_pieces(schema: Schema, arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[Piece]:
    """One piece an array."""
    return [
        Piece(schema.ordinal(name), schema[schema.ordinal(name)], Box.whole(array.shape), array)
        for name, array in arrays.items()
        if array.size
    ]


def box_piece(schema: Schema, name: str, box: Box, array: np.ndarray[Any, Any]) -> Piece:
    """The piece of a box of a whole array."""
    ordinal = schema.ordinal(name)
    return Piece(ordinal, schema[ordinal], box, array[box.relative(Box.whole(array.shape))])


def prefix_of(schema: Schema, algorithm: str = "blake3") -> Prefix:
    return Prefix("run", schema.digest(algorithm), CONTRACT, 3, 30, 1, 5, "nonce")


def size_of(piece: Piece) -> int:
    return len(piece.data) if isinstance(piece.data, bytes) else piece.data.nbytes


def layout_of(schema: Schema, pieces: list[Piece], chunk: int = 64, algorithm: str = "blake3", role: int = 0) -> Layout:
    specs = [PieceSpec(p.ordinal, p.region.name, p.box, p.region.dtype, size_of(p)) for p in pieces]
    prefix = prefix_of(schema, algorithm)
    return layout(
        specs,
        role=role,
        schema=prefix.schema,
        step=prefix.step,
        cursor=prefix.cursor,
        epoch=prefix.epoch,
        attempt=prefix.attempt,
        algorithm=algorithm,
        chunk=chunk,
    )


def write(
    path: Path,
    schema: Schema,
    pieces: list[Piece],
    *,
    chunk: int = 64,
    algorithm: str = "blake3",
    role: int = 0,
    pool: Pool | None = None,
    nonfinite: Callable[[str], bool] | None = None,
    progress: Progress | None = None,
) -> tuple[Written, ShardRecord]:
    """Write a shard; give what was written and its record."""
    writer = ShardWriter(
        str(path), layout_of(schema, pieces, chunk, algorithm, role), progress or Progress(), nonfinite
    )
    written = write_shard(writer, pieces, pool)
    return written, written.record(role, path.name)
