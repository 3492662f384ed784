"""How a job ended: written down beside its claim, named in the next one, shown by ``mpickpt ls --lineage``."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mpickpt
from mpickpt import errors
from mpickpt.cli.main import app
from mpickpt.errors import EpochError, FormatError, StoreError
from mpickpt.format.ended import Ended
from mpickpt.format.records import Claim, Void, record
from mpickpt.store.directory import Directory


def job(path: Path, *, raises: BaseException | None = None, stop: str = "", step: int = 0) -> None:
    """Resume, save a step, be told to stop, and leave."""
    with mpickpt.Checkpointer(path, signals=[signal.SIGUSR1], keep=None, deadline=8.0) as ckpt:
        at = ckpt.resume({"x": np.zeros(3)}, step=step or None).step + 1
        ckpt.save({"x": np.ones(3)}, step=at)
        if stop == "signal":
            signal.raise_signal(signal.SIGUSR1)
        elif stop == "call":
            ckpt.stop()
        elif stop == "file":
            (path / "stop").touch()
        end = time.monotonic() + 20
        while stop and not ckpt.stopping:
            assert time.monotonic() < end
            ckpt.due(at)
        if raises is not None:
            raise raises
    (path / "stop").unlink(missing_ok=True)


def told(path: Path) -> list[tuple[str | None, str | None]]:
    """Give what each job wrote of its end, and what its claim says of the one before."""
    directory = Directory(path)
    return [(directory.ended(claim.epoch), claim.stopped) for claim in directory.claims()]


def lineage(path: Path) -> list[str]:
    return CliRunner().invoke(app, ["ls", str(path), "--lineage"], catch_exceptions=False).output.splitlines()


def test_each_way_to_end_is_written_down_and_named_in_the_next_claim(tmp_path: Path) -> None:
    path = tmp_path / "run"
    job(path, stop="signal")
    job(path, stop="call")
    job(path, stop="file")
    job(path)
    with pytest.raises(ZeroDivisionError):
        job(path, raises=ZeroDivisionError("division\nby zero"))
    with pytest.raises(EpochError):
        job(path, raises=EpochError("a newer job has continued this run"))
    ends = [
        "SIGUSR1 at owner 0",
        "stop() at owner 0",
        "stop file",
        "closed by the program",
        "ZeroDivisionError",
        "EpochError: a newer job has continued this run",
    ]
    assert told(path) == list(zip(ends, [None, *ends[:-1]], strict=True))
    assert [line[5:] for line in lineage(path) if "ended: " in line] == [f"ended: {end}" for end in ends]
    found = [epoch.ended for epoch in mpickpt.open_store(path).epochs()]
    assert found == ends
    assert mpickpt.open_store(path).verify().ok


def test_why_it_stops_is_written_before_the_last_save_and_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with mpickpt.Checkpointer(path, deadline=8.0) as ckpt:
        ckpt.resume({"x": np.zeros(3)})
        ckpt.stop()
        ckpt.due(1), ckpt.due(2)
        assert ckpt.stopping
        end = time.monotonic() + 20
        while told(path) != [("stop() at owner 0", None)]:  # a job that is killed now has said so much
            assert time.monotonic() < end
            time.sleep(0.002)
        ckpt.save({"x": np.ones(3)}, step=2)
    assert told(path) == [("stop() at owner 0", None)]


def test_a_job_that_was_killed_has_said_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    job(path)
    (path / "epochs" / "00000001.ended").unlink()
    job(path)
    assert told(path) == [(None, None), ("closed by the program", None)]
    assert [line[5:] for line in lineage(path) if "ended" in line] == [
        "ended: it did not say (killed, or its node lost)",
        "ended: closed by the program",
    ]


def test_what_the_next_claim_says_remains_where_the_record_is_purged(tmp_path: Path) -> None:
    path = tmp_path / "run"
    job(path, stop="signal")
    job(path)
    (path / "epochs" / "00000001.ended").unlink()
    assert [epoch.ended for epoch in mpickpt.open_store(path).epochs()] == [
        "SIGUSR1 at owner 0",
        "closed by the program",
    ]


def test_a_process_that_resumes_once_more_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with mpickpt.Checkpointer(path) as ckpt:
        for _ in range(2):
            ckpt.resume({"x": np.zeros(3)})
    assert told(path) == [(None, None), ("closed by the program", "the same process resumes once more")]


def test_one_that_only_looks_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    job(path)
    before = sorted(file.name for file in (path / "epochs").iterdir())
    with mpickpt.Checkpointer(path) as ckpt:
        ckpt.resume({"x": np.zeros(3)}, readonly=True)
    assert sorted(file.name for file in (path / "epochs").iterdir()) == before == ["00000001.ended", "00000001.json"]


@pytest.mark.parametrize("damage", [b"", b"junk", b'{"epoch":1}\n{"digest":null}\n', "flip", "another"])
def test_one_that_is_damaged_counts_as_none(
    damage: bytes | str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    job(path)
    file = path / "epochs" / "00000001.ended"
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.unlink()
    if damage == "another":
        file.write_bytes(Ended(2, "SIGTERM", "now").encode()[0])
    else:
        file.write_bytes(damage if isinstance(damage, bytes) else data)
    assert [one.path for one in mpickpt.open_store(path).verify().failed] == ["epochs/00000001.ended"]
    with caplog.at_level(logging.WARNING, "mpickpt"):
        job(path)
    assert told(path)[1] == ("closed by the program", None)
    assert bool(caplog.records) == (damage != "another")
    assert mpickpt.open_store(path).generations()[-1].step == 2


def test_every_byte_of_one_that_is_flipped_is_found_by_verify_and_harms_no_listing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    job(path)
    file = path / "epochs" / "00000001.ended"
    data = file.read_bytes()
    store = mpickpt.open_store(path)
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert [one.path for one in store.verify().failed] == ["epochs/00000001.ended"], at
        assert [epoch.ended for epoch in store.epochs()] == [None], at


def test_that_it_cannot_be_written_is_logged_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(directory: Directory, ended: Ended) -> bool:
        raise StoreError("no space left")

    monkeypatch.setattr(Directory, "end", full)
    with caplog.at_level(logging.WARNING, "mpickpt"):
        job(tmp_path / "run")
    assert [record.message for record in caplog.records] == [
        "why this job ends could not be written down: no space left"
    ]


def test_a_store_that_hangs_holds_close_up_for_a_quarter_of_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(Directory, "end", lambda *_: release.wait(20))
    ckpt = mpickpt.Checkpointer(tmp_path / "run", deadline=0.8)
    ckpt.resume({"x": np.zeros(3)})
    began = time.monotonic()
    ckpt.close()
    assert 0.2 <= time.monotonic() - began < 5.0
    release.set()


def test_a_claim_names_the_restarts_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "MPICKPT_END_TIME": str(time.time() + 3600)}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    job(path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    job(path)
    assert [(claim.job, claim.nodes, claim.restarts) for claim in Directory(path).claims()] == [
        ("17", "n[1-2]", 0),
        ("17", "n[1-2]", 2),
    ]
    lines = [line for line in lineage(path) if "job 17" in line]
    assert "job 17 on host " in lines[0]
    assert "job 17 (restart 2) on host " in lines[1]
    assert "(nodes n[1-2])" in lines[1]


def test_a_list_of_nodes_that_is_longer_than_a_reader_takes_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("MPICKPT_END_TIME", str(time.time() + 3600))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[" + ",".join(str(2 * n) for n in range(2000)) + "]")
    job(tmp_path / "run")
    job(tmp_path / "run")
    (nodes,) = {claim.nodes for claim in Directory(tmp_path / "run").claims()}
    assert nodes is not None
    assert (len(nodes), nodes[:6], nodes[-3:]) == (4096, "n[0,2,", "...")


def test_a_refusal_that_is_longer_than_a_reader_takes_is_cut_in_a_void() -> None:
    error = errors.SchemaError("x" * 5000, role=3, expected="y" * 5000, roles=[1, 2])
    void = Void("000000001200-e00000007-5f0c", error.to_record())
    assert Void.decode(void.encode()[0]) == void
    assert void.error.message == "x" * 4093 + "..."
    assert (void.error.role, void.error.roles, void.error.expected) == (3, (1, 2), "y" * 5000)
    claim = Claim(1, "run", None, None, None, 4, None, "n5", "now", "aa", void=error.to_record())
    assert Claim.decode(claim.encode()[0]) == claim


def test_the_record_and_what_is_refused() -> None:
    ended = Ended(7, "SIGTERM at owner 3", "2030-01-02T03:04:05+00:00")
    data, digest = ended.encode()
    assert data.splitlines()[0] == (
        b'{"epoch":7,"format":1,"kind":"ended","reason":"SIGTERM at owner 3","time":"2030-01-02T03:04:05+00:00"}'
    )
    assert Ended.decode(data, digest=digest) == ended

    def other(**more: Any) -> bytes:
        value = {**json.loads(data.splitlines()[0]), **more}
        return record({key: one for key, one in value.items() if one != "-"})[0]

    for change in ({"epoch": 0}, {"reason": 5}, {"reason": "x" * 4097}, {"time": "-"}, {"more": 1}, {"kind": "claim"}):
        with pytest.raises(FormatError):
            Ended.decode(other(**change))
