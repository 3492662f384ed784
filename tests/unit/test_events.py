"""Events: what their time went into adds up, the file never fails a save, and `show --timings` draws it."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mpickpt import Checkpointer, bar, failpoints
from mpickpt.cli import main as cli
from mpickpt.cli import timings as drawing
from mpickpt.cluster.timings import SIZE, Timings
from mpickpt.errors import CheckpointError, NotFoundError, StateError
from mpickpt.state import values
from mpickpt.store.events import EventFile, read_events
from mpickpt.store.progress import Progress, Spent

PHASES = {"copy", "digest", "write", "sync", "planning", "waiting"}


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def settled(ckpt: Checkpointer) -> None:
    """Let all events so far be written."""
    ckpt._reporter.settle(30)


def call_any(*args: object) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


# ---------------------------------------------------------------------------- times


def test_each_moment_counts_once_and_work_goes_before_syncs() -> None:
    progress = Progress()
    at = [10.0]
    clock, time.monotonic = time.monotonic, lambda: at[0]
    try:
        with progress.work():
            at[0] += 1
            with progress.work(), progress.sync():  # two threads, and a sync beside them
                at[0] += 2
                progress.took(copy=1.0, digest=3.0)
            with progress.sync():
                at[0] += 1
        with progress.sync():
            at[0] += 5
            progress.watch[2:] = [0, 0, int(4e9)]  # 4 s of the extension's threads in writes
            inside = progress.spent()
        at[0] += 100
        spent = progress.spent()
    finally:
        time.monotonic = clock
    assert inside == spent
    # 4 s of work, divided as 1 : 3 : 4, and 5 s in which there were only syncs.
    assert spent == Spent(copy=0.5, digest=1.5, write=2.0, sync=5.0)
    assert spent.busy == 9.0


def test_times_of_subtrees_merge_and_travel() -> None:
    one = Timings.of(3, 100.0, 10, Spent(1, 2, 3, 4, 5))
    other = Timings.of(4, 90.0, 20, Spent(2, 2, 3, 4, 5))
    both = one.merged(other)
    assert both == other.merged(one) == Timings(4, 90.0, 30, Spent(2, 2, 3, 4, 5), Spent(3, 4, 6, 8, 10))
    body = both.pack(120.0)
    assert len(body) == SIZE
    # The parent's clock is another one: 30 s ago is 30 s ago.
    assert Timings.unpack(body, 1030.0) == Timings(4, 1000.0, 30, both.slowest, both.total)
    # Of two that were busy for the same time the lower role is named, whoever speaks first.
    tied = Timings.of(9, 100.0, 0, Spent(5, 4, 3, 2, 1))
    assert one.merged(tied).role == tied.merged(one).role == 3


def test_any_bytes_are_some_times() -> None:
    found = Timings.unpack(b"\xff" * SIZE, 5.0)
    assert len(found.merged(found).pack(5.0)) == SIZE
    told = found.ended(6.0, 2)
    assert all(np.isfinite(value) for value in told["fractions"].values())


def test_the_phases_sum_up_to_the_seconds() -> None:
    told = Timings(4, 90.0, 30, Spent(2, 2, 3, 4, 5), Spent(3, 4, 6, 8, 10)).ended(110.0, 2)
    assert told == {
        "bytes": 30,
        "seconds": 20.0,
        "throughput": 1.5,
        "slowest": 4,
        "phases": {"copy": 2, "digest": 2, "write": 3, "sync": 4, "planning": 5, "waiting": 4.0},
        "fractions": {"copy": 0.1, "digest": 0.1, "write": 0.15, "sync": 0.2, "planning": 0.25, "waiting": 0.2},
        "mean": {"copy": 1.5, "digest": 2.0, "write": 3.0, "sync": 4.0, "planning": 5.0},
    }


# ---------------------------------------------------------------------------- what is written


def state(fill: float) -> dict[str, Any]:
    return {"w": np.full(1 << 20, fill, np.float32), "n": 3}


def test_saves_and_resumes_are_told(tmp_path: Path) -> None:
    for step in (1, 2):
        with Checkpointer(tmp_path / "run") as ckpt:
            ckpt.resume(state(0))
            ckpt.save(state(step), step=step, cursor=10 * step, async_=step == 2)
    told = events(tmp_path / "run" / "events.jsonl")
    assert [(e["event"], e["step"], e["epoch"], e["owners"]) for e in told] == [
        ("resumed", 0, 1, 1),
        ("durable", 1, 1, 1),
        ("resumed", 1, 2, 1),
        ("staged", 2, 2, 1),
        ("durable", 2, 2, 1),
    ]
    assert [e.get("fresh") for e in told if e["event"] == "resumed"] == [True, False]
    assert [e["background"] for e in told if e["event"] == "durable"] == [False, True]
    value = len(values.encode(3))
    assert [e["bytes"] for e in told] == [0, 4194304 + value, 4194304, 4194304, 4194304 + value]
    for one in told:
        if one["event"] == "durable":
            assert set(one["phases"]) == set(one["fractions"]) == PHASES
            assert sum(one["phases"].values()) == pytest.approx(one["seconds"])
            assert sum(one["fractions"].values()) == pytest.approx(1)
            assert all(part >= 0 for part in one["phases"].values())
            assert all(one["phases"][name] > 0 for name in ("copy", "digest", "write", "sync", "planning"))
            assert one["throughput"] == pytest.approx(one["bytes"] / one["seconds"])
            assert one["root"].startswith("blake3:")
    staged, durable = told[3:]
    assert staged["seconds"] < durable["seconds"]
    assert durable["cursor"] == 20


def test_what_is_measured_is_what_took_the_time(tmp_path: Path) -> None:
    def slow(name: str) -> None:
        if name == "writer.synced":
            time.sleep(0.3)

    with Checkpointer(tmp_path / "run") as ckpt:
        failpoints.hook = slow
        ckpt.save(state(1), step=1)
    (durable,) = events(tmp_path / "run" / "events.jsonl")
    assert durable["phases"]["sync"] > 0.3
    assert durable["seconds"] > durable["phases"]["sync"]


def test_a_sha256_save_is_measured_too(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run", digest="sha256") as ckpt:
        ckpt.save(state(1), step=1)
    (durable,) = events(tmp_path / "run" / "events.jsonl")
    assert all(durable["phases"][name] > 0 for name in ("copy", "digest", "write", "sync"))


def test_a_failed_save_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "mpickpt"), Checkpointer(tmp_path / "run") as ckpt:
        ckpt.resume(state(0))
        with pytest.raises(CheckpointError):
            ckpt.save(state(np.nan), step=1, cursor=7)
        ckpt.save(state(np.nan), step=2, async_=True)
        with pytest.raises(CheckpointError):
            ckpt.latest()
    _, one, staged, two = events(tmp_path / "run" / "events.jsonl")
    assert (one["event"], one["step"], one["cursor"], one["epoch"]) == ("failed", 1, 7, 1)
    assert (one["error"], one["role"], one["seconds"] > 0) == ("NonFiniteError", 0, True)
    assert "not finite" in one["message"]
    assert (staged["event"], two["event"], two["step"]) == ("staged", "failed", 2)
    # Nobody sees a failure in the background before the next call: the log says it at once.
    assert [r.levelname for r in caplog.records if r.mpickpt["event"] == "failed"] == ["DEBUG", "ERROR"]


def test_lines_of_the_log_carry_their_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mpickpt"), Checkpointer(tmp_path / "run") as ckpt:
        ckpt.resume(state(0))
        made = ckpt.save(state(1), step=1)
    told = events(tmp_path / "run" / "events.jsonl")
    assert [record.mpickpt for record in caplog.records] == told  # type: ignore[attr-defined]
    assert re.fullmatch(
        rf"saved step 1: {made.root} \(4\.0 MiB in \S+ m?s, \S+ [GM]B/s; owner 0: .*write \d+ %.*\)",
        caplog.messages[1],
    )


def test_the_same_save_again_is_no_event(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        for _ in range(2):
            ckpt.save(state(1), step=1)
    assert len(events(tmp_path / "run" / "events.jsonl")) == 1


def test_events_go_where_they_are_asked_for(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run", events=tmp_path / "told") as ckpt:
        ckpt.save(state(1), step=1)
    with Checkpointer(tmp_path / "silent", events=False) as ckpt:
        ckpt.save(state(1), step=1)
    assert [e["event"] for e in events(tmp_path / "told")] == ["durable"]
    assert not list(tmp_path.glob("*/events.jsonl"))
    for bad in (7, "", "a\0b"):
        with pytest.raises(StateError, match="events is no path"):
            Checkpointer(tmp_path / "run", events=bad)  # type: ignore[arg-type]


def test_only_reading_and_a_refusal_write_nothing(tmp_path: Path) -> None:
    def seen() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}

    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(state(1), step=1)
    before = seen()
    for where in (None, tmp_path / "told"):
        with Checkpointer(tmp_path / "run", events=where) as ckpt:
            ckpt.resume(state(0), readonly=True)
            with pytest.raises(CheckpointError):
                ckpt.resume({"other": np.zeros(3)})
    assert seen() == before
    # A file of one's own hears of the refusal; a resume that is only for reading writes nothing anywhere.
    assert [(e["event"], e["error"]) for e in events(tmp_path / "told")] == [("failed", "SchemaError")]


def test_no_event_makes_a_store_of_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with Checkpointer(tmp_path / "run") as ckpt, pytest.raises(CheckpointError):
        ckpt.save(state(1), step=1)
    assert (tmp_path / "run").read_text() == "a file"
    (tmp_path / "other").mkdir()
    with Checkpointer(tmp_path / "other") as ckpt, pytest.raises(CheckpointError):
        ckpt.save({"w": np.array([object()])}, step=1)
    assert os.listdir(tmp_path / "other") == []


def test_nothing_else_minds_the_file(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(state(1), step=1)
    file = tmp_path / "run" / "events.jsonl"
    before = file.read_bytes()
    assert call_any("sweep", tmp_path / "run", "--orphans").stdout == "nothing to remove\n"
    assert "events" not in call_any("verify", tmp_path / "run", "--all").stdout
    assert file.read_bytes() == before
    file.write_bytes(b"\xff garbage")
    with Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.resume(state(0)).step == 1
    assert [e["event"] for e in read_events(str(file))] == ["resumed"]
    file.unlink()
    with Checkpointer(tmp_path / "run") as ckpt:
        assert ckpt.resume(state(0)).step == 1


def unwritable(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to(path.parent / "absent" / "file")
    else:
        path.symlink_to("/dev/full")


@pytest.mark.parametrize("kind", ["directory", "pipe", "dangling", "device"])
def test_a_file_that_cannot_be_written_is_said_once_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    unwritable(tmp_path / "told", kind)
    with caplog.at_level(logging.WARNING, "mpickpt"), Checkpointer(tmp_path / "run", events=tmp_path / "told") as ckpt:
        for step in (1, 2, 3):
            ckpt.save(state(step), step=step)
            settled(ckpt)
        assert [one.step for one in ckpt.generations()] == [1, 2, 3]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"events are not written to {tmp_path / 'told'}: ")


def test_a_file_system_that_hangs_slows_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, real = threading.Event(), os.open

    def opened(path: Any, *args: Any, **more: Any) -> int:
        if str(path).endswith("events.jsonl"):
            assert hangs.wait(60)
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", opened)
    with Checkpointer(tmp_path / "run", keep=None) as ckpt:
        for step in range(1, 9):
            ckpt.save(state(step), step=step)
        assert not hangs.is_set()
        hangs.set()
    assert [e["step"] for e in events(tmp_path / "run" / "events.jsonl")] == list(range(1, 9))


def test_lines_that_were_cut_stay_apart_and_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "told"
    path.write_bytes(
        b'{"event":"durable","step":1}\n[1]\n{"step":2}\nno json\n{"event":"durable","seconds":NaN}\n'
        + b"[" * 100_000
        + b'\n{"event":"dur'
    )
    file = EventFile(str(path), None)
    file.add({"event": "durable", "step": 3})
    file.settle(30)
    assert [e["step"] for e in read_events(str(path))] == [1, 3]


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "told"
    line = json.dumps({"event": "durable", "filling": "x" * 1000}).encode() + b"\n"
    path.write_bytes(line * (17 << 10) + b'{"event":"durable","step":3}\n')
    found = read_events(str(path))
    assert found[-1]["step"] == 3
    assert 16_000 < len(found) < 17 << 10


def test_what_is_no_file_of_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there are no events"):
        read_events(str(tmp_path / "absent"))
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(CheckpointError):
            read_events(str(path))


# ---------------------------------------------------------------------------- show --timings


def call(*args: object) -> Any:
    return call_any("show", *args)


def test_show_draws_a_table_and_the_phases_of_one(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.resume(state(0))
        for step in (1, 2):
            made = ckpt.save(state(step), step=step, async_=step == 2)
        made.wait()
    shown = call(tmp_path / "run", "--timings")
    assert shown.exit_code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["STEP", "EPOCH", "EVENT", "TIME", "SIZE", "TOOK", "SPEED", "PHASES", "ABOUT"]
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["0", "1", "resumed"],
        ["1", "1", "durable"],
        ["2", "1", "staged"],
        ["2", "1", "durable"],
    ]
    assert "a fresh start" in lines[1]
    assert "in the background" in lines[4]
    assert re.search(r" [pcdws.]{30} *$", lines[2])
    assert "p planning, c copy, d digest, w write, s sync, . waiting" in lines[6]
    one = call(tmp_path / "run", made.root[:20], "--timings").stdout
    assert re.search(r"^PHASE +OWNER 0 +SHARE +MEAN OWNER", one, re.MULTILINE)
    assert {line.split()[0] for line in one.splitlines() if "%" in line} == PHASES
    told = json.loads(call(tmp_path / "run", 1, "--timings", "--json").stdout)
    assert [e["event"] for e in told["events"]] == ["durable"]
    assert told["events"] == [e for e in events(tmp_path / "run" / "events.jsonl") if e["step"] == 1]
    elsewhere = call(tmp_path / "absent", "--timings", "--events", tmp_path / "run" / "events.jsonl")
    assert elsewhere.stdout == shown.stdout


def test_show_says_what_is_missing(tmp_path: Path) -> None:
    assert call(tmp_path, "--timings").exit_code == 6
    assert call(tmp_path, "--events", tmp_path).exit_code == 2
    (tmp_path / "events.jsonl").write_text('{"event":"durable","step":1}\n')
    assert call(tmp_path, 2, "--timings").exit_code == 6
    assert call(tmp_path, 1, "--timings").exit_code == 0


def test_show_takes_what_anybody_may_have_written(tmp_path: Path) -> None:
    odd: list[Any] = [{}, [], "x", None, -1, 1e308, True]
    lines = [
        {"event": "durable", "step": value, "epoch": value, "bytes": value, "seconds": value, "throughput": value,
         "fractions": {"copy": value, "write": 7}, "mean": value, "slowest": value, "time": value, "root": value}
        for value in odd
    ]  # fmt: skip
    lines += [{"event": "failed", "error": "\x1b[31m", "message": "a\nb"}, {"event": "durable", "fractions": [1]}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = call(tmp_path, "--timings")
    assert shown.exit_code == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert call(tmp_path, 1, "--timings").exit_code == 0


def test_a_bar_has_a_letter_for_each_share() -> None:
    shares = dict.fromkeys(("planning", "copy", "digest", "write", "sync", "waiting"), 1 / 6)
    assert drawing.bar({"fractions": shares}) == "pppppcccccdddddwwwwwsssss....."
    assert drawing.bar({"fractions": {"write": 1.0}}) == "w" * 30
    assert drawing.bar({}) == ""


# ---------------------------------------------------------------------------- the bar

SLOW = """
import sys, time
import numpy as np
from mpickpt import Checkpointer, failpoints

