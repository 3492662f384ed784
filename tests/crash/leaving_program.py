"""Owners of test_leaving.py. Arguments: what happens, the store, the deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rank
from outcomes import state, told

import mpickpt
from mpickpt import _native

WHAT, PATH, DEADLINE = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
comm = rank.world()
role, owners = comm.Get_rank(), comm.Get_size()
last = owners - 1


def open_run() -> mpickpt.Checkpointer:
    tree: Any = {"topology": "tree", "fan_out": 2} if os.environ.get("TREE") else {}
    ckpt = mpickpt.Checkpointer(PATH, comm, deadline=DEADLINE, **tree)
    ckpt.resume(state(role, owners, 0))
    return ckpt


def save(ckpt: mpickpt.Checkpointer, step: int) -> str:
    return f"saved {ckpt.save(state(role, owners, step), step=step).root}"


def say(name: str, call: Callable[[], Any]) -> None:
    """Make a call; report what came of it, and how long it took."""
    begun = time.monotonic()
    try:
        outcome = str(call())
    except mpickpt.CheckpointError as error:
        outcome = told(error)
    rank.report(**{name: outcome, f"{name}_seconds": time.monotonic() - begun})


def close_while_another_is_stopped() -> None:
    ckpt = open_run()
    say("saved", lambda: save(ckpt, 1))
    if role == last:
        rank.stop()
    say("closed", ckpt.close)
    say("again", ckpt.close)


def left_by_an_exception_at_one_owner() -> None:
    with contextlib.suppress(ZeroDivisionError):
        say("left", lambda: _leave())


def _leave() -> None:
    with open_run() as ckpt:
        say("saved", lambda: save(ckpt, 1))
        if role == last:
            raise ZeroDivisionError


def left_by_an_exception_while_the_others_save() -> None:
    with contextlib.suppress(ZeroDivisionError), open_run() as ckpt:
        say("saved", lambda: save(ckpt, 1))
        if role == last:
            raise ZeroDivisionError
        say("second", lambda: save(ckpt, 2))
        raise ZeroDivisionError


def never_closed() -> None:
    ckpt = open_run()
    say("saved", lambda: save(ckpt, 1))
    globals()["kept"] = ckpt  # until the interpreter ends


def never_closed_after_a_refusal() -> None:
    ckpt = open_run()
    if role == last:
        rank.failpoint("save.agreed", "raise", errno=28)
    say("saved", lambda: save(ckpt, 1))
    globals()["kept"] = ckpt


def ended_while_a_writer_hangs() -> None:
    ckpt = open_run()
    if role == last:
        real = _native.pwrite_all
        _native.pwrite_all = lambda *args: (time.sleep(1000), real(*args))[1]
    say("saved", lambda: save(ckpt, 1))
    say("closed", ckpt.close)


def interrupted() -> None:
    """As Ctrl-C at one owner: it goes on as it is, and nobody waits."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    ckpt = open_run()
    if role == last:
        rank.failpoint("save.heard", interrupt)
    begun = time.monotonic()
    try:
        say("saved", lambda: save(ckpt, 1))
    except KeyboardInterrupt:
        rank.report(saved="interrupted", saved_seconds=time.monotonic() - begun)
    rank.clear()
    say("second", lambda: save(ckpt, 2))
    say("closed", ckpt.close)


def killed_at() -> None:
    """Owner KILLED is killed at a failpoint of the second save; MPI lets the others go on."""
    ckpt = open_run()
    say("saved", lambda: save(ckpt, 1))
    rank.meet(comm)
    rank.failpoint(os.environ["POINT"], "kill", role=int(os.environ["KILLED"]))
    say("second", lambda: save(ckpt, 2))
    say("third", lambda: save(ckpt, 3))
    rank.report(ended=True)
    signal.pause()  # until the test ends the job: MPI_Finalize waits for the dead, and an exit would end the others


globals()[WHAT]()
rank.report(ended=True)
