"""Save and verified restore against the limit of the same path, measured in the same run.

Two limits: what the disk gives, as fio's best of buffered and direct, psync and io_uring (not on tmpfs, where fio
overwrites pages that are laid out); and what the cores give, ``1 / (1/copy + 1/digest)``, for every byte is copied and
digested. Runs are interleaved with the limits'; the figure is the median of all runs with minimum and maximum, as
bytes of all owners over the slowest owner's time, sync included. The page cache is dropped before each read where
this user may do that, and else the files are asked out of it.

    python tests/bench/throughput.py DIR [--owners 4] [--mib 1024] [--runs 5] [--write each] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

from mpickpt.bench.limits import drop_caches, fio_best, roofline, warm_memory
from mpickpt.store.filesystem import probe

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import mpilaunch  # noqa: E402  (the harness of the tests knows how to start either MPI)


def mpickpt(what: str, store: Path, owners: int, per_owner: int, write: str, mpi: str) -> float:
    """Measure bytes a second of one save or one restore in fresh processes."""
    arguments = [what, str(store), str(per_owner), write]
    found = mpilaunch.run(HERE / "throughput_rank.py", owners, mpi, args=arguments, timeout=300)
    assert found.returncode == 0, found.output
    line = next(line for line in found.output.splitlines() if line.startswith("{"))
    told = json.loads(line)
    return float(told["bytes"] / told["seconds"])


def ratio(mine: list[float], limit: list[float]) -> float:
    """Give the median of the ratios, run by run."""
    return statistics.median(a / b for a, b in zip(mine, limit, strict=True))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="a directory on the file system to be measured")
    parser.add_argument("--owners", type=int, default=4)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of all owners together")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", choices=("each", "gather"), default="each")
    parser.add_argument("--mpi", choices=mpilaunch.MPIS, default="openmpi")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    per_owner = (given.mib << 20) // given.owners
    kind = probe(str(given.dir)).kind
    names = ("save", "load", "save disk", "load disk", "cores")
    figures: dict[str, list[float]] = {name: [] for name in names}
    for run in range(given.runs):
        figures["cores"].append(roofline())
        if kind != "tmpfs":
            written, read = fio_best(given.dir, given.owners, per_owner)
            figures["save disk"].append(written)
            figures["load disk"].append(read)
        store = given.dir / f"throughput-{os.getpid()}-{run}"
        try:
            drop_caches(given.dir)
            warm_memory(3 * given.mib << 20)
            figures["save"].append(mpickpt("save", store, given.owners, per_owner, given.write, given.mpi))
            drop_caches(store)
            warm_memory(4 * given.mib << 20)
            figures["load"].append(mpickpt("load", store, given.owners, per_owner, given.write, given.mpi))
        finally:
            shutil.rmtree(store, ignore_errors=True)
    print(f"{kind}, {given.owners} owners, {given.mib} MiB, write={given.write}, {given.runs} runs: GB/s, and ratios")
    print(f"{'':6}{'median':>8}{'min':>8}{'max':>8}{'fio':>8}{'ratio':>8}{'copy+digest':>13}{'ratio':>8}")
    for what in ("save", "load"):
        mine, disk, cores = figures[what], figures[f"{what} disk"], figures["cores"]
        row = "".join(f"{x / 1e9:8.2f}" for x in (statistics.median(mine), min(mine), max(mine)))
        row += f"{statistics.median(disk) / 1e9:8.2f}{ratio(mine, disk):8.2f}" if disk else f"{'-':>8}{'-':>8}"
        print(f"{what:6}{row}{statistics.median(cores) / 1e9:13.2f}{ratio(mine, cores):8.2f}")
    if given.json:
        given.json.write_text(json.dumps({"kind": kind, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
