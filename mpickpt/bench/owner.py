"""One owner of ``mpickpt bench``, started under mpirun: ``python -m mpi4py -m mpickpt.bench.owner FOLDER``.

Reads ``plan.json`` there, and writes ``figures.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mpickpt.bench.measure import measure
from mpickpt.bench.plan import Plan

PLAN = "plan.json"
FIGURES = "figures.json"


def main(folder: Path) -> None:
    """Measure what the plan says."""
    from mpi4py import MPI

    plan = Plan(**json.loads((folder / PLAN).read_text()))
    figures = measure(plan, folder, MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        (folder / FIGURES).write_text(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
