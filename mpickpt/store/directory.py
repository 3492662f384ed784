"""The directory of a run: what is published, who claimed which epoch, which generations are on the lineage.

A root's name in ``roots/`` is what publishes a generation; nothing else is. Lists ignore names outside the pattern.
docs/format.md says what is damage and what is only worth a warning.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Container, Iterable
from typing import Final

from mpickpt.errors import CheckpointError, NotFoundError, StateError, StoreError, from_record
from mpickpt.format.ended import Ended
from mpickpt.format.fields import FORMAT
from mpickpt.format.manifest import Manifest, decode_root
from mpickpt.format.names import claim_name, ended_name, parse_root_name
from mpickpt.format.records import Claim, RunInfo, Void, record
from mpickpt.state.region import Schema
from mpickpt.store import claims, commit, damage, filesystem, keeping, opening
from mpickpt.store.commit import Way
from mpickpt.store.files import names_in, open_regular, read_record
from mpickpt.store.filesystem import Promise
from mpickpt.store.lineage import RootName, descends, origins_of
from mpickpt.store.presence import there
from mpickpt.store.refusal import store_error

#: How a void record begins: canonical JSON has sorted keys, and a root's first key is another.
VOID_BEGINS: Final = b'{"attempt":'


class Directory:
    """One run's store.

    Parameters
    ----------
    path : str or path-like
        The run's directory.
    way : Way, optional
        How files are placed, where that is not to be found out by a probe.

    Attributes
    ----------
    path : str
        Absolute.
    promise : Promise or None
        What the file system can do; known once it was opened for writing.
    """

    def __init__(self, path: str | os.PathLike[str], way: Way | None = None) -> None:
        try:
            self.path = os.path.abspath(os.fsdecode(path))
        except TypeError as error:
            raise StateError("the path of a store is no path", found=repr(path)[:100]) from error
        if not os.fspath(path):
            raise StateError("the path of a store is empty", expected="a directory of its own", found=repr(path))
        if "\0" in self.path:
            raise StateError("the path of a store has a null character", found=repr(path)[:100])
        self.roots_path = os.path.join(self.path, "roots")
        self.epochs_path = os.path.join(self.path, "epochs")
        self.data_path = os.path.join(self.path, "data")
        self.pins_path = os.path.join(self.path, "pins")
        self.promise: Promise | None = None
        self._way = way
        self._fence = False
        self._run: RunInfo | None = None
        self._own_run: str | None = None
        self._no_voids: set[str] = set()
        #: What all owners declare: of a root that has this schema it need not be parsed.
        self.expected: Schema | None = None
        #: The root that the last look for damage has read: whoever had it made may take it, and not read it again.
        self.checked: tuple[str, Manifest] | None = None
        self._kinds: dict[str, bool] = {}  # name of a readable root or void -> whether it is a root

    # ------------------------------------------------------------------ opening

    def open(self, write: bool = False, check: bool = True) -> Directory:
        """Look whether it is a store; for writing, also try the file system and make what is missing.

        Parameters
        ----------
        write : bool
            Whether anything is going to be written. Without it nothing is probed or made.
        check : bool
            Whether to refuse a damaged store (see `check`).

        Returns
        -------
        Directory
            Itself.

        Raises
        ------
        NotFoundError
            If nothing is there, and it is not opened for writing.
        StoreError
            If the path is a file or a dangling link, cannot be read or written, or cannot publish safely.
        IntegrityError, FormatError
            If the store is damaged, or of a newer format.
        """
        opening.open_directory(self, write, check)
        return self

    @property
    def way(self) -> Way:
        """How files are placed here."""
        if self._way is None:
            self.probe()
        assert self._way is not None
        return self._way

    @property
    def fence(self) -> bool:
        """Whether a directory's sync is followed by that of a new file in it."""
        return self._fence

    def probe(self) -> None:
        """Find out what the file system can do; see `filesystem.probe`."""
        self.promise = filesystem.probe(self.path)
        self._fence = self.promise.fence
        if self._way is None:
            self._way = self.promise.way

    def adopt(self, way: Way, fence: bool) -> None:
        """Take over what another owner's probe of this directory has found."""
        self._way, self._fence = way, fence

    def publish(self, directory: str, name: str, data: bytes) -> bool:
        """Publish a file in the way that was found to work here; see `commit.publish`."""
        return commit.publish(directory, name, data, self.way, self.fence)

    # ------------------------------------------------------------------ the run

    @property
    def run_path(self) -> str:
        """Path of run.json."""
        return os.path.join(self.path, "run.json")

    @property
    def run(self) -> RunInfo:
        """Identity of the run: from run.json, or, where that is purged, from what else stands in the store.

        Raises
        ------
        IntegrityError, FormatError
            If run.json is damaged or of a newer format.
        NotFoundError
            If there is none, nor anything that names the run.
        """
        if self._run is None:
            self._run = opening.read_run(self)
        return self._run

    @property
    def own_run(self) -> str | None:
        """The run's id where run.json or a claim tells it: no root of another run is taken for one of this store."""
        self._own_run = self._own_run or opening.own_run(self)  # without a lock: the file system may hang
        return self._own_run

    # ------------------------------------------------------------------ roots

    def roots(self, fresh: bool = False) -> list[RootName]:
        """List the names in ``roots/``, in the order of (epoch, step): published ones and voids.

        Parameters
        ----------
        fresh : bool
            Write in the directory first, so that no network file system answers from its cache: before a listing
            that decides something.

        Raises
        ------
        StoreError
            If the directory cannot be read.
        """
        if fresh:
            commit.refresh(self.roots_path)
        try:
            names = names_in(self.roots_path)
        except FileNotFoundError:
            return []
        parsed = ((parse_root_name(name), name) for name in names)
        return sorted(RootName(found[1], found[0], found[2], name) for found, name in parsed if found is not None)

    def root_path(self, name: str) -> str:
        """Give the path of a root."""
        return os.path.join(self.roots_path, name)

    def data_of(self, name: str) -> str:
        """Give the directory of the files of a root's attempt."""
        return os.path.join(self.data_path, name.removesuffix(".json"))

    def read_root(self, name: str, digest: str | None = None) -> Manifest | Void:
        """Read what stands under a root's name.

        Parameters
        ----------
        name : str
            The file's name in ``roots/``.
        digest : str, optional
            The root's digest, where it is known: ``blake3:HEX``.

        Returns
        -------
        Manifest or Void

        Raises
        ------
        NotFoundError
            If it is not there.
        IntegrityError
            If it is damaged, another one than `digest` names, of another moment than its name says, or, where no
            `digest` vouches for it, of another run than this store's.
        FormatError
            If it is malformed or of a newer format.
        StoreError
            If it cannot be read.
        """
        path = self.root_path(name)
        try:
            data = read_record(path, "a root manifest")
        except FileNotFoundError as error:
            raise NotFoundError("the generation is gone, or never was", path=path) from error
        found = decode_root(data, path, digest=digest, like=self.expected)
        damage.check_place(name, found, path, None if digest else self.own_run)
        self._kinds[name] = isinstance(found, Manifest)
        return found

    def published(self, name: str) -> None:
        """Note that this process has just placed a root under a name: `is_root` need not read it."""
        self._kinds[name] = True

    def is_root(self, name: str) -> bool | None:
        """Tell whether a published root stands under a name (True), a void (False), or what cannot be read (None)."""
        if name not in self._kinds:
            try:
                self.read_root(name)
            except CheckpointError:
                return None
        return self._kinds[name]

    def is_void(self, name: str) -> bool:
        """Tell whether a void stands under a name; of a root only the first bytes are read."""
        if name in self._no_voids:
            return False
        if name not in self._kinds:
            try:
                fd, _ = open_regular(self.root_path(name), "a root manifest")
                try:
                    if not os.pread(fd, len(VOID_BEGINS), 0).startswith(VOID_BEGINS):
                        self._no_voids.add(name)  # what stands under a name is never another
                        return False
                finally:
                    os.close(fd)
            except (CheckpointError, OSError):
                return False  # what cannot be read is not passed over as if nothing had been published
        return self.is_root(name) is False

    def publish_root(self, name: str, data: bytes) -> bool:
        """Publish a generation: from here on it is listed.

        Returns
        -------
        bool
            False: the name was taken, by a void that an owner in doubt put there.

        Raises
        ------
        StoreError
            If it could not be published; ``published = True`` if it is in place with its durability unknown.
        """
        published = self.publish(self.roots_path, name, data)
        if published:
            self._kinds[name] = True
        return published

    def void(self, name: str, error: CheckpointError) -> CheckpointError | str:
        """End an attempt for good, or learn that it is published: whichever file exists decides.

        Parameters
        ----------
        name : str
            The attempt's root name.
        error : CheckpointError
            Why.

        Returns
        -------
        CheckpointError or str
            What the void record there says, this one's or another's; or the digest of the root there, synced by this.

        Raises
        ------
        StoreError, IntegrityError, NotFoundError
            If the store cannot answer.
        """
        mine = Void(attempt=name.removesuffix(".json"), error_record=error.to_record())
        try:
            if self.publish(self.roots_path, name, mine.encode()[0]):
                return from_record(mine.error_record)
        except StoreError as trouble:  # a disk may be too full for a void and still tell what stands there
            if commit.was_published(trouble) or not there(self.root_path(name)):
                raise
        found = self.read_root(name)
        self.sync_root(name)
        return found.error if isinstance(found, Void) else found.digest

    def sync_root(self, name: str) -> None:
        """Sync a root and its directory, for whoever finds it there and relies on it.

        Raises
        ------
        StoreError
            If that fails: its durability is not known.
        """
        commit.sync_file(self.root_path(name))
        commit.sync_directory(self.roots_path, self.fence)

    def attempt(self, name: str) -> str:
        """Make the directory of an attempt, synced into ``data/``, and give its path.

        Raises
        ------
        StoreError
            If it cannot be made, or is there already.
        """
        path = self.data_of(name)
        if not commit.make_directory(path, fence=self.fence, ours=True):
            raise store_error(FileExistsError(errno.EEXIST, ""), "making an attempt's directory", path)
        return path

    # ------------------------------------------------------------------ claims and lineage

    def claims(self, fresh: bool = False) -> list[Claim]:
        """Read the claims, in the order of their epochs.

        `fresh` is as for `roots`.

        Raises
        ------
        IntegrityError, FormatError
            If one of them is damaged, or is of another epoch than its name says.
        StoreError
            If the directory cannot be read.
        """
        if fresh:
            commit.refresh(self.epochs_path)
        return claims.read_claims(self.epochs_path)

    def newest_claim(self, fresh: bool = False) -> Claim | None:
        """Give the claim of the highest epoch; None where nobody has claimed."""
        found = self.claims(fresh)
        return found[-1] if found else None

    def claim(self, claim: Claim) -> bool:
        """Take an epoch; tell whether the claim that then stands there is this one, by its nonce.

        Raises
        ------
        StoreError, IntegrityError, FormatError
            If it could not be published, or what stands there cannot be read.
        """
        if self.publish(self.epochs_path, claim_name(claim.epoch), claim.encode()[0]):
            return True
        if claims.read_claim(self.epochs_path, claim.epoch).nonce != claim.nonce:
            return False
        self.sync_claim(claim.epoch)
        return True

    def ended(self, epoch: int) -> str | None:
        """Give how the job that had an epoch said that it ended; None where it has said nothing that can be read."""
        return claims.read_ended(self.epochs_path, epoch)

    def end(self, ended: Ended) -> bool:
        """Write down how the job that had an epoch ends; False where that was said already. StoreError as ever."""
        return self.publish(self.epochs_path, ended_name(ended.epoch), ended.encode()[0])

    def sync_claim(self, epoch: int) -> None:
        """Sync a claim and its directory, for whoever finds it there and relies on it; raises as `sync_root`."""
        commit.sync_file(os.path.join(self.epochs_path, claim_name(epoch)))
        commit.sync_directory(self.epochs_path, self.fence)

    def lineage(self, fresh: bool = False, judges: list[Claim] | None = None) -> list[RootName]:
        """List the generations that the present run descends from, the newest last.

        The rule is that of `mpickpt.store.lineage`, judged by the claims `judges`, by default those in the store.
        Voids are left out; a root that cannot be read is not, so that nobody goes past it without a word. `fresh` is
        as for `roots`.
        """
        origins = origins_of(self.claims(fresh) if judges is None else judges)
        return [root for root in self.roots(fresh) if descends(root, origins) and not self.is_void(root.name)]

    def check(self) -> None:
        """Refuse a store that is damaged as a whole; see `damage.check`."""
        damage.check(self)

    # ------------------------------------------------------------------ keeping

    def pin(self, name: str) -> None:
        """Keep a generation for good: rotation and sweep leave it alone.

        The pin is a record in ``pins/`` with the root's own file name. NotFoundError if there is no such generation,
        StoreError if the pin cannot be written.
        """
        if parse_root_name(name) is None or not there(self.root_path(name)) or self.is_root(name) is False:
            raise NotFoundError("there is no such generation to pin", path=self.root_path(name))
        commit.make_directory(self.pins_path, fence=self.fence)
        self.publish(self.pins_path, name, record({"format": FORMAT, "kind": "pin"})[0])

    def pins(self) -> set[str]:
        """Give the names of the roots that are pinned."""
        try:
            return {name for name in names_in(self.pins_path) if parse_root_name(name) is not None}
        except FileNotFoundError:
            return set()

    def rotate(self, keep: int | None, keep_every: int | None = None, protect: Container[str] = ()) -> list[str]:
        """Remove what is beyond `keep` on the lineage; see `keeping.rotate`."""
        return keeping.rotate(self, keep, keep_every, protect)

    def sweep(self, orphans: bool = False) -> list[str]:
        """Remove what failed attempts left behind; see `keeping.sweep`."""
        return keeping.sweep(self, orphans)

    def off_lineage(self, judges: list[Claim], names: Iterable[RootName]) -> list[RootName]:
        """Give those of `names` that are orphaned, by the claims `judges`."""
        origins = origins_of(judges)
        return [root for root in names if not descends(root, origins)]


__all__ = ["Directory", "RootName"]
