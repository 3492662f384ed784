"""What is damage of a store as a whole: it is refused, and never taken for an empty store (docs/format.md)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mpickpt.errors import CheckpointError, IntegrityError, NotFoundError
from mpickpt.format.manifest import Manifest
from mpickpt.format.names import attempt_name, claim_name
from mpickpt.format.records import Claim, Void
from mpickpt.store.lineage import RootName, counting
from mpickpt.store.presence import is_directory, there

if TYPE_CHECKING:
    from mpickpt.store.directory import Directory


def check(directory: Directory) -> None:
    """Refuse a store that is damaged as a whole.

    Raises
    ------
    IntegrityError
        If there are claims without ``roots/``, a root newer than every claim, a newest claim that continues from a
        root that is not there, or files of different runs.
    IntegrityError, FormatError, StoreError
        If none of the roots can be read: why the newest cannot; if run.json or a claim cannot be read.
    """
    claims = directory.claims()
    names = directory.roots()
    if claims and not is_directory(directory.roots_path):
        raise IntegrityError(
            "there are claims, but no directory of roots",
            path=directory.roots_path,
            expected="roots/",
            found=f"{len(claims)} claims and no roots/",
            advice="if the checkpoints are meant to be gone, remove epochs/ as well",
        )
    newest = claims[-1] if claims else None
    if names and (newest is None or names[-1].epoch > newest.epoch):
        raise IntegrityError(
            "a root is newer than every claim",
            path=directory.root_path(names[-1].name),
            expected=f"a claim of epoch {names[-1].epoch}",
            found="no claim" if newest is None else f"a newest claim of epoch {newest.epoch}",
        )
    _check_readable(directory, names)
    current = next(reversed(counting(claims)), None)
    if current is not None and current.from_epoch is not None:
        _check_origin(directory, current, names)
    if claims or names or there(directory.run_path):
        _check_run(directory, claims)


def _check_readable(directory: Directory, names: list[RootName]) -> None:
    """Refuse roots of which none can be read; voids are no roots."""
    first: CheckpointError | None = None
    for root in reversed(names):
        try:
            found = directory.read_root(root.name)
            if isinstance(found, Manifest):
                directory.checked = root.name, found
                return
        except NotFoundError:
            continue  # rotated since the listing
        except CheckpointError as error:
            first = first or error
    if first is not None:
        raise first


def _check_origin(directory: Directory, claim: Claim, names: list[RootName]) -> None:
    """Refuse a claim whose origin is not there; once it has saved, the origin may have been rotated."""
    there = [root for root in names if (root.epoch, root.step) == (claim.from_epoch, claim.from_step)]
    there += [root for root in names if root.epoch == claim.epoch]
    path = os.path.join(directory.epochs_path, claim_name(claim.epoch))
    if not any(directory.is_root(root.name) is not False for root in there):
        raise IntegrityError(
            "the newest claim continues from a root that is not there",
            path=directory.roots_path,
            expected=f"the root of epoch {claim.from_epoch}, step {claim.from_step}",
            found="none",
            advice="bring that root and its files back from a copy. If a job that went on rotated it while the one of "
            f"epoch {claim.epoch} began and was killed, or if you removed it, move {path} away: the run then goes on "
            "from the newest generation without it (`mpickpt ls RUN` lists them all)",
        )


def _check_run(directory: Directory, claims: list[Claim]) -> None:
    run = directory.run.run
    for claim in claims:
        if claim.run != run:
            path = os.path.join(directory.epochs_path, claim_name(claim.epoch))
            raise IntegrityError("a claim is of another run than run.json", path=path, expected=run, found=claim.run)


def check_place(name: str, found: Manifest | Void, path: str, run: str | None) -> None:
    """Refuse what stands under a root's name and belongs elsewhere: to another attempt, or to another run than `run`.

    Raises
    ------
    IntegrityError
    """
    if isinstance(found, Void):
        says = found.attempt
    else:
        says = attempt_name(found.prefix.step, found.prefix.epoch, found.prefix.attempt)
        if run is not None and found.prefix.run != run:
            raise IntegrityError("a root is of another run", path=path, expected=run, found=found.prefix.run)
    if says != name.removesuffix(".json"):
        raise IntegrityError("a root is of another attempt than its name says", path=path, expected=name, found=says)
