"""Ranks in whose saves and resumes system calls fail: ``faults_program.py STORE``; FAULTS holds the plan, as JSON.

The plan: ``{"options": ..., "way": ..., "sweeps": [[doing, kind, error, mode, owner], ...]}``. For each of them the
first, second, ... call of the kind on the store's files is disturbed at one owner (`powercut/shim.c`), until a save or
resume comes to its end without meeting its fault. After each, all in the same processes:

- either all owners are told of the same generation, and it is there, or all raise, and what was there is as it was;
- the next save, or resume, works;
- no file, descriptor, thread or message is left behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import crashkit
import numpy as np
import outcomes
import rank
from scene import snapshot

import mpickpt
from mpickpt.cluster import transport
from mpickpt.errors import IntegrityError, StoreError
from mpickpt.store.commit import Way

MODES = ("fail", "lost", "short", "flip", "kill")
MOST = 200
"""No save makes so many calls of one kind."""
#: What an unlink that fails leaves is `mpickpt sweep`'s; so is what a rotation leaves that fails after the save, and
#: the temporary name of a root that was placed by link, which may be the only durable one.
LEAVES = ("unlink",)
POOLS = 6 + 8 + 7
"""So many threads a Checkpointer has at most."""


class Shim:
    """The library that is preloaded."""

    def __init__(self, store: Path) -> None:
        self._library = ctypes.CDLL(None)
        self._library.fault_disarm.restype = ctypes.c_long
        self._below = os.fsencode(store)

    def arm(self, kind: str, nth: int, error: int, mode: str) -> None:
        """Let the `nth` call of a kind be disturbed; 0: each of them."""
        self._library.fault_arm(
            kind.encode(), ctypes.c_long(nth), error, MODES.index(mode), ctypes.c_char_p(self._below)
        )

    def disarm(self) -> int:
        """End it; give how many calls were disturbed."""
        return int(self._library.fault_disarm())


class Run:
    """One owner of the run, and what is compared before and after each fault."""

    def __init__(self, comm: Any, store: Path, plan: dict[str, Any]) -> None:
        self.comm, self.store, self.plan = comm, store, plan
        self.role, self.owners = comm.Get_rank(), comm.Get_size()
        self.shim = Shim(store)
        self.step = 0
        self.faults = 0
        # Events are written beside, sooner or later: which call is the n-th would be chance. test_events.py has them.
        self.ckpt = mpickpt.Checkpointer(store, comm, keep=2, deadline=20.0, events=False, **plan["options"])
        self.ckpt.resume(self.state(0))
        assert self.role or self.ckpt._directory.way is Way[plan["way"].upper()], "as the probe has found"
        for _ in range(3):
            assert "value" in self.save()
        self.settle()
        self.left = self.leftovers()
        self.base = self.counted()
        rank.meet(self.comm)

    def state(self, step: int) -> dict[str, Any]:
        return crashkit.state(self.role, self.owners, step)

    def save(self) -> dict[str, Any]:
        """Save the next step; it counts if it succeeded."""
        step = self.step + 1
        found = rank.attempt(lambda: self.ckpt.save(self.state(step), step=step, cursor=10 * step).root)
        told = self.all(("value" in found, found.get("value")))
        assert len(set(told)) == 1, f"owners were told different things: {self.all(found)}"
        if told[0][0]:
            self.step = step
        return found

    def resume(self) -> dict[str, Any]:
        """Restore the newest generation, and compare every bit of it.

        Read-only: each claim would be one file more to read for the next, and a sweep of all reads would have no end.
        """

        def resume() -> int:
            mine = self.state(0)
            run = self.ckpt.resume(mine, readonly=True)
            assert run.step == self.step
            assert snapshot(mine) == snapshot(self.state(run.step)), "wrong bits were restored"
            return run.step

        return rank.attempt(resume)

    def all(self, mine: Any) -> list[Any]:
        """Tell all owners, and give what each has told."""
        rank.meet(self.comm)
        return list(self.comm.allgather(mine))

    def settle(self) -> None:
        """Wait until old generations are removed."""
        self.ckpt._saving.await_rotation()
        rank.meet(self.comm)

    def leftovers(self) -> list[str]:
        return outcomes.leftovers(self.store) if self.role == 0 else []

    def counted(self) -> dict[str, int]:
        """Count what a call could leave in this process."""
        wires: list[Any] = [self.ckpt._saves.transport, self.ckpt._others.transport]
        # A last beat may still come on an edge after its call has ended; it is dropped, as the next call would.
        late = sum(len(wire.poll()) for wire in wires)
        ours = sum(thread.name.startswith("mpickpt-") for thread in threading.enumerate())
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count() - ours,
            "threads beyond the pools": max(0, ours - POOLS),
            "messages beyond a beat an edge": max(0, late - len(wires[0]._marks)),
            "messages in parts": sum(len(wire._partial) for wire in wires),
            "messages not sent": sum(len(wire._sending) for wire in wires),
        }

    def check(self, what: str, leaves: bool) -> None:
        """Check that nothing is left behind, and that all that is listed is whole."""
        self.settle()
        if self.role == 0:
            there = crashkit.listed(self.store)
            assert self.step in there, f"{what}: {self.step} is lost; {sorted(there)}"
            now = self.leftovers()
            if leaves:
                self.left = now
            assert now == self.left, f"{what}: left behind: {sorted(set(now) - set(self.left))}"
        now, limit = self.counted(), time.monotonic() + 5
        while now != self.base and time.monotonic() < limit:  # a thread may be about to close what it had
            time.sleep(0.001)
            now = self.counted()
        assert now == self.base, f"{what}: {now}, before: {self.base}"
        rank.meet(self.comm)  # nobody sends for the next call while another still counts

    # -- sweeps

    def sweep(self, doing: str, kind: str, error: int, mode: str, owner: int) -> dict[str, Any]:
        """Disturb one call after the other; give how many there were, and how many harmed nobody."""
        told: dict[str, int] = {"faults": 0, "unharmed": 0}
        for nth in [0] if mode == "short" else range(1, MOST):
            what = f"{doing}: call {nth} of {kind}, {mode} {error}, owner {owner}"
            if self.role == owner:
                self.shim.arm(kind, nth, error, mode)
            found = self.save() if doing == "save" else self.resume()
            self.settle()
            hits = self.all(self.shim.disarm())[owner]
            told["faults"] += hits > 0
            good = "value" in found
            told["unharmed"] += bool(hits and good)
            assert hits or good, f"{what}: {found}"
            assert mode != "short" or good, f"{what}: {found}"
            if not good:
                raised = self.all(found["raised"]["class"])
                assert len(set(raised)) == 1, f"{what}: {raised}"
                wanted = IntegrityError if mode == "flip" else StoreError
                classes = {"FormatError", wanted.__name__} if mode == "flip" else {wanted.__name__}
                assert set(raised) <= classes, f"{what}: {found['raised']['traceback']}"
                if doing == "save":  # a root of which the directory's sync failed is there: this step is published
                    published = "published, durability unknown" in found["raised"]["message"]
                    self.step += any(self.all(published))
            again = self.save() if doing == "save" else self.resume()
            assert "value" in again, f"{what}; the next one: {again['raised']['traceback']}"
            if hits or not good:
                self.check(what, leaves=good or kind in LEAVES or self.plan["way"] == "link")
            if not hits:
                break
        else:
            assert mode == "short", f"{doing} has no end of calls of {kind}"
        return told


def main() -> None:
    """Run all sweeps of the plan."""
    plan = json.loads(os.environ["FAULTS"])
    comm = rank.world()
    np.seterr(all="raise")
    run = Run(comm, Path(sys.argv[1]), plan)
    results = []
    for sweep in plan["sweeps"]:
        results.append(run.sweep(*sweep))
        rank.report(results=results)
    run.check("at the end", leaves=False)
    begun = time.monotonic()
    run.ckpt.close()
    assert not transport._STUCK, "a message was never taken"
    assert time.monotonic() - begun < 1.0, "close has waited in vain for the last words of others"
    rank.report(done=True)


if __name__ == "__main__":
    main()
