"""Which generations the present run descends from: a rule on names and claims, with no file in it.

A generation (epoch, step) is on the lineage if and only if for every claim c of a later epoch
(epoch, step) <= (c.from_epoch, c.from_step), in lexicographic order; nulls exclude all earlier epochs.

Not every claim counts: void ones do not, and of claims with one nonce only the last.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from mpickpt.format.records import Claim, Lineage

Origins: TypeAlias = dict[int, tuple[int, int] | None]
"""Epoch -> (epoch, step) that it continues from; None: a fresh start."""


class RootName(NamedTuple):
    """A name in ``roots/``; ordered as generations are."""

    epoch: int
    step: int
    nonce: str
    name: str

    @property
    def attempt(self) -> str:
        """Name of the attempt's directory below ``data/``."""
        return self.name.removesuffix(".json")


def counting(claims: list[Claim]) -> list[Claim]:
    """Give the claims that count: none that are void, and of those with one nonce the last; ordered by epoch."""
    last = {claim.nonce: claim for claim in claims if claim.void is None}
    return sorted(last.values(), key=lambda claim: claim.epoch)


def origins_of(claims: list[Claim]) -> Origins:
    """Give for each epoch what it continues from; of claims that are purged the newest one still knows."""
    claims = counting(claims)
    chain = claims[-1].lineage if claims else ()
    entries = [(claim.epoch, claim.from_epoch, claim.from_step) for claim in claims if not _replaced(claim, chain)]
    found: Origins = {}
    for epoch, from_epoch, from_step in (*chain, *entries):
        found[epoch] = None if from_epoch is None or from_step is None else (from_epoch, from_step)
    return found


def _replaced(claim: Claim, chain: Lineage) -> bool:
    """Tell whether the newest claim descends from a generation that `claim` leaves out.

    Then its own job has claimed once more, from that generation, and only that later claim is purged.
    """
    for epoch, from_epoch, from_step in chain:
        if from_epoch is not None and from_step is not None and from_epoch < claim.epoch < epoch:
            if claim.from_epoch is None or claim.from_step is None:
                return True
            if (from_epoch, from_step) > (claim.from_epoch, claim.from_step):
                return True
    return False


def descends(root: RootName, origins: Origins) -> bool:
    """Tell whether a generation is on the lineage that `origins` describes."""
    for epoch, origin in origins.items():
        if epoch > root.epoch and (origin is None or (root.epoch, root.step) > origin):
            return False
    return True
