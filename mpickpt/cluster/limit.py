"""When Slurm will end the job: asked of squeue once, in a worker, where nothing else tells it.

A training never waits for the answer; where there is none, that is logged, and signals still tell when to stop.
"""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import time
from concurrent.futures import Future
from typing import Final

from mpickpt.store.threads import Pool

_log = logging.getLogger("mpickpt")

#: Seconds that squeue has: a busy controller takes some.
PATIENCE: Final = 20.0
_LEFT: Final = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{2})")


def left(text: str) -> float | None:
    """Read the time that a job has left as squeue writes it.

    Parameters
    ----------
    text : str
        ``[[D-]HH:]MM:SS``, ``UNLIMITED``, ``NOT_SET``, ``INVALID``.

    Returns
    -------
    float or None
        Seconds; infinity without a limit; None where it says nothing.

    Examples
    --------
    >>> left("1-02:00:03"), left("4:59"), left("UNLIMITED"), left("INVALID")
    (93603.0, 299.0, inf, None)
    """
    if text == "UNLIMITED":
        return math.inf
    match = _LEFT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def ask(job: str) -> float | None:
    """Ask squeue when a job will be ended.

    Parameters
    ----------
    job : str
        Slurm's id of it.

    Returns
    -------
    float or None
        Seconds since 1970; None where there is no limit, or nobody can tell, which is logged.
    """
    # What the user's own variables add to squeue's options is not wanted here.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    # The id of an array's last task is that of the whole array too, and squeue then tells of all its tasks.
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%A %L"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PATIENCE,
            env=environ,
        )  # fmt: skip
        tasks = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) == 2)
        said = tasks.get(job) or done.stderr.strip() or f"nothing of it, with exit code {done.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        said = str(error)
    seconds = left(said)
    if seconds is None:
        _log.warning(
            "when Slurm will end job %s is not known (squeue said: %s); `end_time` or MPICKPT_END_TIME can tell",
            job,
            said[:200],
        )
    return None if seconds is None or seconds == math.inf else time.time() + seconds


class Limit:
    """Owner 0's question to Slurm.

    Parameters
    ----------
    job : str or None
        Slurm's id of the job; None: nobody is asked.
    pool : Pool
        Where squeue is waited for.
    """

    def __init__(self, job: str | None, pool: Pool) -> None:
        self._job = job
        self._pool = pool
        self._answer: Future[float | None] | None = None

    def begin(self) -> None:
        """Ask, unless that was done already."""
        if self._job is not None and self._answer is None:
            self._answer = self._pool.submit(ask, self._job)

    def end_time(self) -> float | None:
        """Give the answer: seconds since 1970. None as long as there is none, or where there is no limit."""
        answer = self._answer
        return answer.result() if answer is not None and answer.done() and not answer.cancelled() else None
