"""Daemon threads, shared work, bounded buffers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mpickpt.store.threads import Buffers, Pool, share
from mpickpt.store.writer import batches


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(3, "test") as pool:
        yield pool


def test_share_runs_all_and_raises_the_first_failure_in_order(pool: Pool) -> None:
    done: list[int] = []
    share(pool, done.append, range(100))
    assert sorted(done) == list(range(100))
    barrier = threading.Barrier(2, timeout=10)

    def fail(item: int) -> None:
        if item < 2:
            barrier.wait()
            raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        share(pool, fail, range(2))
    begun: list[int] = []

    def refuse_five(item: int) -> None:
        begun.append(item)
        if item == 5:
            raise ValueError(item)

    with pytest.raises(ValueError, match="5"):
        share(None, refuse_five, range(9))
    assert begun == list(range(6))


def test_share_ends_though_no_thread_of_the_pool_is_free() -> None:
    with Pool(2, "busy") as pool:
        hold = threading.Event()
        busy = [pool.submit(hold.wait, 10) for _ in range(2)]
        done: list[int] = []
        share(pool, done.append, range(10))
        assert done == list(range(10))
        hold.set()
        assert all(future.result(10) for future in busy)


def test_a_pool_passes_on_failures_and_cancels_what_has_not_begun() -> None:
    pool = Pool(1, "one")
    assert pool.submit(divmod, 7, 2).result(10) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 7, 0).result(10)
    hold = threading.Event()
    running, waiting = pool.submit(hold.wait, 10), pool.submit(divmod, 7, 2)
    while not running.running():
        pass
    closer = threading.Thread(target=pool.close)
    closer.start()
    while not waiting.cancelled():
        pass
    hold.set()
    closer.join(10)
    assert running.result(10)
    assert pool.submit(divmod, 7, 2).cancelled()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("one"))


def test_buffers_are_bounded() -> None:
    buffers = Buffers(16 << 20)
    taken = [buffers.take() for _ in range(4)]
    got: list[memoryview] = []
    thread = threading.Thread(target=lambda: got.append(buffers.take()))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive(), "more than 64 MiB were lent"
    buffers.give(taken.pop())
    thread.join(10)
    assert len(got) == 1
    assert Buffers(128 << 20).take().nbytes == 128 << 20


def test_small_chunks_go_to_a_thread_many_at_a_time() -> None:
    assert batches(3, 4 << 20) == [range(1), range(1, 2), range(2, 3)]
    assert len(batches(1 << 16, 64)) == 1
    assert batches(0, 64) == []
