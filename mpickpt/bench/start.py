"""Running a benchmark: in this process, in the ranks that this one was started in, or in owners that are started here.

Whatever becomes of it, nothing stays: the folder that it works in is removed at its end, at Ctrl-C and at SIGTERM too.
A launcher may end its processes with SIGKILL, so a small process beside watches, and removes what they leave.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from mpickpt.bench import owner
from mpickpt.bench.measure import measure, patience
from mpickpt.bench.plan import Plan
from mpickpt.errors import CheckpointError, DeadlineError
from mpickpt.gates import launch

#: Variables by which a process knows that a launcher has started it with others.
_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
#: Open MPI only: shared memory alone. MPICH needs nothing.
_SETTINGS: Final = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}
_TRIES: Final = 50
#: Reads until the one that started it is gone, then removes a folder in which others may still be ending.
_WARDEN: Final = """
import os, shutil, sys, time
sys.stdin.read()
for _ in range(300):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.lexists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


def in_ranks() -> bool:
    """Tell whether this process is one of several that a launcher has started."""
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in _SIZES)


def run(plan: Plan) -> dict[str, Any]:
    """Measure, in owners that are started for it; gives the figures.

    Raises
    ------
    StateError, StoreError
        As `Plan.check`.
    NotFoundError
        If there is no mpirun.
    CheckpointError
        If the owners did not come to the end.
    """
    plan.check()
    with _folder(plan.folder) as folder:
        if plan.owners == 1:
            return measure(plan, folder, None)
        return _started(plan, folder)


def run_in_ranks(plan: Plan, comm: Any) -> dict[str, Any] | None:
    """Measure in the owners that are there; gives the figures at owner 0, else None. Collective."""
    plan = replace(plan, owners=comm.size)
    if comm.rank != 0:
        measure(plan, Path(_told(comm, None)), comm)
        return None
    plan.check()
    with _folder(plan.folder) as folder:
        _told(comm, str(folder))
        return measure(plan, folder, comm)


def _told(comm: Any, path: str | None) -> str:
    """Give all owners the path that owner 0 has."""
    import numpy as np

    data = np.zeros(4096, np.uint8)
    if path is not None:
        raw = os.fsencode(path)
        data[: len(raw)] = np.frombuffer(raw, np.uint8)
    comm.Bcast(data)
    return os.fsdecode(data.tobytes().rstrip(b"\0"))


@contextlib.contextmanager
def _folder(place: str) -> Iterator[Path]:
    """Make a folder that is gone at the end of the with-block, however that ends."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    folder = Path(tempfile.mkdtemp(prefix="mpickpt-bench-", dir=place))
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WARDEN, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # what ends this process is not to end it
        ):
            try:
                yield folder
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough
                _remove(folder)
    finally:
        _remove(folder)
        signal.signal(signal.SIGTERM, before)


def _remove(folder: Path) -> None:
    """Remove a folder in which owners that are being ended may still make files."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.02)
    print(f"left behind: {folder}", file=sys.stderr)


def _started(plan: Plan, folder: Path) -> dict[str, Any]:
    (folder / owner.PLAN).write_text(json.dumps(plan.to_json()))
    command = [launch.find("mpirun"), "-n", str(plan.owners), sys.executable, "-m", "mpi4py"]
    command += ["-m", owner.__name__, str(folder)]
    limit = plan.runs * patience(plan)
    with tempfile.TemporaryDirectory(prefix="mpickpt-") as session:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,  # what owners print goes where messages go
            env=launch.environment({**_SETTINGS, launch.SESSION: session}),
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise DeadlineError(
                "the benchmark did not come to its end", expected=f"an end within {limit:.0f} s"
            ) from None
        finally:
            launch.kill(process)
    if code != 0:
        raise CheckpointError(
            "the owners of the benchmark did not come to the end",
            expected="exit code 0",
            found=f"exit code {code}",
            advice="what they said stands above; `--owners 1` needs no MPI",
        )
    return dict(json.loads((folder / owner.FIGURES).read_text()))
