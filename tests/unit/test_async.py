"""Saves in the background, of one owner: what was staged is what is saved, however it ends; nothing is left behind."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mpickpt import Checkpointer, failpoints, open_store
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CheckpointError, DeadlineError, ExistsError, MomentError, StateError, StoreError


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Hold saves in the background before they publish, until the event is set."""
    free = threading.Event()

    def hook(name: str) -> None:
        if name == "save.heard":
            assert free.wait(30)

    failpoints.hook = hook
    yield free
    free.set()
    failpoints.hook = None


@pytest.fixture
def failing() -> Iterator[list[str]]:
    """Have saves fail at the failpoints in the list."""
    names: list[str] = []

    def hook(name: str) -> None:
        if name in names:
            raise OSError(5, "injected")

    failpoints.hook = hook
    yield names
    failpoints.hook = None


def saved(run: Path, step: int) -> np.ndarray:
    array: np.ndarray = open_store(run).read(step=step)["w"]
    return array


@pytest.mark.parametrize("most", [8 << 20, pytest.param(256 << 20, marks=pytest.mark.long)])
def test_what_changes_after_the_return_does_not_reach_the_file(tmp_path: Path, most: int) -> None:
    """No torn moment: 200 times every array is overwritten with noise the instant the call returns."""
    rng = np.random.default_rng(5)
    sizes = np.geomspace(1, most, 200).astype(int)
    rng.shuffle(sizes)
    noise = rng.integers(0, 256, most, np.uint8)
    memory = np.zeros(most, np.uint8)
    with Checkpointer(tmp_path / "run", async_=True, keep=1) as ckpt:
        for step, size in enumerate(sizes.tolist()):
            # A few arrays, one of them not contiguous, as parts of one memory that is written over at one stroke.
            whole = memory[:size]
            cuts = sorted({0, size // 3, size // 2, size})
            parts = {str(lo): whole[lo:hi] for lo, hi in itertools.pairwise(cuts)} | {"odd": whole[1::3]}
            whole[:] = rng.bytes(1)[0]
            whole[:: max(1, size // 1000)] = step % 251
            kept = whole.copy()
            made = ckpt.save(parts, step=step)
            whole[:] = noise[:size]
            assert made.staged
            made.wait(60)
            found = open_store(tmp_path / "run").read(step=step)
            assert b"".join(found[str(lo)].tobytes() for lo in cuts[:-1]) == kept.tobytes()
            np.testing.assert_array_equal(found["odd"], kept[1::3])


def test_a_save_right_behind_another_does_not_reach_the_first(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run", async_=True, keep=None) as ckpt:
        for step in range(20):
            ckpt.save({"w": np.full(1 << 20, step, np.uint8)}, step=step)
    for step in range(20):
        assert (saved(tmp_path / "run", step) == step).all()


def test_a_save_in_flight_is_not_durable_and_the_next_call_waits_for_it(tmp_path: Path, held: threading.Event) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        made = ckpt.save({"w": np.arange(3)}, step=1, async_=True)
        assert not made.durable
        assert "in flight" in repr(made)
        with pytest.raises(DeadlineError, match="still in flight"):
            made.wait(0.05)
        threading.Timer(0.2, held.set).start()
        latest = ckpt.latest()
        assert latest is not None
        assert made.durable
        assert latest.root == made.root == made.wait()


@pytest.mark.parametrize("place", ["save.agreed", "writer.chunk", "writer.synced", "commit.synced", "commit.placed"])
def test_a_failure_is_raised_by_the_next_call_with_the_step(tmp_path: Path, failing: list[str], place: str) -> None:
    with Checkpointer(tmp_path / "run", async_=True) as ckpt:
        ckpt.save({"w": np.arange(3)}, step=1).wait()
        failing.append(place)
        made = ckpt.save({"w": np.arange(3) + 1}, step=2)
        with pytest.raises((CheckpointError, OSError)):
            made.wait(30)
        failing.clear()
        assert not made.durable
        with pytest.raises((CheckpointError, OSError)) as caught:
            ckpt.save({"w": np.arange(3) + 2}, step=3)
        if isinstance(caught.value, CheckpointError):
            assert "the save of step 2 in the background failed" in str(caught.value)
        step = 4
        ckpt.save({"w": np.arange(3) + step}, step=step).wait()
        np.testing.assert_array_equal(saved(tmp_path / "run", step), np.arange(3) + step)


def test_what_is_wrong_with_a_state_is_told_by_the_next_call(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path / "run", async_=True)
    ckpt.save({"w": np.array([object()])}, step=1)
    with pytest.raises(StateError, match="step 1"):
        ckpt.close()


def test_moments_are_judged_as_ever(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run", async_=True) as ckpt:
        one = ckpt.save({"w": 1}, step=5, cursor=50)
        assert ckpt.save({"w": 1}, step=5, cursor=50).wait() == one.wait()
        ckpt.save({"w": 1}, step=4, cursor=50)
        with pytest.raises(MomentError):
            ckpt.save({"w": 1}, step=6, cursor=60)
        ckpt.save({"w": 1}, step=5, cursor=51)
        with pytest.raises(ExistsError):
            ckpt.latest()


def test_leaving_the_block_waits_until_the_last_save_is_durable(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run", async_=True) as ckpt:
        made = ckpt.save({"w": np.ones(1 << 22)}, step=1)
    assert made.durable


def test_an_exception_in_the_loop_does_not_lose_the_save_in_flight(tmp_path: Path) -> None:
    made = []
    with pytest.raises(ZeroDivisionError), Checkpointer(tmp_path / "run", async_=True) as ckpt:  # noqa: PT012
        made.append(ckpt.save({"w": np.ones(1 << 22)}, step=1))
        raise ZeroDivisionError
    assert made[0].durable


def test_the_exception_of_the_loop_comes_before_that_of_the_save(tmp_path: Path, failing: list[str]) -> None:
    failing.append("writer.synced")
    with pytest.raises(ZeroDivisionError), Checkpointer(tmp_path / "run", async_=True) as ckpt:  # noqa: PT012
        ckpt.save({"w": np.ones(3)}, step=1)
        raise ZeroDivisionError


def test_the_interpreters_exit_waits_for_a_save_in_flight(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np, mpickpt\n"
        "ckpt = mpickpt.Checkpointer(sys.argv[1], async_=True)\n"
        "ckpt.save({'w': np.ones(1 << 23)}, step=1)\n"
    )
    for end in ("", "del ckpt\n", "raise SystemExit(3)\n"):
        run = tmp_path / f"run{len(end)}"
        subprocess.run([sys.executable, "-c", program + end, str(run)], timeout=60, check=False)
        assert saved(run, 1).all()


@pytest.mark.parametrize("saves", [150, pytest.param(1000, marks=pytest.mark.long)])
def test_memory_descriptors_and_threads_stay_flat(tmp_path: Path, saves: int) -> None:
    def now() -> tuple[int, int, int]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), threading.active_count()

    array = np.ones(1 << 20)
    with Checkpointer(tmp_path / "run", async_=True, keep=1) as ckpt:
        for step in range(saves):
            array[:] = step
            ckpt.save({"w": array, "n": step}, step=step)
            if step == 50:
                ckpt.latest()
                before = now()
        ckpt.latest()
        end = time.monotonic() + 5
        while now()[1:] > before[1:] and time.monotonic() < end:
            time.sleep(0.01)
        after = now()
    # Threads of a pool start as they are needed, and no more than it has; a leak would be one a save.
    assert max(after[1] - before[1], after[2] - before[2]) < 10
    assert after[0] < before[0] + (4 << 20)


def test_no_memory_for_a_copy_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(size: int) -> None:
        raise MemoryError

    monkeypatch.setattr("mpickpt.background.aligned", none)
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save({"w": np.ones(3)}, step=1, async_=True)
        with pytest.raises(StoreError, match="memory"):
            ckpt.save({"w": np.ones(3)}, step=2)
        ckpt.save({"w": np.ones(3)}, step=3)


def test_where_mpi_has_too_few_threads_saves_are_made_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (wiring,) = Wiring.local(1)
    with Checkpointer(tmp_path / "run", dataclasses.replace(wiring, background=False), async_=True) as ckpt:
        for step in range(2):
            assert ckpt.save({"w": np.arange(3)}, step=step).durable
    assert [record.message for record in caplog.records if "MPI_THREAD_MULTIPLE" in record.message] == [
        "MPI offers less than MPI_THREAD_MULTIPLE: async_ saves are made at once, not in the background"
    ]


def test_what_is_larger_than_staging_bytes_is_saved_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The bound holds, nothing is lost but time, and the caller is told once; what fits is staged as ever."""
    most = 4 << 20
    with Checkpointer(tmp_path / "run", async_=True, staging_bytes=most, keep=None) as ckpt:
        array = np.arange(most // 8 + 1)
        for step in range(2):
            made = ckpt.save({"w": array + step}, step=step)
            assert made.durable
        warned = [record.message for record in caplog.records if "staging_bytes" in record.message]
        assert len(warned) == 1
        assert str(most) in warned[0]
        assert str(-(-array.nbytes // 64) * 64) in warned[0]
        small = np.ones(most // 8)
        made = ckpt.save({"w": small}, step=2)
        small[:] = 0
        made.wait(30)
    np.testing.assert_array_equal(saved(tmp_path / "run", 1), array + 1)
    assert (saved(tmp_path / "run", 2) == 1).all()


@pytest.mark.parametrize("most", [0, (4 << 20) - 1, 1e9, "64 MiB", True])
def test_staging_bytes_is_a_whole_number_of_a_chunk_or_more(tmp_path: Path, most: object) -> None:
    with pytest.raises(StateError, match="staging_bytes"):
        Checkpointer(tmp_path / "run", staging_bytes=most)  # type: ignore[arg-type]
