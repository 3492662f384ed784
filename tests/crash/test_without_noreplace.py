"""A FUSE file system that ignores RENAME_NOREPLACE, and replaces: found out, and `link` is used instead.

`test_faults.py` has the file systems that refuse the flag; `test_power_cuts.py` has crashes in both ways.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import crashkit
import mpilaunch
import pytest
from powercut import passthrough

import mpickpt
from mpickpt import _native
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CheckpointError, TopologyError
from mpickpt.store import filesystem
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory


@pytest.fixture
def fuse(ram: Path) -> Iterator[Path]:
    """The file system, mounted."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse") or shutil.which("umount") is None:
        pytest.skip("no root, /dev/fuse or umount: absent")
    source, place = ram / "source", ram / "mounted"
    source.mkdir()
    place.mkdir()
    server = subprocess.Popen(
        [sys.executable, passthrough.__file__, source, place], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stderr is not None
    try:
        assert server.stdout.readline() == b"ready\n", server.stderr.read().decode()
        yield place
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "-l", place], check=True)
        server.communicate(timeout=20)


def test_the_flag_is_ignored_here(fuse: Path) -> None:
    """With a free name even the probe's own trial succeeds: only what kind of file system it is tells."""
    (fuse / "mine").write_text("mine")
    _native.rename_noreplace(str(fuse / "mine"), str(fuse / "free"))
    promise = filesystem.probe(str(fuse))
    assert (promise.kind, promise.way, promise.fence) == ("fuse", Way.LINK, False)
    assert sorted(os.listdir(fuse)) == ["free"]


def test_of_two_that_place_one_name_one_wins(fuse: Path) -> None:
    crashkit.publish(fuse / "run", 2, (1,))
    directories = [Directory(fuse / "run").open(write=True) for _ in range(2)]
    for number in range(50):
        # Both learn what stands there, and it is one and the same.
        messages = race(directories, f"{number + 2:012d}-e00000001-{number:016x}.json")
        assert len(messages) == 2
        assert len(set(messages)) == 1, messages


def race(directories: list[Directory], name: str) -> list[str]:
    """Let several place a void of their own under one name, at once; give what each has learned."""
    found: list[str] = []
    ready = threading.Barrier(len(directories))

    def void(which: int) -> None:
        ready.wait()
        verdict = directories[which].void(name, TopologyError(f"by {which}"))
        assert isinstance(verdict, CheckpointError)
        found.append(verdict.message)

    threads = [threading.Thread(target=void, args=(which,)) for which in range(len(directories))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_saves_kills_and_resumes(fuse: Path, tmp_path: Path) -> None:
    store = fuse / "run"
    crashkit.publish(store, 3, (1, 2))
    program = Path(__file__).with_name("killed_program.py")
    for at, who in (("writer.chunk", 1), ("commit.closed", 0), ("commit.placed", 0), ("save.committed", 2)):
        there = crashkit.listed(store)
        env = {"CRASH": json.dumps({"at": at, "who": who})}
        result = mpilaunch.run(program, 3, "openmpi", [str(store)], env, timeout=60.0, folder=tmp_path / at)
        assert result.returncode != 0, "nobody was killed"
        assert crashkit.check_crashed(store, tmp_path / at, 3, there, keep=2) >= max(there)


def test_rotation_and_sweep(fuse: Path) -> None:
    def owner(wiring: Wiring) -> None:
        with mpickpt.Checkpointer(fuse / "run", wiring, keep=2) as ckpt:
            ckpt.resume(crashkit.state(wiring.role, 3, 0))
            for step in range(1, 6):
                ckpt.save(crashkit.state(wiring.role, 3, step), step=step, cursor=10 * step)

    crashkit.local(3, owner)
    Directory(fuse / "run").sweep()
    assert sorted(crashkit.listed(fuse / "run")) == [4, 5]
    assert crashkit.leftovers(fuse / "run") == []
