"""Which generations the present run descends from: a rule on names and claims, with no file in it.

A generation (epoch, step) is on the lineage if and only if for every claim c of a later epoch
(epoch, step) <= (c.from_epoch, c.from_step), in lexicographic order; nulls exclude all earlier epochs.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from mpickpt.format.records import Claim

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


def origins_of(claims: list[Claim]) -> Origins:
    """Give for each epoch what it continues from; of claims that are purged the newest one still knows."""
    found: Origins = {}
    entries = list(claims[-1].lineage) if claims else []
    entries += [(claim.epoch, claim.from_epoch, claim.from_step) for claim in claims]
    for epoch, from_epoch, from_step in entries:
        found[epoch] = None if from_epoch is None or from_step is None else (from_epoch, from_step)
    return found


def descends(root: RootName, origins: Origins) -> bool:
    """Tell whether a generation is on the lineage that `origins` describes."""
    for epoch, origin in origins.items():
        if epoch > root.epoch and (origin is None or (root.epoch, root.step) > origin):
            return False
    return True
