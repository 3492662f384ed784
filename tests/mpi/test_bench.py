"""`mpickpt bench`, as a user runs it: figures that are whole, and nothing left behind, whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

from mpickpt.gates import launch

SMALL = ("--size", "16M", "--runs", "2", "--pieces", "50", "--no-fio")
FIGURES = {"cores", "disk write", "disk read", "save", "restore", "small save", "small restore", "memory copy", "stall"}


def environment() -> dict[str, str]:
    return launch.environment({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"})


def bench(python: Path, folder: Path, *args: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, str(python), "-m", "mpickpt", "bench", str(folder), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment(), check=False)


def check(done: subprocess.CompletedProcess[str], folder: Path, figures: Path, owners: int) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    assert os.listdir(folder) == []
    found: dict[str, Any] = json.loads(figures.read_text())
    assert set(found["figures"]) == FIGURES
    assert all(len(values) == 2 and min(values) > 0 for values in found["figures"].values())
    assert (found["owners"], found["runs"], found["limit"], found["pieces"]) == (owners, 2, "plain", 50)
    assert 0.9 * (16 << 20) < found["bytes"] <= 16 << 20
    assert len(found["phases"]) == 2
    # Open MPI gives what it starts a terminal for stdout, and the table there has cells of several lines.
    for word in ("WHAT", "RATIO", "save", "cold", "restore", "async", "plain", "memory", "a save's time: copy"):
        assert word in done.stdout, done.stdout
    return found


@pytest.mark.parametrize("owners", [1, 3])
def test_it_starts_its_owners_and_leaves_nothing(mpi: str, owners: int, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = bench(mpilaunch.python_of(mpi), folder, *SMALL, "--owners", str(owners), "--json", str(tmp_path / "figures"))
    found = check(done, folder, tmp_path / "figures", owners)
    assert (found["mpi"] == "none") == (owners == 1)
    assert "run 2 of 2: saves in the background" in done.stderr
    lines = done.stdout.splitlines()
    for line in ("save  ", "cold verified restore", "save 50 x 1 KiB", "restore 50 x 1 KiB", "async save returns"):
        assert any(row.startswith(line) for row in lines), done.stdout


def test_it_runs_in_the_ranks_that_it_was_started_in(mpi: str, tmp_path: Path) -> None:
    folder, python = tmp_path / "disk", mpilaunch.python_of(mpi)
    folder.mkdir()
    mpirun = (str(python.parent / "mpirun"), "-n", "2")
    check(
        bench(python, folder, *SMALL, "--json", str(tmp_path / "figures"), before=mpirun),
        folder,
        tmp_path / "figures",
        2,
    )
    refused = bench(python, folder, "--size", "1K", before=mpirun)
    assert refused.returncode != 0
    assert "the size is too small" in refused.stderr
    assert os.listdir(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("how", ["alone", "started", "in ranks"])
def test_an_interrupt_ends_all_and_leaves_nothing(mpi: str, number: int, how: str, tmp_path: Path) -> None:
    folder, python = tmp_path / "disk", mpilaunch.python_of(mpi)
    folder.mkdir()
    command = [str(python), "-m", "mpickpt", "bench", str(folder), "--owners", "1" if how == "alone" else "3"]
    command += ["--no-fio", "--size", "64M", "--runs", "100000"]
    if how == "in ranks":
        command[:0] = [str(python.parent / "mpirun"), "-n", "3"]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(),
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may have had it ignored
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "run 2" in line:
                break
        known = list(launch.below(process.pid))
        assert len(known) >= (1 if how == "alone" else 4)
        process.send_signal(number)
        process.stderr.read()
        code = process.wait(60)
        if number != signal.SIGKILL and how != "in ranks":  # else it is that of the launcher, or nobody's
            assert code == 130
            assert os.listdir(folder) == []
    end = time.monotonic() + 30
    while os.listdir(folder) or any(_is_ours(pid, folder) for pid in known):
        assert time.monotonic() < end, f"left behind: {os.listdir(folder)}"
        time.sleep(0.05)


def _is_ours(pid: int, folder: Path) -> bool:
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_what_there_is_no_room_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for size in ("16T", "1K"):
        done = bench(Path(sys.executable), tmp_path, "--owners", "1", "--size", size)
        assert done.returncode != 0
        assert "name a" in done.stderr
    assert os.listdir(tmp_path) == []
