"""Daemon threads, shared work, bounded buffers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from mpickpt.store.threads import Buffers, Pool, finished, share


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


def test_threads_that_hang_are_left_to_themselves(pool: Pool) -> None:
    hold = threading.Event()
    hung = [pool.submit(hold.wait, 20) for _ in range(3)]
    waiting = pool.submit(divmod, 7, 2)
    while not all(future.running() for future in hung):
        pass
    assert not finished(waiting, 0.05), "there are three threads"
    pool.renew()
    assert waiting.result(10) == (3, 1)
    assert pool.submit(divmod, 9, 2).result(10) == (4, 1)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("test")]
    hold.set()
    assert all(future.result(10) for future in hung)
    limit = time.monotonic() + 10
    while sum(thread.is_alive() for thread in threads) > 3 and time.monotonic() < limit:
        pass
    assert sum(thread.is_alive() for thread in threads) <= 3, "a thread that comes back ends"
    share(pool, lambda item: None, range(50))


def test_close_waits_for_all_threads_together_only_so_long() -> None:
    hold = threading.Event()
    pool = Pool(4, "slow")
    for _ in range(4):
        pool.submit(hold.wait, 20)
    begun = time.monotonic()
    pool.close(0.5)
    assert time.monotonic() - begun < 1.5  # one after the other: 2.0
    hold.set()


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
