"""The durable write: four stages, each failing in every way, in both ways of placing a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpickpt import _native, failpoints
from mpickpt.errors import StoreError
from mpickpt.store import commit
from mpickpt.store.commit import Way

WAYS = pytest.mark.parametrize("way", list(Way))
PLACING = {Way.RENAME: "rename_noreplace", Way.LINK: "link"}
STAGES = ["commit.written", "commit.synced", "commit.closed", "commit.placed", "commit.directory-synced"]


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


pytestmark = pytest.mark.usefixtures("no_leak")


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def nth(real: Callable[..., Any], n: int, number: int) -> Callable[..., Any]:
    """Call the real function, but for the n-th call, which fails."""
    calls = 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == n:
            raise OSError(number, os.strerror(number))
        return real(*args)

    return call


@WAYS
@pytest.mark.parametrize("fence", [False, True])
def test_a_free_name_is_taken_whole_and_nothing_else_stays(tmp_path: Path, way: Way, fence: bool) -> None:
    assert commit.publish(str(tmp_path), "root.json", b"content", way, fence) is True
    assert os.listdir(tmp_path) == ["root.json"]
    assert (tmp_path / "root.json").read_bytes() == b"content"


@WAYS
def test_a_taken_name_is_left_as_it_is(tmp_path: Path, way: Way) -> None:
    (tmp_path / "root.json").write_bytes(b"first")
    assert commit.publish(str(tmp_path), "root.json", b"second", way) is False
    assert os.listdir(tmp_path) == ["root.json"]
    assert (tmp_path / "root.json").read_bytes() == b"first"


@WAYS
def test_a_name_taken_by_a_dangling_link_is_taken(tmp_path: Path, way: Way) -> None:
    os.symlink("nowhere", tmp_path / "root.json")
    assert commit.publish(str(tmp_path), "root.json", b"x", way) is False
    assert os.readlink(tmp_path / "root.json") == "nowhere"
    assert os.listdir(tmp_path) == ["root.json"]


@WAYS
def test_the_stages_come_in_their_order(tmp_path: Path, way: Way) -> None:
    seen: list[str] = []
    failpoints.hook = seen.append
    commit.publish(str(tmp_path), "root.json", b"x", way)
    assert seen == STAGES


@WAYS
def test_the_file_is_synced_before_it_is_placed_and_the_directory_after(
    tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def note(name: str, what: Callable[..., str]) -> None:
        real = getattr(_native, name)

        def call(*args: Any) -> Any:
            calls.append(what(*args))
            return real(*args)

        monkeypatch.setattr(_native, name, call)

    note("fsync", lambda fd: "sync directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync file")
    note("pwrite_all", lambda *_: "write")
    note(PLACING[way], lambda *_: "place")
    commit.publish(str(tmp_path), "root.json", b"x", way, fence=True)
    assert calls == ["write", "sync file", "place", "sync directory", "sync file"]


@WAYS
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("stage", ["create", "write", "sync", "close", "place"])
def test_an_error_before_the_place_leaves_nothing(
    tmp_path: Path, way: Way, number: int, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    if stage == "create":
        monkeypatch.setattr(os, "open", failing(number))
    elif stage == "close":
        real = os.close

        def close(fd: int) -> None:
            real(fd)
            raise OSError(number, "close")

        monkeypatch.setattr(os, "close", close)
    else:
        name = {"write": "pwrite_all", "sync": "fsync", "place": PLACING[way]}[stage]
        fail = failing(number)
        monkeypatch.setattr(_native, name, lambda *args: (syncs.append(1), fail(*args)))
    with pytest.raises(StoreError) as caught:
        commit.publish(str(tmp_path), "root.json", b"content", way)
    monkeypatch.undo()
    assert caught.value.errno == number
    assert caught.value.path == str(tmp_path / "root.json")
    assert not commit.was_published(caught.value)
    assert os.listdir(tmp_path) == []
    assert len(syncs) <= 1, "a stage was tried again"
    if number in (errno.ENOSPC, errno.EDQUOT):
        assert "free" in str(caught.value.advice)
        if stage in ("write", "sync", "close"):
            assert "7 bytes" in str(caught.value.expected)


@WAYS
@pytest.mark.parametrize("number", [errno.EEXIST, errno.ENOENT, errno.EIO, errno.EINVAL])
def test_a_lost_reply_of_placing_is_found_out(
    tmp_path: Path, way: Way, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(_native, PLACING[way])

    def lost(source: str, target: str) -> None:
        real(source, target)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_native, PLACING[way], lost)
    assert commit.publish(str(tmp_path), "root.json", b"mine", way) is True
    assert os.listdir(tmp_path) == ["root.json"]
    assert (tmp_path / "root.json").read_bytes() == b"mine"


@WAYS
@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO])
def test_another_file_that_came_first_is_not_taken_for_ours(
    tmp_path: Path, way: Way, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rival(source: str, target: str) -> None:
        Path(target).write_bytes(b"theirs")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_native, PLACING[way], rival)
    assert commit.publish(str(tmp_path), "root.json", b"mine", way) is False
    assert os.listdir(tmp_path) == ["root.json"]
    assert (tmp_path / "root.json").read_bytes() == b"theirs"


@WAYS
def test_when_nobody_can_tell_whether_it_was_placed_it_is_an_error(
    tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, PLACING[way], failing(errno.EIO))
    monkeypatch.setattr(os, "lstat", failing(errno.ESTALE))
    with pytest.raises(StoreError) as caught:
        commit.publish(str(tmp_path), "root.json", b"mine", way)
    assert caught.value.errno == errno.ESTALE


@WAYS
@pytest.mark.parametrize("fence", [False, True])
def test_an_error_of_the_directory_sync_says_published_and_keeps_the_file(
    tmp_path: Path, way: Way, fence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "fsync", nth(_native.fsync, 3 if fence else 2, errno.EIO))
    with pytest.raises(StoreError, match="published, durability unknown") as caught:
        commit.publish(str(tmp_path), "root.json", b"mine", way, fence)
    assert commit.was_published(caught.value)
    assert caught.value.published is True  # type: ignore[attr-defined]
    assert caught.value.errno == errno.EIO
    assert (tmp_path / "root.json").read_bytes() == b"mine"


@WAYS
@pytest.mark.parametrize("stage", STAGES)
def test_a_fault_at_a_failpoint_is_one_of_its_stage(tmp_path: Path, way: Way, stage: str) -> None:
    def fault(name: str) -> None:
        if name == stage:
            raise OSError(errno.EIO, "injected")

    failpoints.hook = fault
    with pytest.raises(StoreError) as caught:
        commit.publish(str(tmp_path), "root.json", b"mine", way)
    placed = STAGES.index(stage) >= 3
    assert commit.was_published(caught.value) is placed
    assert (tmp_path / "root.json").exists() is placed
    if not placed:
        assert os.listdir(tmp_path) == []


@WAYS
def test_a_crash_between_link_and_unlink_is_as_good_as_published(tmp_path: Path, way: Way) -> None:
    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == "commit.directory-synced":
            raise Killed

    failpoints.hook = kill
    with pytest.raises(Killed):
        commit.publish(str(tmp_path), "root.json", b"mine", way)
    failpoints.hook = None
    assert (tmp_path / "root.json").read_bytes() == b"mine"
    assert len(os.listdir(tmp_path)) == (2 if way is Way.LINK else 1)
    assert commit.publish(str(tmp_path), "root.json", b"other", way) is False
    assert (tmp_path / "root.json").read_bytes() == b"mine"


def test_link_and_rename_agree_when_mixed(tmp_path: Path) -> None:
    assert commit.publish(str(tmp_path), "a", b"1", Way.LINK)
    assert not commit.publish(str(tmp_path), "a", b"2", Way.RENAME)
    assert commit.publish(str(tmp_path), "b", b"1", Way.RENAME)
    assert not commit.publish(str(tmp_path), "b", b"2", Way.LINK)


def test_write_new_never_replaces_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "000012.json")
    commit.write_new(path, b"one")
    with pytest.raises(StoreError) as caught:
        commit.write_new(path, b"two")
    assert caught.value.errno == errno.EEXIST
    assert Path(path).read_bytes() == b"one"
    for name in ("pwrite_all", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(_native, name, failing(errno.ENOSPC))
            with pytest.raises(StoreError):
                commit.write_new(str(tmp_path / "new"), b"three")
        assert os.listdir(tmp_path) == ["000012.json"]


def test_a_directory_that_cannot_be_synced_at_all_is_passed_over_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "fsync", failing(errno.EINVAL))
    commit.sync_directory(str(tmp_path))
    monkeypatch.setattr(_native, "fsync", failing(errno.EIO))
    with pytest.raises(StoreError) as caught:
        commit.sync_directory(str(tmp_path))
    assert caught.value.errno == errno.EIO


def test_make_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "data")
    assert commit.make_directory(path) is True
    assert commit.make_directory(path) is False
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError) as caught:
        commit.make_directory(str(tmp_path / "file"))
    assert caught.value.errno == errno.ENOTDIR
    with pytest.raises(StoreError) as caught:
        commit.make_directory(str(tmp_path / "absent" / "data"))
    assert caught.value.errno == errno.ENOENT
    synced: list[str] = []
    monkeypatch.setattr(commit, "sync_directory", lambda path, fence=False: synced.append(path))
    commit.make_directory(str(tmp_path / "one"))
    commit.make_directory(str(tmp_path / "two"), sync_parent=False)
    assert synced == [str(tmp_path)]


def test_refresh_and_sync_file(tmp_path: Path) -> None:
    commit.refresh(str(tmp_path))
    assert os.listdir(tmp_path) == []
    (tmp_path / "root.json").write_bytes(b"x")
    commit.sync_file(str(tmp_path / "root.json"))
    with pytest.raises(StoreError):
        commit.sync_file(str(tmp_path / "absent"))
    with pytest.raises(StoreError):
        commit.refresh(str(tmp_path / "absent"))


def test_the_record_of_a_store_error_travels(tmp_path: Path) -> None:
    from mpickpt.errors import from_record

    with pytest.raises(StoreError) as caught:
        commit.create(str(tmp_path / "absent" / "file"))
    again = from_record(caught.value.to_record())
    assert isinstance(again, StoreError)
    assert again.errno == errno.ENOENT
    assert isinstance(again, OSError)
