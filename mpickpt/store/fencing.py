"""Fencing: whether a newer job has continued the run, and what that means for an older one that still runs.

The newest claim wins. Void claims fence nobody; a job's own later claim fences it as well, for the state that it holds
is not the one that the claim goes on from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mpickpt.errors import EpochError, FormatError, IntegrityError, StoreError
from mpickpt.format.names import claim_name, parse_claim_name, parse_root_name
from mpickpt.format.records import Claim
from mpickpt.store import commit
from mpickpt.store.files import names_in
from mpickpt.store.lineage import RootName, counting, descends, origins_of

if TYPE_CHECKING:
    from mpickpt.store.directory import Directory


def who(claim: Claim) -> str:
    """Name who took an epoch, from what, and when by its clock."""
    job = f"job {claim.job} on " if claim.job else ""
    return f"epoch {claim.epoch}, taken by {job}host {claim.host} at {claim.time}, {origin(claim)}"


def origin(claim: Claim) -> str:
    """Say what a claim goes on from."""
    if claim.from_epoch is None:
        return "a fresh start"
    return f"from epoch {claim.from_epoch}, step {claim.from_step}"


def excluder(claims: list[Claim], root: RootName) -> Claim:
    """Give the first claim that put a generation off the lineage; `root` must be off it."""
    return next(claim for claim in counting(claims) if not descends(root, origins_of([claim])))


def successor(directory: Directory, epoch: int, fresh: bool = True) -> Claim | None:
    """Give the newest claim that counts, if it is of a later epoch.

    Parameters
    ----------
    fresh : bool
        Whether to write in the directory first, so that no network file system answers from its cache.

    Raises
    ------
    StoreError, IntegrityError, FormatError
        If the claims cannot be read.
    """
    if fresh:
        commit.refresh(directory.epochs_path)
    if not later(names_in(directory.epochs_path), epoch):
        return None
    newer = [claim for claim in counting(directory.claims()) if claim.epoch > epoch]
    return newer[-1] if newer else None


def later(names: Iterable[str], epoch: int) -> bool:
    """Tell whether names in ``epochs/`` tell of a claim, whether it counts or not, of a later epoch."""
    return max((parse_claim_name(name) or 0 for name in names), default=0) > epoch


def fenced(directory: Directory, epoch: int) -> EpochError | None:
    """Give the refusal for a job that holds `epoch`, where a newer one has continued the run."""
    newer = successor(directory, epoch)
    return None if newer is None else _fenced(directory, epoch, newer)


def check(directory: Directory, epoch: int) -> None:
    """Refuse a job that holds `epoch`, where a newer one has continued the run: EpochError."""
    error = fenced(directory, epoch)
    if error is not None:
        raise error


def check_own(directory: Directory, mine: Claim, standing: list[Claim]) -> None:
    """Refuse a job whose own claim is not there any more, or another stands in its place: EpochError.

    Then the store was removed, and perhaps another run begun in its place, whose epochs have the same numbers.
    """
    there = next((claim for claim in standing if claim.epoch == mine.epoch), None)
    if there is None or there.nonce != mine.nonce:
        raise EpochError(
            "the claim of this job is not there any more: its store was removed or replaced",
            path=os.path.join(directory.epochs_path, claim_name(mine.epoch)),
            expected=who(mine),
            found="nothing" if there is None else who(there),
            unharmed="what stands there now",
            advice="end this job; what it holds can still be saved by a new Checkpointer in another directory",
        )


def orphaned(directory: Directory, name: str) -> EpochError | None:
    """Give the refusal for a root that was just published, where a newer claim has put it off the lineage.

    It says that the root stands (`commit.was_published`): it is listed as orphaned, and nobody restores it.

    Raises
    ------
    StoreError, IntegrityError, FormatError
        If the claims cannot be read; this too says that the root stands.
    """
    parsed = parse_root_name(name)
    assert parsed is not None
    step, epoch, nonce = parsed
    try:
        newer = _successor_at_last(directory, epoch)
    except (StoreError, IntegrityError, FormatError) as trouble:
        trouble.message = f"published, but whether a newer job has continued the run is not known: {trouble.message}"
        trouble.published = True
        raise
    if newer is None or descends(RootName(epoch, step, nonce, name), origins_of(directory.claims())):
        return None
    error = _fenced(directory, epoch, newer)
    error.message += "; this save came too late and is listed as orphaned"
    error.path = directory.root_path(name)
    error.published = True
    return error


def _successor_at_last(directory: Directory, epoch: int) -> Claim | None:
    """Look for a successor also where the disk is too full for a new file: the claims can be read all the same."""
    try:
        return successor(directory, epoch)
    except StoreError:
        return successor(directory, epoch, fresh=False)


def _fenced(directory: Directory, epoch: int, newer: Claim) -> EpochError:
    return EpochError(
        "a newer job has continued this run",
        path=os.path.join(directory.epochs_path, claim_name(newer.epoch)),
        expected=f"epoch {epoch} to be the newest",
        found=who(newer),
        unharmed="the run, which that job goes on with",
        advice="end this job; to go on here instead, end the other one and start again",
    )
