"""Reading the claims of epochs, and what jobs have said of their end."""

from __future__ import annotations

import logging
import os

from mpickpt.errors import CheckpointError, IntegrityError
from mpickpt.format.ended import Ended
from mpickpt.format.names import claim_name, ended_name, parse_claim_name
from mpickpt.format.records import Claim
from mpickpt.store.files import names_in, read_record

_log = logging.getLogger("mpickpt")


def read_claims(path: str) -> list[Claim]:
    """Read all claims of a directory, in the order of their epochs; none where it is not there.

    A missing older claim is worth a warning: roots and claims carry the lineage themselves.

    Raises
    ------
    IntegrityError, FormatError
        If one of them is damaged, malformed, or of another epoch than its name says.
    StoreError
        If the directory or a claim cannot be read.
    """
    try:
        names = names_in(path)
    except FileNotFoundError:
        return []
    epochs = sorted(epoch for epoch in map(parse_claim_name, names) if epoch is not None)
    if epochs and epochs[-1] != len(epochs):
        _log.warning("claims older than that of epoch %d are missing in %s", epochs[-1], path)
    return [read_claim(path, epoch) for epoch in epochs]


def read_claim(path: str, epoch: int) -> Claim:
    """Read the claim of one epoch; raises as `read_claims`."""
    file = os.path.join(path, claim_name(epoch))
    try:
        found = Claim.decode(read_record(file, "a claim"), file)
    except FileNotFoundError as error:
        raise IntegrityError("a claim is missing", path=file) from error
    if found.epoch != epoch:
        raise IntegrityError(
            "a claim is of another epoch than its name says", path=file, expected=epoch, found=found.epoch
        )
    return found


def read_ended(path: str, epoch: int) -> str | None:
    """Give how the job that had an epoch said that it ended; None where it has not, or nobody can read it.

    It is told and never decides anything, so that a damaged one is worth a warning and no more.
    """
    file = os.path.join(path, ended_name(epoch))
    try:
        found = Ended.decode(read_record(file, "an end"), file)
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        _log.warning("how the job of epoch %d ended cannot be read: %s", epoch, error)
        return None
    return found.reason if found.epoch == epoch else None
