"""Random histories of starts, crashes, zombies and rollbacks: the rule on names and claims against a brute-force model.

The model knows what the rule does not: which state each generation was trained from, who was told of which save, who
saw which claim. On the lineage is what the newest continuation descends from, state by state, and what it saved itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from mpickpt.format.records import Claim
from mpickpt.store.lineage import RootName, counting, descends, origins_of

SHARES = 8


@dataclass
class Saved:
    """A generation: its name, and the one that its state was trained from."""

    name: RootName
    before: Saved | None
    acknowledged: bool = False


@dataclass
class Job:
    """A job: its claim, and the generation that it holds."""

    claim: Claim
    at: Saved | None
    wrote: Saved | None = None  # placed, and not yet looked whether a newer claim stands


@dataclass
class Store:
    """What a run's directory holds, and what the model knows besides."""

    claims: list[Claim] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    heads: dict[int, Saved | None] = field(default_factory=dict)  # epoch -> what its continuation holds

    def listed(self, claims: list[Claim]) -> list[Saved]:
        """List what the rule keeps, oldest first."""
        origins = origins_of(claims)
        return sorted((one for one in self.saved if descends(one.name, origins)), key=lambda one: one.name)

    def truth(self) -> list[Saved]:
        """List what the newest continuation descends from, and its own, oldest first."""
        taken = counting(self.claims)
        found, at = [], self.heads[taken[-1].epoch] if taken else None
        while at is not None:
            found.append(at)
            at = at.before
        return found[::-1]

    def fenced(self, job: Job) -> bool:
        """Tell whether a later claim counts."""
        return counting(self.claims)[-1].epoch > job.claim.epoch


