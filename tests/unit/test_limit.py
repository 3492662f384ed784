"""When the job will be ended: told by the environment, or by squeue, which here is a script of the test's own."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import mpickpt
from mpickpt.cluster import limit, schedule
from mpickpt.cluster.limit import Limit, ask, left
from mpickpt.cluster.schedule import Schedule, When
from mpickpt.store.threads import Pool, finished

Squeue = Callable[[str], None]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Squeue:
    """Put a squeue on the PATH that runs a line of shell, and keeps its arguments in a file `asked`."""
    monkeypatch.delenv(schedule.END_TIME, raising=False)
    monkeypatch.delenv(schedule.SLURM_END_TIME, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def put(line: str) -> None:
        path = tmp_path / "bin" / "squeue"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$@ $SQUEUE_FORMAT" >> {tmp_path}/asked\n{line}\n')
        path.chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00", 0.0), ("4:59", 299.0), ("59:59", 3599.0), ("1:00:00", 3600.0), ("23:59:59", 86399.0),
        ("1-00:00:00", 86400.0), ("365-00:00:01", 365 * 86400.0 + 1), ("UNLIMITED", math.inf), ("INVALID", None),
        ("NOT_SET", None), ("", None), ("-0:03", None), ("5", None), ("1-5:00", 86400.0 + 300), ("soon", None),
    ],
)  # fmt: skip
def test_the_time_left_as_squeue_writes_it(text: str, seconds: float | None) -> None:
    assert left(text) == seconds


def test_squeue_is_asked_and_what_the_user_adds_to_its_options_is_left_out(
    squeue: Squeue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    squeue("echo '16 5:00'; echo '17 1:00:00'; echo '18 6:00'")  # its array's other tasks are told of as well
    found = ask("17")
    assert found is not None
    assert time.time() + 3590 < found <= time.time() + 3600
    assert (tmp_path / "asked").read_text() == "--noheader --jobs 17 --format %A %L \n"
    squeue("echo 17 UNLIMITED")
    assert ask("17") is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("echo 17 INVALID", "INVALID"),
        ("echo 18 5:00", "nothing of it, with exit code 0"),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "Invalid job id"),
        ("exit 3", "nothing of it, with exit code 3"),
        ("exec sleep 30", "timed out"),
        (None, "No such file"),
    ],
)
def test_an_answer_that_is_none_is_logged_with_what_can_be_done(
    line: str | None, said: str, squeue: Squeue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(limit, "PATIENCE", 0.3 if line == "exec sleep 30" else 10.0)
    if line is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        squeue(line)
    with caplog.at_level(logging.WARNING, "mpickpt"):
        assert ask("17") is None
    (record,) = caplog.records
    assert "when Slurm will end job 17 is not known" in record.message
    assert said in record.message
    assert "MPICKPT_END_TIME" in record.message


def test_it_is_asked_once_and_nobody_waits(squeue: Squeue, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    squeue(f"cat {go}; echo 17 5:00")
    pool = Pool(1, "limit")
    asked = Limit("17", pool)
    assert asked.end_time() is None
    asked.begin()
    asked.begin()
    assert asked.end_time() is None
    go.write_text("")
    assert asked._answer is not None
    assert finished(asked._answer, 20)
    found = asked.end_time()
    assert found is not None
    assert abs(found - time.time() - 300) < 20
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    assert Limit(None, pool).end_time() is None
    pool.close(1)


def test_what_is_told_goes_before_what_is_asked(squeue: Squeue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert When.of(None, None, None, None) == When(slurm="17")
    monkeypatch.setenv(schedule.SLURM_END_TIME, "4000000000")
    assert When.of(None, None, None, None) == When(end_time=4e9)
    for nothing in ("0", "4000000000000", "9" * 5000, "\u0663", "soon"):
        monkeypatch.setenv(schedule.SLURM_END_TIME, nothing)
        assert When.of(None, None, None, None) == When(slurm="17")
    monkeypatch.setenv(schedule.SLURM_END_TIME, "4000000000")
    monkeypatch.setenv(schedule.END_TIME, "4100000000")
    assert When.of(None, None, None, None) == When(end_time=4.1e9)
    assert When.of(None, None, None, 4200000000) == When(end_time=4.2e9)
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.delenv(schedule.END_TIME)
    monkeypatch.delenv(schedule.SLURM_END_TIME)
    assert When.of(None, None, None, None) == When()


@pytest.mark.parametrize("text", ["2096-01-31T18:00:00+01:00", "2096-01-31T17:00:00Z", "3978867600", "3978867600.0"])
def test_an_end_time_of_the_environment_in_either_form(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(schedule.END_TIME, text)
    assert When.of(None, None, None, None).end_time == 3978867600.0


def test_an_end_time_that_is_past_does_not_count_and_slurm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv(schedule.END_TIME, raising=False)
    monkeypatch.delenv(schedule.SLURM_END_TIME, raising=False)
    found = When.of(None, None, None, time.time() - 1)
    assert (found.end_time, found.slurm, (found.past or "")[:9]) == (None, "17", "end_time ")
    monkeypatch.setenv(schedule.SLURM_END_TIME, "1700000000")
    assert (When.of(None, None, None, None).past or "").startswith("SLURM_JOB_END_TIME 2023-11-1")
    monkeypatch.setenv(schedule.END_TIME, "1700000000")
    found = When.of(None, None, None, None)
    assert (found.end_time, found.slurm) == (None, "17")
    assert (found.past or "").startswith("MPICKPT_END_TIME 2023-11-1")


def test_a_run_with_an_end_time_that_is_past_trains_on_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv(schedule.END_TIME, str(time.time() - 3600))
    with caplog.at_level(logging.WARNING, "mpickpt"), mpickpt.Checkpointer(tmp_path / "run", every=2) as ckpt:
        ckpt.resume({"w": 1})
        assert [ckpt.due(step) for step in range(1, 5)] == [False, True, False, True]
        assert not ckpt.stopping
    (record,) = caplog.records
    assert record.message.startswith("an end time that is past already does not count: MPICKPT_END_TIME 2")


def test_an_end_time_without_a_zone_is_local_as_slurm_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(schedule.END_TIME, "2096-01-31T18:00:00")
    assert When.of(None, None, None, None).end_time == datetime(2096, 1, 31, 18).timestamp()


def test_the_save_that_was_resumed_counts_until_one_is_measured() -> None:
    written = {"start": "2026-01-01T00:00:00.000+00:00", "end": "2026-01-01T00:00:20.500+00:00"}
    assert schedule.seconds_of(written) == 20.5
    for odd in ({}, {"start": 5, "end": None}, {**written, "start": "noon"}, {**written, "start": "2026-01-01"}):
        assert schedule.seconds_of(odd) is None
    found = Schedule(When(end_time=time.time() + 5.0))
    assert not found.too_late()
    found.began(20.5)
    assert found.too_late()
    found.saved(0.1)
    assert (found.cost, found.too_late()) == (0.1, False)


def test_a_run_ends_in_time_by_what_squeue_says_and_the_next_knows_what_its_save_took(
    squeue: Squeue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    squeue("echo 17 0:02")
    end = time.monotonic() + 20
    with mpickpt.Checkpointer(tmp_path / "run") as ckpt, caplog.at_level(logging.INFO, "mpickpt"):
        step = ckpt.resume({"x": np.zeros(3)}).step
        assert (ckpt.stopping, ckpt.stopped_by, ckpt.exit_code) == (False, None, 0)
        while not ckpt.stopping:
            assert time.monotonic() < end, "the answer never came"
            step += 1
            if ckpt.due(step):
                ckpt.save({"x": np.ones(3)}, step=step)
            time.sleep(0.01)
    assert (ckpt.stopped_by, ckpt.exit_code) == ("end time", 75)
    assert mpickpt.open_store(tmp_path / "run").generations()[-1].step == step
    assert [line for line in caplog.messages if line.startswith("stopping: end time: ")]
    with mpickpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.resume({"x": np.zeros(3)})
        assert ckpt._rounds.schedule.cost is not None
