"""Running gates: ``mpickpt gate NAME|all``."""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from mpickpt.gates import report as reports
from mpickpt.gates.ground import TOPOLOGIES, Ground
from mpickpt.gates.launch import Launcher, find
from mpickpt.gates.report import Report

_log = logging.getLogger("mpickpt")

GATES: Final = {
    "file-system": "no-replace under racing processes; what a sync costs and what is promised",
    "region-checkpoint": "arrays in any boxes, one owner to two and two to one; files renamed, moved, cut",
    "resume-equivalence": "five steps equal three and two in fresh processes",
    "parameter-partitioning": "learners go on at other owner counts",
    "distributed-checkpoint": "SIGKILL around the rename; copies that differ publish nothing",
    "refusals": "every row of the table of resuming, by corrupting real checkpoints",
    "fencing": "two jobs on one store: one of two goes on, and a late one publishes nothing",
}
"""The gates, in the order in which they run: what the others rest on comes first."""


def run(
    names: Sequence[str],
    store: Path,
    *,
    launcher: str = "mpirun",
    arguments: Sequence[str] = (),
    owners: Sequence[int] = (),
    topologies: Sequence[str] = TOPOLOGIES,
    deadline: float = 120.0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run gates.

    Parameters
    ----------
    names : sequence of str
        Of `GATES`.
    store : Path
        A directory on the file system that is judged, seen by all hosts; a folder is made in it, and stays.
    launcher : {"mpirun", "srun"}
    arguments : sequence of str
        Further arguments of the launcher.
    owners : sequence of int
        One count for the gates that have one, or those that `parameter-partitioning` goes through; empty: each gate's
        own.
    topologies : sequence of {"star", "tree"}
    deadline : float
        Seconds after which one start is killed and its checks have failed.
    say : callable
        Takes a line, as verdicts come.

    Returns
    -------
    dict
        The report; ``ok`` says whether every check passed and every broken build was caught.

    Raises
    ------
    NotFoundError
        If the launcher is missing.
    OSError
        If `store` cannot be written.
    """
    find(launcher)
    store.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="mpickpt-gate-", dir=store.resolve()))
    starts = folder / "starts"
    starts.mkdir()
    started = Launcher(launcher, starts, deadline, arguments)
    report = Report(say)
    ground = Ground(folder, started, report, tuple(topologies), tuple(owners))
    say(f"gates in {folder}")
    for name in names:
        report.gate = name
        (folder / name).mkdir()
        try:
            importlib.import_module(f"mpickpt.gates.{name.replace('-', '_')}").run(ground)
        except Exception as error:  # a start that made no store, a store that nobody can read: the other gates go on
            _log.debug("%s", name, exc_info=True)
            report.check("the gate came to its end", [f"{type(error).__name__}: {error}"])
    return report.to_json(
        gates=list(names),
        folder=str(folder),
        launcher={"kind": launcher, "arguments": list(arguments), "starts": started.starts, "deadline": deadline},
        topologies=list(topologies),
        driver=reports.surroundings(folder),
        hosts=[started.facts[host] for host in sorted(started.facts)],
    )
