"""Reading, of which what all owners need is read once: by owner 0, and passed on down the tree (Restore 4).

On one host it is not passed on: each owner reads it there, from the page cache.

1. Each owner finds out from the manifests which shards it needs. For what all owners need the answer is the same at
   all, in the same order: nobody has to be told.
2. What an owner needs for itself it reads itself, meanwhile.
3. Owner 0 reads the rest in blocks: heads and tables of shards, and their chunks, as they are in the files. Every owner
   checks them against the manifests' digests as if it had read them itself, and passes them on as they came.
4. A block goes to a child that has room: it may have `_CREDITS` blocks that it has not done with. To all children
   together at most `_SENT` bytes are on their way, and at most `_HELD` blocks are kept here: so memory has a bound.
5. Whoever refuses tells its children, which then have that refusal, and its parent, which counts on it no more. Then
   comes the round of all outcomes, as in any case.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from mpickpt import canonical, digest
from mpickpt.cluster.channel import Call, Kind
from mpickpt.errors import CheckpointError, TopologyError, from_record
from mpickpt.format.layout import CHUNK
from mpickpt.state.capture import Capture
from mpickpt.state.declare import Declarations
from mpickpt.state.dtypes import itemsize
from mpickpt.state.region import Schema
from mpickpt.store.generation import Generation, Need, Want
from mpickpt.store.progress import Progress
from mpickpt.store.reader import Reading
from mpickpt.store.shard import Shard
from mpickpt.store.threads import Pool

_HEAD: Final = struct.Struct("<BBI")  # which try of the call, how it goes on, and the number of items
_ITEM: Final = struct.Struct("<IqQ")  # which of the needed shards, which chunk of it (-1: head and tables), bytes
_MORE, _LAST, _REFUSED = 0, 1, 2
_TOP: Final = -1
_TAKEN: Final = struct.Struct("<BB")  # which try of the call, and whether it is the last word
_CREDITS: Final = 2
_SENT: Final = 32 << 20
_HELD: Final = 4
_TOPS: Final = 32
"""At most so many shards begin in one block, so that few files are open at a time."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What one owner reads.

    Attributes
    ----------
    wants, opaque
        As for `Generation.read`.
    alike : frozenset of int
        The regions, by ordinal, that all owners want whole.
    role : int or None
        Whose per-owner bytes.
    """

    generation: Generation
    wants: Sequence[Want]
    opaque: Sequence[int]
    alike: frozenset[int]
    role: int | None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are wanted."""
        regions = self.generation.schema
        return sum(
            want.box.size * itemsize(regions[want.ordinal].dtype) if want.out is None else want.out.nbytes
            for want in self.wants
        )

    def needs(self) -> tuple[list[Need], list[Need]]:
        """Say which shards are needed by this owner for itself, and which by all."""
        find, parts = self.generation.needs, []
        if not self.alike:
            own = find(self.wants, self.opaque, self.role)
            self.generation.forget()
            return own, []
        for common in (False, True):
            wants = [want for want in self.wants if (want.ordinal in self.alike) == common]
            opaque = [ordinal for ordinal in self.opaque if (ordinal in self.alike) == common]
            parts.append(find(wants, opaque, None if common else self.role))
        self.generation.forget()  # a manifest a level: what is needed of them is known now
        return parts[0], parts[1]


def alike(capture: Capture | None, host: str) -> dict[str, str]:
    """Say what all must know whether it is the same at all: what a destination asks for whole, and the host."""
    names = [] if capture is None else sorted(h.region.name for h in capture.holdings if h.mode == "replicated")
    prefixes = [""] if capture is None else sorted(capture.open_prefixes)
    return {"whole": digest.digest("blake3", "asked", canonical.dumps([names, prefixes])).hex(), "host": host}


def wanted_by_all(
    capture: Capture | None, union: Declarations | None, schema: Schema, owners: int, alike: Mapping[str, bool]
) -> frozenset[int]:
    """Give the ordinals of the regions that every owner wants whole, and owner 0 reads: the same at every owner.

    On one host none: there each reads for itself, which costs the file system no more, for the page cache answers all
    but the first, and is quicker than messages.

    Parameters
    ----------
    alike : mapping
        What of `alike` was the same at all owners.
    """
    if alike["host"]:
        return frozenset()
    if capture is None:
        names = {region.name for region in schema}
    elif alike["whole"]:
        below = tuple(f"{prefix}/" if prefix else "" for prefix in capture.open_prefixes)
        names = {holding.region.name for holding in capture.holdings if holding.mode == "replicated"}
        names |= {r.name for r in schema if r.name in capture.open_prefixes or (below and r.name.startswith(below))}
    else:
        entries = {} if union is None else union.entries
        names = {name for name, entry in entries.items() if entry.mode == "replicated" and entry.count == owners}
    return frozenset(n for n, region in enumerate(schema) if region.name in names and region.kind != "per_owner")


