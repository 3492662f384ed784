"""The reference learners: data-parallel, float32, every sum in a fixed order.

Each owner adds up the gradients of its share of a batch, input after input. The sums of all owners are then added in
the order that the numerics name: to owner 0's, role after role (``star``), or up a tree. What an owner updates are its
own coordinates, or all of them where they are replicated.

A float32 operation on two numbers has one result; a sum has one result for one order. So a learner's state is known
bit for bit from the sequence of its placements, and `mpickpt.gates.oracle` computes it without any of this.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from mpickpt import Contract, learning
from mpickpt.cluster.topology import Topology
from mpickpt.errors import DeadlineError
from mpickpt.gates import problem
from mpickpt.gates.problem import BATCH, FAN_OUT, INPUTS, LENGTH, MEAN, RATE, Vector

if TYPE_CHECKING:
    from mpi4py import MPI


def finish(request: MPI.Request, deadline: float) -> None:
    """Wait for a request, without taking the cores from those that work, and not for ever.

    Raises
    ------
    DeadlineError
        After `deadline` seconds.
    """
    limit, pause = time.monotonic() + deadline, 0.0001
    while not request.Test():
        if time.monotonic() > limit:
            raise DeadlineError("the other owners do not come", expected=f"within {deadline:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.005)


def contract(learner: str, combine: str, **changed: Any) -> Contract:
    """Give a reference learner's contract; ``identity.rate=...`` and the like change a field."""
    x, y = problem.inputs()
    identity = learning.identity(
        program={"model": "linear", "learner": learner, "batch": BATCH},
        initial={"w": problem.initial()},
        rate=float(RATE),
        inputs=np.concatenate([x, y[:, None]], axis=1),
    )
    numerics = learning.numerics(dtype=np.float32, combine="role order", tree="star" if combine == "star" else FAN_OUT)
    fields: dict[str, Any] = {"identity": identity, "numerics": numerics, "placement": "ask", "device": "free"}
    for name, value in changed.items():
        part, _, key = name.partition(".")
        if key:
            fields[part] = {**fields[part], key: value}
        else:
            fields[part] = value
    return Contract(**fields)


class Learner:
    """One owner's part of a reference learner. Every method but `state` and `pieces` is collective.

    Parameters
    ----------
    name : str
        One of `problem.LEARNERS`.
    combine : {"star", "tree"}
    comm : MPI.Intracomm
    deadline : float
        Seconds after which another owner counts as lost.
    """

    def __init__(self, name: str, combine: str, comm: MPI.Intracomm, deadline: float) -> None:
        self.name = name
        self.comm = comm
        self.deadline = deadline
        self.role, self.owners = comm.Get_rank(), comm.Get_size()
        kind = "star" if combine == "star" else "tree"
        self.topology = Topology.of(kind, self.owners, FAN_OUT)
        self.x, self.y = problem.inputs()
        self.own = learning.coordinates(LENGTH, self.owners, self.role)
        self.cut = name in ("momentum", "adam")  # whether the parameters are
        self.adaptive = name in ("adam", "optimizer-only")
        self.w = problem.initial()[self.own if self.cut else slice(None)].copy()
        self.m = np.zeros(self.own.stop - self.own.start, np.float32)
        self.v = np.zeros_like(self.m)
        self.p1, self.p2 = np.ones((), np.float32), np.ones((), np.float32)
        self.steps = 0

    # -- the state

    def state(self) -> dict[str, Any]:
        """Declare what this owner holds."""
        model = learning.partitioned(LENGTH, {"w": self.w}) if self.cut else {"w": self.w}
        if self.name == "sgd":
            return {"model": model, "opt": {"steps": self.steps}}
        own, words = {"m": self.m}, {"steps": self.steps}
        if self.adaptive:
            own["v"] = self.v
            words |= {"p1": self.p1, "p2": self.p2}  # type: ignore[dict-item]
        return {"model": model, "opt": learning.partitioned(LENGTH, own, words)}

    def pieces(self) -> dict[str, tuple[int, Vector]]:
        """Give every array that this owner holds: region -> (first element, array)."""
        at = self.own.start
        found = {"model/w": (at if self.cut else 0, self.w)}
        if self.name != "sgd":
            found["opt/m"] = (at, self.m)
        if self.adaptive:
            found |= {"opt/v": (at, self.v), "opt/p1": (0, self.p1), "opt/p2": (0, self.p2)}
        return found

    # -- a step

    def step(self, cursor: int) -> int:
        """Train one step on the batch that begins at `cursor`; gives how many inputs were consumed."""
        whole = self._gather(self.w) if self.cut else self.w
        share = learning.coordinates(BATCH, self.owners, self.role)
        mine = np.zeros(LENGTH, np.float32)
        for k in range(share.start, share.stop):
            row, target = self.x[(cursor + k) % INPUTS], self.y[(cursor + k) % INPUTS]
            guess = np.add.accumulate(row * whole, dtype=np.float32)[-1]  # one after the other, unlike a dot product
            mine += (guess - target) * row
        self._update(self._combined(mine) * MEAN)
        self.steps += 1
        return BATCH

    def _update(self, g: Vector) -> None:
        """Take a step along the mean gradient of what this owner updates."""
        one = np.float32(1)
        w = self.w if self.cut or self.name == "sgd" else self.w[self.own]
        if self.name == "sgd":
            w -= RATE * g
        elif self.name == "momentum":
            self.m[...] = problem.MOMENTUM * self.m + g
            w -= RATE * self.m
        else:
            self.p1[...] = self.p1 * problem.BETA1
            self.p2[...] = self.p2 * problem.BETA2
            self.m[...] = problem.BETA1 * self.m + (one - problem.BETA1) * g
            self.v[...] = problem.BETA2 * self.v + (one - problem.BETA2) * (g * g)
            first, second = self.m / (one - self.p1), self.v / (one - self.p2)
            w -= RATE * (first / (np.sqrt(second) + problem.EPSILON))
        if self.name == "optimizer-only":
            self.w[...] = self._gather(w)

    def _gather(self, own: Vector) -> Vector:
        """Give all coordinates of a vector of which each owner has its own."""
        whole = np.empty(LENGTH, np.float32)
        counts = [len(share) for share in learning.repartition(range(LENGTH), self.owners)]
        request = self.comm.Iallgatherv(np.ascontiguousarray(own), [whole, counts])
        finish(request, self.deadline)
        return whole

    def _combined(self, mine: Vector) -> Vector:
        """Add up all owners' sums in their order; gives the coordinates that this owner updates."""
        each = np.empty((self.owners, LENGTH), np.float32)
        finish(self.comm.Iallgather(mine, each), self.deadline)
        return self._subtree(0, each if self.name == "sgd" else each[:, self.own])

    def _subtree(self, role: int, each: Vector) -> Vector:
        total: Vector = each[role].copy()
        for child, _ in self.topology.place(role).children:
            total += self._subtree(child, each)
        return total
