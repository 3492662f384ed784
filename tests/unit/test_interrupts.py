"""An interrupt costs the call that it comes in: no save in flight is forgotten, and the next call works."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crashkit
import numpy as np
import pytest

from mpickpt import Checkpointer, background, failpoints, open_store
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CheckpointError, DeadlineError
from mpickpt.native import _native


@contextlib.contextmanager
def interrupt(name: str, event: str = "call") -> Iterator[list[str]]:
    """Interrupt this thread at the first call of a function; gives its name once that has been done."""
    done: list[str] = []

    def watch(frame: Any, kind: str, called: Any) -> None:
        if kind == event and name in (frame.f_code.co_name, getattr(called, "__name__", None)):
            sys.setprofile(None)
            done.append(name)
            raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        yield done
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("digest", ["blake3", "sha256"])
def test_a_save_in_flight_is_not_forgotten(tmp_path: Path, digest: Any) -> None:
    free = threading.Event()
    failpoints.hook = lambda name: free.wait(30) and None if name == "writer.created" else None
    w = np.ones(1 << 20)
    try:
        with Checkpointer(tmp_path / "run", async_=True, keep=None, digest=digest) as ckpt:
            first = ckpt.save({"w": w}, step=1)
            w[:] = 2
            with interrupt("wait") as done, pytest.raises(KeyboardInterrupt):
                ckpt.save({"w": w}, step=2)
            assert done
            assert not first.durable
            threading.Timer(0.2, free.set).start()
            w[:] = 3
            ckpt.save({"w": w}, step=3)
            assert first.durable
    finally:
        free.set()
        failpoints.hook = None
    store = open_store(tmp_path / "run")
    assert [one.step for one in store.generations()] == [1, 3]
    for step in (1, 3):
        np.testing.assert_array_equal(np.unique(store.read(step=step)["w"]), [step])


def test_a_block_that_is_interrupted_waits_for_the_save_in_flight(tmp_path: Path) -> None:
    free = threading.Event()
    failpoints.hook = lambda name: free.wait(30) and None if name == "save.heard" else None
    try:
        with contextlib.suppress(KeyboardInterrupt), Checkpointer(tmp_path / "run", async_=True) as ckpt:
            first = ckpt.save({"w": np.ones(4)}, step=1)
            threading.Timer(0.2, free.set).start()
            with interrupt("wait") as done:
                ckpt.save({"w": np.ones(4)}, step=2)
    finally:
        free.set()
        failpoints.hook = None
    assert done
    assert first.durable


@pytest.mark.parametrize("name", ["start", "wait", "make", "set_result"])
def test_a_save_that_is_interrupted_as_it_begins_leaves_the_next_alone(tmp_path: Path, name: str) -> None:
    with Checkpointer(tmp_path / "run", async_=True, keep=None, deadline=5) as ckpt:
        ckpt.resume({"w": np.ones(4)})
        with interrupt(name) as done, pytest.raises(KeyboardInterrupt):
            ckpt.save({"w": np.ones(4)}, step=1)
        assert done
        with contextlib.suppress(CheckpointError):  # the one that was interrupted, if it had begun
            ckpt.generations()
        for step in (2, 3):
            assert ckpt.save({"w": np.full(4, step)}, step=step).wait(20)


def test_a_call_that_is_interrupted_as_it_begins_is_under_way_no_more(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        with interrupt("append", "c_return") as done, pytest.raises(KeyboardInterrupt):
            ckpt.save({"w": np.ones(4)}, step=1)
        assert done
        assert ckpt.save({"w": np.ones(4)}, step=2).durable


@pytest.mark.parametrize("name", ["settle", "save"])
def test_owners_stay_in_step(tmp_path: Path, name: str) -> None:
    """The number of a call counts although it never began: the others hear of it, and the next one works."""

    def program(wiring: Wiring) -> list[str]:
        found = []
        with Checkpointer(tmp_path / "run", wiring, deadline=10) as ckpt:
            for step in (1, 2, 3):
                try:
                    with interrupt(name) if step == 2 and wiring.role == 1 else contextlib.nullcontext():
                        ckpt.save({"w": np.full(4, step)}, step=step)
                    found.append("saved")
                except KeyboardInterrupt:
                    found.append("interrupted")
                except CheckpointError as error:
                    found.append(error.message)
        return found

    heard = ["saved", "an owner failed: KeyboardInterrupt", "saved"]
    assert crashkit.local(3, program) == [heard, ["saved", "interrupted", "saved"], heard]


def test_a_copy_may_take_longer_than_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = background.Copies.make

    def slow(self: background.Copies, *args: Any) -> None:
        threading.Event().wait(1.5)
        make(self, *args)

    monkeypatch.setattr(background.Copies, "make", slow)
    with Checkpointer(tmp_path / "run", async_=True, deadline=0.4) as ckpt:
        assert ckpt.save({"w": np.ones(4)}, step=1).wait(20)


def test_a_lone_owner_whose_writes_hang_has_its_deadline_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    write = _native.write_chunks

    def hangs(*args: Any) -> Any:
        free.wait(30)
        return write(*args)

    monkeypatch.setattr(_native, "write_chunks", hangs)
    began = time.monotonic()
    ckpt = Checkpointer(tmp_path / "run", deadline=1)
    try:
        with pytest.raises(DeadlineError, match="made no progress"):
            ckpt.save({"w": np.ones(1 << 20)}, step=1)
        assert time.monotonic() - began < 6
    finally:
        free.set()
        ckpt.close()


@pytest.mark.parametrize("how", ["argument", "thread", "interrupt"])
def test_a_save_in_the_background_that_one_owner_never_begins_costs_all_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """That alone: once each owner's next call aborted what the others had begun meanwhile, without end."""
    start = threading.Thread.start

    def none(self: threading.Thread) -> None:
        if self.name == "mpickpt-save" and threading.current_thread() is failing[0]:
            raise RuntimeError("can't start new thread")
        start(self)

    failing: list[threading.Thread | None] = [None]
    monkeypatch.setattr(threading.Thread, "start", none)

    def program(wiring: Wiring) -> list[str]:
        found = []
        with Checkpointer(tmp_path / "run", wiring, deadline=10, async_=True, keep=None) as ckpt:
            for step in range(1, 8):
                it = step == 3 and wiring.role == 1
                if wiring.role == 1:  # the other one meets the same list
                    failing[0] = threading.current_thread() if it and how == "thread" else None
                odd: Any = {"async_": np.zeros(2)} if it and how == "argument" else {}
                try:
                    with interrupt("settle") if it and how == "interrupt" else contextlib.nullcontext():
                        ckpt.save({"w": np.full(4, step)}, step=step, **odd)
                    found.append("saved")
                except (KeyboardInterrupt, CheckpointError, ValueError):
                    found.append("refused")
        return found

    others, one = crashkit.local(2, program)
    assert others == ["saved", "saved", "saved", "refused", "saved", "saved", "saved"]
    assert one == ["saved", "saved", "refused", "refused", "saved", "saved", "saved"]
    assert [one.step for one in open_store(tmp_path / "run").generations()] == [1, 2, 5, 6, 7]


_FORKS = """
import os, sys, threading, numpy as np, mpickpt
free = threading.Event()
mpickpt.failpoints.hook = lambda name: free.wait(30) and None if name == "save.heard" else None
with mpickpt.Checkpointer(sys.argv[1], async_=True) as ckpt:
    made = ckpt.save({"w": np.ones(4)}, step=1)
    child = os.fork()
    if child == 0:
        sys.exit(7)  # leaves the block, and runs what is to be done at the exit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    free.set()
    made.wait(20)
    assert ckpt.save({"w": np.ones(4)}, step=2).wait(20)
"""


def test_a_forked_process_leaves_although_a_save_is_in_flight(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKS, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [one.step for one in open_store(tmp_path / "run").generations()] == [1, 2]
