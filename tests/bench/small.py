"""Many small arrays: the first save, the saves after it, and a verified restore by new processes, in seconds.

What has to be planned and named is the same in the second save as in the first, so that much of it is kept. Equal on
all owners ("replicated", as in data-parallel training), or each array in shares ("split").

    python tests/bench/small.py DIR [--owners 4] [--arrays 30000] [--runs 5] [--hold replicated] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

from throughput import drop_caches, warm_memory

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import mpilaunch  # noqa: E402  (the harness of the tests knows how to start either MPI)

SAVES = 3
WARM = 3 << 30
"""Bytes of memory that all processes together may come to need: see `warm_memory`."""


def seconds(what: str, store: Path, given: argparse.Namespace) -> list[float]:
    """Measure the seconds of each call, in fresh processes."""
    arguments = [what, str(store), str(given.arrays), given.hold, str(SAVES)]
    found = mpilaunch.run(HERE / "small_rank.py", given.owners, given.mpi, args=arguments, timeout=300)
    assert found.returncode == 0, found.output
    line = next(line for line in found.output.splitlines() if line.startswith("["))
    return [float(value) for value in json.loads(line)]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="a directory on the file system to be measured")
    parser.add_argument("--owners", type=int, default=4)
    parser.add_argument("--arrays", type=int, default=30_000, help="of 1 KiB each (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hold", choices=("replicated", "split"), default="replicated")
    parser.add_argument("--mpi", choices=mpilaunch.MPIS, default="openmpi")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    figures: dict[str, list[float]] = {"first save": [], "save": [], "restore": []}
    for run in range(given.runs):
        store = given.dir / f"small-{os.getpid()}-{run}"
        try:
            warm_memory(WARM)
            first, *rest = seconds("save", store, given)
            figures["first save"].append(first)
            figures["save"].append(statistics.median(rest))
            drop_caches(store)
            warm_memory(WARM)
            figures["restore"] += seconds("load", store, given)
        finally:
            shutil.rmtree(store, ignore_errors=True)
    print(f"{given.arrays} arrays of 1 KiB, {given.hold}, {given.owners} owners, {given.runs} runs: seconds")
    print(f"{'':12}{'median':>8}{'min':>8}{'max':>8}")
    for what, found in figures.items():
        print(f"{what:12}{statistics.median(found):8.2f}{min(found):8.2f}{max(found):8.2f}")
    if given.json:
        given.json.write_text(json.dumps({"arrays": given.arrays, "hold": given.hold, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
