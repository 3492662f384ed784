"""From what driver.py and costs.py wrote: the tables of docs/scale.md, and its plot.

    python tests/scale/plot.py docs/scale.json docs/scale-costs.json --png docs/scale.png

Prints the tables; the plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mpickpt.cluster.topology import Topology
from mpickpt.format.names import FOLDER

_FAN_OUT = 16
_WRITERS = 8
"""Folders that an owner syncs at a time."""
_DERIVED = (1_000, 10_000, 200_000)
"""Owner counts for which costs are derived."""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in Markdown."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def number(value: float) -> str:
    """Write a count with thin groups of digits."""
    return f"{value:,.0f}"


def of_an_owner(runs: Sequence[dict[str, Any]]) -> str:
    """Write what the busiest owner has, at each owner count."""

    def memory(run: dict[str, Any], leaf: bool) -> int:
        peaks = [
            peak["bytes"]
            for call in ("first save", "save", "restore")
            for peak in run[call]["memory"].values()
            if not leaf or peak["level"] == run["height"]
        ]
        return max(peaks)

    rows = [
        ["height of the tree", *(run["height"] for run in runs)],
        ["messages sent, save", *(run["save"]["largest"]["messages"] for run in runs)],
        ["bytes sent, save", *(number(run["save"]["largest"]["bytes"]) for run in runs)],
        ["messages sent, first save", *(run["first save"]["largest"]["messages"] for run in runs)],
        ["bytes sent, first save", *(number(run["first save"]["largest"]["bytes"]) for run in runs)],
        ["messages sent, restore", *(run["restore"]["largest"]["messages"] for run in runs)],
        ["bytes sent, restore", *(number(run["restore"]["largest"]["bytes"]) for run in runs)],
        ["bytes of a commitment", *(run["save"]["longest message"]["COMMIT"] for run in runs)],
        ["bytes of the root manifest", *(number(run["manifests"]["root"]["bytes"]) for run in runs)],
        ["bytes of the largest group manifest", *(number(run["manifests"]["group"]["bytes"]) for run in runs)],
        [
            "the same, each number as one digit",
            *(number(run["manifests"]["group"]["bytes, numbers aside"]) for run in runs),
        ],
        ["bytes of memory, largest owner", *(number(memory(run, False)) for run in runs)],
        ["bytes of memory, a leaf", *(number(memory(run, True)) for run in runs)],
        ["manifests read, restore", *(run["restore"]["largest, owner 0 aside"]["manifests read"] for run in runs)],
        ["own shards read, restore", *(run["restore"]["largest, owner 0 aside"]["shards read"] for run in runs)],
        ["`.r` shards read by owner 0, restore", *(run["restore"]["largest"]["shared shards read"] for run in runs)],
    ]
    return table(["largest of an owner", *(number(run["owners"]) for run in runs)], rows)


def of_all(runs: Sequence[dict[str, Any]]) -> str:
    """Write what all owners have together, and how long this took."""
    save, restore = (lambda what: [number(run["save"]["total"][what]) for run in runs]), "restore"
    rows = [
        ["messages, save", *save("messages")],
        ["files made, save", *save("files created")],
        ["syncs of files, save", *save("syncs of files")],
        ["syncs of directories, save", *save("syncs of directories")],
        ["namespace operations, save", *save("namespace operations")],
        ["manifests read, restore", *(number(run[restore]["total"]["manifests read"]) for run in runs)],
        ["shards read, restore", *(number(run[restore]["total"]["shards read"]) for run in runs)],
        ["`.r` shards read, restore", *(number(run[restore]["total"]["shared shards read"]) for run in runs)],
        ["messages in a row, save", *(run["save"]["in a row"]["messages"] for run in runs)],
        ["messages in a row, restore", *(run[restore]["in a row"]["messages"] for run in runs)],
        ["syncs in a row, save", *(run["save"]["in a row"]["syncs"] for run in runs)],
        ["syncs of folders in a row, save", *(run["save"]["in a row"]["syncs of folders"] for run in runs)],
        ["processor seconds of the driver", *(number(_processor(run)) for run in runs)],
        ["resident MB of the driver", *(number(run["resident bytes of the process"] / 1e6) for run in runs)],
    ]
    return table(["all owners", *(number(run["owners"]) for run in runs)], rows)


def _processor(run: dict[str, Any]) -> float:
    return sum(float(run[call]["processor seconds"]) for call in ("first save", "save", "restore"))


@cache
def levels(owners: int, fan_out: int) -> tuple[int, int]:
    """Give the height of a tree, and the sum of all owners' heights in it."""
    height = below = 0
    for _, size in Topology.of("tree", owners, fan_out).place(0).children:
        deeper, deep = levels(size, fan_out)
        height, below = max(height, 1 + deeper), below + deep + size
    return height, below


def save_seconds(owners: int, fan_out: int, times: dict[str, float], costs: Sequence[float]) -> dict[str, float]:
    """Derive the seconds of a save of a tiny state: what has to happen one after the other.

    Parameters
    ----------
    times : dict
        Seconds of processor of the root, of an inner owner, of a leaf.
    costs : (step, file, directory, root)
        Seconds of one message up or down an edge, polling included; of a small new file, of a directory's sync, of a
        publication.
    """
    step, file, directory, root = costs
    height, _ = levels(owners, fan_out)
    # The root, and below it each level whose subtrees are wider than a folder, syncs what lies across its children.
    wide = sum(owners / fan_out**level > FOLDER for level in range(height)) or 1
    rounds = math.ceil(min(fan_out + 1, owners / FOLDER) / _WRITERS)
    return {
        "messages": 4 * height * step,
        "syncs": 2 * directory + (height + 1) * file + root + wide * rounds * directory,
        "processor": times["root"] + (height - 1) * times["inner"] + times["leaf"],
    }


