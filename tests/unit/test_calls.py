"""What a Checkpointer refuses before a call begins, or before it is made at all."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scene import patched

import mpickpt
from mpickpt.errors import EpochError, StateError, StoreError


def test_a_call_while_another_is_under_way_is_refused(tmp_path: Path) -> None:
    within, go_on = threading.Event(), threading.Event()

    class Slow:
        def state_dict(self) -> dict[str, Any]:
            within.set()
            assert go_on.wait(20)
            return {"a": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    with mpickpt.Checkpointer(tmp_path / "run", alone=True) as ckpt:
        ckpt.resume({"w": np.zeros(3)})
        first = threading.Thread(target=lambda: ckpt.save({"slow": Slow()}, step=1))
        first.start()
        try:
            assert within.wait(20)
            for call in (lambda: ckpt.save({"w": np.ones(3)}, step=2), ckpt.generations, lambda: ckpt.due(2)):
                with pytest.raises(StateError, match="while another call of this Checkpointer was under way"):
                    call()
        finally:
            go_on.set()
            first.join()
        ckpt.save({"w": np.ones(3)}, step=2)
        assert [one.step for one in ckpt.generations()] == [1, 2]


def test_a_save_from_within_a_save_is_refused(tmp_path: Path) -> None:
    class Saves:
        def state_dict(self) -> dict[str, Any]:
            ckpt.save({"w": np.ones(3)}, step=7)
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    with mpickpt.Checkpointer(tmp_path / "run", alone=True) as ckpt:
        with pytest.raises(StateError) as caught:
            ckpt.save({"s": Saves()}, step=1)
        assert "while another call" in f"{caught.value}{caught.value.__cause__}"
        assert ckpt.generations() == []


@pytest.mark.parametrize("background", [False, True])
def test_where_the_system_gives_no_thread_calls_are_refused_and_work_again_once_it_does(
    tmp_path: Path, background: bool
) -> None:
    state = {"w": np.ones(3)}

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with mpickpt.Checkpointer(tmp_path / "run", alone=True, deadline=5, async_=background) as ckpt:
        for _ in range(10):
            with patched(threading.Thread, "start", refuse), pytest.raises(StoreError, match="no thread") as caught:
                ckpt.resume(state)
            assert caught.value.errno == errno.EAGAIN
        ckpt.resume(state)
        ckpt.save(state, step=1).wait()
        for _ in range(3 * background):  # those that do the work are there by now; the one of the save is not
            with patched(threading.Thread, "start", refuse), pytest.raises(StoreError, match="gives no thread"):
                ckpt.save(state, step=2)
        ckpt.save(state, step=2).wait()
        assert [one.step for one in ckpt.generations()] == [1, 2]


@pytest.mark.parametrize("signals", [15, None, "SIGTERM", [0], [9], [True]])
def test_what_is_no_list_of_signals_is_refused(tmp_path: Path, signals: Any) -> None:
    with pytest.raises(StateError, match="signal"):
        mpickpt.Checkpointer(tmp_path / "run", alone=True, signals=signals)


def test_a_communicator_that_was_freed_is_refused(tmp_path: Path) -> None:
    class Freed:
        Create_dist_graph_adjacent = None

        def Get_rank(self) -> int:
            raise RuntimeError("MPI_ERR_COMM: invalid communicator")

        Get_size = Get_rank

    with pytest.raises(StateError, match="cannot be used: MPI_ERR_COMM"):
        mpickpt.Checkpointer(tmp_path / "run", Freed())
    assert not (tmp_path / "run").exists()


def test_a_job_whose_store_was_replaced_saves_no_more(tmp_path: Path) -> None:
    state, path = {"w": np.ones(3)}, tmp_path / "run"
    with mpickpt.Checkpointer(path, alone=True, keep=2, events=False) as old:
        old.resume(state)
        old.save(state, step=1)
        shutil.rmtree(path)
        with mpickpt.Checkpointer(path, alone=True, keep=2) as new:  # it takes the same epoch
            new.resume(state)
            for step in (1, 2):
                new.save(state, step=step)
        for step in (9, 10, 11):
            with pytest.raises(EpochError, match="claim of this job"):
                old.save(state, step=step)
    assert [one.step for one in mpickpt.open_store(path).generations()] == [1, 2]
    mpickpt.open_store(path).verify_all().raise_for_damage()
