"""When to save and when time is up, by a scripted clock; what may be asked for; signals."""

from __future__ import annotations

import math
import os
import signal
import threading
import types
from datetime import datetime, timezone
from typing import Any

import pytest

import mpickpt
from mpickpt.cluster import schedule, told
from mpickpt.cluster.schedule import Schedule, When, daly, young
from mpickpt.errors import StateError


class Clock:
    def __init__(self) -> None:
        self.now, self.wall = 100.0, 1e9

    def go(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    shim = types.SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.wall)
    monkeypatch.setattr(schedule, "time", shim)
    return clock


def test_young_and_daly_by_hand() -> None:
    # A save of 50 s, a failure a day: sqrt(2 * 50 * 86400) = sqrt(8640000) = 2939.39 s of work.
    assert young(50, 86400) == pytest.approx(2939.388, abs=1e-3)
    # d / 2M = 2.89352e-4, its root 0.0170103: 2939.388 * (1 + 0.00567010 + 0.0000321502) - 50 = 2906.149.
    assert daly(50, 86400) == pytest.approx(2906.149, abs=1e-2)
    # Half an hour's save, an hour between failures: 3600 * (1 + 0.5 / 3 + 0.25 / 9) - 1800 = 2500.
    assert daly(1800, 3600) == pytest.approx(2500.0)
    assert daly(2 * 3600, 3600) == daly(1e9, 3600) == 3600


def test_daly_is_youngs_for_cheap_saves_and_loses_least() -> None:
    assert daly(1e-6, 1e6) == pytest.approx(young(1e-6, 1e6), rel=1e-3)

    def lost(work: float, cost: float, mtbf: float) -> float:  # Daly's expected time for one second of work
        return mtbf * math.expm1((work + cost) / mtbf) / work

    for cost in (1.0, 60.0, 600.0):
        best = daly(cost, 3600)
        assert lost(best, cost, 3600) <= 1.001 * min(lost(best * k / 100, cost, 3600) for k in range(50, 200))


def test_every_so_many_seconds_after_the_last_save(clock: Clock) -> None:
    found = Schedule(When(every_seconds=10.0))
    clock.go(50)
    found.began()
    clock.go(9.9)
    assert not found.save_is_due()
    clock.go(0.2)
    assert found.save_is_due()
    found.saved(3.0)
    clock.go(9.9)
    assert not found.save_is_due()


def test_the_interval_follows_what_saves_take(clock: Clock) -> None:
    found = Schedule(When(mtbf_seconds=86400.0))
    assert found.save_is_due(), "the first save is made at once, and measured"
    found.saved(40.0)
    found.saved(60.0)
    assert found.interval == daly(50.0, 86400.0)
    clock.go(2900)
    assert not found.save_is_due()
    clock.go(7)
    assert found.save_is_due()
    for _ in range(5):
        found.saved(2.0)
    assert found.interval == daly(2.0, 86400.0), "old saves are forgotten"
    both = Schedule(When(every_seconds=5.0, mtbf_seconds=86400.0))
    both.saved(1.0)
    assert both.interval == 5.0
    assert Schedule(When(every=3)).interval is None
    assert not Schedule(When(every=3)).save_is_due()


def test_time_is_up_while_a_save_still_ends_in_time(clock: Clock) -> None:
    found = Schedule(When(end_time=clock.wall + 100))
    found.saved(20.0)
    for _ in range(4):  # steps of 8 s
        clock.go(8)
        found.stepped()
    assert not found.time_is_up()  # 68 s are left; 2 + 1.25 * (20 + 8) = 37 are wanted
    clock.go(30)
    assert not found.time_is_up()
    clock.go(1)
    assert found.time_is_up()
    assert not found.too_late()
    clock.go(37 - 25)
    assert found.too_late()


def test_a_save_is_no_step(clock: Clock) -> None:
    found = Schedule(When(end_time=clock.wall + 100))
    found.stepped()
    clock.go(50)
    found.saved(0.5)
    clock.go(1)
    found.stepped()
    clock.go(10)
    assert not found.time_is_up()  # 39 s left, and no step took 50
    assert Schedule(When()).left == math.inf


