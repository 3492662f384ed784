"""What owner 0 decides with the store's help: what to resume, what is claimed, whether a moment may be saved.

All of it runs in a worker of owner 0; the others are told.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mpickpt.cluster import claims
from mpickpt.cluster.claims import Claims
from mpickpt.cluster.publish import Publisher
from mpickpt.cluster.request import DAMAGE, Decision, Request
from mpickpt.cluster.saves import Published
from mpickpt.errors import (
    CheckpointError,
    EpochError,
    ExistsError,
    IntegrityError,
    MomentError,
    NotFoundError,
    StoreError,
    owner,
)
from mpickpt.format.manifest import Manifest
from mpickpt.format.names import root_name
from mpickpt.format.records import Claim
from mpickpt.state.moment import Moment
from mpickpt.store import fencing
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation, rotated
from mpickpt.store.lineage import RootName
from mpickpt.store.presence import there

_log = logging.getLogger("mpickpt")


class Lineage:
    """Owner 0's view of one run's store."""

    def __init__(
        self, directory: Directory, owners: int, host: str, keep: int | None, keep_every: int | None, before: bool
    ) -> None:
        self.directory = directory
        self.host = host
        self.keep = keep
        self.keep_every = keep_every
        self.before = before
        self.claims = Claims(directory, owners, host)
        #: The root that was chosen last: owner 0 need not read it again.
        self.chosen: Manifest | None = None
        self._opened = False
        self._follows = False
        self._names: list[RootName] = []
        self._standing: list[Claim] = []
        self._proposed: Claim | None = None
        self._protected: set[str] = set()

    def _open(self, check: bool = False) -> None:
        """Try the file system and make the layout, once, before the first write; that also looks for damage."""
        if not self._opened:
            self.directory.open(write=True)
            self._opened = True
        elif check:
            self.directory.check()

    # -- resume

    def choose(self, request: Request) -> Decision:
        """Choose the generation to resume: the newest of the lineage, or the one asked for."""
        directory, self.chosen, self._proposed = self.directory, None, None
        directory.checked = None
        self.claims.forget()
        if request.readonly:
            if not there(directory.path):
                return self._fresh(request)
            directory.open(write=False)
        else:
            self._open(check=True)
        self._standing = directory.claims(fresh=not request.readonly)
        self._names = directory.lineage(fresh=not request.readonly, judges=self._standing)
        if request.root is not None:
            name, root = self._by_digest(self._names, request.root)
            if request.step not in (None, name.step):
                raise self._missing(f"step {request.step} with root {request.root}", [name])
            return self._decided(name, root, request, "the root that was asked for")
        if request.step is not None:
            name = self._by_step(self._names, request.step)
            return self._decided(name, self._read(name), request, "the step that was asked for")
        if not self._names:
            return self._fresh(request)
        if request.on_damage == "refuse":
            return self._decided(self._names[-1], self._read(self._names[-1]), request, "the newest generation")
        return self._newest_readable(self._names, request)

    def _fresh(self, request: Request) -> Decision:
        if request.step is not None or request.root is not None:
            raise self._missing(f"step {request.step}" if request.root is None else request.root, [])
        found: Decision = {"fresh": True, "name": "", "digest": "", "epoch": 1, "claim": None}
        return self._claiming(found, None, request, "nothing to resume")

    def _decided(self, name: RootName, root: Manifest, request: Request, reason: str) -> Decision:
        self._check_history(name, root)
        self.chosen = root
        if name != self._names[-1]:
            reason += f", not the newest (epoch {self._names[-1].epoch}, step {self._names[-1].step})"
        found = {"fresh": False, "name": name.name, "digest": root.digest, "epoch": root.prefix.epoch, "claim": None}
        return self._claiming(found, root, request, reason)

    def _check_history(self, name: RootName, root: Manifest) -> None:
        """Refuse a root that tells of another past than the store's claims and the generations before it."""
        path = self.directory.root_path(name.name)
        past = {epoch: (from_epoch, from_step) for epoch, from_epoch, from_step in root.lineage}
        for claim in self._standing:
            mine = (claim.from_epoch, claim.from_step)
            if past.get(claim.epoch, mine) != mine:
                raise _foreign(path, fencing.who(claim), f"epoch {claim.epoch} from {past[claim.epoch]}")
        if past and max(past) != name.epoch:
            raise _foreign(path, f"a lineage that ends with epoch {name.epoch}", f"one that ends with {max(past)}")
        before = root.parent
        if before is None:
            return
        told = f"epoch {before['epoch']}, step {before['step']}, {before['digest']}"
        if (before["epoch"], before["step"]) >= (name.epoch, name.step):
            raise _foreign(path, "a generation before it that is older", told)

    def _claiming(self, found: Decision, root: Manifest | None, request: Request, reason: str) -> Decision:
        """Say which claim goes with a choice."""
        if request.readonly:
            return found
        self._proposed = self.claims.propose(self._standing, root, reason)
        found["claim"] = claims.to_json(self._proposed, self.directory)
        return found | {"epoch": self._proposed.epoch}

    def _newest_readable(
        self, names: Sequence[RootName], request: Request, why: CheckpointError | None = None
    ) -> Decision:
        """Choose the newest of some generations whose root can be read (`on_damage="previous"`)."""
        reason = "the newest generation"
        for name in reversed(names):
            if why is not None:
                reason = f"on_damage='previous': {why.message}"
                _log.warning(
                    "the newest generation is DAMAGED (%s%s); as on_damage='previous' says, step %d is tried instead",
                    why.message,
                    f"; {why.path}" if why.path else "",
                    name.step,
                )
            try:
                return self._decided(name, self._read(name), request, reason)
            except DAMAGE as error:
                why = error
        assert why is not None
        raise why

    def instead(self, request: Request, decision: Decision, error: CheckpointError) -> Decision | None:
        """Choose the generation before one that turned out to be damaged, where the caller wants that."""
        if request.on_damage != "previous" or request.step is not None or request.root is not None:
            return None
        older = self._names[: [name.name for name in self._names].index(decision["name"])]
        try:
            return self._newest_readable(older, request, error) if older else None
        except DAMAGE:
            return None

    def _by_step(self, names: list[RootName], step: int | None) -> RootName:
        if step is None:
            return names[-1]
        found = [name for name in names if name.step == step]
        if not found:
            self._refuse_orphaned(lambda name: name.step == step, f"step {step}")
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
        self._refuse_orphaned(lambda name: self._is(name, digest), digest)
        raise self._missing(digest, names)

    def _is(self, name: RootName, digest: str) -> bool:
        try:
            found = self.directory.read_root(name.name)
        except CheckpointError:
            return False
        return isinstance(found, Manifest) and found.digest == digest

    def _refuse_orphaned(self, wanted: Callable[[RootName], bool], what: str) -> None:
        """Refuse a generation that is there, but off the lineage: it is never restored."""
        for name in reversed(self.directory.off_lineage(self._standing, self.directory.roots())):
            if wanted(name) and not self.directory.is_void(name.name):
                judge = fencing.excluder(self._standing, name)
                raise EpochError(
                    f"the generation asked for is off the lineage: {what}",
                    path=self.directory.root_path(name.name),
                    expected="a generation that the present run descends from",
                    found=f"one of epoch {name.epoch}; since then {fencing.who(judge)}",
                    unharmed="the store and all arrays",
                    advice="open_store(path).read() reads it by its root's digest, to look at; "
                    "`mpickpt ls RUN --lineage` shows how it was left",
                )

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

    def _read(self, name: RootName) -> Manifest:
        """Read the chosen root; where it is damaged, name the newest older one that is good."""
        checked, self.directory.checked = self.directory.checked, None
        if checked is not None and checked[0] == name.name:
            return checked[1]  # read a moment ago, when this call opened the store
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
                good = (
                    f"step {root.step} passes the fast check: resume(..., step={root.step}) goes on from it, and so "
                    "does resume(..., on_damage='previous'); what is newer is then orphaned"
                )
                break
        else:
            good = "no older generation passes the fast check"
        own = error.advice if error.advice != error.default_advice else None
        error.advice = good if own is None else f"{own}; or: {good}"

    def conclude(self, decision: Decision, accepted: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
        """Take the epoch, once all owners have verified what they read."""
        if decision["name"]:
            self._protected = {decision["name"]}
        if self._proposed is None:
            return {"epoch": decision["epoch"]}
        if decision["name"]:
            # A save may have ended with "published, durability unknown": whoever relies on its root syncs it first.
            try:
                self.directory.sync_root(decision["name"])
            except StoreError:
                if there(self.directory.root_path(decision["name"])):
                    raise
                raise rotated(self.directory.root_path(decision["name"])) from None
        if self._names and decision["name"] and decision["name"] != self._names[-1].name:
            _log.warning(
                "this run goes on from step %d, not from the newest: later generations are orphaned from now on",
                self._proposed.from_step,
            )
        claim = replace(self._proposed, accepted=tuple((a, b, c, d) for a, b, c, d in accepted))
        return {"epoch": self.claims.take(claim, self._names[-1] if self._names else None).epoch}

    def pin(self, step: int) -> dict[str, Any]:
        """Pin the generation of a step."""
        self._open()
        self._standing = self.directory.claims(fresh=True)
        self.directory.pin(self._by_step(self.directory.lineage(fresh=True), step).name)
        return {}

    # -- save

    def follow(self) -> None:
        """Let the first save go on from what is there, although nothing of it was restored."""
        self._follows = True

    def begin_save(self, publisher: Publisher, step: int, cursor: int) -> dict[str, Any]:
        """Check that this job holds the newest claim and the moment goes on from the lineage; make the attempt."""
        directory = self.directory
        self._open()
        mine = self.claims.mine
        if mine is not None:
            fencing.check(directory, mine.epoch)
        standing = directory.claims(fresh=mine is None)
        if mine is not None:
            fencing.check_own(directory, mine, standing)
        names = directory.lineage(fresh=True, judges=standing)
        if mine is None and names and not self._follows:
            raise EpochError(
                "save was called before resume, on a store that holds generations",
                path=directory.path,
                expected="an empty store, or resume() first (readonly=True takes no epoch)",
                found=f"generations up to step {names[-1].step}",
                unharmed="the store",
                advice="call resume() before the training loop, or give another directory",
            )
        newest = self._newest(names, publisher.last)
        if newest is not None:
            same = self._check_moment(publisher, Moment(step, cursor, newest[0].epoch), *newest)
            if same is not None:
                return same
        if mine is None:
            mine = self._first(standing, names)
        publisher.lineage = mine.lineage
        if self.before and self.keep is not None and self.keep > 1:
            # Under a tight quota the oldest goes first; the one that a resume would take always stays.
            directory.rotate(self.keep - 1, self.keep_every, self._protected)
        nonce = secrets.token_hex(8)
        name = root_name(step, mine.epoch, nonce)
        directory.attempt(name)
        return {
            "name": name,
            "nonce": nonce,
            "epoch": mine.epoch,
            "run": mine.run,
            "way": directory.way.value,
            "fence": directory.fence,
        }

    def _first(self, standing: list[Claim], names: list[RootName]) -> Claim:
        """Take the epoch in the first save, where no `resume` has."""
        root = self._read(names[-1]) if names else None
        claim = self.claims.propose(standing, root, "the first save; nothing was restored")
        self.claims.take(claim, names[-1] if names else None)
        self.claims.took()
        return claim

    def _check_moment(
        self, publisher: Publisher, wanted: Moment, newest: Moment, root: str, path: str
    ) -> dict[str, Any] | None:
        """Refuse a moment that does not go on from the newest; give the last save where it is asked for once more."""
        if newest.step == wanted.step:
            last = publisher.last
            if last is not None and last.root == root and newest.cursor == wanted.cursor:
                return {"same": [last.root, last.name]}
            raise ExistsError(
                f"step {wanted.step} is published already",
                path=path,
                expected=f"a step after {wanted.step}",
                found=f"step {wanted.step}, cursor {wanted.cursor}; published: {newest.text()}",
                unharmed="the published generation: it never changes",
                advice="count on from what the Continuation says",
            )
        try:
            wanted.check_after(newest)
        except MomentError as error:
            error.path = path
            raise
        publisher.parent = {"digest": root, "step": newest.step, "cursor": newest.cursor, "epoch": newest.epoch}
        return None

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
        mine = self.claims.mine
        try:
            if self.keep is None or (mine is not None and fencing.successor(self.directory, mine.epoch, fresh=False)):
                return  # where a newer job goes on, it says what stays
            removed = self.directory.rotate(self.keep, self.keep_every, self._protected)
        except Exception as error:  # whatever it is, no save fails for it
            _log.warning("%s could not rotate: %s", owner(0, self.host), error)
        else:
            if removed:
                _log.info("removed %d generation(s) beyond keep=%s", len(removed), self.keep)


def _foreign(path: str, expected: str, found: str) -> EpochError:
    return EpochError(
        "the checkpoint tells of another past than this store's",
        path=path,
        expected=expected,
        found=found,
        unharmed="the store and all arrays",
        advice="a file of another store or of another time was put here: bring the right one back, or take another "
        "generation with resume(step=...)",
    )
