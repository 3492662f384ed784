"""What a message and a sync cost on this machine: the constants of docs/scale.md.

    python tests/scale/costs.py DIR [--mpi openmpi] [--json FILE]

A *step* is one message up or down an edge with the channel's polling, as a call sees it: half of a round of
`agree`, in which every child says one word and gets one back. `ping` is the same over the bare wire, which never
sleeps. Syncs are those of the library's own functions below DIR, one at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import mpilaunch  # noqa: E402  (the harness of the tests knows how to start either MPI)

from mpickpt.store import commit  # noqa: E402
from mpickpt.store.commit import Way  # noqa: E402
from mpickpt.store.filesystem import probe  # noqa: E402

_TIMES = 40


def syncs(folder: Path) -> dict[str, Any]:
    """Measure seconds of a new small file, of a directory with a new name in it, of a publication."""
    data = bytes(4000)

    def median(work: Callable[[int], object], before: Callable[[int], object] = lambda i: None) -> float:
        found = []
        for i in range(_TIMES):
            before(i)
            begun = time.perf_counter()
            work(i)
            found.append(time.perf_counter() - begun)
        return round(statistics.median(found), 6)

    place = Path(tempfile.mkdtemp(prefix="costs-", dir=folder))
    try:
        return {
            "file system": probe(str(place)).kind,
            "file": median(lambda i: commit.write_new(str(place / f"file{i}"), data)),
            "directory": median(
                lambda i: commit.sync_directory(str(place)), lambda i: (place / f"name{i}").write_bytes(b"")
            ),
            "root": median(lambda i: commit.publish(str(place), f"root{i}", data, Way.RENAME)),
        }
    finally:
        shutil.rmtree(place)


def messages(mpi: str) -> dict[str, Any]:
    """Measure seconds of a message between real ranks."""
    found: dict[str, Any] = {}
    for children in (1, 16):
        result = mpilaunch.run(HERE / "costs_rank.py", children + 1, mpi, timeout=120)
        assert result.returncode == 0, result.output
        told = result.reports[0]
        assert told is not None
        found["ping"] = min(told["ping"], found.get("ping", told["ping"]))
        found[f"step, {children} child" + "ren" * (children > 1)] = told["step"]
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--mpi", choices=mpilaunch.MPIS, default="openmpi")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    table = {"mpi": given.mpi, "messages": messages(given.mpi), "syncs": syncs(given.dir)}
    print(json.dumps(table, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