class History:
    """One random history; every step of a protocol is one turn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store, self.jobs = Store(), list[Job]()
        self.number = 0
        self.counts = dict.fromkeys(("fresh", "goes on", "rollback", "void", "again", "slipped", "fenced", "purged"), 0)

    def claim(self, epoch: int, origin: Saved | None, nonce: str, void: bool = False) -> Claim:
        """Make a claim."""
        past = next((c.lineage for c in self.store.claims if origin and c.epoch == origin.name.epoch), ())
        place = (None, None) if origin is None else (origin.name.epoch, origin.name.step)
        root = None if origin is None else "blake3:" + 64 * "0"
        entry = (*past, (epoch, *place)) if origin else ((epoch, None, None),)
        refusal = {"class": "DeadlineError", "message": "silence"} if void else None
        made = Claim(epoch, "run", *place, root, 1, None, "host", "now", nonce, entry, void=refusal)
        return Claim.decode(made.encode()[0])

    def start(self) -> None:
        """A job chooses, reads for a while in which others go on, and claims; it may crash on the way."""
        store, dice = self.store, self.random
        standing = list(store.claims)
        choice = store.listed(standing)
        rollback = bool(choice) and dice.random() < 0.25
        fresh = bool(choice) and dice.random() < 0.05  # as with another directory of roots: the lineage begins anew
        at = dice.choice(choice) if rollback else choice[-1] if choice and not fresh else None
        known = choice[-1].name if choice else None
        nonce, epoch = f"n{self.number}", (standing[-1].epoch if standing else 0) + 1
        self.number += 1
        while dice.random() < 0.4:
            self.turn(starts=False)
        if dice.random() < 0.1:
            self.counts["void"] += 1
            store.claims.append(self.claim(epoch, at, nonce + "v", void=True))
            return

        def newer() -> Saved | None:
            found = store.listed(standing)
            return found[-1] if found and (known is None or found[-1].name[:2] > known[:2]) else None

        first = newer() if not fresh else None
        store.claims.append(self.claim(epoch, first or at, nonce))
        store.heads[epoch] = first or at
        # Only an older job that has looked for the last time before this claim may still have published before it.
        if dice.random() < 0.05 or first is not None:
            return  # crashed; or refused: another start goes on from there
        self.counts["fresh" if at is None else "rollback" if rollback else "goes on"] += 1
        self.jobs.append(Job(store.claims[-1], at))

    def late(self) -> None:
        """A save is acknowledged between the first look of a start and its claim: the job claims once more."""
        store, dice = self.store, self.random
        jobs = [job for job in self.jobs if not store.fenced(job)]
        if not jobs or any(one.wrote for one in jobs):
            return
        standing, choice = list(store.claims), store.listed(store.claims)
        nonce, epoch, job = f"n{self.number}", store.claims[-1].epoch + 1, dice.choice(jobs)
        self.number += 1
        self.place(job)
        made = job.wrote
        assert made is not None
        self.look(job)
        assert made.acknowledged
        store.claims.append(self.claim(epoch, choice[-1] if choice else None, nonce))
        found = store.listed(standing)[-1]
        assert found is made
        store.claims.append(self.claim(epoch + 1, found, nonce))
        store.heads[epoch + 1] = found
        self.counts["again"] += 1

    def place(self, job: Job) -> None:
        """Put a root in place."""
        step = (job.at.name.step if job.at else 0) + self.random.randrange(1, 3)
        nonce = f"r{self.number}"
        self.number += 1
        made = Saved(RootName(job.claim.epoch, step, nonce, f"{step}-{job.claim.epoch}-{nonce}"), job.at)
        self.store.saved.append(made)
        job.wrote = made
        if not self.store.fenced(job):
            self.store.heads[job.claim.epoch] = made

    def look(self, job: Job) -> None:
        """Look once more for a newer claim; acknowledge the save, or be fenced."""
        assert job.wrote is not None
        made, job.wrote = job.wrote, None
        if self.store.fenced(job) and not descends(made.name, origins_of(self.store.claims)):
            self.counts["slipped"] += 1
            self.jobs.remove(job)
            return
        made.acknowledged, job.at = True, made

    def turn(self, starts: bool = True) -> None:
        """Let something happen."""
        dice = self.random.random()
        if starts and (dice < 0.3 or not self.jobs):
            self.start()
        elif starts and dice < 0.35:
            self.late()
        elif not self.jobs:
            return
        elif dice < 0.4:
            self.jobs.remove(self.random.choice(self.jobs))  # crashed, wherever it was
        else:
            job = self.random.choice(self.jobs)  # whoever it is: a zombie does not know that it is one
            if job.wrote is not None:
                self.look(job)
            elif self.store.fenced(job) and self.random.random() < 0.8:
                self.counts["fenced"] += 1
                self.jobs.remove(job)
            else:  # the rest has looked before the newer claim stood
                self.place(job)

    def check(self) -> None:
        """Compare the rule with the model: all generations, with all claims, and with old ones purged."""
        store = self.store
        truth = [one.name for one in store.truth()]
        assert [one.name for one in store.listed(store.claims)] == truth
        steps = [name.step for name in truth]
        assert steps == sorted(set(steps)), "on the lineage the step only grows"
        assert [name.epoch for name in truth] == sorted(name.epoch for name in truth)
        taken = counting(store.claims)
        if taken and self.random.random() < 0.2:
            kept = [one for one in store.claims if one.epoch >= taken[-1].epoch or self.random.random() < 0.5]
            assert [one.name for one in store.listed(kept)] == truth
            self.counts["purged"] += 1


def histories(seeds: range) -> dict[str, int]:
    counts: dict[str, int] = {}
    for seed in seeds:
        history = History(seed)
        try:
            for _ in range(history.random.randrange(2, 25)):
                history.turn()
                history.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {history.store.claims}") from error
        for name, count in history.counts.items():
            counts[name] = counts.get(name, 0) + count
    return counts


@pytest.mark.parametrize("share", range(SHARES))
def test_every_generation_of_random_histories_is_judged_rightly(share: int) -> None:
    """20,000 of them in all."""
    counts = histories(range(share * 2500, (share + 1) * 2500))
    assert min(counts.values()) > 100, f"the histories do not reach everything: {counts}"
