"""What owner 0 decides with the store's help: the claim, which generation to resume, whether a moment may be saved.

In this stage there is one epoch: the first `resume` or `save` of a run claims epoch 1, and every later start continues
under it. All of it runs in a worker of owner 0; the others are told.
"""

from __future__ import annotations

import logging
import os
import secrets
from datetime import datetime, timezone
from typing import Any

from mpickpt.cluster.publish import Published, Publisher
from mpickpt.cluster.restore import Request
from mpickpt.errors import CheckpointError, EpochError, ExistsError, IntegrityError, MomentError, NotFoundError, owner
from mpickpt.format.manifest import Manifest
from mpickpt.format.names import root_name
from mpickpt.format.records import Claim
from mpickpt.state.moment import Moment
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation
from mpickpt.store.lineage import RootName

_log = logging.getLogger("mpickpt")


class Lineage:
    """Owner 0's view of one run's store."""

    def __init__(
        self, directory: Directory, owners: int, host: str, keep: int | None, keep_every: int | None, before: bool
    ) -> None:
        self.directory = directory
        self.owners = owners
        self.host = host
        self.keep = keep
        self.keep_every = keep_every
        self.before = before
        #: The root that was chosen last: owner 0 need not read it again.
        self.chosen: Manifest | None = None
        self._opened = False
        #: Names of the roots that this process has resumed (empty: a fresh start) or may have published; none before it
        #: has begun.
        self._known: set[str] = set()
        self._protected: set[str] = set()

    # -- opening and claiming

    def _open(self, check: bool = False) -> None:
        """Try the file system and make the layout, once, before the first write; that also looks for damage."""
        if not self._opened:
            self.directory.open(write=True)
            self._opened = True
        elif check:
            self.directory.check()

    def _claim(self) -> Claim:
        """Give the newest claim; where there is none, claim epoch 1 as a fresh start."""
        newest = self.directory.newest_claim(fresh=True)
        if newest is not None:
            return newest
        claim = Claim(
            epoch=1,
            run=self.directory.run.run,
            from_epoch=None,
            from_step=None,
            from_root=None,
            owners=self.owners,
            job=os.environ.get("SLURM_JOB_ID"),
            host=self.host,
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            nonce=secrets.token_hex(8),
        )
        self.directory.claim(claim)
        found = self.directory.newest_claim()
        assert found is not None
        return found

    # -- resume

    def choose(self, request: Request) -> dict[str, Any]:
        """Choose the generation to resume: the newest of the lineage, or the one asked for."""
        directory = self.directory
        if request.readonly:
            if not os.path.lexists(directory.path):
                return self._fresh(request)
            directory.open(write=False)
        else:
            self._open(check=True)
        names = directory.lineage(fresh=not request.readonly)
        if not names:
            return self._fresh(request)
        if request.root is not None:
            name, root = self._by_digest(names, request.root)
            if request.step not in (None, name.step):
                raise self._missing(f"step {request.step} with root {request.root}", [name])
        else:
            name = self._by_step(names, request.step)
            root = self._read(name, names)
        self.chosen = root
        return {"fresh": False, "name": name.name, "digest": root.digest, "epoch": root.prefix.epoch}

    def _fresh(self, request: Request) -> dict[str, Any]:
        if request.step is not None or request.root is not None:
            raise self._missing(f"step {request.step}" if request.root is None else request.root, [])
        newest = self.directory.newest_claim() if os.path.isdir(self.directory.path) else None
        return {"fresh": True, "name": "", "digest": "", "epoch": 1 if newest is None else newest.epoch}

    def _by_step(self, names: list[RootName], step: int | None) -> RootName:
        if step is None:
            return names[-1]
        found = [name for name in names if name.step == step]
        if not found:
            raise self._missing(f"step {step}", names)
        return found[-1]

    def _by_digest(self, names: list[RootName], digest: str) -> tuple[RootName, Manifest]:
        for name in reversed(names):
            try:
                found = self.directory.read_root(name.name)
            except CheckpointError as error:
                _log.warning("passed over while looking for %s: %s", digest, error)
                continue
            if isinstance(found, Manifest) and found.digest == digest:
                return name, found
        raise self._missing(digest, names)

    def _missing(self, what: str, names: list[RootName]) -> NotFoundError:
        there = ", ".join(f"step {name.step}" for name in names[-10:]) or "none"
        return NotFoundError(
            f"the generation asked for is not on the lineage: {what}",
            path=self.directory.roots_path,
            expected=what,
            found=there,
            unharmed="the store and all arrays",
            advice="`mpickpt ls RUN` lists what there is",
        )

    def _read(self, name: RootName, names: list[RootName]) -> Manifest:
        """Read the chosen root; where it is damaged, name the newest older one that is good."""
        try:
            found = self.directory.read_root(name.name)
        except CheckpointError as error:
            self.advise(error, name.name)
            raise
        if not isinstance(found, Manifest):
            raise IntegrityError("a void record stands under a root's name", path=self.directory.root_path(name.name))
        return found

    def advise(self, error: CheckpointError, name: str) -> None:
        """Say in a refusal of damage which older generation passes the fast check."""
        try:
            names = self.directory.lineage()
        except CheckpointError:
            return  # that the store cannot be listed is another refusal than this one
        at = next((index for index, root in enumerate(names) if root.name == name), len(names))
        for root in reversed(names[:at]):
            try:
                verdicts = Generation(self.directory, root.name).verify("fast")
            except CheckpointError:
                continue
            if all(verdict.ok for verdict in verdicts):
                newer = ", ".join(one.name for one in names[names.index(root) + 1 :])
                good = (
                    f"step {root.step} passes the fast check: resume(..., step={root.step}) restores it; "
                    f"to train on from it, first move {newer} out of {self.directory.roots_path}"
                )
                break
        else:
            good = "no older generation passes the fast check"
        own = error.advice if error.advice != error.default_advice else None
        error.advice = good if own is None else f"{own}; or: {good}"

    def conclude(self, request: Request, decision: dict[str, Any]) -> dict[str, Any]:
        """Make the claim, once all owners have verified what they read."""
        if decision.get("name"):
            self._protected = {decision["name"]}
        if request.readonly:
            return {"epoch": decision["epoch"]}
        if decision.get("name"):
            # A save may have ended with "published, durability unknown": whoever relies on its root syncs it first.
            self.directory.sync_root(decision["name"])
        claim = self._claim()
        self._known = {decision["name"]}
        return {"epoch": claim.epoch}

    def pin(self, step: int) -> dict[str, Any]:
        """Pin the generation of a step."""
        self._open()
        self.directory.pin(self._by_step(self.directory.lineage(fresh=True), step).name)
        return {}

    # -- save

    def follow(self) -> None:
        """Let saves go on from what is there, although nothing of it was restored."""
        self._known = {"", *(name.name for name in self.directory.lineage())}

    def begin_save(self, publisher: Publisher, step: int, cursor: int) -> dict[str, Any]:
        """Check the moment against the lineage, and make the attempt."""
        directory = self.directory
        self._open()
        names = directory.lineage(fresh=True)
        if not self._known and names:
            raise EpochError(
                "save was called before resume, on a store that holds generations",
                path=directory.path,
                expected="an empty store, or resume() first",
                found=f"generations up to step {names[-1].step}",
                unharmed="the store",
                advice="call resume() before the training loop, or give another directory",
            )
        self._refuse_rivals(names)
        claim = self._claim()
        newest = self._newest(names, publisher.last)
        if newest is not None:
            moment, root, path = newest
            if moment.step == step:
                last = publisher.last
                if last is not None and last.root == root and moment.cursor == cursor:
                    return {"same": [last.root, last.name]}
                raise ExistsError(
                    f"step {step} is published already",
                    path=path,
                    expected=f"a step after {step}",
                    found=f"step {step}, cursor {cursor}; published: {moment.text()}",
                    unharmed="the published generation: it never changes",
                    advice="count on from what the Continuation says",
                )
            try:
                Moment(step, cursor, claim.epoch).check_after(moment)
            except MomentError as error:
                error.path = path
                raise
            publisher.parent = {"digest": root, "step": moment.step, "cursor": moment.cursor, "epoch": moment.epoch}
        publisher.lineage = claim.lineage
        if self.before and self.keep is not None and self.keep > 1:
            # Under a tight quota the oldest goes first; the one that a resume would take always stays.
            directory.rotate(self.keep - 1, self.keep_every, self._protected)
        nonce = secrets.token_hex(8)
        name = root_name(step, claim.epoch, nonce)
        self._known.add(name)
        directory.attempt(name)
        return {
            "name": name,
            "nonce": nonce,
            "epoch": claim.epoch,
            "run": claim.run,
            "way": directory.way.value,
            "fence": directory.fence,
        }

    def _refuse_rivals(self, names: list[RootName]) -> None:
        """Refuse to go on where the newest generation is neither what this run resumed nor what it saved."""
        if not names or names[-1].name in self._known:
            return
        raise EpochError(
            f"the newest generation, step {names[-1].step}, is neither what this run resumed nor what it saved",
            path=self.directory.root_path(names[-1].name),
            expected="that no other job saves in this store",
            found=names[-1].name,
            unharmed="the store",
            advice="if another job runs on this store, end one of the two; if an older generation was resumed on "
            "purpose, move the newer roots out of roots/ and start again",
        )

    def _newest(self, names: list[RootName], last: Published | None) -> tuple[Moment, str, str] | None:
        """Give moment, digest and path of the newest generation that can be read."""
        for name in reversed(names):
            path = self.directory.root_path(name.name)
            if last is not None and last.name == name.name:
                return Moment(last.step, last.cursor, name.epoch), last.root, path
            try:
                found = self.directory.read_root(name.name)
            except CheckpointError as error:
                _log.warning("a generation that cannot be read is passed over: %s", error)
                continue
            if isinstance(found, Manifest):
                prefix = found.prefix
                return Moment(prefix.step, prefix.cursor, prefix.epoch), found.digest, path
        return None

    def rotate(self, published: Published) -> None:
        """Remove what is beyond `keep`; what goes wrong is logged, for the generation is published."""
        self._protected = {published.name}
        try:
            removed = self.directory.rotate(self.keep, self.keep_every, self._protected)
        except Exception as error:  # whatever it is, no save fails for it
            _log.warning("%s could not rotate: %s", owner(0, self.host), error)
        else:
            if removed:
                _log.info("removed %d generation(s) beyond keep=%s", len(removed), self.keep)