def read(
    call: Call,
    reads: Reads,
    level: str,
    progress: Progress,
    pool: Pool,
    refuses: Callable[[str], bool],
    attempt: int,
) -> dict[int, bytes]:
    """Read everything, verified, into private memory; gives the opaque bytes by ordinal. Collective.

    Parameters
    ----------
    attempt : int
        The how-manieth this is in the call: what was sent in an earlier one, and refused, is dropped.

    Raises
    ------
    CheckpointError
        As `Generation.read`, or the parent's refusal. The caller must then `decline`.
    """
    generation = reads.generation
    own, common = call.run(reads.needs, working=progress)
    reading: Future[dict[int, bytes]] = call.line.pool.submit(generation.fetch, own, level, progress, refuses)
    try:
        values: dict[int, bytes] = {}
        if common:
            values |= _Passing(call, generation, common, level, progress, pool, refuses, attempt).run(reading)
        mine = call.join(reading, working=progress)
        values |= mine
        call.run(generation.check_values, values, refuses, working=progress)
    except BaseException:
        progress.cancel()
        raise
    return values


def decline(call: Call, error: CheckpointError, attempt: int) -> None:
    """Say that this owner refuses: its children wait for no more blocks, and its parent not for this owner."""
    call.down(Kind.BLOCK, _HEAD.pack(attempt, _REFUSED, 0) + canonical.dumps(error.to_record()))
    if call.place.parent is not None:
        call.up(Kind.TAKEN, _TAKEN.pack(attempt, True))


@dataclass(slots=True)
class _Block:
    """Some stretches of shards that go down together."""

    body: bytearray | bytes
    last: bool
    work: Callable[[], object]
    doing: Future[object] | None = None
    left: set[int] = field(default_factory=set)
    """The children that have it still to get."""


@dataclass(slots=True)
class _Open:
    """A shard that is being passed on."""

    reading: Reading
    left: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def done(self) -> None:
        """Note that one chunk of it is done with; after the last the file is closed."""
        with self.lock:
            self.left -= 1
        if self.left <= 0:
            self.reading.shard.close()


