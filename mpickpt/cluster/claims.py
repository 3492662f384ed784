"""The claim by which a continuation takes the next epoch (docs/protocol.md, "Epochs"): all of it runs in workers.

Which epoch, from what, under which nonce: that is proposed when the generation is chosen, and told to all owners.
Once all have verified what they read, owner 0 takes it; an owner that hears nothing asks the store (`settle`).
Failpoints: claim.listed, claim.placed, claim.looked, claim.doubt.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final

from mpickpt import canonical, failpoints, launch
from mpickpt.errors import CheckpointError, EpochError, FormatError, OvertakenError, StoreError, from_record
from mpickpt.format.ended import Ended
from mpickpt.format.fields import MAX
from mpickpt.format.manifest import Manifest
from mpickpt.format.records import Claim
from mpickpt.store import claims, commit, fencing
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory, RootName
from mpickpt.store.lineage import counting

_log = logging.getLogger("mpickpt")

#: Seconds between two looks for a newer claim that cost nothing in between.
_LOOKS: Final = 1.0


class Claims:
    """What owner 0 has claimed.

    Attributes
    ----------
    mine : Claim or None
        The claim under which this process saves.
    """

    def __init__(self, directory: Directory, owners: int, host: str) -> None:
        self.directory = directory
        self.owners = owners
        self.host = host
        self.mine: Claim | None = None
        self._taken: Claim | None = None
        self._ended: int | None = None
        self._looked = -math.inf
        self._refusal: EpochError | None = None

    def forget(self) -> None:
        """Forget a claim that a call has taken which then failed: no save is made under it."""
        self._taken = None

    def propose(self, standing: Sequence[Claim], root: Manifest | None, reason: str) -> Claim:
        """Say which claim would go on from `root`, or start afresh, after the claims that stand."""
        epoch = standing[-1].epoch + 1 if standing else 1
        if epoch > MAX:
            raise FormatError(
                "no epoch is left to claim: the newest claim names the last one that there can be",
                path=self.directory.epochs_path,
                expected=f"an epoch below {MAX}",
                found=epoch - 1,
                unharmed="the store and all arrays",
                advice="no run comes to this by itself: look at who wrote that claim, and move it away if it is forged",
            )
        started = launch.detect()
        claim = Claim(
            epoch=epoch,
            run=self.directory.run.run,
            from_epoch=None,
            from_step=None,
            from_root=None,
            owners=self.owners,
            job=started.job,
            host=self.host,
            time=_now(),
            nonce=secrets.token_hex(8),
            nodes=started.nodes,
            reason=reason,
            restarts=started.restarts or 0,
            stopped=self._stopped(standing),
        )
        return claim if root is None else _from(claim, root)

    def _stopped(self, standing: Sequence[Claim]) -> str | None:
        """Say how the job before ended, as far as it has said so: one that was killed has not."""
        before = counting(list(standing))[-1:]
        if not before:
            return None
        if self.mine is not None and before[0].nonce == self.mine.nonce:
            return "the same process resumes once more"
        return self.directory.ended(before[0].epoch)

    def tell_end(self, reason: str) -> None:
        """Write down why this job ends, once an epoch, for whoever goes on; that it fails is logged, and no more."""
        if self.mine is None or self._ended == self.mine.epoch:
            return
        self._ended = self.mine.epoch
        try:
            self.directory.end(Ended(self.mine.epoch, reason, _now()))
        except CheckpointError as error:
            _log.warning("why this job ends could not be written down: %s", error)

    def take(self, claim: Claim, known: RootName | None) -> Claim:
        """Take the epoch, unless a rival was first.

        Parameters
        ----------
        claim : Claim
            What was proposed.
        known : RootName or None
            The newest generation when that was. What an older job has published since goes into the claim, so that no
            acknowledged save is lost, and is refused here: the state that was read is not the newest any more.

        Raises
        ------
        EpochError
            If a rival has taken the epoch; OvertakenError if an older job has published meanwhile.
        CheckpointError
            If owners in doubt have made the claim void: what they say.
        """
        standing = self.directory.claims(fresh=True)
        newer = self._newer(standing, known)
        failpoints.reach("claim.listed")
        if newer is not None:
            claim = _instead(claim, newer)
        self._publish(claim)
        failpoints.reach("claim.placed")
        # Whoever has published before it could see this claim is seen now: so one of the two knows of the other.
        later = self._newer(standing, None if newer is None else _name(newer), known)
        if later is not None:
            newer = later
            self._publish(_instead(replace(claim, epoch=claim.epoch + 1), newer))
        failpoints.reach("claim.looked")
        if newer is not None:
            raise self._overtaken(newer)
        self._taken = claim
        return claim

    def took(self) -> None:
        """Say that all owners go on under the claim that was taken last: saves are made under it from here on."""
        if self._taken is not None:
            self.mine, self._taken = self._taken, None
            self._looked, self._refusal = -math.inf, None

    def fenced(self, now: float | None = None) -> EpochError | None:
        """Give the refusal where a newer job has continued the run; looks once a second at most, for calls in a loop.

        A negative answer may be a second old; once positive it stays. `now` is when it was asked for, if not just now.
        """
        now = time.monotonic() if now is None else now
        if self.mine is not None and self._refusal is None and now - self._looked >= _LOOKS:
            self._looked = now
            self._refusal = fencing.fenced(self.directory, self.mine.epoch)
        return self._refusal

    def _publish(self, claim: Claim) -> None:
        if self.directory.claim(claim):
            return
        there = claims.read_claim(self.directory.epochs_path, claim.epoch)
        if there.void is not None:
            raise from_record(there.void)
        raise lost(self.directory, there)

    def _newer(
        self, standing: Sequence[Claim], known: RootName | None, older: RootName | None = None
    ) -> Manifest | None:
        """Give the newest generation after `known` that can be read, judged by the claims that stood before."""
        bound = max((root for root in (known, older) if root is not None), default=None)
        for root in reversed(self.directory.lineage(fresh=True, judges=list(standing))):
            if bound is not None and (root.epoch, root.step) <= (bound.epoch, bound.step):
                return None
            try:
                found = self.directory.read_root(root.name)
            except CheckpointError:
                continue  # what cannot be read cannot be named as an origin; the one before it can
            if isinstance(found, Manifest):
                return found
        return None

    def _overtaken(self, newer: Manifest) -> OvertakenError:
        return OvertakenError(
            f"an older job has saved step {newer.prefix.step} while this one resumed",
            path=self.directory.roots_path,
            expected="the generation that was chosen to be the newest still",
            found=f"step {newer.prefix.step} of epoch {newer.prefix.epoch}",
            unharmed="the store and all arrays; that save is kept, and its job can save no more",
            advice="start again: the next resume goes on from it",
        )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _name(root: Manifest) -> RootName:
    return RootName(root.prefix.epoch, root.prefix.step, root.prefix.attempt, "")


def _from(claim: Claim, root: Manifest) -> Claim:
    """Let a claim go on from a root."""
    epoch, step = root.prefix.epoch, root.prefix.step
    lineage = (*(root.lineage or ((epoch, None, None),)), (claim.epoch, epoch, step))
    return replace(claim, from_epoch=epoch, from_step=step, from_root=root.digest, lineage=lineage)


def _instead(claim: Claim, root: Manifest) -> Claim:
    return replace(_from(claim, root), reason="an older job saved this generation while the claimant resumed")


def lost(directory: Directory, there: Claim) -> EpochError:
    """Give the refusal where another job was first to take an epoch."""
    return EpochError(
        "another job has continued this run first",
        path=directory.epochs_path,
        expected=f"to take epoch {there.epoch}",
        found=fencing.who(there),
        unharmed="the store and all arrays",
        advice="let that job run, or end it and start again",
    )


# --- what all owners know of a claim


def to_json(claim: Claim, directory: Directory) -> dict[str, Any]:
    """Give what owners must know to ask the store for themselves."""
    return {
        "epoch": claim.epoch,
        "run": claim.run,
        "from_epoch": claim.from_epoch,
        "from_step": claim.from_step,
        "from_root": claim.from_root,
        "owners": claim.owners,
        "nonce": claim.nonce,
        "way": directory.way.value,
        "fence": directory.fence,
    }


def settle(
    directory: Directory, known: Mapping[str, Any], host: str, error: CheckpointError
) -> CheckpointError | bytes:
    """Make the claim void, or learn what stands in its place; as `mpickpt.cluster.channel.Settle` says.

    Parameters
    ----------
    known : mapping
        What `to_json` gave at owner 0.
    error : CheckpointError
        The refusal that all will raise if nothing stands there yet.

    Returns
    -------
    CheckpointError or bytes
        The refusal that holds; or what owner 0's result says, where the epoch is taken by this very job.
    """
    failpoints.reach("claim.doubt")
    directory.adopt(Way(known["way"]), known["fence"])
    started = launch.detect()
    void = Claim(
        **{name: known[name] for name in ("epoch", "run", "from_epoch", "from_step", "from_root", "owners")},
        job=started.job,
        host=host,
        time=_now(),
        nonce=secrets.token_hex(8),
        nodes=started.nodes,
        reason="an owner heard nothing after it had told its outcome",
        void=error.to_record(),
        restarts=started.restarts or 0,
    )
    try:
        if directory.claim(void):
            return from_record(void.void or {})
    except StoreError as trouble:  # a disk may be too full for a void and still tell what stands there
        if commit.was_published(trouble):
            raise
    there = claims.read_claim(directory.epochs_path, known["epoch"])
    if there.void is not None:
        return from_record(there.void)
    if there.nonce != known["nonce"]:
        return lost(directory, there)
    later = fencing.successor(directory, there.epoch)
    if later is not None and later.nonce == there.nonce:
        return OvertakenError(
            "an older job has saved while this one resumed",
            path=directory.epochs_path,
            found=fencing.who(later),
            unharmed="the store and all arrays; that save is kept, and its job can save no more",
            advice="start again: the next resume goes on from it",
        )
    return canonical.dumps({"error": None, "epoch": there.epoch})
