"""One rank of peers.py: for each run, every peer in turn saves the state and loads it again.

Arguments: a JSON object with ``dir``, ``state``, ``scale``, ``runs``, ``patience``, ``peers``. Rank 0 prints a line of
JSON for each save and load: peer, what, seconds of the slowest rank, bytes of the state. Whoever starts it removes what
it leaves in ``dir``.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from mpi4py import MPI

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from peers_kinds import PEERS, Held, Peer, State  # noqa: E402

from mpickpt.bench.limits import forget, warm_memory  # noqa: E402

_WARM: Final = 1 << 30
#: Of so many arrays a later save is measured too: what is declared of them takes longer than their bytes.
_MANY: Final = 1000
#: By name: arrays held by rows, arrays held whole, rows of an array, elements of a row.
STATES: Final = {
    "64 arrays, 2 GiB": (64, 0, 8192, 1024),
    "one array, 1 GiB": (1, 0, 262_144, 1024),
    "1:9 whole and sharded, 1 GiB": (29, 3, 8192, 1024),
    "3,000 arrays of 1 KiB": (0, 3_000, 1, 256),
    "30,000 arrays of 1 KiB": (0, 30_000, 1, 256),
}


def make(name: str, scale: int, comm: MPI.Intracomm) -> list[Held]:
    """Make this rank's part of a state; `scale` divides the number of rows, or of small arrays."""
    sharded, whole, rows, width = STATES[name]
    if rows > 1:
        rows = max(comm.size, rows // scale // comm.size * comm.size)
    else:
        whole = max(1, whole // scale)
    state = []
    for number in range(sharded + whole):
        by_rows = number < sharded
        here, start = (rows // comm.size, comm.rank * (rows // comm.size)) if by_rows else (rows, 0)
        random = np.random.default_rng([number, comm.rank if by_rows else 0])
        array = random.integers(0, 1 << 24, (here, width), np.uint32).astype(np.float32)
        state.append(Held(f"layer{number:05d}", array, (rows, width), start, not by_rows))
    return state


def size_of(state: State) -> int:
    """Give the bytes of all arrays together."""
    return sum(4 * int(np.prod(held.shape)) for held in state)


class Bench:
    """The runs of one state in one directory."""

    def __init__(self, given: dict[str, Any], comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.root = comm.rank == 0
        self.folder = Path(given["dir"])
        self.given = given
        self.state = make(given["state"], given["scale"], comm)
        self.bytes = size_of(self.state)
        blank = [np.empty_like(held.array) for held in self.state]
        self.target = [Held(h.name, a, h.shape, h.start, h.whole) for h, a in zip(self.state, blank, strict=True)]
        self.peers = [kind(comm, self.folder) for kind in PEERS if kind.name in given["peers"]]
        self.tired: set[str] = set()

    def run(self) -> None:
        """Do all runs; what takes longer than the patience is measured once only."""
        for _ in range(self.given["runs"]):
            for peer in self.peers:
                if peer.name not in self.tired:
                    self.turn(peer)

    def turn(self, peer: Peer) -> None:
        """Save and load once."""
        path = self.folder / "saved"
        self.settle(path)
        saves = ["save", "save later"] if peer.learns and len(self.state) >= _MANY else ["save"]
        took = [self.timed(peer, path, what, self.state, lambda: peer.save(path, self.state)) for what in saves]
        for level in peer.levels:
            for held in self.target:
                held.array.fill(-1)
            self.settle(path)
            what = f"load {level}".strip()
            load = functools.partial(peer.load, path, self.target, level)
            took.append(self.timed(peer, path, what, self.target, load))
            for wanted, found in zip(self.state, self.target, strict=True):
                if wanted.array.tobytes() != found.array.tobytes():
                    raise AssertionError(f"{peer.name}: {wanted.name} came back otherwise at rank {self.comm.rank}")
        self.comm.Barrier()
        if self.root:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if max(took) > self.given["patience"]:
            self.tired.add(peer.name)

    def settle(self, path: Path) -> None:
        """Have everything written, nothing of what was saved in the page cache, and memory that the host has given.

        The programs' own files stay in the cache. Who loads by way of a private copy would else pay for what a virtual
        machine gave back to its host when the cache was emptied.
        """
        if self.root:
            os.sync()
            forget(path)
            warm_memory(max(_WARM, 5 * self.bytes // 2))  # the page cache, private copies, and some
        self.comm.Barrier()

    def timed(self, peer: Peer, path: Path, what: str, state: State, call: Callable[[], None]) -> float:
        """Measure one call as the slowest rank's, and tell it."""
        peer.begin(path, state, what)
        self.comm.Barrier()
        began = time.perf_counter()
        call()
        seconds = float(self.comm.allreduce(time.perf_counter() - began, MPI.MAX))
        peer.end()
        if self.root:
            line = {"peer": peer.name, "what": what, "seconds": seconds, "bytes": self.bytes}
            print("\n" + json.dumps(line), flush=True)
        return seconds


def main() -> None:
    """Run what the argument says."""
    Bench(json.loads(sys.argv[1]), MPI.COMM_WORLD).run()


if __name__ == "__main__":
    main()
