"""Owners that end with a save in flight: see test_async.py. Arguments: how, the store."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import rank
from mpi4py import MPI

import mpickpt

HOW, PATH = sys.argv[1], Path(sys.argv[2])
comm = MPI.COMM_WORLD


def begin(ckpt: mpickpt.Checkpointer, step: int) -> mpickpt.Save:
    return ckpt.save({"w": mpickpt.PerOwner(np.full(1 << 20, step)), "n": step}, step=step)


def leave(number: int, frame: object) -> None:
    sys.exit(3)


if HOW == "block":
    with mpickpt.Checkpointer(PATH, comm, async_=True) as ckpt:
        made = begin(ckpt, 1)
    rank.report(durable=made.durable)
elif HOW == "close":
    kept = mpickpt.Checkpointer(PATH, comm, async_=True)
    made = begin(kept, 1)
    kept.close()
    rank.report(durable=made.durable)
elif HOW == "exception":
    with mpickpt.Checkpointer(PATH, comm, async_=True) as ckpt:
        begin(ckpt, 1)
        raise ZeroDivisionError
elif HOW == "exit":
    kept = mpickpt.Checkpointer(PATH, comm, async_=True)
    begin(kept, 1)
    sys.exit(0)
elif HOW == "end":
    kept = mpickpt.Checkpointer(PATH, comm, async_=True)
    begin(kept, 1)
elif HOW == "handled":
    signal.signal(signal.SIGTERM, leave)
    kept = mpickpt.Checkpointer(PATH, comm, async_=True)
    begin(kept, 1)
    os.kill(os.getpid(), signal.SIGTERM)
elif HOW == "told":
    with mpickpt.Checkpointer(PATH, comm, async_=True, signals=[signal.SIGTERM]) as ckpt:
        ckpt.resume({"w": mpickpt.PerOwner(np.zeros(1 << 20)), "n": 0})
        step = 0
        while not ckpt.stopping:
            step += 1
            if ckpt.due(step) or step == 1:
                made = begin(ckpt, step)
            if step == 2 and comm.rank == comm.size - 1:
                os.kill(os.getpid(), signal.SIGTERM)
    rank.report(durable=made.durable)
elif HOW == "interrupted":  # while the next call waits for it
    mpickpt.failpoints.hook = lambda name: time.sleep(1) if name == "save.heard" else None
    try:
        with mpickpt.Checkpointer(PATH, comm, async_=True) as ckpt:
            made = begin(ckpt, 1)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            begin(ckpt, 2)
    except KeyboardInterrupt:
        rank.report(durable=made.durable)
elif HOW == "forked":  # and the child leaves the block
    with mpickpt.Checkpointer(PATH, comm, async_=True) as ckpt:
        begin(ckpt, 1).wait()
        child = os.fork() if comm.rank == comm.size - 1 else -1
        if child == 0:
            ckpt.close()
            os._exit(0)
        if child > 0:
            assert os.waitpid(child, 0)[1] == 0
        made = begin(ckpt, 2)
    rank.report(durable=made.durable)
else:  # "killed": by the signal itself, at all owners
    kept = mpickpt.Checkpointer(PATH, comm, async_=True)
    begin(kept, 1).wait()
    begin(kept, 2)
    comm.Barrier()
    os.kill(os.getpid(), signal.SIGTERM)
