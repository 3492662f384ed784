"""How many threads an owner should have, and how large a chunk should be: saves and cold restores with each of them.

All combinations in turn, run by run; the figure is the median of the ratios to the first combination that is named,
above 1 where it is faster.

    python tests/bench/sizes.py DIR [--owners 4] [--mib 1024] [--runs 5] [--of 2x4 1x4 4x4 2x1 ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

from mpickpt.bench.limits import drop_caches, warm_memory
from mpickpt.store.filesystem import probe

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import mpilaunch  # noqa: E402  (the harness of the tests knows how to start either MPI)

#: Threads of an owner x MiB of a chunk.
OF = ["2x4", "1x4", "4x4", "8x4", "2x1", "2x2", "2x8", "2x16"]


def measure(what: str, store: Path, combination: str, given: argparse.Namespace) -> float:
    """Measure seconds of one save or one restore in fresh processes."""
    threads, chunk = map(int, combination.split("x"))
    arguments = [str(threads), str(chunk << 20), what, str(store), str((given.mib << 20) // given.owners), "each"]
    found = mpilaunch.run(HERE / "sizes_rank.py", given.owners, given.mpi, args=arguments, timeout=300)
    assert found.returncode == 0, found.output
    for shard in store.glob("data/*/*/*.safetensors"):
        assert f'"chunk":"{chunk << 20}"'.encode() in shard.read_bytes()[: 1 << 16]
    line = next(line for line in found.output.splitlines() if line.startswith("{"))
    return float(json.loads(line)["seconds"])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="a directory on the file system to be measured")
    parser.add_argument("--owners", type=int, default=4)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of all owners together")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--of", nargs="+", default=OF, help="threads of an owner x MiB of a chunk")
    parser.add_argument("--mpi", choices=mpilaunch.MPIS, default="openmpi")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    kind = probe(str(given.dir)).kind
    figures: dict[str, dict[str, list[float]]] = {what: {one: [] for one in given.of} for what in ("save", "load")}
    for run in range(given.runs):
        for combination in given.of:
            store = given.dir / f"sizes-{os.getpid()}-{run}-{combination}"
            try:
                for what, held in (("save", 3), ("load", 4)):
                    drop_caches(given.dir)
                    warm_memory(held * given.mib << 20)
                    figures[what][combination].append(measure(what, store, combination, given))
            finally:
                shutil.rmtree(store, ignore_errors=True)
    cores = len(os.sched_getaffinity(0))
    print(f"{kind}, {given.owners} owners on {cores} cores, {given.mib} MiB, {given.runs} runs")
    print(f"{'threads':>8}{'MiB':>5}" + "".join(f"{what + ', s':>10}{'ratio':>8}{'':17}" for what in figures))
    for combination in given.of:
        row = "".join(f"{int(part):>{width}}" for part, width in zip(combination.split("x"), (8, 5), strict=True))
        for times in figures.values():
            first, mine = times[given.of[0]], times[combination]
            ratios = [one / other for one, other in zip(first, mine, strict=True)]
            between = f"({min(ratios):.2f} to {max(ratios):.2f})"
            row += f"{statistics.median(mine):10.3f}{statistics.median(ratios):8.2f} {between:16}"
        print(row)
    if given.json:
        given.json.write_text(json.dumps({"kind": kind, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