def slow(name):
    if name == "writer.chunk":
        time.sleep(0.15)

with Checkpointer(sys.argv[1], progress={wanted}) as ckpt:
    ckpt.resume(None)
    failpoints.hook = slow
    ckpt.save({{"w": np.ones(80 << 20, np.uint8)}}, step=5)
"""


def test_a_bar_is_drawn_on_a_terminal_and_wiped_away(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SLOW.format(wanted=None), str(tmp_path / "run")], stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 1 << 16):
                seen += part
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(ours)
        assert process.wait(60) == 0, seen
    text = seen.decode()
    drawn = re.findall(r"\rsaving step 5  \[(#*)(\.*)\]  (\d+) %  \S+ MiB of 80\.0 MiB  \S+ [GM]B/s", text)
    assert len(drawn) >= 2, text
    assert all(len(full) + len(rest) == 24 for full, rest, _ in drawn)
    shares = [int(share) for _, _, share in drawn]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 100
    assert text.endswith("\r\x1b[K")


@pytest.mark.parametrize("wanted", [None, True, False])
def test_without_a_terminal_there_are_plain_lines_where_asked_for(tmp_path: Path, wanted: bool | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW.format(wanted=wanted), str(tmp_path / "run")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert bool(lines) == (wanted is True), done.stderr
    assert all(line.startswith("saving step 5  [") for line in lines)
    assert "\r" not in done.stderr


def test_a_stderr_that_fails_ends_the_bar_and_not_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        wrote = threading.Event()

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            self.wrote.set()
            raise OSError(5, "gone")

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stderr", Broken())
    monkeypatch.setattr(bar, "_AFTER", 0.0)

    def slow(name: str) -> None:
        if name == "writer.synced":
            assert Broken.wrote.wait(30)

    with Checkpointer(tmp_path / "run") as ckpt:
        failpoints.hook = slow
        assert ckpt.save(state(1), step=1).durable


def test_a_bar_says_what_is_known() -> None:
    assert bar.line("resuming", (0, 0), 3.2) == "resuming  3 s"
    assert "0 %" in bar.line("x", (0, 10), 0.0)
    assert "left" not in bar.line("x", (10, 10), 1.0)