class _Passing:
    """One owner's part in one passing on."""

    def __init__(
        self,
        call: Call,
        generation: Generation,
        needs: Sequence[Need],
        level: str,
        progress: Progress,
        pool: Pool,
        refuses: Callable[[str], bool],
        attempt: int,
    ) -> None:
        self.refuses = refuses
        self.attempt = attempt
        self.call = call
        self.generation = generation
        self.needs = needs
        self.level = level
        self.progress = progress
        self.pool = pool
        self.root = call.place.parent is None
        self.sent: dict[int, deque[int]] = {role: deque() for role, _ in call.place.children}  # bytes on their way
        self.blocks: deque[_Block] = deque()  # in their order; the first leaves when all have it and it is done
        self.arrived: deque[bytes] = deque()
        self.beginning: Future[_Block] | None = None
        self.ended = False  # the last block has begun
        self.shards: list[_Open] = []
        self.walk = self._walk() if self.root else iter(())
        self.expected = (0, _TOP)

    def run(self, meanwhile: Future[Any]) -> dict[int, bytes]:
        """Pass on everything; gives the opaque bytes. `meanwhile` is watched for progress too."""

        def step() -> bool:
            while self._step():
                pass
            busy = self.beginning is not None or any(block.doing and not block.doing.done() for block in self.blocks)
            self.call.watch(busy or not meanwhile.done())
            return self.ended and not self.blocks

        self.call.working = self.progress
        try:
            self.call.wait(step)
        finally:
            self.call.line.pool.submit(self._close, [block.doing for block in self.blocks if block.doing is not None])
        found: dict[int, bytes] = {}
        for one in self.shards:
            found |= one.reading.opaque()
        return found

    def _close(self, doing: Sequence[Future[object]]) -> None:
        """Close what is still open once nothing reads in it any more."""
        for future in doing:
            if not future.cancel():
                future.exception()
        for one in self.shards:
            one.reading.shard.close()

    def _step(self) -> bool:
        """Do what can be done now; tell whether that was anything."""
        moved = False
        for source, body in self.call.arrived(Kind.TAKEN):
            attempt, gone = _TAKEN.unpack(body)
            if attempt != self.attempt:
                continue
            if gone:
                self.sent.pop(source, None)
                for block in self.blocks:
                    block.left.discard(source)
            elif self.sent.get(source):
                self.sent[source].popleft()
            moved = True
        for _, body in self.call.arrived(Kind.BLOCK):
            if _HEAD.unpack_from(body)[0] == self.attempt:
                self.arrived.append(body)
                moved = True
        return self._begin() or self._send() or self._end() or moved

    def _begin(self) -> bool:
        """Begin a block, one after the other: what it holds depends on those before it."""
        if self.beginning is None:
            if self.ended or len(self.blocks) >= _HELD or not (self.root or self.arrived):
                return False
            if self.root:
                self.beginning = self.pool.submit(self._make)
            else:
                self.beginning = self.pool.submit(self._take, self.arrived.popleft())
        if not self.beginning.done():
            return False
        block, self.beginning = self.beginning.result(), None
        self.ended = block.last
        block.doing, block.left = self.pool.submit(block.work), set(self.sent)
        self.blocks.append(block)
        return True

    def _send(self) -> bool:
        """Send to the children that have room, each its blocks in order."""
        moved, waiting = False, set(self.sent)
        total = sum(map(sum, self.sent.values()))
        for block in self.blocks:
            if self.root and not (block.doing is not None and block.doing.done()):
                break  # not read yet
            for role in sorted(block.left & waiting):
                size = len(block.body)
                if len(self.sent[role]) < _CREDITS and (total == 0 or total + size <= _SENT):
                    block.body = bytes(block.body)  # of what was read here a copy, for all children together
                    self.call.send(role, Kind.BLOCK, block.body)
                    block.left.discard(role)
                    self.sent[role].append(size)
                    total, moved = total + size, True
            waiting -= block.left
        return moved

    def _end(self) -> bool:
        """Let go of the first block where it is done with here and on its way to all children."""
        if not self.blocks or self.blocks[0].doing is None or not self.blocks[0].doing.done():
            return False
        self.blocks[0].doing.result()
        if self.blocks[0].left:
            return False
        self.blocks.popleft()
        if not self.root:
            self.call.up(Kind.TAKEN, _TAKEN.pack(self.attempt, False))
        return True

    # -- owner 0 reads

    def _walk(self) -> Iterator[tuple[int, int, _Open]]:
        """Give (needed shard, chunk or `_TOP`) of all that is passed on, opening one shard after the other."""
        for number, (record, wants, opaque) in enumerate(self.needs):
            one = self._opened(self.generation.open_shard(record), wants, opaque)
            yield number, _TOP, one
            for index in one.reading.chunks:
                yield number, index, one

    def _opened(self, shard: Shard, wants: Sequence[Want], opaque: Sequence[int]) -> _Open:
        reading = Reading.of(shard, wants, opaque, checked=True, refuses=self.refuses)
        self.shards.append(_Open(reading, len(reading.chunks)))
        if not reading.chunks:
            shard.close()
        return self.shards[-1]

    def _make(self) -> _Block:
        """Choose what stands in the next block; chunks are read by its `work`."""
        items: list[tuple[int, int, _Open, int]] = []
        size = tops = 0
        last = True
        for number, index, one in self.walk:
            start, stop = (0, len(one.reading.shard.top)) if index == _TOP else one.reading.shard.span(index)
            items.append((number, index, one, stop - start))
            size += stop - start
            tops += index == _TOP
            if size >= CHUNK or tops == _TOPS:
                last = False
                break
        at = _HEAD.size + len(items) * _ITEM.size
        body = bytearray(at + size)
        _HEAD.pack_into(body, 0, self.attempt, _LAST if last else _MORE, len(items))
        places = []
        for place, (number, index, one, length) in enumerate(items):
            _ITEM.pack_into(body, _HEAD.size + place * _ITEM.size, number, index, length)
            if index == _TOP:
                body[at : at + length] = one.reading.shard.top
            else:
                places.append((one, index, at, length))
            at += length

        def work() -> None:
            for one, index, at, length in places:
                self.progress.check()
                one.reading.fetch(index, self.level, memoryview(body)[at : at + length])
                one.done()
                self.progress.add(length)

        return _Block(body, last, work)

    # -- the others take

    def _take(self, body: bytes) -> _Block:
        """Take a block apart, and check heads and tables; chunks are checked by its `work`."""
        _, state, count = _HEAD.unpack_from(body)
        if state == _REFUSED:
            raise from_record(canonical.loads(body[_HEAD.size :], what="the parent's refusal"))
        at, chunks = _HEAD.size + count * _ITEM.size, []
        for place in range(count):
            number, index, length = _ITEM.unpack_from(body, _HEAD.size + place * _ITEM.size)
            if (number, index) != self.expected or number == len(self.needs):
                raise self._unexpected((number, index))
            data = memoryview(body)[at : at + length]
            at += length
            if index == _TOP:
                record, wants, opaque = self.needs[number]
                self._opened(self.generation.received_shard(record, data), wants, opaque)
            else:
                chunks.append((self.shards[-1].reading, index, data))
            self.expected = self._next(number, index)
        if state == _LAST and self.expected[0] != len(self.needs):
            raise self._unexpected("the end")

        def work() -> None:
            for reading, index, data in chunks:
                self.progress.check()
                reading.take(index, self.level, data)
                self.progress.add(len(data))

        return _Block(body, state == _LAST, work)

    def _next(self, number: int, index: int) -> tuple[int, int]:
        """Say what must follow a stretch."""
        chunks = self.shards[-1].reading.chunks
        place = 0 if index == _TOP else chunks.index(index) + 1
        return (number, chunks[place]) if place < len(chunks) else (number + 1, _TOP)

    def _unexpected(self, found: object) -> TopologyError:
        return TopologyError(
            "what an owner passes on is not what comes next in the checkpoint",
            role=self.call.place.parent,
            host=self.call.line.transport.hosts.get(self.call.place.parent or 0),
            path=self.generation.path,
            expected=f"(shard, chunk) {self.expected} of {len(self.needs)} shards",
            found=str(found),
            advice="report this: that owner runs another program or another version of mpickpt",
        )


__all__ = ["Reads", "alike", "decline", "read", "wanted_by_all"]
