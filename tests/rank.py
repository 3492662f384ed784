"""What a program that runs as a rank of a test uses: reports, failpoints, cases.

Importing this imports neither MPI nor NumPy.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import stepkit

from mpickpt import failpoints
from mpickpt.errors import CheckpointError

if TYPE_CHECKING:
    from mpi4py import MPI

stepkit.install()

STACKS = signal.SIGRTMIN + 7
_F = TypeVar("_F", bound=Callable[..., Any])
_reported: dict[str, Any] = {}
_lock = threading.Lock()
_cases: dict[str, Callable[..., Any]] = {}


def number() -> int:
    """Give this process's rank in the whole job, from the launcher's environment (0 without one)."""
    for variable in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"):
        if variable in os.environ:
            return int(os.environ[variable])
    return 0


def on_a_host_of_its_own() -> None:
    """Have this process take itself for one on another host than the rest: on one host nothing is passed on."""
    socket.gethostname = lambda: f"node{number()}"


def folder() -> Path:
    """Give the job's folder, the same for all ranks."""
    return Path(os.environ["MPICKPT_TEST_FOLDER"])


def world() -> MPI.Intracomm:
    """Give the communicator of all ranks."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _place(name: str, data: bytes) -> None:
    temporary = folder() / f".{name}.{os.getpid()}"
    temporary.write_bytes(data)
    os.replace(temporary, folder() / name)


def report(**fields: Any) -> None:
    """Add fields to this rank's report; the file is whole after every call, so a rank killed later has reported."""
    with _lock:
        _reported.update(fields)
        _place(f"report.{number()}.json", json.dumps(_reported, default=_plain).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def raised(error: BaseException) -> dict[str, Any]:
    """Write an exception as plain data: class, message, traceback, and a refusal's record."""
    found: dict[str, Any] = {
        "class": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
    }
    if isinstance(error, CheckpointError):
        found["record"] = error.to_record()
    return found


def attempt(call: Callable[[], Any]) -> dict[str, Any]:
    """Call, and give ``{"value", "seconds"}`` or ``{"raised", "seconds"}``: for refusals that a test compares."""
    begun = time.monotonic()
    try:
        value = call()
    except Exception as error:
        return {"raised": raised(error), "seconds": time.monotonic() - begun}
    return {"value": value, "seconds": time.monotonic() - begun}


# --- failpoints


class _Rule:
    def __init__(self, name: str, do: Callable[[], None], occurrence: int, again: bool) -> None:
        self.name, self.do, self.occurrence, self.again, self.seen = name, do, occurrence, again, 0

    def due(self) -> bool:
        self.seen += 1
        return self.seen >= self.occurrence if self.again else self.seen == self.occurrence


_rules: list[_Rule] = []
reached: list[str] = []
"""Every failpoint that this process has reached since `failpoint` or `watch` was first called."""


def _hook(name: str) -> None:
    with _lock:
        reached.append(name)
        due = [rule for rule in _rules if rule.name in (name, "*") and rule.due()]
    for rule in due:  # outside the lock: a rule may stop this thread for good
        rule.do()


def watch() -> None:
    """Record from now on which failpoints this process reaches (`reached`)."""
    failpoints.hook = _hook


def stop(seconds: float | None = None) -> None:
    """Stop this process as SIGSTOP from outside would; with `seconds`, a helper continues it after so long."""
    pid = os.getpid()
    if seconds is not None:
        subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {pid}"])
    # To this very thread, which then goes no further; a signal to the process may be taken by another thread, later.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def kill() -> None:
    """End this process as SIGKILL from outside would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(number_or_error: int | BaseException) -> None:
    if isinstance(number_or_error, int):
        raise OSError(number_or_error, os.strerror(number_or_error))
    raise number_or_error


def failpoint(
    name: str,
    do: str | Callable[[], None],
    *,
    role: int | None = None,
    occurrence: int = 1,
    again: bool = False,
    seconds: float | None = None,
    errno: int | None = None,
    comm: MPI.Intracomm | None = None,
) -> None:
    """Let something happen when this process reaches a failpoint.

    Parameters
    ----------
    name : str
        The failpoint; ``*`` is any.
    do : {"stop", "kill", "raise", "sleep"} or callable
        ``stop``: SIGSTOP, continued after `seconds` if given; ``kill``: SIGKILL; ``raise``: OSError with `errno`
        (a callable may raise anything else); ``sleep``: for `seconds`.
    role : int, optional
        The owner it happens to; by default every owner. Its rank in `comm`, by default in the whole job.
    occurrence : int
        The how-manieth time, from 1.
    again : bool
        Also at every time after that.
    """
    watch()
    me = number() if comm is None else comm.Get_rank()
    if role is not None and role != me:
        return
    acts: dict[str, Callable[[], None]] = {
        "stop": lambda: stop(seconds),
        "kill": kill,
        "sleep": lambda: time.sleep(seconds or 0.0),
        "raise": lambda: _raise(errno or 5),
    }
    with _lock:
        _rules.append(_Rule(name, acts[do] if isinstance(do, str) else do, occurrence, again))


def clear() -> None:
    """Forget all failpoints."""
    with _lock:
        _rules.clear()
        reached.clear()
    failpoints.hook = None


@contextlib.contextmanager
def fault(name: str, do: str | Callable[[], None], **more: Any) -> Iterator[None]:
    """Install a failpoint for the length of a with-block, then forget all."""
    failpoint(name, do, **more)
    try:
        yield
    finally:
        clear()


# --- cases: many tests in one mpirun


def case(function: _F) -> _F:
    """Mark a function ``f(comm, directory)`` as a case: it runs on every owner of `comm`; `directory` is its own.

    What it returns (plain data, arrays) is this owner's value; what it raises is recorded, and the next case runs.
    """
    _cases[function.__name__] = function
    return function


def meet(comm: MPI.Intracomm) -> None:
    """Wait for all, polling: ranks that wait in MPI's own barrier would take the cores from those that work."""
    request = comm.Ibarrier()
    pause = 0.0002
    while not request.Test():
        time.sleep(pause)
        pause = min(pause * 1.5, 0.005)


def main() -> None:
    """Run the cases of the program: ``--owners N...`` each on so many of the ranks, ``--only NAME...`` just some."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--owners", type=int, nargs="+")
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    everyone = world()
    outcomes: dict[str, Any] = {}
    for owners in options.owners or [everyone.Get_size()]:
        comm = everyone.Split(0 if everyone.Get_rank() < owners else 1, everyone.Get_rank())
        for name, function in _cases.items():
            if not options.only or name in options.only:
                directory = folder() / f"{name}-{owners}"
                if everyone.Get_rank() == 0:
                    directory.mkdir()
                meet(everyone)
                if everyone.Get_rank() < owners:
                    outcomes[f"{name}[{owners}]"] = attempt(lambda f=function, d=directory, c=comm: f(c, d))  # type: ignore[misc]
                    report(cases=outcomes)
                    clear()
                meet(everyone)
                if everyone.Get_rank() == 0:
                    shutil.rmtree(directory)
        comm.Free()


# --- what rankmain.py does before the program


def begin(rules: list[Mapping[str, Any]]) -> None:
    """Make the stacks of this process available, tell its pid, install failpoints."""
    stacks = open(folder() / f"stacks.{number()}", "w")  # noqa: SIM115 - open until the process ends
    faulthandler.enable(stacks)
    faulthandler.register(STACKS, stacks, all_threads=True)
    _place(f"pid.{number()}", str(os.getpid()).encode())
    for rule in rules:
        failpoint(**rule)
