"""A verdict for every file of a generation. Damage is told, not raised: the rest is checked all the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mpickpt.errors import CheckpointError, FormatError
from mpickpt.format.layout import CHUNK
from mpickpt.format.manifest import ShardRecord, manifest_file
from mpickpt.state.region import share_of
from mpickpt.state.values import decode
from mpickpt.store.bulk import numbers, work_off
from mpickpt.store.progress import Progress
from mpickpt.store.reader import Reading, room
from mpickpt.store.report import Verdict
from mpickpt.store.shard import Shard, check_level
from mpickpt.store.threads import Buffers, share

if TYPE_CHECKING:
    from mpickpt.store.generation import Generation


def verify(
    generation: Generation,
    level: str = "full",
    part: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> list[Verdict]:
    """Check root, manifests and shards, all bytes of each.

    What stands below a manifest that is damaged is not known, and so not checked.

    Parameters
    ----------
    generation : Generation
    level : {"full", "fast"}
        By digest and CRC, or by CRC alone.
    part : (int, int)
        (k, n): only the files of the k-th of n shares of the roles, and every n-th ``.r`` shard, so that n owners share
        the work. Each reads the manifests on the way to its roles, and tells of one that is damaged, whoever's it is.
    progress : Progress, optional
        Counts the bytes checked, and a byte a file; may ask to stop.

    Returns
    -------
    list of Verdict
        Root first, then manifests and shards in preorder; paths relative to the run's directory.

    Raises
    ------
    StateError
        If there is no such level.
    """
    return [verdict for verdict, _ in verdicts(generation, level, part, progress)]


def verdicts(
    generation: Generation,
    level: str = "full",
    part: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> Iterator[tuple[Verdict, bool]]:
    """Check as `verify` does; give each verdict as it is found, and whether its file is in the share.

    In no share but its own is a damaged manifest on the way. Of n shares each file is in one.
    """
    check_level(level)
    number, parts = part
    roles = range(*share_of(generation.root.owners, parts, number))
    buffers = Buffers(CHUNK)
    named: dict[str, int] = {}
    progress = progress or Progress()
    for role, path, error, shards in _manifests(generation, roles):
        progress.add(1)
        if role in roles or error is not None:
            yield _verdict(generation, path, error), role in roles
        for place, record in enumerate(shards):
            if (place % parts == number) if record.shared else (record.role in roles):
                twice = named.setdefault(record.file, record.role) != record.role
                other = named[record.file] if twice else None
                yield _shard(generation, record, level, buffers, other, progress), True


def _manifests(
    generation: Generation, roles: range
) -> Iterator[tuple[int, str, CheckpointError | None, Sequence[ShardRecord]]]:
    """Give role, path, refusal and shards of the root and of each manifest on the way to some roles, in preorder.

    There are no shards where it is damaged, and nothing below.
    """
    refusal: CheckpointError | None = None
    try:
        generation.check_root()
    except CheckpointError as error:
        refusal = error
    yield 0, generation.path, refusal, generation.root.shards
    waiting = list(reversed(generation.root.children))
    while waiting:
        child = waiting.pop()
        if not roles or child.role >= roles.stop or child.role + child.size <= roles.start:
            continue
        path = generation.path_of(manifest_file(child.role))
        try:
            found = generation.child(child)
        except CheckpointError as error:
            yield child.role, path, error, ()
            continue
        yield child.role, path, None, found.shards
        waiting.extend(reversed(found.children))


def _verdict(generation: Generation, path: str, error: CheckpointError | None = None) -> Verdict:
    shown = os.path.relpath(path, generation.base)
    return Verdict(path if shown.startswith(os.pardir) else shown, error is None, error)


def _shard(
    generation: Generation, record: ShardRecord, level: str, buffers: Buffers, other: int | None, progress: Progress
) -> Verdict:
    """Check one shard; `other` is the role of a record before that names the same file."""
    path = generation.path_of(record.file)
    try:
        if other is not None:
            raise FormatError("two records name one file", path=path, roles=(other, record.role), found=record.file)
        with generation.open_shard(record) as shard:
            check_shard(generation, shard, "both" if level == "full" else "fast", buffers, progress)
            if level == "full":
                _check_values(shard, buffers, progress)
    except CheckpointError as error:
        return _verdict(generation, path, error)
    return _verdict(generation, path)


def _check_values(shard: Shard, buffers: Buffers, progress: Progress) -> None:
    """See that every plain value can be read back: a resume refuses one that cannot, whatever its digest."""
    names = {entry.spec.ordinal: entry.spec.region for entry in shard.layout.entries if entry.spec.opaque}
    reading = Reading.of(shard, (), names)
    work_off(None, reading.jobs("full", buffers, progress), progress)
    for ordinal, data in reading.opaque().items():
        decode(data, names[ordinal], shard.path)


def check_shard(
    generation: Generation, shard: Shard, level: str, buffers: Buffers, progress: Progress | None = None
) -> None:
    """Read and check every chunk of an opened shard; raises for the first that is damaged."""
    told = progress or Progress()
    chunks = range(shard.layout.chunks)
    if shard.in_bulk(level):
        work_off(generation.pool, [shard.job(numbers(((index, 0, -1) for index in chunks), 3), level, told)], told)
        return

    def work(index: int) -> None:
        told.check()
        start, stop = shard.span(index)
        with room(buffers, stop - start) as buffer:
            shard.read_chunk(index, buffer, level)
        told.add(stop - start)

    share(generation.pool, work, chunks)
