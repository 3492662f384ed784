"""Lists of file operations: the extension does what its double in Python does, in whichever thread, error for error."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stepkit

from mpickpt import _native, failpoints
from mpickpt.errors import StoreError
from mpickpt.store import commit
from mpickpt.store.commit import Way
from mpickpt.store.progress import Cancelled, Progress
from mpickpt.store.steps import Steps, kinds


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    failpoints.hook = None


@pytest.fixture(params=["here", "begun", "double"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Steps], BaseException | None]:
    """Do a list in this thread, in one of its own, or by the double."""
    if request.param == "double":
        monkeypatch.setattr(_native, "Work", stepkit.PythonWork)

    def begun(steps: Steps) -> BaseException | None:
        steps.begin()
        assert steps.wait(30)
        return steps.outcome()

    return begun if request.param == "begun" else Steps.run


def files(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def publication(path: Path, way: Way) -> commit.Publication:
    return commit.Publication(str(path), "root.json", b"content", way, fence=True)


Run = Callable[[Steps], "BaseException | None"]


@pytest.mark.parametrize("way", Way)
def test_a_file_is_published(tmp_path: Path, run: Run, way: Way) -> None:
    made = publication(tmp_path, way)
    assert made.conclude(run(made.steps)) is True
    assert files(tmp_path) == {"root.json": b"content"}
    assert made.conclude(None) is True
    again = publication(tmp_path, way)
    error = run(again.steps)
    assert isinstance(error, StoreError)
    assert error.errno == errno.EEXIST
    assert again.conclude(error) is False
    assert files(tmp_path) == {"root.json": b"content"}


def test_a_missing_folder_is_made_and_a_missing_one_above_it_is_an_error(tmp_path: Path, run: Run) -> None:
    steps = Steps()
    commit.add_new(steps, str(tmp_path / "a" / "file"), b"one", str(tmp_path / "a"))
    commit.add_directory_sync(steps, str(tmp_path / "a"))
    commit.add_directory_sync(steps, str(tmp_path / "absent"), fence=True, absent=True)
    names = steps.names(str(tmp_path / "a"))
    assert run(steps) is None
    assert steps.listed(names) == ["file"]
    steps = Steps()
    commit.add_new(steps, str(tmp_path / "b" / "c" / "file"), b"one", str(tmp_path / "b" / "c"))
    error = run(steps)
    assert isinstance(error, StoreError)
    assert error.errno == errno.ENOENT
    assert not steps.went_behind(0)
    assert files(tmp_path) == {"a/file": b"one"}


def test_an_error_ends_the_list_and_closes_what_is_open(tmp_path: Path, run: Run) -> None:
    before = len(os.listdir("/proc/self/fd"))
    steps = Steps()
    steps.create(str(tmp_path / "one"))
    steps.create(str(tmp_path / "two"))
    steps.create(str(tmp_path / "one"))
    steps.create(str(tmp_path / "three"))
    error = run(steps)
    assert isinstance(error, StoreError)
    assert error.errno == errno.EEXIST
    assert error.path == str(tmp_path / "one")
    assert steps.failed == 2
    assert set(files(tmp_path)) == {"one", "two"}
    assert len(os.listdir("/proc/self/fd")) == before
    assert steps.go_on() is None
    assert set(files(tmp_path)) == {"one", "two", "three"}


def test_what_was_told_to_stop_stops_at_the_check(tmp_path: Path, run: Run) -> None:
    progress = Progress()
    steps = Steps(progress)
    steps.create(str(tmp_path / "one"))
    steps.check()
    steps.create(str(tmp_path / "two"))
    progress.cancel()
    assert isinstance(run(steps), Cancelled)
    assert set(files(tmp_path)) == {"one"}
    assert progress.syncing == 0


def test_identity_and_a_second_descriptor(tmp_path: Path, run: Run) -> None:
    steps = Steps()
    slot = steps.create(str(tmp_path / "one"))
    row = steps.identify(slot, "one")
    steps.let_go(steps.direct(slot, str(tmp_path / "one"), kinds({_native.statfs_type(tmp_path)})))
    steps.let_go(steps.direct(slot, str(tmp_path / "one"), kinds(())))
    assert run(steps) is None
    there = (tmp_path / "one").stat()
    assert steps.identity(row) == (there.st_dev, there.st_ino)


def test_a_line_is_added_behind_one_that_was_cut(tmp_path: Path, run: Run) -> None:
    os.mkfifo(tmp_path / "pipe")
    steps = Steps()
    for name, within in (("new", None), ("new", tmp_path), ("cut", None), ("other", tmp_path / "absent")):
        steps.append(str(tmp_path / name), b"one\n", None if within is None else str(within))
    (tmp_path / "cut").write_bytes(b"three\ntw")
    assert run(steps) is None
    assert files(tmp_path) == {"new": b"one\none\n", "cut": b"three\ntw\none\n"}
    steps = Steps()
    steps.append(str(tmp_path / "pipe"), b"one\n", None)
    error = run(steps)
    assert isinstance(error, StoreError)
    assert error.errno == errno.ESPIPE


def test_failpoints_cut_a_list_only_where_a_test_waits_for_them(tmp_path: Path) -> None:
    seen: list[tuple[str, list[str]]] = []
    failpoints.hook = lambda name: seen.append((name, sorted(os.listdir(tmp_path))))
    steps = Steps()
    steps.create(str(tmp_path / "one"))
    steps.reach("first")
    steps.create(str(tmp_path / "two"))
    steps.reach("last")
    assert steps.run() is None
    assert seen == [("first", ["one"]), ("last", ["one", "two"])]


@pytest.mark.parametrize("slow", [False, True])
def test_what_is_slow_is_taken_for_a_sync(tmp_path: Path, slow: bool) -> None:
    """Syncs and closes are in any case: whoever watches waits for these ten times as long."""
    seen: list[int] = []
    progress = Progress()
    failpoints.hook = lambda name: seen.append(progress.syncing)
    steps = Steps(progress, slow)
    file = steps.create(str(tmp_path / "one"))
    steps.reach("created")
    steps.close(file, "close", "one", None)
    steps.reach("closed")
    steps.sync_directory(str(tmp_path))
    steps.reach("synced")
    assert steps.run() is None
    assert seen == [int(slow), 1, 1]
    assert progress.syncing == 0
    assert progress.spent().sync > 0


def test_the_memory_of_chunks_is_kept_as_long_as_it_may_be_read() -> None:
    class Owner:
        pass

    owner = Owner()
    before = sys.getrefcount(owner)
    tables, none = (bytearray(), bytearray(), np.zeros(5, np.int64), np.zeros(2, np.int64)), np.zeros(0, np.int64)
    chunks = (0, 0, 16, bytes(32), *tables, none, none, owner, 1, 0)
    row = (_native.CHUNKS, 0, 0, 0, None, None, None, chunks)
    work = stepkit._Work([row], np.zeros(5, np.int64), np.zeros(1, np.int64))
    del row, chunks
    assert sys.getrefcount(owner) == before + 1
    del work
    assert sys.getrefcount(owner) == before


def test_the_thread_of_a_list_needs_no_interpreter_lock(tmp_path: Path) -> None:
    """It ends while this thread has the lock, and waits for it in no call that gives the lock away."""
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        made = publication(tmp_path, Way.RENAME)
        made.steps.begin()
        end = time.monotonic() + 20
        while not made.steps.wait(0) and time.monotonic() < end:
            pass
        assert made.steps.wait(0)
        assert made.conclude(made.steps.outcome()) is True
    finally:
        sys.setswitchinterval(switch)


@pytest.mark.parametrize(
    "row",
    [
        (99, 0, 0, 0, None, None, None, None),
        (_native.CREATE, 0, 0, 0, None, None, None, None),
        (_native.CREATE, 8, 0, 0, "x", None, None, None),
        (_native.RENAME, 0, 0, 0, "x", None, None, None),
        (_native.DIRECT, 0, 0, 8, "x", None, None, None),
        (_native.CHUNKS, 0, 0, 0, None, None, None, None),
        (_native.CHUNKS, 0, 0, 0, None, None, None, (0, 1, 0, b"", b"", b"", b"", b"", b"", b"", None, 1, 0)),
        (_native.LIST, 0, 0, 0, "nul\0", None, None, None),
        (_native.APPEND, 0, 0, 0, None, None, b"x", None),
        [1],
    ],
)
def test_rows_that_make_no_sense_are_refused(row: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        stepkit._Work([row], np.zeros(5, np.int64), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="another size"):
        stepkit._Work([], np.zeros(4, np.int64), np.zeros(1, np.int64))
