"""From what driver.py and costs.py wrote: the tables of docs/scale.md, and its plot.

    python tests/scale/plot.py docs/scale.json docs/scale-costs.json --png docs/scale.png

Prints the tables; the plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOLDER = 512  # owners a folder: mpickpt.format.names.FOLDER


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
        ["manifests read, restore", *(run["restore"]["largest"]["manifests read"] for run in runs)],
        ["own shards read, restore", *(run["restore"]["largest"]["shards read"] for run in runs)],
        ["`.r` shards read, restore", *(run["restore"]["largest"]["shared shards read"] for run in runs)],
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


def save_seconds(
    run: dict[str, Any], step: float, file: float, directory: float, root: float, writers: int = 8
) -> dict[str, float]:
    """Derive the seconds of a save of a tiny state: what has to happen one after the other.

    Parameters
    ----------
    step : float
        Seconds of one message up or down an edge, polling included.
    file, directory, root : float
        Seconds of a small new file, of a directory's sync, of a publication.
    writers : int
        Folders that an owner syncs at a time.
    """
    height, owners = run["height"], run["owners"]
    times = run["save"]["processor seconds of an owner"]
    # The root, and below it each level whose subtrees are wider than a folder, syncs what lies across its children.
    levels = sum(owners / run["fan_out"] ** level > _FOLDER for level in range(height)) or 1
    rounds = math.ceil(min(run["fan_out"] + 1, owners / _FOLDER) / writers)
    return {
        "messages": 4 * height * step,
        "syncs": 2 * directory + (height + 1) * file + root + levels * rounds * directory,
        "processor": times["root"] + (height - 1) * (times["inner"] or 0.0) + times["leaf"],
    }


def derived(runs: Sequence[dict[str, Any]], costs: dict[str, Any]) -> str:
    """Write the derived seconds of a save: with this machine's constants, and with assumed ones of a cluster."""
    here = costs["messages"]["step, 16 children"], *(costs["syncs"][what] for what in ("file", "directory", "root"))
    cluster = 0.005 + 16 * 50e-6, 0.010, 0.010, 0.020
    rows = []
    for name, constants in (("this machine's constants", here), ("a cluster's, assumed", cluster)):
        for run in runs:
            parts = save_seconds(run, *constants)
            ms = [f"{1000 * parts[part]:.0f}" for part in ("messages", "syncs", "processor")]
            rows.append([f"{number(run['owners'])}, {name}", run["height"], *ms, f"{1000 * sum(parts.values()):.0f}"])
    return table(["owners", "height", "messages, ms", "syncs, ms", "processor, ms", "a save, ms"], rows)


def lustre(
    runs: Sequence[dict[str, Any]], creates: float = 20_000.0, syncs: float = 100_000.0, opens: float = 100_000.0
) -> str:
    """Write what a shared file system has to take, and the seconds at assumed rates of the whole system."""
    rows = []
    for run in runs:
        total, read = run["save"]["total"], run["restore"]["total"]
        fenced = total["syncs of directories"]
        files = total["files created"] + fenced
        space = total["namespace operations"] + 2 * fenced  # the fence: create and unlink
        opened = sum(read[what] for what in ("manifests read", "shards read", "shared shards read"))
        rows.append(
            [
                number(run["owners"]), number(files), number(space), number(total["syncs of files"] + 2 * fenced),
                f"{space / creates:.1f}", f"{(total['syncs of files'] + 2 * fenced) / syncs:.1f}",
                number(opened), f"{opened / opens:.1f}",
            ]
        )  # fmt: skip
    head = ["owners", "files made", "namespace operations", "syncs", "seconds of the first", "seconds of the second"]
    return table([*head, "opens of a restore", "seconds"], rows)


def tables(runs: Sequence[dict[str, Any]], costs: dict[str, Any]) -> list[str]:
    """Give all tables of docs/scale.md."""
    large = [run for run in runs if run["owners"] >= 1000]
    return [of_an_owner(runs), of_all(runs), derived(large, costs), lustre(large)]


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
        "manifests read, restore": [run["restore"]["largest"]["manifests read"] for run in runs],
    }
    for name, values in lines.items():
        left.plot(owners, values, marker="o", markersize=3, label=name)
    left.set(xscale="log", yscale="log", xlabel="owners", title="the largest of an owner, fan-out 16", ylim=(1, 1e7))
    left.legend(fontsize=7, loc="upper left", ncols=2)
    here = costs["messages"]["step, 16 children"], *(costs["syncs"][what] for what in ("file", "directory", "root"))
    parts = [save_seconds(run, *here) for run in runs]
    for name in ("messages", "syncs", "processor"):
        right.plot(owners, [1000 * part[name] for part in parts], marker="o", markersize=3, label=name)
    right.plot(
        owners, [1000 * sum(part.values()) for part in parts], color="black", marker="o", markersize=3, label="all"
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