def _times(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Give the processor times of a save, from the run of most owners."""
    found: dict[str, float] = max(runs, key=lambda run: int(run["owners"]))["save"]["processor seconds of an owner"]
    return found


def _here(costs: dict[str, Any]) -> list[float]:
    return [costs["messages"]["step, 16 children"], *(costs["syncs"][what] for what in ("file", "directory", "root"))]


def derived(runs: Sequence[dict[str, Any]], costs: dict[str, Any]) -> str:
    """Write the derived seconds of a save: with this machine's constants, and with assumed ones of a cluster."""
    cluster = 0.005 + 16 * 50e-6, 0.010, 0.010, 0.020
    rows = []
    for name, constants in (("this machine's constants", _here(costs)), ("a cluster's, assumed", cluster)):
        for owners in _DERIVED:
            parts = save_seconds(owners, _FAN_OUT, _times(runs), constants)
            ms = [f"{1000 * parts[part]:.0f}" for part in ("messages", "syncs", "processor")]
            height, _ = levels(owners, _FAN_OUT)
            rows.append([f"{number(owners)}, {name}", height, *ms, f"{1000 * sum(parts.values()):.0f}"])
    return table(["owners", "height", "messages, ms", "syncs, ms", "processor, ms", "a save, ms"], rows)


def totals(owners: int, fan_out: int) -> tuple[int, int, int]:
    """Give what all owners together make and sync in a save, and read in a restore, of files."""
    return 2 * owners + 7, 2 * owners + 3, levels(owners, fan_out)[1] + 2 * owners + 3


def lustre(changes: float = 20_000.0, syncs: float = 100_000.0, opens: float = 100_000.0) -> str:
    """Write what a shared file system has to take, and the seconds at assumed rates of the whole system.

    The counts are those that test_scale.py asserts: a shard and a manifest an owner, three ``.r`` shards, the root and
    four marks of owner 0; each folder and three directories synced, with a fence. On the way to a file nobody looks
    for its folder, but five operations make each.
    """
    rows = []
    for owners in _DERIVED:
        folders = math.ceil(owners / FOLDER)
        fences = folders + 3
        made, synced, opened = totals(owners, _FAN_OUT)
        files, synced = made + fences, synced + 2 * fences
        space = files + fences + 5 * folders
        row = files, space, synced, opened
        seconds = f"{space / changes:.1f}", f"{synced / syncs:.1f}", f"{opened / opens:.1f}"
        rows.append([number(owners), *map(number, row), *seconds])
    head = ["owners", "files made", "namespace operations", "syncs", "opens of a restore"]
    return table([*head, "operations, s", "syncs, s", "opens, s"], rows)


def tables(runs: Sequence[dict[str, Any]], costs: dict[str, Any]) -> list[str]:
    """Give all tables of docs/scale.md."""
    return [of_an_owner(runs), of_all(runs), derived(runs, costs), lustre()]


def plot(runs: Sequence[dict[str, Any]], costs: dict[str, Any], png: Path) -> None:
    """Draw what an owner has, and what a save costs in a row."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    owners = [run["owners"] for run in runs]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    lines = {
        "memory, largest owner (bytes)": [max(p["bytes"] for p in run["restore"]["memory"].values()) for run in runs],
        "root manifest (bytes)": [run["manifests"]["root"]["bytes"] for run in runs],
        "largest group manifest (bytes)": [run["manifests"]["group"]["bytes"] for run in runs],
        "bytes sent, save": [run["save"]["largest"]["bytes"] for run in runs],
        "commitment (bytes)": [run["save"]["longest message"]["COMMIT"] for run in runs],
        "messages sent, save": [run["save"]["largest"]["messages"] for run in runs],
        "manifests read, restore": [run["restore"]["largest, owner 0 aside"]["manifests read"] for run in runs],
    }
    for name, values in lines.items():
        left.plot(owners, values, marker="o", markersize=3, label=name)
    left.set(xscale="log", yscale="log", xlabel="owners", title="the largest of an owner, fan-out 16", ylim=(1, 1e7))
    left.legend(fontsize=7, loc="upper left", ncols=2)
    counts = [3, 64, *_DERIVED]
    parts = [save_seconds(owners, _FAN_OUT, _times(runs), _here(costs)) for owners in counts]
    for name in ("messages", "syncs", "processor"):
        right.plot(counts, [1000 * part[name] for part in parts], marker="o", markersize=3, label=name)
    right.plot(
        counts, [1000 * sum(part.values()) for part in parts], color="black", marker="o", markersize=3, label="all"
    )
    right.set(xscale="log", xlabel="owners", ylabel="ms", title="derived: a save of a tiny state", ylim=(0, None))
    right.legend(fontsize=7)
    figure.savefig(png, dpi=120)


def main() -> None:
    """Print the tables, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="what driver.py wrote")
    parser.add_argument("costs", type=Path, help="what costs.py wrote")
    parser.add_argument("--png", type=Path)
    given = parser.parse_args()
    runs, costs = (json.loads(path.read_text()) for path in (given.runs, given.costs))
    print("\n\n".join(tables(runs, costs)))
    if given.png is not None:
        plot(runs, costs, given.png)


if __name__ == "__main__":
    main()
