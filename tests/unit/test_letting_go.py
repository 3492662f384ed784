"""What a Checkpointer lets go of: the private copies of a resume, and its threads."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np

from mpickpt import Checkpointer

SIZE = 8 << 20


def workers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mpickpt-")]


def test_a_resume_keeps_no_copy_of_what_it_filled(tmp_path: Path) -> None:
    array = np.ones(SIZE, np.uint8)
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save({"w": array}, step=1)
    with Checkpointer(tmp_path / "run") as ckpt:
        array[:] = 0
        tracemalloc.start()
        try:
            run = ckpt.resume({"w": array})
            held, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert run.value("w") is array
        assert array.all()
    assert held < SIZE // 2
    assert SIZE < most < SIZE + (6 << 20)  # one copy while it resumes, and a huge page to align it


def test_a_dropped_checkpointer_leaves_no_thread(tmp_path: Path) -> None:
    before = len(workers())
    ckpt = Checkpointer(tmp_path / "run")
    ckpt.save({"w": np.arange(3)}, step=1)
    assert len(workers()) > before
    del ckpt
    gc.collect()
    end = time.monotonic() + 10
    while len(workers()) > before and time.monotonic() < end:
        time.sleep(0.01)
    assert len(workers()) == before
