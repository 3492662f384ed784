"""Generations piece by piece, in star or tree, with every record open to mischief."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardkit import size_of

from mpickpt.format.layout import PieceSpec, layout
from mpickpt.format.manifest import (
    ChildRecord,
    Claim,
    Manifest,
    Prefix,
    ShardRecord,
    manifest_file,
    root_name,
    shard_file,
)
from mpickpt.state import coverage
from mpickpt.state.contract import Contract
from mpickpt.state.plan import Piece
from mpickpt.state.region import Box, Schema
from mpickpt.store import commit
from mpickpt.store.directory import Directory
from mpickpt.store.writer import Progress, ShardWriter, write_shard

Owned = Mapping[int, Sequence[Piece]]


def claim_of(
    directory: Directory, epoch: int = 1, origin: tuple[int, int] | None = None, nonce: str | None = None
) -> Claim:
    """A claim; `origin` is the (epoch, step) that it continues."""
    from_epoch, from_step = origin or (None, None)
    root = None if origin is None else "blake3:" + 64 * "0"
    return Claim(
        epoch,
        directory.run.run,
        from_epoch,
        from_step,
        root,
        1,
        None,
        "host",
        "2026-01-01T00:00:00+00:00",
        nonce or f"claimed{epoch}",
    )


def bare_root(directory: Directory, step: int, epoch: int = 1, nonce: str = "n") -> str:
    """Publish a generation of no regions, with one file in its data; gives its root's name."""
    return build(directory, Schema([]), {}, owners=1, step=step, epoch=epoch, nonce=nonce, extra_file=True)


def build(
    directory: Directory,
    schema: Schema,
    own: Owned,
    shared: Owned | None = None,
    *,
    owners: int,
    fan_out: int | None = None,
    step: int = 1,
    epoch: int = 1,
    nonce: str = "n",
    chunk: int = 64,
    bounds: bool = True,
    extra_file: bool = False,
    publish: bool = True,
    change: Callable[[Manifest], Manifest] | None = None,
) -> str:
    """Write a generation and publish it; gives its root's name.

    `fan_out` None: a star. `change` may alter every manifest before it is written, its cover included.
    """
    contract = Contract()
    prefix = Prefix(
        directory.run.run, schema.digest("blake3"), contract.digest("blake3"), step, 10 * step, epoch, 1, nonce
    )
    name = root_name(step, epoch, nonce)
    data = directory.attempt(name)
    if extra_file:
        os.makedirs(os.path.join(data, "00000"))
        commit.write_new(os.path.join(data, "00000", "stray.bin"), b"stray")
    records: dict[int, list[ShardRecord]] = {role: [] for role in range(owners)}
    replicas: list[ShardRecord] = []
    for which, is_shared in ((own, False), (shared or {}, True)):
        for role, pieces in sorted(which.items()):
            if pieces:
                record = shard(data, prefix, pieces, role, is_shared, chunk)
                (replicas if is_shared else records[role]).append(record)
    tree = subtree(0, owners, fan_out or owners)
    changed = change or (lambda manifest: manifest)

    def write(node: dict[str, Any]) -> Manifest:
        children = [write(child) for child in node["children"]]
        recorded = [
            ChildRecord(child.role, child.size, child.digest, child.cover, bound(child, schema) if bounds else None)
            for child in children
        ]
        role, size = node["role"], node["size"]
        shards = tuple(records[role] + (replicas if role == 0 else []))
        cover = (cover_of(schema, shards) + sum(child.cover for child in recorded)) & coverage.MASK
        if role:
            group = changed(Manifest("group", role, size, prefix, {}, shards, tuple(recorded), cover))
            text, digest = group.encode()
            path = os.path.join(data, manifest_file(role))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            commit.write_new(path, text)
            held[role] = list(shards) + [one for child in children for one in held[child.role]]
            return replace(group, digest=digest)
        return changed(
            Manifest(
                "root", 0, size, prefix, {}, shards, tuple(recorded), cover, schema=schema,
                containers={}, contract=contract.to_json(), owners=owners,
                topology={"kind": "star" if fan_out is None else "tree", "fan_out": fan_out or owners},
                lineage=((epoch, None, None),),
            )
        )  # fmt: skip

    held: dict[int, list[ShardRecord]] = {}

    def bound(child: Manifest, schema: Schema) -> tuple[Any, ...] | None:
        found: dict[int, Box] = {}
        for record in held[child.role]:
            for ordinal, lo, hi in record.pieces:
                region = schema[ordinal]
                if region.rule is None and region.kind != "per_owner":
                    old = found.get(ordinal, Box(lo, hi))
                    found[ordinal] = Box(tuple(map(min, old.lo, lo)), tuple(map(max, old.hi, hi)))
        if len(found) > 64:
            return None
        return tuple((ordinal, box.lo, box.hi) for ordinal, box in sorted(found.items()))

    root = write(tree)
    if publish:
        assert directory.publish_root(name, root.encode()[0])
    return name


def subtree(role: int, size: int, fan_out: int) -> dict[str, Any]:
    """The node of roles [role, role + size): children share the rest as evenly as can be, larger first."""
    rest, at, children = size - 1, role + 1, []
    count = min(fan_out, rest)
    for number in range(count):
        share = rest // count + (number < rest % count)
        children.append(subtree(at, share, fan_out))
        at += share
    return {"role": role, "size": size, "children": children}


def shard(data: str, prefix: Prefix, pieces: Sequence[Piece], role: int, shared: bool, chunk: int) -> ShardRecord:
    specs = [PieceSpec(p.ordinal, p.region.name, p.box, p.region.dtype, size_of(p)) for p in pieces]
    made = layout(
        specs, role=role, schema=prefix.schema, step=prefix.step, cursor=prefix.cursor, epoch=prefix.epoch,
        attempt=prefix.attempt, algorithm="blake3", shared=shared, chunk=chunk,
    )  # fmt: skip
    file = shard_file(role, shared)
    path = os.path.join(data, file)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return write_shard(ShardWriter(path, made, Progress()), pieces, None).record(role, file)


def cover_of(schema: Schema, shards: Sequence[ShardRecord]) -> int:
    return coverage.cover_of(schema, ((o, Box(lo, hi)) for record in shards for o, lo, hi in record.pieces))
