"""What must hold of a store that many jobs have used, some at the same time: an oracle outside their processes.

Owners write down, outside the store, what they were told (`Teller`). From that and from the claims alone the oracle
derives what must be there; which generations are live it works out by a rule of its own (docs/protocol.md, E4).

It holds them to this:

- an epoch is one continuation of one job, all of whose owners go on from the root that its claim names;
- nothing is gone on from that a claim before had put off the lineage, and every bit of it is what its job had saved;
- one generation a step and epoch, saved by the job that holds the epoch; what is listed verifies, orphaned or not;
- what any owner was told to be saved stays on the lineage and resumes bit for bit, until `keep` newer ones are there.
  E2 has the one exception: a job that claimed and was lost before its second look. Then it is orphaned, and there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import crashkit
from scene import snapshot

import mpickpt
from mpickpt.cluster.claims import Claims
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import OvertakenError
from mpickpt.format.records import Claim
from mpickpt.store.directory import Directory
from mpickpt.store.report import Generation

_APART: Final = 100_000


def state(role: int, owners: int, job: int, step: int) -> dict[str, Any]:
    """Give the state that a job saves at a step; no two jobs save the same."""
    return crashkit.state(role, owners, _APART * job + step)


def whose(found: dict[str, Any], role: int, owners: int, step: int) -> int | None:
    """Tell which job has saved a state that was resumed; None if not every bit is as that job saved it."""
    job = (int(found["w"][0]) - step) // _APART
    return job if snapshot(found) == snapshot(state(role, owners, job, step)) else None


class Teller:
    """Writes down what one owner is told: in a file outside the store, which a kill leaves as it is."""

    def __init__(self, folder: Path, role: int) -> None:
        self._path = folder / f"said.{role}"

    def __call__(self, **fields: Any) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps(fields | {"time": time.monotonic()}) + "\n")

    def tell_claims(self) -> None:
        """From now on tell of each claim that this process makes: before, and once it has looked again (E2)."""
        take = Claims.take

        def told(claims: Claims, claim: Claim, *more: Any) -> Claim:
            self(claims=claim.nonce)
            try:
                taken = take(claims, claim, *more)
            except OvertakenError:
                self(looked=claim.nonce)
                raise
            self(looked=claim.nonce)
            return taken

        Claims.take = told  # type: ignore[method-assign]


def heard(folder: Path) -> list[dict[str, Any]]:
    """Give what all owners of a job have told so far; a line that is still being written is left for later."""
    lines = [line for file in sorted(folder.glob("said.*")) for line in file.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


@dataclass(frozen=True, order=True)
class Saved:
    """A generation that an owner was told of, or that was listed or claimed from; in the order of generations."""

    epoch: int
    step: int
    root: str


class Oracle:
    """Hears what owners were told, and holds the store to it.

    Parameters
    ----------
    store : Path
    owners : int
        Of every job.
    keep : int
        The jobs' option.

    Attributes
    ----------
    orphaned : set of Saved
        What was told to be saved and was orphaned all the same: by E2's exception.
    """

    def __init__(self, store: Path, owners: int, keep: int) -> None:
        self.store, self.owners, self.keep = store, owners, keep
        self.saved: dict[Saved, int] = {}
        self.resumed: dict[int, tuple[int, str | None]] = {}
        self.looked: dict[str, float] = {}
        self.claimant: dict[str, int] = {}
        self.known: set[Saved] = set()
        self.orphaned: set[Saved] = set()
        self._same: set[str] = set()

    def hear(self, folder: Path, job: int) -> None:
        """Take down what the owners of a job were told, which must not contradict itself."""
        for word in heard(folder):
            if "claims" in word:
                self.claimant[word["claims"]] = job
            elif "looked" in word:
                self.looked[word["looked"]] = word["time"]
            elif "resumed" in word:
                epoch, root = word["epoch"], word["root"]
                assert self.resumed.setdefault(epoch, (job, root)) == (job, root), (
                    f"two continuations of epoch {epoch}: {self.resumed[epoch]} and {(job, root)}"
                )
                self._check_bits(word, root)
            elif "saved" in word:
                saved = Saved(word["epoch"], word["saved"], word["root"])
                holder = self.resumed.get(saved.epoch, (None, None))[0]
                assert holder == job, f"job {job} saved {saved}, an epoch of job {holder}"
                assert self.saved.setdefault(saved, job) == job
        names = [(saved.epoch, saved.step) for saved in self.saved]
        assert len(set(names)) == len(names), f"two roots were told of one step: {sorted(self.saved)}"

    def _check_bits(self, word: dict[str, Any], root: str | None) -> None:
        assert word["whose"] is not None, f"an owner resumed other bits: {word}"
        for saved, job in self.saved.items():
            assert saved.root != root or job == word["whose"], f"{saved} of job {job} was resumed as {word}"

    def check(self) -> None:
        """Hold the store to what was told; no job runs meanwhile."""
        if not (self.store / "run.json").exists():
            assert not self.saved, f"the store is gone with {sorted(self.saved)}"
            return
        claims = _counting(Directory(self.store).claims())
        self._check_claims(claims)
        there = self._listed(claims)
        origins = [(claim.from_epoch, claim.from_step, claim.from_root) for claim in claims]
        self.known |= {Saved(a, b, c) for a, b, c in origins if a is not None and b is not None and c is not None}
        self.known |= there.keys() | self.saved.keys()
        for saved in sorted(self.saved):
            first = next(_excluding(claims, saved), None)
            if first is not None:
                assert first.nonce not in self.looked, f"{saved} was told, and {first} orphans it"
                self.orphaned.add(saved)
        for saved in sorted(self.saved.keys() - there.keys()):
            newer = [one for one in self.known if one > saved and self._counted(claims, one)]
            assert len(newer) >= self.keep, f"lost: {saved}; listed: {sorted(there)}; newer: {sorted(newer)}"
        self._check_resumable(there)

    def listed(self) -> dict[Saved, Generation]:
        """List all generations; every byte of each verifies, and each is live or orphaned as the claims say."""
        return self._listed(_counting(Directory(self.store).claims()))

    def _listed(self, claims: list[Claim]) -> dict[Saved, Generation]:
        store = mpickpt.open_store(self.store)
        store.verify_all().raise_for_damage()
        found = {}
        for one in store.generations():
            saved = Saved(one.epoch, one.step, one.root or "")
            off = any(_excluding(claims, saved))
            assert one.status == ("orphaned" if off else "live"), f"{one}; claims: {claims}"
            found[saved] = one
        assert len({(one.epoch, one.step) for one in found}) == len(found), f"a step was saved twice: {sorted(found)}"
        return found

    def _counted(self, claims: list[Claim], saved: Saved) -> bool:
        """Tell whether a generation was ever one of those that `keep` counts."""
        first = next(_excluding(claims, saved), None)
        return first is None or first.nonce not in self.looked

    def _check_claims(self, claims: list[Claim]) -> None:
        by_epoch = {claim.epoch: claim for claim in claims}
        for epoch, (job, root) in self.resumed.items():
            claim = by_epoch.get(epoch)
            assert claim is not None, f"job {job} went on under epoch {epoch}, which nobody has claimed"
            assert claim.from_root == root, f"job {job} went on from {root}, its claim from {claim.from_root}"
            if claim.from_epoch is not None and claim.from_step is not None:
                origin = Saved(claim.from_epoch, claim.from_step, root or "")
                before = next((each for each in _excluding(claims, origin) if each.epoch < epoch), None)
                assert before is None, f"job {job} went on from {origin}, which was orphaned by {before}"

    def _check_resumable(self, there: dict[Saved, Generation]) -> None:
        """Resume each live generation once, read-only, and compare every bit."""
        for saved, one in there.items():
            if one.status != "live" or saved.root in self._same:
                continue

            def resume(wiring: Wiring, step: int = saved.step) -> tuple[str | None, int | None]:
                mine = crashkit.state(wiring.role, self.owners, 0)
                with mpickpt.Checkpointer(self.store, wiring) as ckpt:
                    root = ckpt.resume(mine, step=step, readonly=True).root
                return root, whose(mine, wiring.role, self.owners, step)

            found = set(crashkit.local(self.owners, resume))
            assert len(found) == 1, f"{saved} is resumed as {found}"
            root, job = found.pop()
            assert root == saved.root, f"{saved} is resumed as {root}"
            assert job is not None, f"{saved} has other bits than its job saved"
            assert self.saved.get(saved, job) == job
            self._same.add(saved.root)

    def newer(self, job: int) -> list[Claim]:
        """Give the claims of other jobs, after those under which a job went on, that have looked."""
        mine = max((epoch for epoch, (holder, _) in self.resumed.items() if holder == job), default=None)
        if mine is None:
            return []
        later = [claim for claim in _counting(Directory(self.store).claims()) if claim.epoch > mine]
        return [claim for claim in later if claim.nonce in self.looked and self.claimant[claim.nonce] != job]


def _counting(claims: list[Claim]) -> list[Claim]:
    """Give the claims that count, by epoch: none that are void, of those with one nonce the last."""
    return [
        claim
        for claim in sorted(claims, key=lambda claim: claim.epoch)
        if claim.void is None and not any(one.nonce == claim.nonce and one.epoch > claim.epoch for one in claims)
    ]


def _excluding(claims: list[Claim], saved: Saved) -> Iterator[Claim]:
    """Give the claims that put a generation off the lineage, the first one first."""
    for claim in claims:
        if claim.epoch <= saved.epoch:
            continue
        origin = claim.from_epoch, claim.from_step
        if origin[0] is None or origin[1] is None or (saved.epoch, saved.step) > origin:
            yield claim
