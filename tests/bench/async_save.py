"""What saves in the background cost the one who trains: one owner with two cores, of which it computes on one.

- return: time until ``save(async_=True)`` returns, beside one copy of the same arrays by one thread, in turn. The first
  call, which gets the memory, is told apart.
- compute, mpi: how much longer a step takes while a save is in flight, of a loop that computes and of one that sends;
  blocks with and without a save in turn.
- lock: time until a save is durable, while the main thread waits for it, and while it holds the interpreter lock for
  `--hold` seconds at a time; from the difference follows how often the save needs the lock.

    python tests/bench/async_save.py DIR [--mib 512] [--runs 5] [--only return compute ...] [--hold 0.6] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import mpilaunch  # noqa: E402  (the harness of the tests knows how to start either MPI)

WHAT = ("return", "compute", "mpi", "lock")
Figures = dict[str, list[float]]


def measure(what: str, store: Path, given: argparse.Namespace) -> Figures:
    """Measure in a process of its own."""
    arguments = [what, str(store), str(given.mib << 20), str(given.runs), str(given.hold)]
    env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        found = mpilaunch.run(HERE / "async_save_rank.py", 1, given.mpi, arguments, env, timeout=500)
        assert found.returncode == 0, found.output
        told: Figures = json.loads(next(line for line in found.output.splitlines() if line.startswith("{")))
        return told
    finally:
        shutil.rmtree(store, ignore_errors=True)


def said(values: list[float], unit: float = 1e3, digits: int = 1) -> str:
    """Give the median with minimum and maximum, by default in milliseconds."""
    middle, low, high = (f"{f(values) * unit:.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} ({low} to {high})"


def tell(what: str, found: Figures, hold: float) -> str:
    """Say one measurement in a line."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    if what == "return":
        ratios = said([save / copy for save, copy in zip(found["save"], found["copy"], strict=True)], 1, 2)
        times = f"save {said(found['save'])} ms, one copy {said(found['copy'])} ms"
        return f"{times}, ratio {ratios}; the first {middle['first'] * 1e3:.1f} ms"
    if what == "lock":
        times = f"free {said(found['free'])} ms, held {said(found['held'])} ms"
        needed = (middle["held"] - middle["free"]) / hold
        return f"{times}, ratio {middle['held'] / middle['free']:.1f}; the lock is waited for about {needed:.0f} times"
    steps = f"a step {said(found['without'], 1e6)} us, with a save in flight {said(found['with'], 1e6)} us"
    slower = f"slowed by {said(found['slowed'], 100)} %, computing {said(found['computing'], 100)} %"
    return f"{steps}, {slower}; the save {said(found['save'])} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="a directory on the file system to be measured")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WHAT, default=WHAT)
    parser.add_argument("--hold", type=float, default=0.6, help="seconds for which the lock is held at a time")
    parser.add_argument("--mpi", choices=mpilaunch.MPIS, default="openmpi")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    figures = {}
    for what in given.only:
        figures[what] = measure(what, given.dir / f"async-{os.getpid()}", given)
        print(f"{what}: {tell(what, figures[what], given.hold)}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
