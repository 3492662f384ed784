"""One owner's part in one try to publish: its plan, its shards, its sums, and what is removed when the try fails."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mpickpt import failpoints
from mpickpt.cluster import contents
from mpickpt.cluster.channel import LEFT_BEHIND
from mpickpt.cluster.writing import Shards
from mpickpt.errors import StoreError
from mpickpt.format.layout import Arrangement, arrange
from mpickpt.format.manifest import Prefix, ShardRecord
from mpickpt.format.names import shard_file
from mpickpt.format.shard import Layout, PieceSpec, layout
from mpickpt.state import coverage
from mpickpt.state.declare import Declarations
from mpickpt.state.dtypes import itemsize
from mpickpt.state.nest import Capture
from mpickpt.state.plan import Piece, plan
from mpickpt.state.region import Box, Schema
from mpickpt.store import commit
from mpickpt.store.presence import is_directory
from mpickpt.store.threads import STAGING, Pool, finished
from mpickpt.store.writer import Progress, ShardWriter, write_shard

_T = TypeVar("_T")

_log = logging.getLogger("mpickpt")

#: Which of an owner's shards: its own, or its part of what all owners hold alike.
OWN, SHARED = 0, 1
#: How often a directory is removed that does not get empty, and the seconds between.
_TRIES: Final = 100
_BETWEEN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all owners have agreed to declare, kept from save to save."""

    mine: str
    declarations: Declarations
    schema: Schema
    digest: str
    #: By kind of shard: the pieces that this owner wrote last, and their part of the header.
    arranged: dict[int, tuple[list[PieceSpec], Arrangement]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, mine: str, declarations: Declarations) -> Agreed:
        """Keep a union, with the digest of the own declarations that went into it."""
        return cls(mine, declarations, declarations.schema, declarations.digest())


@dataclass(frozen=True, slots=True)
class Sums:
    """Three numbers modulo 2**256 (docs/format.md, "Coverage")."""

    cover: int = 0
    held: int = 0
    copies: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            (self.cover + other.cover) & coverage.MASK,
            (self.held + other.held) & coverage.MASK,
            (self.copies + other.copies) & coverage.MASK,
        )


