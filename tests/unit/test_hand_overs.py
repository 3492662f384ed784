"""How often a save in the background needs the interpreter lock: as often as it begins and ends work in other threads.

Counted, not timed: what each turn costs is for the caller's code to say, tests/bench/async_save.py measures it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpickpt import Checkpointer, background, open_store
from mpickpt.cluster.publish import Publisher
from mpickpt.native import _native
from mpickpt.store.steps import Steps
from mpickpt.store.threads import Pool


def test_one_owners_save_is_two_lists_and_a_word_with_owner_0s_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards with the syncs behind them, and the root: what is computed between them no other thread does."""
    seen: list[str] = []
    begin, submit, save = Steps.begin, Pool.submit, Publisher.save

    def begun(self: Steps) -> None:
        if self._rows[0][0] != _native.APPEND:  # events, which nobody waits for
            seen.append("list")
        begin(self)

    def submitted(self: Pool, fn: Any, *args: Any) -> Any:
        if threading.current_thread().name == "mpickpt-save":
            seen.append(getattr(fn, "__name__", "job"))
        return submit(self, fn, *args)

    def saved(self: Publisher, *args: Any) -> Any:
        found = save(self, *args)
        seen.append("published")
        return found

    monkeypatch.setattr(Steps, "begin", begun)
    monkeypatch.setattr(Pool, "submit", submitted)

    class Told(Future[str]):
        def set_result(self, result: str) -> None:
            seen.append("done")
            super().set_result(result)

    monkeypatch.setattr(Publisher, "save", saved)
    monkeypatch.setattr(background, "Future", Told)
    arrays = {f"layer{i}": np.full(1 << 16, i, np.float32) for i in range(16)}
    with Checkpointer(tmp_path / "run", async_=True) as ckpt:
        ckpt.resume(arrays)
        for step in range(3):
            ckpt.latest()
            seen.clear()
            ckpt.save(arrays, step=step).wait(60)
            until = seen[: seen.index("done")]
            if step == 0:
                continue  # it tells what is declared, and what follows does not
            assert until == ["<lambda>", "list", "list", "published"], "owner 0 decides, and then files are written"
    np.testing.assert_array_equal(open_store(tmp_path / "run").read(step=2)["layer3"], arrays["layer3"])


def test_threads_of_a_pool_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread's start takes two turns of the lock: none begins while another has nothing to do."""
    with Pool(8, "test") as pool:
        for _ in range(20):
            pool.submit(int).result(30)
            while pool._resting != set(pool._threads):  # it is on its way back to the queue
                pass
        assert len(pool._threads) == 1
        free = threading.Event()
        hung = [pool.submit(free.wait, 30) for _ in range(8)]
        while pool._resting:  # all of them have begun
            pass
        pool.renew()
        assert pool.submit(int).result(30) == 0, "those that are at work are left to themselves"
        free.set()
        assert all(one.result(30) for one in hung)
