"""What a launcher says of this process: what started it, how many there are, in which job. The environment tells.

Under the wrong ``srun --mpi`` MPI does not find its launcher and makes each process a world of its own. Each would
believe to be alone, and they would write one store as rivals: `check_alone` refuses that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mpickpt.errors import StateError

_log = logging.getLogger("mpickpt")

#: Where schedulers tell a job's id and its nodes.
_JOBS: Final = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID")
_NODES: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "LSB_HOSTS")
_OPENMPI: Final = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
_PMI: Final = ("PMI_SIZE", "PMI_RANK")
_TORCH: Final = ("WORLD_SIZE", "RANK")

_UNHARMED: Final = "the store: nothing was written"


@dataclass(frozen=True, slots=True)
class Launch:
    """What the environment says of how this process was started.

    Attributes
    ----------
    kind : {"srun", "mpirun", "torchrun", "single"}
        What started it, as the innermost launcher says. A script of a batch job that was not started by srun is
        single, however many tasks its job has.
    size : int
        How many processes that launcher has started; 1 where nobody says.
    rank : int
        Which one of them this is, from 0.
    variable : str or None
        The environment's variable that says `size`.
    job : str or None
        The scheduler's id of the job.
    restarts : int or None
        How often Slurm has requeued the job; None outside Slurm.
    nodes : str or None
        The job's nodes as the scheduler lists them (``n[1-4]``): text to show, never taken apart.
    """

    kind: str
    size: int = 1
    rank: int = 0
    variable: str | None = None
    job: str | None = None
    restarts: int | None = None
    nodes: str | None = None


def detect(environ: Mapping[str, str] | None = None) -> Launch:
    """Say how this process was started.

    Parameters
    ----------
    environ : mapping, optional
        The environment; by default this process's own.

    Examples
    --------
    >>> detect({"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}).size
    4
    >>> detect({"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}).kind  # a batch script: no srun
    'single'
    """
    found = os.environ if environ is None else environ
    kind, size, rank, variable = _started(found)
    job = next((found[name] for name in _JOBS if found.get(name)), None)
    nodes = next((found[name] for name in _NODES if found.get(name)), None)
    restarts = (_number(found, "SLURM_RESTART_COUNT") or 0) if found.get("SLURM_JOB_ID") else None
    return Launch(kind, size, rank, variable, job, restarts, nodes)


def switches(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Give the switches above this process's node, the widest first, as Slurm's topology plug-in tells each task.

    Each is named with those above it. None where Slurm does not tell, or knows of none.

    Examples
    --------
    >>> switches({"SLURM_TOPOLOGY_ADDR": "core.leaf3.n7", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"})
    ('core', 'core.leaf3')
    """
    found = os.environ if environ is None else environ
    kinds = found.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    # A node's own name, which comes last, may have dots in it.
    names = found.get("SLURM_TOPOLOGY_ADDR", "").split(".", len(kinds) - 1)
    if kinds[-1] != "node" or len(names) != len(kinds):
        return ()
    return tuple(".".join(names[:count]) for count in range(1, len(names)))


def _started(environ: Mapping[str, str]) -> tuple[str, int, int, str | None]:
    """Give kind, size, rank and the variable that says the size."""
    step = _step(environ)
    # mpirun starts its helpers by srun where it can, so a process of its own has the variables of that step as well.
    for size_name, rank_name in (_OPENMPI, _PMI):
        size = _number(environ, size_name)
        if size:
            rank = _number(environ, rank_name) or 0
            by_srun = step is not None and size_name in _PMI and step[:2] == (size, rank)  # srun --mpi=pmi2 sets it too
            return "srun" if by_srun else "mpirun", size, rank, size_name
    if step is not None:
        return "srun", *step
    size = _number(environ, _TORCH[0])
    if size:
        return "torchrun", size, _number(environ, _TORCH[1]) or 0, _TORCH[0]
    return "single", 1, 0, None


def _step(environ: Mapping[str, str]) -> tuple[int, int, str] | None:
    """Give size, rank and variable of the step that srun started; None in a batch script, which has no step's id."""
    rank = _number(environ, "SLURM_PROCID")
    if rank is None or not environ.get("SLURM_STEP_ID"):
        return None
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        size = _number(environ, name)
        if size:
            return size, rank, name
    return None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def check_alone(alone: bool, mpi: str | None = None, environ: Mapping[str, str] | None = None) -> None:
    """Refuse a process that takes itself for the only one, though its launcher has started several.

    Every process is refused; what to do is said in full by process 0 only, so that a log has it once.

    Parameters
    ----------
    alone : bool
        Whether the caller has said that each process is to be an owner for itself.
    mpi : str, optional
        Name of the MPI library that has made this process a world of its own; None where the caller gave no
        communicator, or MPI.COMM_SELF.
    environ : mapping, optional
        As for `detect`.

    Raises
    ------
    StateError
        If there are several.
    """
    found = os.environ if environ is None else environ
    launch = detect(found)
    if alone:
        return
    if launch.size == 1:
        tasks = _number(found, "SLURM_NTASKS") or 1
        if launch.kind == "single" and tasks > 1 and launch.job is not None:
            _log.warning(
                "one process in a Slurm job of %d tasks: was srun left out? (alone=True says that it was not)",
                tasks,
            )
        return
    told = f"{launch.variable}={launch.size}: the launcher has started {launch.size} processes"
    if mpi is None:
        message = "every process would believe that it is alone, and they would write one store as rivals"
        expected = "one process, or comm=MPI.COMM_WORLD; not None or MPI.COMM_SELF"
        advice = f"pass the communicator, or alone=True if each process has a store of its own{_inherited(launch)}"
    else:
        message = (
            "MPI did not find the other processes: every one believes that it is alone, and would write as a rival"
        )
        expected = f"an MPI.COMM_WORLD of {launch.size} processes"
        told += f", but {mpi} has a world of one: it does not speak with that launcher"
        advice = f"{_advice(launch)}; or alone=True if each process has a store of its own{_inherited(launch)}"
    if launch.rank != 0:
        raise StateError(message, found=told, unharmed=_UNHARMED, advice="process 0 says what to do")
    raise StateError(message, expected=expected, found=told, unharmed=_UNHARMED, advice=advice)


def _inherited(launch: Launch) -> str:
    """Say what to do where no srun has started this process: nothing in the environment tells that reliably.

    A job that is submitted from inside a step gets the step's variables with the rest of its environment.
    """
    if launch.kind != "srun":
        return ""
    return (
        ". In a script that was submitted from inside another job's step, and has no srun of its own: alone=True, or"
        " `unset ${!SLURM_STEP@}` before, as these variables are the other job's"
    )


def _advice(launch: Launch) -> str:
    if launch.kind == "srun":
        return "start Open MPI with `srun --mpi=pmix`, MPICH with `srun --mpi=pmi2` (`srun --mpi=list`: what is there)"
    return "start with the mpirun that belongs to the MPI of this mpi4py"


__all__ = ["Launch", "check_alone", "detect", "switches"]