@dataclass(slots=True)
class Attempt:
    """One owner's part in one attempt.

    Attributes
    ----------
    name : str
        The root's file name.
    directory : str
        The attempt's directory under ``data/``.
    files : list of str
        What this owner has made, and removes again if the attempt fails.
    nbytes : int
        Bytes of the pieces that this owner saves; known once they are planned.
    """

    name: str
    directory: str
    prefix: Prefix
    algorithm: str
    agreed: Agreed
    capture: Capture
    role: int
    owners: int
    writers: Sequence[int]
    refuses: Callable[[str], bool]
    staging: int = STAGING
    progress: Progress = field(default_factory=Progress)
    files: list[str] = field(default_factory=list)
    nbytes: int = 0
    work: Future[Any] | None = None
    task: Shards | None = None
    root: str | None = None
    #: Where owner 0 writes for all: the devices that the others told, by role.
    devices: dict[str, Any] = field(default_factory=dict)

    # -- planning

    def parts(self) -> list[tuple[Layout, list[Piece]] | None]:
        """Plan this owner's shards: `OWN` and `SHARED`; None where there is nothing to write."""
        own, shared = plan(
            self.capture, self.agreed.declarations, self.agreed.schema, self.role, self.owners, self.writers
        )
        parts = [
            (self.layout(self.role, which, [_spec(piece) for piece in pieces]), pieces) if pieces else None
            for which, pieces in ((OWN, own), (SHARED, shared))
        ]
        self.nbytes = sum(part[0].payload for part in parts if part is not None)
        return parts

    def layout(self, role: int, which: int, specs: Sequence[PieceSpec]) -> Layout:
        """Lay out one shard of `role`; what the same pieces had at the last save is used again."""
        arrangement: Sequence[PieceSpec] | Arrangement = specs
        if role == self.role and specs:
            last = self.agreed.arranged.get(which)
            if last is None or last[0] != specs:
                last = self.agreed.arranged[which] = list(specs), arrange(specs, role)
            arrangement = last[1]
        return layout(
            arrangement,
            role=role,
            schema=self.prefix.schema,
            step=self.prefix.step,
            cursor=self.prefix.cursor,
            epoch=self.prefix.epoch,
            attempt=self.prefix.attempt,
            algorithm=self.algorithm,
            shared=which == SHARED,
        )

    def layout_of_plan(self, role: int, which: int, pieces: Sequence[Sequence[Any]]) -> Layout:
        """Lay out what another owner has told of its plan (gather)."""
        specs = []
        for ordinal, lo, hi, size in pieces:
            region, box = self.agreed.schema[ordinal], Box(tuple(lo), tuple(hi))
            specs.append(_spec(Piece(ordinal, region, box, b""), size))
        return self.layout(role, which, specs)

    # -- writing

    def create(self, role: int, which: int, shard: Layout) -> ShardWriter:
        """Begin a shard file."""
        path = self.path(shard_file(role, which == SHARED))
        return self.made(path, lambda: ShardWriter(path, shard, self.progress, self.refuses))

    def made(self, path: str, make: Callable[[], _T]) -> _T:
        """Make a file of this attempt; whoever finds its folder missing makes that first."""
        try:
            return make()
        except StoreError as error:
            if error.errno != errno.ENOENT:
                raise
        self._make_folder(path)
        return make()

    def _make_folder(self, path: str) -> None:
        """Make the folder of a file of this attempt, unless another owner has."""
        self._look()
        commit.make_directory(os.path.dirname(path), sync_parent=False)

    def missed(self, error: BaseException) -> None:
        """Refuse with more to say than `error` does, if that is so because the attempt's directory is missing."""
        if isinstance(error, StoreError) and error.errno == errno.ENOENT:
            self._look()

    def _look(self) -> None:
        if not is_directory(self.directory):
            error = StoreError(
                "the attempt's directory, which owner 0 has made, is not there for this owner",
                errno=errno.ENOENT,
                path=self.directory,
                expected="one directory that all owners see",
                found="nothing",
                unharmed="earlier generations",
                advice="give all owners the same path, on a file system that they share",
            )
            # Where the directory above is there, the others may have given the attempt up and removed it.
            vars(error)[LEFT_BEHIND] = os.path.isdir(os.path.dirname(self.directory))
            raise error

    def finish(self, writer: ShardWriter) -> ShardRecord:
        """End a shard file that came in chunks (gather): tables, sync, close."""
        size, name = writer.finish()
        shard = writer.layout
        self.files.append(writer.path)
        pieces = tuple((entry.spec.ordinal, entry.spec.box.lo, entry.spec.box.hi) for entry in shard.entries)
        return ShardRecord(shard.role, shard_file(shard.role, shard.shared), size, name, pieces)

    def write(self, parts: Sequence[tuple[Layout, list[Piece]] | None], pool: Pool) -> list[ShardRecord | None]:
        """Write this owner's shards; runs in a worker, and uses `pool` for the chunks."""
        records: list[ShardRecord | None] = []
        for which, part in enumerate(parts):
            if part is None:
                records.append(None)
                continue
            writer = self.create(self.role, which, part[0])
            written = write_shard(writer, part[1], pool, self.staging)
            self.files.append(writer.path)
            records.append(written.record(self.role, shard_file(self.role, which == SHARED)))
        failpoints.reach("save.shards-written")
        return records

    def sums(self, pool: Pool) -> Sums:
        """Add up what this owner holds; the contents of copies are hashed in `pool`."""
        declarations, schema = self.agreed.declarations, self.agreed.schema
        tasks = contents.begin(self.capture, declarations, schema, self.role, pool, self.progress)
        held = coverage.held_of(self.capture, declarations, schema, self.role)
        return Sums(0, held, sum(task.result() for task in tasks) & coverage.MASK)

    def total(self, records: Sequence[ShardRecord], mine: Sums, below: Sums) -> Sums:
        """Add up what stands in some shards, what this owner holds, and what its children told."""
        boxes = ((ordinal, (lo, hi)) for record in records for ordinal, lo, hi in record.pieces)
        return mine + Sums(coverage.cover_of(self.agreed.schema, boxes)) + below

    def path(self, file: str) -> str:
        """Give the path of a file of this attempt."""
        return os.path.join(self.directory, file)

    # -- failing

    def clean(self, whole: bool, patience: float) -> None:
        """Remove this owner's files, or the whole attempt, so that a full disk does not stay full. Never raises."""
        if self.work is not None:
            # It has been told to stop. What it still makes, where it hangs, it removes itself when it comes back.
            finished(self.work, patience)
        left = None if self.task is None or self.task.ended(patience) else self.task
        if whole:
            remove(self.directory)
        for path in self.files:
            commit.remove_quietly(path)
        if left is not None:
            left.await_end()  # it hangs: what it still makes is removed when it comes back


def remove(directory: str) -> None:
    """Remove the directory of an attempt that has failed: the other owners may be removing, or still making, files."""
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):  # `ignore_errors` does not ignore all
            shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            return
        time.sleep(_BETWEEN)
    _log.warning("left behind, for `mpickpt sweep`: %s", directory)


def _spec(piece: Piece, size: int | None = None) -> PieceSpec:
    region = piece.region
    if region.shape is None:
        assert isinstance(piece.data, bytes)
        return PieceSpec(piece.ordinal, region.name, piece.box, "uint8", len(piece.data) if size is None else size)
    return PieceSpec(piece.ordinal, region.name, piece.box, region.dtype, piece.box.size * itemsize(region.dtype))
