"""Looking into a store without MPI, and without writing anything: read-only mounts and other users' files will do."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from mpickpt.errors import CheckpointError, EpochError, NotFoundError, SchemaError, StateError
from mpickpt.format.manifest import Manifest
from mpickpt.format.records import Void
from mpickpt.state.capture import Restored
from mpickpt.state.rebuild import build, check_containers
from mpickpt.state.region import Box
from mpickpt.state.values import decode
from mpickpt.store import report
from mpickpt.store.ancestry import epochs_of
from mpickpt.store.directory import Directory, RootName
from mpickpt.store.generation import Generation, Want
from mpickpt.store.memory import memory_for
from mpickpt.store.presence import there
from mpickpt.store.report import DAMAGED, LIVE, ORPHANED, Report, Verdict
from mpickpt.store.shard import check_level
from mpickpt.store.verdicts import verdicts_of_root, verdicts_of_store


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a run's directory to look into it; nothing is written, and MPI is not imported.

    Parameters
    ----------
    path : str or path-like
        The run's directory.

    Returns
    -------
    Store

    Raises
    ------
    NotFoundError
        If nothing is there, or a directory that is no store.
    StoreError
        If it cannot be read.
    """
    return Store(path)


class Store:
    """A run's store, read-only; `open_store` makes one.

    Attributes
    ----------
    path : str
        Absolute path of the run's directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._directory = Directory(path).open(write=False, check=False)
        self.path = self._directory.path
        places = (os.path.join(self.path, "run.json"), self._directory.roots_path, self._directory.epochs_path)
        if not any(map(there, places)):
            raise NotFoundError("this directory is no store", path=self.path, expected="run.json, roots/ or epochs/")

    def __repr__(self) -> str:
        return f"open_store({self.path!r})"

    @property
    def run_id(self) -> str | None:
        """The run's id; None where nothing readable tells it."""
        try:
            return self._directory.run.run
        except CheckpointError:
            return None

    def check(self) -> None:
        """Refuse a store that is damaged as a whole: a damaged store is never taken for an empty one.

        Raises
        ------
        IntegrityError, FormatError
            As docs/format.md calls it damage: claims without ``roots/``, a root newer than every claim, no root that
            can be read, a newest claim that continues from nothing.
        """
        self._directory.check()

    # ------------------------------------------------------------------ listing

    def generations(self) -> list[report.Generation]:
        """List all generations, oldest (epoch, step) first; voided attempts are none.

        Returns
        -------
        list of mpickpt.store.report.Generation

        Raises
        ------
        IntegrityError, FormatError
            If a claim is damaged, so that nobody can tell what is on the lineage; or if nothing is listed because
            the store is damaged.
        StoreError
            If the store cannot be read.
        """
        names = self._directory.roots()
        orphaned = {root.name for root in self._directory.off_lineage(self._directory.claims(), names)}
        found = [self._told(root, root.name in orphaned) for root in names]
        listed = [generation for generation in found if generation is not None]
        if not listed:
            self.check()
        return listed

    def epochs(self) -> list[report.Epoch]:
        """List all continuations with what each saved and how it ended, oldest first; raises as `generations`."""
        claims = self._directory.claims()
        ended = {claim.epoch: self._directory.ended(claim.epoch) for claim in claims}
        return epochs_of(claims, self.generations(), ended)

    def generation(self, which: int | str | None = None) -> report.Generation:
        """Tell of one generation what `generations` tells.

        Parameters
        ----------
        which : int or str, optional
            A step on the lineage, or the beginning of a root digest (``blake3:4f1c``), which also finds orphaned
            ones. Default: the newest on the lineage.

        Raises
        ------
        NotFoundError
            If there is none, or several begin so.
        EpochError
            If the only generations of this step are off the lineage.
        """
        root = self._choose(which)
        off = self._directory.off_lineage(self._directory.claims(), [root])
        found = self._told(root, bool(off))
        if found is None:
            raise NotFoundError("the generation is gone, or never was", path=self._directory.root_path(root.name))
        return found

    def _told(self, root: RootName, orphaned: bool) -> report.Generation | None:
        """Give the public record of what stands under a root's name; None for a void, or where it is gone by now."""
        status = ORPHANED if orphaned else LIVE
        try:
            found = self._directory.read_root(root.name)
        except NotFoundError:
            return None
        except CheckpointError:
            return report.Generation(root.step, None, root.epoch, None, None, None, None, DAMAGED, root.name)
        return None if isinstance(found, Void) else self._record(root.name, found, status)

    def _record(self, name: str, found: Manifest, status: str) -> report.Generation:
        """Give the public record of a root that has been read."""
        if not self._complete(name, found):
            status = DAMAGED
        nbytes = sum(region.nbytes for region in found.schema or ())
        created = found.written.get("end", found.written.get("start"))
        prefix = found.prefix
        return report.Generation(
            prefix.step,
            prefix.cursor,
            prefix.epoch,
            found.digest,
            found.owners,
            nbytes,
            None if created is None else str(created),
            status,
            name,
        )

    def _complete(self, name: str, manifest: Manifest) -> bool:
        """Tell whether the files that the root itself records are there in their size; reads none of them."""
        data = self._directory.data_of(name)
        try:
            if manifest.children and not os.path.isdir(data):
                return False
            return all(os.stat(os.path.join(data, shard.file)).st_size == shard.bytes for shard in manifest.shards)
        except OSError:
            return False

    def _choose(self, which: int | str | None) -> RootName:
        if isinstance(which, str):
            return self._by_digest(which)
        if which is not None and (type(which) is not int or which < 0):
            raise StateError("not a step", expected="a whole number, 0 or more, or a digest", found=repr(which)[:100])
        lineage = self._directory.lineage()
        if which is None:
            if not lineage:
                self.check()
                raise NotFoundError("there is no generation yet", path=self._directory.roots_path)
            return lineage[-1]
        found = [root for root in lineage if root.step == which]
        if found:
            return found[-1]
        off = [root for root in self._directory.roots() if root.step == which and self._directory.is_root(root.name)]
        if off:
            raise EpochError(
                f"the generation of step {which} is off the lineage",
                path=self._directory.root_path(off[-1].name),
                advice="name it by the beginning of its root digest to look at it",
            )
        raise NotFoundError(
            f"there is no generation of step {which}", path=self._directory.roots_path, found=_steps(lineage)
        )

    def _by_digest(self, which: str) -> RootName:
        found: list[RootName] = []
        for root in self._directory.roots():
            try:
                manifest = self._directory.read_root(root.name)
            except CheckpointError:
                continue  # a root that cannot be read has no digest to be named by
            if isinstance(manifest, Manifest) and ":" in which and manifest.digest.startswith(which):
                found.append(root)
        if len(found) == 1:
            return found[0]
        raise NotFoundError(
            "several roots' digests begin so" if found else "no root's digest begins so",
            path=self._directory.roots_path,
            expected="one that begins with " + which[:80],
            found=", ".join(root.name for root in found[:20]) or None,
        )

    # ------------------------------------------------------------------ reading

    def open(self, which: int | str | None = None) -> Generation:
        """Open one generation for reading ranges of it; `which` as in `generation`.

        Raises
        ------
        CheckpointError
            As `generation`; and as reading its root does.
        """
        return Generation(self._directory, self._choose(which).name)

    def tell(self, opened: Generation) -> report.Generation:
        """Tell of a generation that was opened here what `generation` tells, without reading its root again."""
        prefix = opened.root.prefix
        root = RootName(prefix.epoch, prefix.step, prefix.attempt, opened.name)
        off = self._directory.off_lineage(self._directory.claims(), [root])
        return self._record(root.name, opened.root, ORPHANED if off else LIVE)

    def read(self, step: int | str | None = None, names: Iterable[str] | None = None) -> Any:
        """Read whole regions into memory, every byte verified.

        Parameters
        ----------
        step : int or str, optional
            Which generation, as in `generation`. Default: the newest on the lineage.
        names : iterable of str, optional
            Escaped names of regions, as `mpickpt show` lists them. Default: all, as a nest.

        Returns
        -------
        nested containers, or dict
            Without `names` the saved nest, of new NumPy arrays (whole regions) and values; what was saved with
            PerOwner is a dict role -> value. With `names` a flat dict name -> array or value.

        Raises
        ------
        SchemaError
            If there is no region of one of the `names`; all such are listed.
        CheckpointError
            As `check` and `open`, and whatever verification finds: IntegrityError, FormatError.
        """
        self.check()
        generation = self.open(step)
        schema = generation.schema
        if names is None:
            chosen = [region.name for region in schema]
        else:
            chosen = [names] if isinstance(names, str) else list(names)
            missing = [name for name in chosen if name not in schema]
            if missing:
                raise SchemaError(
                    "the checkpoint has no such region",
                    path=generation.path,
                    expected="names that `mpickpt show` lists",
                    found=", ".join(map(repr, missing[:20])) + (" ..." if len(missing) > 20 else ""),
                )
        restored = _read_whole(generation, sorted({schema.ordinal(name) for name in chosen}))
        if names is None:
            return build(restored, check_containers(generation.root.containers, generation.path))
        return {
            name: restored.arrays[name][0] if name in restored.arrays else decode(restored.opaque[name], name)
            for name in chosen
        }

    # ------------------------------------------------------------------ checking

    def verify(self, step: int | str | None = None, level: str = "full") -> Report:
        """Check run.json, the claims, and every file of one generation.

        Parameters
        ----------
        step : int or str, optional
            Which generation, as in `generation`. Default: the newest on the lineage.
        level : {"fast", "full"}
            Fast compares sizes, tables and CRCs; full also the digest of every chunk, and the coverage.

        Returns
        -------
        Report
            A verdict a file. Damage is a verdict, not an exception.

        Raises
        ------
        StateError
            For another level.
        NotFoundError, EpochError
            If there is no such generation.
        """
        check_level(level)
        verdicts = verdicts_of_store(self._directory)
        try:
            chosen = [self._choose(step)]
        except (NotFoundError, EpochError, StateError):
            if step is None and not all(verdict.ok for verdict in verdicts):
                return Report(tuple(verdicts), level)
            raise
        except CheckpointError:  # claims that cannot be read, told above: the lineage is not known
            chosen = [root for root in self._listed() if step is None or root.step == step][-1:]
        return self._report(chosen, verdicts, level)

    def verify_all(self, level: str = "full") -> Report:
        """Check every file of every generation, orphaned ones and void records too; see `verify`."""
        check_level(level)
        return self._report(self._listed(), verdicts_of_store(self._directory), level)

    def _listed(self) -> list[RootName]:
        """List the roots; none where the list itself cannot be read, which the store's verdicts tell."""
        try:
            return self._directory.roots()
        except CheckpointError:
            return []

    def _report(self, roots: list[RootName], verdicts: list[Verdict], level: str) -> Report:
        checked = []
        for root in roots:
            found = verdicts_of_root(self._directory, root, level)
            if found is None:
                continue  # rotated since the listing
            verdicts += found
            told = self._told(root, False)
            if told is not None:
                checked.append(self._status(root, told, found))
        return Report(tuple(verdicts), level, tuple(checked))

    def _status(self, root: RootName, told: report.Generation, found: list[Verdict]) -> report.Generation:
        """Give a generation with the status that its verdicts, and the claims where they can be read, say."""
        if not all(verdict.ok for verdict in found):
            return dataclasses.replace(told, status=DAMAGED)
        try:
            off = self._directory.off_lineage(self._directory.claims(), [root])
        except CheckpointError:
            return told
        return dataclasses.replace(told, status=ORPHANED if off else LIVE)


