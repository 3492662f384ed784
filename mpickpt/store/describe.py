"""What one generation holds, as plain data: what ``mpickpt show`` prints."""

from __future__ import annotations

import math
import os
from typing import Any

from mpickpt.errors import CheckpointError
from mpickpt.format.manifest import Manifest, ShardRecord
from mpickpt.state.contract import readable
from mpickpt.store.generation import Generation


def describe(generation: Generation) -> dict[str, Any]:
    """Describe a generation from its manifests; of shards only heads are read, for the length of opaque regions.

    Parameters
    ----------
    generation : mpickpt.store.generation.Generation

    Returns
    -------
    dict
        ``prefix``, ``contract`` (floats as numbers), ``owners``, ``topology``, ``parent``, ``written``, ``device``,
        ``containers``; ``regions``: name, kind, dtype, shape, nbytes (None where a damaged shard hides it), rule,
        held_by (roles whose files hold pieces of it); ``manifests``: the tree in preorder, each with its depth, role,
        size (roles), file (relative to the run's directory), digest and shards.

    Raises
    ------
    CheckpointError
        If a manifest is damaged.
    """
    root = generation.root
    held: list[set[int]] = [set() for _ in generation.schema]
    lengths: dict[int, int | None] = {}
    tree: list[dict[str, Any]] = []
    depths = {root.role: 0}
    for path, manifest in generation.manifests():  # a parent comes before its children
        depth = depths[manifest.role]
        depths.update((child.role, depth + 1) for child in manifest.children)
        tree.append(_node(generation, path, manifest, depth))
        for shard in manifest.shards:
            _take(generation, shard, held, lengths)
    return {
        "prefix": root.prefix.to_json(),
        "contract": _plain(readable(root.contract)),
        "owners": root.owners,
        "topology": root.topology,
        "parent": root.parent,
        "written": _plain(readable(root.written)),
        "device": _plain(readable(root.device)),
        "containers": root.containers,
        "regions": [
            {
                "name": region.name,
                "kind": region.kind,
                "dtype": region.dtype if region.shape is not None else None,
                "shape": None if region.shape is None else list(region.shape),
                "nbytes": region.nbytes if region.shape is not None else lengths.get(ordinal),
                "rule": None if region.rule is None else [region.rule.name, region.rule.axis],
                "held_by": sorted(held[ordinal]),
            }
            for ordinal, region in enumerate(generation.schema)
        ],
        "manifests": tree,
    }


def _take(generation: Generation, shard: ShardRecord, held: list[set[int]], lengths: dict[int, int | None]) -> None:
    """Note who holds what a shard holds, and how long its opaque regions are."""
    schema = generation.schema
    opaque = False
    for ordinal, _, _ in shard.pieces:
        held[ordinal].add(shard.role)
        opaque = opaque or schema[ordinal].shape is None
    if not opaque:
        return
    try:
        with generation.open_shard(shard) as opened:
            for entry in opened.layout.entries:
                spec = entry.spec
                if schema[spec.ordinal].shape is None:
                    known = lengths.get(spec.ordinal, 0)
                    lengths[spec.ordinal] = None if known is None else known + spec.nbytes
    except CheckpointError:  # told by verify; here it only hides lengths
        lengths.update((ordinal, None) for ordinal, _, _ in shard.pieces if schema[ordinal].shape is None)


def _plain(value: object) -> Any:
    """Give floats that JSON has not (NaN, infinities) as their repr."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _relative(generation: Generation, path: str) -> str:
    found = os.path.relpath(path, generation.base)
    return path if found.startswith(os.pardir) else found


def _node(generation: Generation, path: str, manifest: Manifest, depth: int) -> dict[str, Any]:
    return {
        "depth": depth,
        "role": manifest.role,
        "size": manifest.size,
        "file": _relative(generation, path),
        "digest": manifest.digest,
        "shards": [
            {
                "role": shard.role,
                "file": _relative(generation, generation.path_of(shard.file)),
                "bytes": shard.bytes,
                "pieces": len(shard.pieces),
                "digest": shard.digest,
            }
            for shard in manifest.shards
        ],
    }
