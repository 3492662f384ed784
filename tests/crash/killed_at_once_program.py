"""Three owners of one process, killed together at each event of a save in turn.

``killed_at_once_program.py FOLDER BEFORE [--way=link] [--operations] --share=K/N``: for event 1, 2, ... a process is
forked that saves into a copy of the store BEFORE (none, if empty) and is killed by SIGKILL as the event comes. Events
are the failpoints that the owners reach, and with ``--operations`` also the beginning and the end of each call of the
operating system on the store's files. It ends when a save comes to its end without having met its event.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path

import crashkit

import mpickpt
from mpickpt import failpoints
from mpickpt.cluster.wiring import Wiring
from mpickpt.store.commit import Way

OWNERS = 3


def save(folder: Path, number: int, way: Way, fresh: bool, operations: bool) -> None:
    """Save once, and be killed at event `number`; returns if there are not so many."""
    lock = threading.Lock()
    seen = 0
    events = open(folder / "events", "w")  # noqa: SIM115 - open until the kill

    def event(name: str, path: str = "") -> None:
        nonlocal seen
        with lock:
            seen += 1
            if seen <= number:
                events.write(f"{seen} {name} {path}\n")
            if seen == number:
                events.flush()
                os.kill(os.getpid(), signal.SIGKILL)

    def owner(wiring: Wiring) -> None:
        step = 1 if fresh else 3
        with mpickpt.Checkpointer(folder / "run", wiring, keep=2) as ckpt:
            ckpt._directory._way = way
            if not fresh:
                ckpt.resume(crashkit.state(wiring.role, OWNERS, 0))
                ready.wait()
            failpoints.hook = event
            saved = ckpt.save(crashkit.state(wiring.role, OWNERS, step), step=step, cursor=10 * step)
            crashkit.say(folder, wiring.role, step, saved.root)

    ready = threading.Barrier(OWNERS)
    if operations:
        with crashkit.operations(
            folder / "run", lambda name, path: event(f"before {name}", path), lambda name, path: event(name, path)
        ):
            crashkit.local(OWNERS, owner)
    else:
        crashkit.local(OWNERS, owner)


def main() -> None:
    """Fork and wait until a save is not killed any more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("before")
    parser.add_argument("--way", choices=["rename", "link"], default="rename")
    parser.add_argument("--operations", action="store_true")
    parser.add_argument("--share", default="0/1")
    options = parser.parse_args()
    share, shares = map(int, options.share.split("/"))
    number = share + 1
    while True:
        folder = options.folder / f"event-{number:04d}"
        folder.mkdir()
        if options.before:
            shutil.copytree(options.before, folder / "run")
        child = os.fork()
        if child == 0:
            try:
                save(folder, number, Way[options.way.upper()], not options.before, options.operations)
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=sys.stdout)
                sys.stdout.flush()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            shutil.rmtree(folder)
            sys.exit(os.waitstatus_to_exitcode(status))
        number += shares


if __name__ == "__main__":
    main()
