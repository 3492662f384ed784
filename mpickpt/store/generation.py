"""One generation, read: root, the manifests that are needed, the shards that hold what is wanted.

Every byte hangs from the root's digest: each manifest is checked against its parent's record and the root's prefix,
each shard against its manifest's record, each chunk against its shard's table. What a manifest claims to cover is
computed again from its pieces. A star is the tree whose root has all others as children; any depth is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mpickpt.errors import CheckpointError, CoverageError, FormatError, IntegrityError, NotFoundError
from mpickpt.format.layout import CHUNK
from mpickpt.format.manifest import ChildRecord, Manifest, ShardRecord, Void, decode_root, manifest_file
from mpickpt.state import coverage
from mpickpt.state.region import Schema
from mpickpt.store.bulk import work_off
from mpickpt.store.destination import Want
from mpickpt.store.files import below, read_record
from mpickpt.store.finite import check_finite_values
from mpickpt.store.presence import there
from mpickpt.store.progress import Progress
from mpickpt.store.reader import Reading
from mpickpt.store.shard import Shard, check_level
from mpickpt.store.threads import Buffers, Pool
from mpickpt.store.wanted import Need, Wanted

if TYPE_CHECKING:
    from mpickpt.store.directory import Directory
    from mpickpt.store.report import Verdict

_OPEN = 64
"""Shards that are open at a time."""


class Generation:
    """A published generation.

    Parameters
    ----------
    directory : Directory
        Its store.
    name : str
        Its root's name in ``roots/``.
    digest : str, optional
        The root's digest, where it is known: nothing else is then taken for it.
    root : Manifest, optional
        The root, where it has been read already.
    bindings : mapping of str to str, optional
        Recorded file names (as ``00000/000012.safetensors``) and where these files are instead.
    pool : Pool, optional
        Threads for reading; without, the caller's own.

    Attributes
    ----------
    root : Manifest
    schema : Schema
    name : str
    digest : str
        The root's, ``blake3:HEX``.

    Raises
    ------
    NotFoundError
        If there is no such generation, or its attempt was voided.
    IntegrityError, FormatError, StoreError
        As `Directory.read_root`.
    """

    def __init__(
        self,
        directory: Directory,
        name: str,
        digest: str | None = None,
        *,
        root: Manifest | None = None,
        bindings: Mapping[str, str] | None = None,
        pool: Pool | None = None,
    ) -> None:
        found = directory.read_root(name, digest) if root is None else root
        self._begin(found, directory.root_path(name), directory.data_of(name), directory.path, bindings, pool)

    @classmethod
    def at(
        cls,
        root_path: str,
        bindings: Mapping[str, str] | None = None,
        digest: str | None = None,
        data: str | None = None,
        pool: Pool | None = None,
    ) -> Generation:
        """Open a generation by its files, wherever they have been moved: records are matched by digest and role.

        Parameters
        ----------
        root_path : str
            The root manifest.
        bindings : mapping of str to str, optional
            Recorded file names and where these files are.
        digest : str, optional
            The root's digest.
        data : str, optional
            Directory of the files that `bindings` does not name; default: the root's own.
        pool : Pool, optional
        """
        try:
            found = decode_root(read_record(root_path, "a root manifest"), root_path, digest=digest)
        except FileNotFoundError as error:
            raise NotFoundError("there is no root manifest", path=root_path) from error
        self = cls.__new__(cls)
        place = os.path.dirname(os.path.abspath(root_path))
        self._begin(found, root_path, place if data is None else data, place, bindings, pool)
        return self

    def _begin(
        self,
        found: Manifest | Void,
        path: str,
        data: str,
        base: str,
        bindings: Mapping[str, str] | None,
        pool: Pool | None,
    ) -> None:
        if isinstance(found, Void):
            raise NotFoundError(
                "this attempt was never published", path=path, found=f"a void record: {found.error.message}"
            )
        if found.kind != "root" or found.schema is None:
            raise FormatError("a group manifest stands where a root should be", path=path, found=found.kind)
        self.root: Manifest = found
        self.schema: Schema = found.schema
        self.name = os.path.basename(path)
        self.digest = found.digest
        self.path = path
        self.data_path = data
        self.base = base
        self.pool = pool
        self._bindings = dict(bindings or {})
        self._manifests: dict[int, Manifest] = {}
        self._root_checked = False

    # ------------------------------------------------------------------ files

    def path_of(self, file: str) -> str:
        """Give where a recorded file is."""
        return self._bindings.get(file) or os.path.join(self.data_path, file)

    def gone(self, path: str, what: str) -> CheckpointError:
        """Say what a missing file means: rotated if the root is gone too, else damage."""
        if not there(self.path):
            return rotated(self.path)
        return IntegrityError(f"{what} is missing", path=path, expected="the file of its record", found="nothing")

    def check_root(self) -> None:
        """Compute the root's cover again, and compare it with what the schema needs.

        Raises
        ------
        FormatError
            If it is not what the recorded pieces and children add up to.
        CoverageError
            If the pieces do not tile every region exactly once.
        """
        if self._root_checked:
            return
        self._check_cover(self.root, self.path)
        expected = coverage.expected_cover(self.schema)
        if self.root.cover != expected:
            raise CoverageError(
                "the generation's pieces do not tile its regions exactly once",
                path=self.path,
                expected=f"cover {expected:064x}",
                found=f"cover {self.root.cover:064x}",
            )
        self._root_checked = True

    def _check_cover(self, manifest: Manifest, path: str) -> None:
        pieces = ((ordinal, (lo, hi)) for shard in manifest.shards for ordinal, lo, hi in shard.pieces)
        try:
            mine = coverage.cover_of(self.schema, pieces)
        except CoverageError as error:
            error.path = path
            raise
        total = (mine + sum(child.cover for child in manifest.children)) & coverage.MASK
        if total != manifest.cover:
            raise FormatError(
                "a manifest's cover is not what its pieces and children add up to",
                path=path,
                expected=f"{total:064x}",
                found=f"{manifest.cover:064x}",
            )

    def child(self, record: ChildRecord) -> Manifest:
        """Read a child's manifest, and check it against its parent's record and the root's prefix.

        Raises
        ------
        IntegrityError
            If it is missing, or not what its parent's record names.
        FormatError
            If it is malformed or contradicts parent, root or itself.
        NotFoundError
            If the generation was rotated meanwhile.
        StoreError
            If it cannot be read.
        """
        known = self._manifests.get(record.role)
        if known is not None:
            return known
        path = self.path_of(manifest_file(record.role))
        try:
            data = read_record(path, "a manifest")
        except FileNotFoundError:
            raise self.gone(path, "a manifest") from None
        found = Manifest.decode(data, path, digest=record.digest, schema=self.schema)
        for what, mine, theirs in (
            ("kind", found.kind, "group"),
            ("role", found.role, record.role),
            ("size", found.size, record.size),
            ("cover", found.cover, record.cover),
            ("prefix", found.prefix, self.root.prefix),
        ):
            if mine != theirs:
                raise FormatError(
                    f"a manifest has another {what} than its parent or root says",
                    path=path,
                    expected=str(theirs),
                    found=str(mine),
                )
        self._check_cover(found, path)
        self._manifests[record.role] = found
        return found

    def forget(self) -> None:
        """Let go of the manifests that were read, but the root; whoever needs one again reads it again."""
        self._manifests.clear()

    def manifests(self) -> Iterator[tuple[str, Manifest]]:
        """Read all manifests, the root first, in preorder, as (path, manifest); raises as `child`."""
        yield self.path, self.root
        waiting = list(reversed(self.root.children))
        while waiting:
            record = waiting.pop()
            found = self.child(record)
            yield self.path_of(manifest_file(record.role)), found
            waiting.extend(reversed(found.children))

    def shards(self) -> Iterator[ShardRecord]:
        """Give the records of all shards; reads all manifests, and raises as `child`."""
        for _, manifest in self.manifests():
            yield from manifest.shards

    def open_shard(self, record: ShardRecord) -> Shard:
        """Open a shard; raises as `Shard`, and says what it means when it is missing."""
        path = self.path_of(record.file)
        try:
            return Shard(path, record, self.root.prefix, self.schema)
        except FileNotFoundError:
            raise self.gone(path, "a shard") from None

    def received_shard(self, record: ShardRecord, top: memoryview) -> Shard:
        """Make a shard of which another owner passes on what it reads; raises as `Shard.received`."""
        return Shard.received(self.path_of(record.file), record, self.root.prefix, self.schema, top)

    # ------------------------------------------------------------------ reading

    def read(
        self,
        wants: Sequence[Want],
        opaque: Iterable[int],
        role: int | None = None,
        level: str = "full",
        progress: Progress | None = None,
        refuses: Callable[[str], bool] | None = None,
    ) -> dict[int, bytes]:
        """Read boxes and opaque regions, every chunk verified before this returns.

        Only the manifests are read that can hold what is wanted: the root, the path to `role`, and, while something
        is still missing, subtrees whose roles (by the regions' rule) or bounds meet it.

        Parameters
        ----------
        wants : sequence of Want
            Boxes and where they go; private arrays, since after an error they are filled in part.
        opaque : iterable of int
            Ordinals of ``value`` regions, and of ``per_owner`` regions of `role`.
        role : int, optional
            Whose per-owner bytes, and whose manifests are looked at first.
        level : {"full", "fast"}
            By digest or by CRC.
        progress : Progress, optional
            Counts the bytes read; its `cancelled` stops the reading.
        refuses : callable, optional
            Tells for a region's name whether NaN and infinities are refused.

        Returns
        -------
        dict of int to bytes
            Opaque bytes by ordinal. What `role` has not in a ``per_owner`` region is left out.

        Raises
        ------
        CoverageError
            If the pieces leave a gap in what is wanted, or overlap there.
        NonFiniteError
            If a value is not finite where that is refused.
        IntegrityError, FormatError, NotFoundError, StoreError, StateError, Cancelled
        """
        found = self.fetch(self.needs(wants, opaque, role), check_level(level), progress, refuses)
        if refuses is not None:
            self.check_values(found, refuses)
        return found

    def needs(self, wants: Sequence[Want], opaque: Iterable[int], role: int | None = None) -> list[Need]:
        """Say which shards must be read, from the manifests alone: the first half of `read`, and raises as that does.

        Owners that want the same get the same list, in the same order.
        """
        self.check_root()
        wanted = Wanted(self.schema, wants, opaque, role, self.root.owners)
        self._visit(wanted, role)
        wanted.finish(self.path)
        return wanted.needs()

    def fetch(
        self,
        needs: Sequence[Need],
        level: str,
        progress: Progress | None = None,
        refuses: Callable[[str], bool] | None = None,
    ) -> dict[int, bytes]:
        """Read what `needs` said: the second half of `read`, but for `check_values`."""
        found: dict[int, bytes] = {}
        for start in range(0, len(needs), _OPEN):
            found |= self._read_shards(needs[start : start + _OPEN], level, progress, refuses)
        return found

    def check_values(self, values: Mapping[int, bytes], refuses: Callable[[str], bool]) -> None:
        """Refuse a NaN or an infinity in values that were read, where that is refused: NonFiniteError."""
        check_finite_values(self.schema, values, refuses, self.path)

    def _visit(self, wanted: Wanted, role: int | None) -> None:
        """Read the manifests that are needed, and take from each what it has."""
        wanted.take(self.root.shards)
        waiting: list[ChildRecord] = list(self.root.children)
        if role is not None:
            # The path to `role` first: with the shape that was saved it has all that the root has not.
            path = waiting
            while wanted.pending:
                on_path = next((child for child in path if child.role <= role < child.role + child.size), None)
                if on_path is None or not wanted.meets(on_path):
                    break
                waiting.remove(on_path)
                found = self.child(on_path)
                wanted.take(found.shards)
                path = list(found.children)
                waiting += path
        waiting.sort(key=lambda child: child.role, reverse=True)
        passed: list[ChildRecord] = []
        while waiting and wanted.pending:
            record = waiting.pop()
            if not wanted.meets(record):
                passed.append(record)
                continue
            found = self.child(record)
            wanted.take(found.shards)
            waiting.extend(reversed(found.children))
        # Bounds are claims. Before a gap is told, what they left out is looked at as well.
        while passed and wanted.pending_elsewhere():
            found = self.child(passed.pop())
            wanted.take(found.shards)
            passed.extend(found.children)

    def _read_shards(
        self, needs: Sequence[Need], level: str, progress: Progress | None, refuses: Callable[[str], bool] | None
    ) -> dict[int, bytes]:
        shards: list[Shard] = []
        readings: list[Reading] = []
        try:
            for record, wants, opaque in needs:
                shard = self.open_shard(record)
                shards.append(shard)
                readings.append(Reading.of(shard, wants, opaque, checked=True, refuses=refuses))
            buffers = Buffers(CHUNK)
            told = progress or Progress()
            work_off(self.pool, [job for reading in readings for job in reading.jobs(level, buffers, told)], told)
        finally:
            for shard in shards:
                shard.close()
        found: dict[int, bytes] = {}
        for reading in readings:
            found |= reading.opaque()
        return found

    # ------------------------------------------------------------------ checking

    def verify(
        self, level: str = "full", share: tuple[int, int] = (0, 1), progress: Progress | None = None
    ) -> list[Verdict]:
        """Check every file, or number k of n shares of them; see `verifying.verify`. Never raises for damage."""
        from mpickpt.store.verifying import verify

        return verify(self, level, share, progress)

    def unlisted(self) -> list[str]:
        """Give the files in the attempt's directory that no manifest names: harmless, and told for information.

        Raises as `child`, since all manifests are read.
        """
        named = {record.file for record in self.shards()} | {manifest_file(role) for role in self._manifests}
        return [file for file in below(self.data_path) if file not in named]


def rotated(path: str) -> NotFoundError:
    """Give the refusal where a root that was chosen is gone: an older job, which still ran, has saved and rotated."""
    return NotFoundError(
        "the generation was removed while it was read (rotated)", path=path, advice="choose another generation"
    )


__all__ = ["Generation", "Need", "Want", "rotated"]