def _steps(lineage: list[RootName]) -> str:
    if not lineage:
        return "no generation on the lineage"
    return "steps " + ", ".join(str(root.step) for root in lineage[-20:])


def _read_whole(generation: Generation, ordinals: list[int]) -> Restored:
    """Read whole regions; the per-owner ones become tagged JSON of a dict role -> value."""
    schema = generation.schema
    restored = Restored()
    wants, values, per_owner = [], [], []
    for ordinal in ordinals:
        region = schema[ordinal]
        if region.shape is not None:
            box = Box.whole(region.shape)
            array = memory_for(region, box)
            if array.size:
                wants.append(Want(ordinal, box, array))
            restored.arrays[region.name] = [array]
        elif region.kind == "value":
            values.append(ordinal)
        else:
            per_owner.append(ordinal)
    for ordinal, data in generation.read(wants, values).items():
        restored.opaque[schema[ordinal].name] = bytes(data)
    held: dict[int, list[bytes]] = {ordinal: [] for ordinal in per_owner}
    if per_owner:
        for role in range(generation.root.owners):
            for ordinal, data in generation.read([], per_owner, role).items():
                held[ordinal].append(b'[{"int":"%d"},%b]' % (role, data))
    for ordinal, pairs in held.items():
        restored.opaque[schema[ordinal].name] = b'{"dict":[' + b",".join(pairs) + b"]}"
    return restored


__all__ = ["Store", "open_store"]