def test_what_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(schedule.END_TIME, raising=False)
    assert When.of(10, 2, 3.5, None) == When(10, 2.0, 3.5, None)
    at = datetime(2096, 1, 1, tzinfo=timezone.utc)
    assert When.of(None, None, None, at).end_time == at.timestamp()
    monkeypatch.setenv(schedule.END_TIME, "4000000000")
    assert When.of(None, None, None, None).end_time == 4e9
    assert When.of(None, None, None, 5e9).end_time == 5e9, "what is given goes before the environment"
    for wrong in ("tomorrow", "3600", "4000000000000", "9" * 20, "-1", "nan", "1e400"):
        monkeypatch.setenv(schedule.END_TIME, wrong)
        with pytest.raises(StateError, match="MPICKPT_END_TIME is out of range"):
            When.of(None, None, None, None)
    assert When.of(10, None, 5, 4e9).alike() == {"every": "10", "mtbf_seconds": "5.0"}


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0}, {"every": 2.0}, {"every": True}, {"every_seconds": 0}, {"every_seconds": "5"},
        {"every_seconds": math.nan}, {"mtbf_seconds": -1.0}, {"mtbf_seconds": math.inf}, {"end_time": "noon"},
        {"end_time": datetime(2096, 1, 1)}, {"end_time": 3600}, {"signals": ["SIGUSR1"]}, {"signals": [signal.SIGKILL]},
        {"signals": [0]}, {"end_time": 4e12},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_out_of_range_is_refused(options: dict[str, Any], tmp_path: Any) -> None:
    with pytest.raises(StateError) as caught:
        mpickpt.Checkpointer(tmp_path / "run", alone=True, **options)
    assert caught.value.expected
    assert next(iter(options)) in caught.value.message or "signal" in caught.value.message
    assert not (tmp_path / "run").exists()


def test_signals_are_caught_until_released_and_only_noted() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    found = told.Told([signal.SIGUSR2])
    assert signal.getsignal(signal.SIGUSR2) == before
    found.catch()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert found.by == signal.SIGUSR2
    found.stop()
    assert told.name_of(found.by) == "SIGUSR2", "the first reason stays"
    found.release()
    found.release()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    signal.signal(signal.SIGUSR2, before)


def _own(number: int, frame: types.FrameType | None) -> None:
    """Stand for a handler of the caller's."""


@pytest.mark.parametrize(
    ("before", "by", "mine", "after"),
    [
        (signal.SIG_DFL, 0, 0, signal.SIG_DFL),
        (signal.SIG_DFL, signal.SIGTERM, 0, signal.SIG_IGN),  # another owner got it
        (signal.SIG_DFL, 0, signal.SIGUSR2, signal.SIG_IGN),  # it came in the last step: no `due` has said it
        (signal.SIG_DFL, told.BY_TIME, 0, signal.SIG_IGN),
        (signal.SIG_DFL, told.BY_FILE, 0, signal.SIG_IGN),
        (signal.SIG_DFL, told.BY_CALL, 0, signal.SIG_DFL),  # the program may go on
        (_own, signal.SIGUSR2, signal.SIGUSR2, _own),
    ],
)
def test_what_would_kill_a_process_on_its_way_out_is_ignored(before: Any, by: int, mine: int, after: Any) -> None:
    outside = signal.signal(signal.SIGUSR2, before)
    try:
        found = told.Told([signal.SIGUSR2])
        found.catch()
        if mine:
            os.kill(os.getpid(), mine)
        found.release(by)
        assert signal.getsignal(signal.SIGUSR2) == after
    finally:
        signal.signal(signal.SIGUSR2, outside)


def test_a_handler_that_somebody_set_since_stays() -> None:
    found = told.Told([signal.SIGUSR2])
    before = signal.getsignal(signal.SIGUSR2)
    try:
        found.catch()
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        found.release()
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_only_the_main_thread_catches_signals() -> None:
    raised: list[BaseException] = []

    def make() -> None:
        try:
            told.Told([signal.SIGUSR2])
        except StateError as error:
            raised.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
    assert told.Told().by == 0


def test_what_told_an_owner_is_named() -> None:
    assert told.name_of(told.BY_CALL) == "stop()"
    assert told.name_of(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"
