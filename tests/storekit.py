"""Stores of many owners made by one process, from the rooms below `cluster`, so that tools are tested without MPI.

Roles are in preorder; `tree=False` makes a star, `tree=True` a chain in which every owner's one child is the next: the
deepest tree there is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpickpt.format.manifest import (
    ChildRecord,
    Claim,
    Manifest,
    Prefix,
    RunInfo,
    ShardRecord,
    manifest_file,
    root_name,
    shard_file,
)
from mpickpt.format.shard import PieceSpec, layout
from mpickpt.state import coverage
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.state.dtypes import itemsize
from mpickpt.state.nest import flatten
from mpickpt.state.plan import Piece, plan
from mpickpt.state.region import Box, Schema
from mpickpt.store import commit
from mpickpt.store.directory import Directory
from mpickpt.store.writer import Progress, ShardWriter, write_shard


def claim(directory: Directory, epoch: int, origin: tuple[int, int, str] | None = None, owners: int = 1) -> None:
    """Take an epoch: a fresh start, or from the generation (epoch, step, root digest)."""
    from_epoch, from_step, from_root = origin or (None, None, None)
    known = {entry[0]: entry for found in directory.claims() for entry in found.lineage}
    lineage = (*(known[old] for old in sorted(known)), (epoch, from_epoch, from_step))
    made = Claim(
        epoch, directory.run.run, from_epoch, from_step, from_root, owners, None, "host", "2026-01-01T00:00:00+00:00",
        f"claim{epoch}", lineage,
    )  # fmt: skip
    assert directory.claim(made)


def publish(
    path: Path,
    states: Sequence[Any],
    *,
    step: int,
    cursor: int = 0,
    epoch: int = 1,
    contract: Contract | None = None,
    tree: bool = False,
    algorithm: str = "blake3",
) -> str:
    """Save the states of all owners as one generation; gives its root's file name."""
    if not path.exists():
        path.mkdir(parents=True)
        # A run's id that is not drawn: two stores of the same states are equal byte for byte.
        commit.write_new(str(path / "run.json"), RunInfo(1, "run", "2026-01-01T00:00:00+00:00").encode()[0])
    directory = Directory(path).open(write=True)
    if directory.newest_claim() is None:
        claim(directory, epoch, owners=len(states))
    owners = len(states)
    contract = contract or Contract()
    captures = [flatten(state, role, owners) for role, state in enumerate(states)]
    mine = [Declarations.of(capture, role, contract, {}) for role, capture in enumerate(captures)]
    union = mine[0].merge(mine[1:])
    schema = union.schema
    nonce = f"n{step}e{epoch}"
    prefix = Prefix(
        directory.run.run, schema.digest(algorithm), contract.digest(algorithm), step, cursor, epoch, 1, nonce
    )
    name = root_name(step, epoch, nonce)
    data = directory.attempt(name)
    heads = [1] if tree and owners > 1 else list(range(1, owners))
    written = [
        [
            record
            for pieces, shared in zip(
                plan(capture, union, schema, role, owners, [0, *heads]), (False, True), strict=True
            )
            if pieces and (record := _shard(data, prefix, pieces, role, shared, algorithm)) is not None
        ]
        for role, capture in enumerate(captures)
    ]
    shared = [record for records in written for record in records if record.shared]
    below: list[ChildRecord] = []
    for role in reversed(range(1, owners)):
        own = [record for record in written[role] if not record.shared]
        children = tuple(below) if tree else ()
        below_cover = sum(child.cover for child in children)
        size = owners - role if tree else 1
        cover = (_cover(schema, own) + below_cover) & coverage.MASK
        manifest = Manifest("group", role, size, prefix, {}, tuple(own), children, cover)
        text, name_of = manifest.encode(algorithm)
        target = os.path.join(data, manifest_file(role))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        commit.write_new(target, text)
        child = ChildRecord(role, size, name_of, cover, None)
        below = [child] if tree else [child, *below]
    own = [record for record in written[0] if not record.shared] + shared
    root = Manifest(
        "root", 0, owners, prefix, {"kind": "cpu"}, tuple(own), tuple(below),
        (_cover(schema, own) + sum(child.cover for child in below)) & coverage.MASK,
        schema=schema, containers=union.containers, contract=contract.to_json(), owners=owners,
        topology={"kind": "tree" if tree else "star", "fan_out": 1 if tree else owners},
        parent=None, written={"host": "host", "end": "2026-01-01T00:00:00+00:00"},
        lineage=directory.claims()[-1].lineage,
    )  # fmt: skip
    assert directory.publish_root(name, root.encode(algorithm)[0])
    return name


def _shard(data: str, prefix: Prefix, pieces: Sequence[Piece], role: int, shared: bool, algorithm: str) -> ShardRecord:
    specs = [
        PieceSpec(
            piece.ordinal, piece.region.name, piece.box,
            "uint8" if isinstance(piece.data, bytes) else piece.region.dtype,
            len(piece.data) if isinstance(piece.data, bytes) else piece.box.size * itemsize(piece.region.dtype),
        )
        for piece in pieces
    ]  # fmt: skip
    made = layout(
        specs, role=role, schema=prefix.schema, step=prefix.step, cursor=prefix.cursor, epoch=prefix.epoch,
        attempt=prefix.attempt, algorithm=algorithm, shared=shared, chunk=1 << 16,
    )  # fmt: skip
    file = shard_file(role, shared)
    target = os.path.join(data, file)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    return write_shard(ShardWriter(target, made, Progress()), pieces, None).record(role, file)


def _cover(schema: Schema, records: Sequence[ShardRecord]) -> int:
    return coverage.cover_of(
        schema, ((ordinal, Box(lo, hi)) for record in records for ordinal, lo, hi in record.pieces)
    )
