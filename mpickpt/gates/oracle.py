"""The oracle: what the reference learners must come to, computed by one process, number by number.

It replays a sequence of placements: so many owners for so many steps, then so many others. Nothing is shared with the
learners' distributed path but the problem itself: no slices, no vectors, no rule of shares, no topology, no MPI. Each
sum is a loop over float32 numbers in the order that the numerics prescribe.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpickpt.gates import problem
from mpickpt.gates.problem import BATCH, BETA1, BETA2, EPSILON, FAN_OUT, INPUTS, LENGTH, MEAN, MOMENTUM, RATE

ONE = np.float32(1)
Numbers = list[np.float32]


class Oracle:
    """One learner at one moment.

    Parameters
    ----------
    learner : str
        One of `problem.LEARNERS`.
    combine : {"star", "tree"}
        Along what the owners' sums are added.

    Attributes
    ----------
    step, cursor : int
    w, m, v : list of float32
        Parameters and moments.
    p1, p2 : float32
        Adam's bias-correction powers.
    """

    def __init__(self, learner: str, combine: str) -> None:
        self.learner = learner
        self.combine = combine
        self.step = self.cursor = 0
        x, y = problem.inputs()
        self._x, self._y = [list(row) for row in x], list(y)
        self.w: Numbers = list(problem.initial())
        self.m: Numbers = [np.float32(0)] * LENGTH
        self.v: Numbers = [np.float32(0)] * LENGTH
        self.p1 = self.p2 = ONE

    def go(self, owners: int, steps: int) -> Oracle:
        """Train `steps` steps on so many owners. Returns itself."""
        for _ in range(steps):
            sums = self._sum(0, owners, [self._gradient(role, owners) for role in range(owners)])
            self._update([value * MEAN for value in sums])
            self.step += 1
            self.cursor += BATCH
        return self

    def _gradient(self, role: int, owners: int) -> Numbers:
        """Add up the gradients of one owner's inputs, in their order."""
        first = sum(BATCH // owners + (r < BATCH % owners) for r in range(role))
        total = [np.float32(0)] * LENGTH
        for k in range(first, first + BATCH // owners + (role < BATCH % owners)):
            row, target = self._x[(self.cursor + k) % INPUTS], self._y[(self.cursor + k) % INPUTS]
            guess = row[0] * self.w[0]
            for j in range(1, LENGTH):
                guess = guess + row[j] * self.w[j]
            for j in range(LENGTH):
                total[j] = total[j] + (guess - target) * row[j]
        return total

    def _sum(self, role: int, size: int, each: Sequence[Numbers]) -> Numbers:
        """Add a subtree's sums to its root's own, child after child; the whole is the subtree of role 0."""
        total = each[role]
        at, rest = role + 1, size - 1
        children = rest if self.combine == "star" and role == 0 else min(FAN_OUT, rest)
        for child in range(children):
            below = rest // children + (child < rest % children)
            one = self._sum(at, below, each)
            total = [a + b for a, b in zip(total, one, strict=True)]
            at += below
        return total

    def _update(self, g: Numbers) -> None:
        if self.learner in ("adam", "optimizer-only"):
            self.p1, self.p2 = self.p1 * BETA1, self.p2 * BETA2
        for j in range(LENGTH):
            if self.learner == "sgd":
                self.w[j] = self.w[j] - RATE * g[j]
            elif self.learner == "momentum":
                self.m[j] = MOMENTUM * self.m[j] + g[j]
                self.w[j] = self.w[j] - RATE * self.m[j]
            else:
                self.m[j] = BETA1 * self.m[j] + (ONE - BETA1) * g[j]
                self.v[j] = BETA2 * self.v[j] + (ONE - BETA2) * (g[j] * g[j])
                first, second = self.m[j] / (ONE - self.p1), self.v[j] / (ONE - self.p2)
                self.w[j] = self.w[j] - RATE * (first / (np.sqrt(second) + EPSILON))

    def regions(self) -> dict[str, bytes]:
        """Give every region of the learner's state, whole: its float32 numbers, little-endian."""
        found = {"model/w": self.w}
        if self.learner != "sgd":
            found["opt/m"] = self.m
        if self.learner in ("adam", "optimizer-only"):
            found |= {"opt/v": self.v, "opt/p1": [self.p1], "opt/p2": [self.p2]}
        return {name: b"".join(value.tobytes() for value in numbers) for name, numbers in found.items()}


def replay(learner: str, combine: str, placements: Sequence[tuple[int, int]]) -> Oracle:
    """Replay ``[(owners, steps), ...]`` from the start."""
    oracle = Oracle(learner, combine)
    for owners, steps in placements:
        oracle.go(owners, steps)
    return oracle
