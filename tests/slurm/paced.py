"""The example, unchanged, at a pace that a test sets: ``python -m mpi4py paced.py STORE [its options]``.

The folder PACED holds what the test says and what owner 0 saw:

- ``pace``: seconds that each owner sleeps at each step, so that the test can do something to the job in the meantime;
  read at every step.
- ``kill``: a failpoint; owner 1 removes the file and ends there with SIGKILL, in the next save.
- ``again``: a signal that each owner gets once more when the Checkpointer is closed.
- ``takes``: seconds that saves are said to have taken so far.
- ``seen``: a line of JSON for each step, each call of `due` as it begins, and each save.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import mpickpt
from mpickpt import failpoints

FOLDER = Path(os.environ["PACED"])
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train_digits.py"
_START = {"job": os.environ.get("SLURM_JOB_ID"), "restarts": int(os.environ.get("SLURM_RESTART_COUNT") or 0)}


def said(name: str) -> str | None:
    """Give what the test says in a file, if it says anything."""
    try:
        return (FOLDER / name).read_text()
    except FileNotFoundError:
        return None


class Paced(mpickpt.Checkpointer):
    """A Checkpointer that tells what is called, and when."""

    def due(self, step: int) -> bool:
        self._see(step=step)
        time.sleep(float(said("pace") or 0))
        if takes := said("takes"):
            self._rounds.schedule.saved(float(takes))
        self._see(asks=step)
        return super().due(step)

    def save(self, state: Any, *, step: int, **more: Any) -> Any:
        role = self._wiring.role
        if role == min(1, self._wiring.owners - 1) and (at := said("kill")):
            (FOLDER / "kill").unlink()
            failpoints.hook = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == at.strip() else None
        begun = time.time()
        made = super().save(state, step=step, **more)
        self._see(saved=step, began=begun, seconds=time.time() - begun)
        return made

    def resume(self, *arguments: Any, **more: Any) -> Any:
        run = super().resume(*arguments, **more)
        self._see(resumed=run.step, epoch=run.epoch)
        return run

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if again := said("again"):
            os.kill(os.getpid(), signal.Signals[again])

    def _see(self, **what: Any) -> None:
        if self._wiring.role == 0:
            line = json.dumps({**_START, "time": time.time(), **what})
            with open(FOLDER / "seen", "a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    mpickpt.Checkpointer = Paced  # type: ignore[misc]
    sys.argv[0] = str(EXAMPLE)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
