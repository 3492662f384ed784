"""A verdict for every file of a generation. Damage is told, not raised: the rest is checked all the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mpickpt.errors import CheckpointError, FormatError
from mpickpt.format.layout import CHUNK
from mpickpt.format.manifest import ShardRecord, manifest_file
from mpickpt.store.reader import Shard, check_level, room
from mpickpt.store.report import Verdict
from mpickpt.store.threads import Buffers, share
from mpickpt.store.writer import batches

if TYPE_CHECKING:
    from mpickpt.store.generation import Generation


def verify(generation: Generation, level: str = "full") -> list[Verdict]:
    """Check root, manifests and shards, all bytes of each.

    What stands below a manifest that is damaged is not known, and so not checked.

    Parameters
    ----------
    generation : Generation
    level : {"full", "fast"}
        By digest and CRC, or by CRC alone.

    Returns
    -------
    list of Verdict
        Root first, then manifests and shards in preorder; paths relative to the run's directory.

    Raises
    ------
    StateError
        If there is no such level.
    """
    check_level(level)
    verdicts = []
    try:
        generation.check_root()
        verdicts.append(_verdict(generation, generation.root_path))
    except CheckpointError as error:
        verdicts.append(_verdict(generation, generation.root_path, error))
    named: dict[str, int] = {}
    buffers = Buffers(CHUNK)
    manifests = [generation.root]
    waiting = list(reversed(generation.root.children))
    while manifests:
        for record in manifests.pop().shards:
            verdicts.append(_shard(generation, record, level, buffers, named))
        while waiting and not manifests:
            child = waiting.pop()
            path = generation.path_of(manifest_file(child.role))
            try:
                manifests.append(generation.child(child))
            except CheckpointError as error:
                verdicts.append(_verdict(generation, path, error))
            else:
                verdicts.append(_verdict(generation, path))
                waiting.extend(reversed(manifests[-1].children))
    return verdicts


def _verdict(generation: Generation, path: str, error: CheckpointError | None = None) -> Verdict:
    shown = os.path.relpath(path, generation.base)
    return Verdict(path if shown.startswith(os.pardir) else shown, error is None, error)


def _shard(
    generation: Generation, record: ShardRecord, level: str, buffers: Buffers, named: dict[str, int]
) -> Verdict:
    path = generation.path_of(record.file)
    try:
        if named.setdefault(record.file, record.role) != record.role:
            raise FormatError(
                "two records name one file", path=path, roles=(named[record.file], record.role), found=record.file
            )
        with generation.open_shard(record) as shard:
            check_shard(generation, shard, "both" if level == "full" else "fast", buffers)
    except CheckpointError as error:
        return _verdict(generation, path, error)
    return _verdict(generation, path)


def check_shard(generation: Generation, shard: Shard, level: str, buffers: Buffers) -> None:
    """Read and check every chunk of an opened shard; raises for the first that is damaged."""

    def work(batch: range) -> None:
        for index in batch:
            start, stop = shard.span(index)
            with room(buffers, stop - start) as buffer:
                shard.read_chunk(index, buffer, level)

    share(generation.pool, work, batches(shard.layout.chunks, shard.layout.chunk))
