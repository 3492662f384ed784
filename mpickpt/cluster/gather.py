"""`write="gather"`: captures travel to owner 0 in bounded chunks, and owner 0 writes all shards.

The plan is the same as with `write="each"`, and so are the files; only who writes them differs. Owner 0 pulls: it has
at most `_WINDOW` chunks asked for or unwritten at a time, and no more than `staging_bytes` allows, so its memory is
that pool and never the sum of the owners.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from mpickpt import canonical
from mpickpt.cluster.channel import Call, Kind
from mpickpt.format.manifest import ShardRecord
from mpickpt.format.shard import CHUNK, Layout
from mpickpt.state.plan import Piece
from mpickpt.store.source import Source
from mpickpt.store.threads import Pool
from mpickpt.store.writer import ShardWriter

_PULL: Final = struct.Struct("<BQ")
_WINDOW: Final = 8

#: What an owner would write: the layout and the pieces of its own shard and of its `.r` shard, where there is one.
Parts = Sequence[tuple[Layout, Sequence[Piece]] | None]


def offer(call: Call, parts: Parts, device: Mapping[str, Any]) -> None:
    """Tell owner 0 what there is to pull and the own device, and serve chunks until it has all (every owner but 0)."""
    plan = [None if part is None else [_spec(piece) for piece in part[1]] for part in parts]
    call.up(Kind.PLAN, canonical.dumps({"plan": plan, "device": device}))
    buffer = bytearray(CHUNK)
    sources: dict[int, Source] = {}
    while True:
        kind, body = call.from_parent(Kind.PULL, Kind.WRITTEN)
        if kind is Kind.WRITTEN:
            return
        which, index = _PULL.unpack(body)
        if which not in sources:
            part = parts[which]
            assert part is not None
            sources[which] = call.run(Source, *part)
        chunk = call.run(sources[which].chunk, index, memoryview(buffer))
        call.up(Kind.CHUNK, body + bytes(chunk))


def _spec(piece: Piece) -> list[Any]:
    size = len(piece.data) if isinstance(piece.data, bytes) else 0
    return [piece.ordinal, piece.box.lo, piece.box.hi, size]


@dataclass(slots=True)
class _Pulled:
    """One shard that owner 0 is writing for another owner."""

    role: int
    which: int
    writer: Future[ShardWriter]
    left: int
    record: Future[ShardRecord] | None = None

    def put(self, index: int, chunk: memoryview) -> None:
        # The pool is first in, first out: the writer's creation was begun before this, so waiting for it is safe.
        self.writer.result().put(index, chunk)

    def finish(self, finish: Callable[[ShardWriter], ShardRecord]) -> ShardRecord:
        return finish(self.writer.result())

    @property
    def at_work(self) -> bool:
        """Whether the file is being made or finished."""
        return not self.writer.done() or (self.record is not None and not self.record.done())

    def abandon(self) -> None:
        if self.writer.exception() is None:
            self.writer.result().abandon()


def collect(
    call: Call,
    layout_of: Callable[[int, int, list[Any]], Layout],
    create: Callable[[int, int, Layout], ShardWriter],
    finish: Callable[[ShardWriter], ShardRecord],
    pool: Pool,
    staging: int,
) -> tuple[dict[tuple[int, int], ShardRecord], dict[str, Any]]:
    """Pull all other owners' chunks and write their shards (owner 0).

    Parameters
    ----------
    layout_of : callable
        Gives the layout for (role, which of its shards, its plan).
    create, finish : callable
        Begin and end a shard; both run in workers.
    staging : int
        Bytes of chunks that may be here or on their way, at least one.

    Returns
    -------
    dict
        The record of each shard by (role, which): 0 the owner's own, 1 its `.r`.
    dict
        The device of each role that told one, by its number in decimal.
    """
    told = {role: canonical.loads(body, what="a plan") for role, body in call.from_children(Kind.PLAN).items()}
    plans = {role: head["plan"] for role, head in told.items()}
    devices = {str(role): head["device"] for role, head in sorted(told.items()) if head["device"]}
    shards: dict[tuple[int, int], _Pulled] = {}

    def requests() -> Iterator[tuple[_Pulled, int]]:
        for role in sorted(plans):
            for which, plan in enumerate(plans[role]):
                if plan is None:
                    continue
                layout = layout_of(role, which, plan)
                shard = _Pulled(role, which, pool.submit(create, role, which, layout), layout.chunks)
                shards[role, which] = shard
                if shard.left == 0:
                    shard.record = pool.submit(shard.finish, finish)
                for index in range(layout.chunks):
                    yield shard, index

    waiting, window = requests(), max(1, min(_WINDOW, staging // CHUNK))
    writing: deque[tuple[_Pulled, Future[None]]] = deque()
    asked = 0

    def step() -> bool:
        nonlocal asked
        for source, body in call.arrived(Kind.CHUNK):
            which, index = _PULL.unpack_from(body)
            shard = shards[source, which]
            writing.append((shard, pool.submit(shard.put, index, memoryview(body)[_PULL.size :])))
        while writing and writing[0][1].done():
            shard, task = writing.popleft()
            task.result()
            asked -= 1
            shard.left -= 1
            if shard.left == 0:
                shard.record = pool.submit(shard.finish, finish)
        while asked < window and (following := next(waiting, None)) is not None:
            call.send(following[0].role, Kind.PULL, _PULL.pack(following[0].which, following[1]))
            asked += 1
        records = [shard.record for shard in shards.values() if shard.record is not None and shard.record.done()]
        for record in records:
            record.result()
        call.watch(bool(writing) or any(shard.at_work for shard in shards.values()))
        return asked == 0 and len(records) == len(shards)

    try:
        call.wait(step)
    except BaseException:
        for _, task in writing:
            task.cancel()
        for shard in shards.values():
            if shard.record is None:
                pool.submit(shard.abandon)
        raise
    call.down(Kind.WRITTEN)
    return {key: shard.record.result() for key, shard in shards.items() if shard.record is not None}, devices
