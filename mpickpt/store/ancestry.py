"""How a run came about: its continuations, and what each saved."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from mpickpt.format.records import Claim
from mpickpt.store.lineage import counting
from mpickpt.store.report import Epoch, Generation


def epochs_of(
    claims: Sequence[Claim], generations: Iterable[Generation], ended: Mapping[int, str | None]
) -> list[Epoch]:
    """Put claims, generations, and what jobs have said of their end together, by epoch; one may have lost its claim.

    What a job said of its end the one after it has in its claim, too.
    """
    saved: dict[int, list[Generation]] = {}
    for generation in generations:
        saved.setdefault(generation.epoch, []).append(generation)
    counts = counting(list(claims))
    counted = {claim.epoch for claim in counts}
    heard = {one.epoch: after.stopped for one, after in itertools.pairwise(counts)}
    by_epoch = {claim.epoch: claim for claim in claims}
    found = []
    for epoch in sorted(by_epoch.keys() | saved.keys()):
        claim, made = by_epoch.get(epoch), tuple(saved.get(epoch, ()))
        if claim is None:
            found.append(Epoch(epoch, None, "missing", None, None, None, None, None, None, (), made))
            continue
        status = "void" if claim.void is not None else "taken" if epoch in counted else "superseded"
        origin = None
        if claim.from_epoch is not None and claim.from_step is not None:
            origin = (claim.from_epoch, claim.from_step)
        found.append(
            Epoch(
                epoch, origin, status, claim.owners, claim.job, claim.host, claim.nodes, claim.time, claim.reason,
                claim.accepted, made, claim.restarts, ended.get(epoch) or heard.get(epoch),
            )
        )  # fmt: skip
    return found
