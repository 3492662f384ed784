"""One rank of costs.py: rounds over the channel, and the bare wire."""

from __future__ import annotations

import statistics
import time

import rank
from mpi4py import MPI

from mpickpt.cluster.agree import agree
from mpickpt.cluster.channel import Line
from mpickpt.cluster.wiring import Wiring
from mpickpt.state.capture import Capture, Node
from mpickpt.state.declare import Declarations
from mpickpt.store.threads import Pool

ROUNDS = 100


def ping(wires: Wiring) -> float:
    """Send a small message to and fro between owners 0 and 1; gives the seconds of one way."""
    message, found = bytes(100), []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        if wires.role == 0:
            wires.saves.send(1, message)
        if wires.role <= 1:
            while not wires.saves.poll():
                pass
        if wires.role == 1:
            wires.saves.send(0, message)
        found.append((time.perf_counter() - begun) / 2)
    return statistics.median(found)


def main() -> None:
    """Measure, and report at owner 0."""
    wires = Wiring.of(MPI.COMM_WORLD, False, kind="tree", fan_out=16)
    nothing = Declarations.of(Capture([], {}, Node("dict", "", {}, []), []), 0, {}, {})
    line = Line(wires.others, wires.place, 60.0, "", Pool(2, "job"))
    found = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        with line.call() as call:
            agree(call, "round", {}, nothing, "-", lambda _: {})
            call.over()
        found.append((time.perf_counter() - begun) / 2)
    one_way = ping(wires)
    if wires.role == 0:
        rank.report(step=round(statistics.median(found), 6), ping=round(one_way, 6))
    rank.meet(MPI.COMM_WORLD)
    wires.saves.close(1.0)
    wires.others.close(1.0)


if __name__ == "__main__":
    main()
