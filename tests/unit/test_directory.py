"""The run's directory: what is listed, what is damage, what goes when."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import genkit
import pytest
from dirkit import steps, tree

from mpickpt import _native
from mpickpt.errors import (
    DeadlineError,
    FormatError,
    IntegrityError,
    NotFoundError,
    StateError,
    StoreError,
)
from mpickpt.format.manifest import Manifest, Void, claim_name, root_name
from mpickpt.format.records import record
from mpickpt.store import commit
from mpickpt.store.directory import Directory

pytestmark = pytest.mark.usefixtures("no_leak")


# ---------------------------------------------------------------------- opening


def test_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    directory = Directory(path).open(write=True)
    assert sorted(os.listdir(path)) == ["data", "epochs", "roots", "run.json"]
    assert Directory(path).open().run == directory.run
    assert directory.roots() == directory.lineage() == directory.claims() == []
    assert directory.newest_claim() is None
    assert directory.promise is not None
    run = directory.run.run
    assert Directory(path).open(write=True).run.run == run


def test_a_rival_may_make_the_directory_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lexists = tmp_path / "run", os.path.lexists

    def just_made(asked: str) -> bool:
        if asked == str(path) and not lexists(asked):
            os.mkdir(asked)
        return lexists(asked)

    monkeypatch.setattr(os.path, "lexists", just_made)
    assert Directory(path).open(write=True).roots() == []


def test_a_file_under_the_name_of_a_store_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("something else")
    with pytest.raises(StoreError, match="the path of the store is no directory"):
        Directory(path).open(write=True)
    assert path.read_text() == "something else"


def test_read_only_use_makes_nothing(tmp_path: Path, directory: Directory) -> None:
    genkit.bare_root(directory, 1)
    before = tree(directory.path)
    times = {path: os.stat(os.path.join(directory.path, path)).st_mtime_ns for path in ("", "roots", "epochs", "data")}
    found = Directory(directory.path).open()
    assert steps(found.lineage()) == [(1, 1)]
    assert found.promise is None
    assert tree(directory.path) == before
    assert times == {path: os.stat(os.path.join(directory.path, path)).st_mtime_ns for path in times}
    with pytest.raises(NotFoundError):
        Directory(tmp_path / "absent").open()
    assert not (tmp_path / "absent").exists()


def test_a_path_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    for name, number in (("file", errno.ENOTDIR), ("dangling", errno.ENOENT), ("file/below", errno.ENOTDIR)):
        with pytest.raises(StoreError) as caught:
            Directory(tmp_path / name).open(write=True)
        assert caught.value.errno == number
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()
    for wrong in (None, 5, "a\0b"):
        with pytest.raises(StateError):
            Directory(wrong)  # type: ignore[arg-type]


def test_a_store_behind_a_link(tmp_path: Path, directory: Directory) -> None:
    os.symlink(directory.path, tmp_path / "link")
    assert Directory(tmp_path / "link").open(write=True).run == directory.run


def test_a_file_system_without_no_replace_is_refused_before_the_first_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(source: str, target: str) -> None:
        raise OSError(errno.EINVAL, "")

    monkeypatch.setattr(_native, "rename_noreplace", cannot)
    monkeypatch.setattr(_native, "link", cannot)
    with pytest.raises(StoreError):
        Directory(tmp_path / "deep" / "run").open(write=True)
    assert os.listdir(tmp_path) == []


def test_an_unwritable_part_is_refused_before_the_claim(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if flags & os.O_CREAT and os.path.dirname(str(path)) == directory.epochs_path:
            raise OSError(errno.EACCES, "")
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError) as caught:
        Directory(directory.path).open(write=True)
    assert caught.value.errno == errno.EACCES


def test_a_purged_run_json_is_a_warning(directory: Directory, caplog: pytest.LogCaptureFixture) -> None:
    run = directory.run.run
    genkit.bare_root(directory, 1)
    os.unlink(directory.run_path)
    with caplog.at_level(logging.WARNING, "mpickpt"):
        assert Directory(directory.path).open().run.run == run
    assert "run.json" in caplog.text
    assert Directory(directory.path).open(write=True).run.run == run
    assert os.path.exists(directory.run_path)


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    found = Directory(tmp_path).open()
    assert found.roots() == []
    with pytest.raises(NotFoundError):
        _ = found.run


@pytest.mark.parametrize("place", ["run.json", "claim", "root"])
def test_a_newer_format_is_refused_with_the_version_that_reads_it(directory: Directory, place: str) -> None:
    name = genkit.bare_root(directory, 1)
    path = Path(
        {
            "run.json": directory.run_path,
            "claim": os.path.join(directory.epochs_path, claim_name(1)),
            "root": directory.root_path(name),
        }[place]
    )
    value = json.loads(path.read_bytes().splitlines()[0])
    value["format"] = 2
    path.write_bytes(record(value)[0])
    with pytest.raises(FormatError, match="newer") as caught:
        Directory(directory.path).open(write=True)
    assert caught.value.path == str(path)


# ---------------------------------------------------------------------- roots


def test_a_root_is_published_once_and_read_back(directory: Directory) -> None:
    name = genkit.bare_root(directory, 3)
    found = directory.read_root(name)
    assert isinstance(found, Manifest)
    assert (found.prefix.step, found.prefix.epoch) == (3, 1)
    assert directory.read_root(name, found.digest) == found
    with pytest.raises(IntegrityError):
        directory.read_root(name, "blake3:" + 64 * "0")
    before = tree(directory.path)
    assert directory.publish_root(name, b"another") is False
    assert tree(directory.path) == before
    with pytest.raises(NotFoundError):
        directory.read_root(root_name(4, 1, "n"))


def test_lists_ignore_names_outside_the_pattern(directory: Directory) -> None:
    name = genkit.bare_root(directory, 3)
    for other in (".nfs0001", name + "~", "#" + name, ".tmp-1", "3.json", name.replace("e0", "f0"), "copy of " + name):
        Path(directory.roots_path, other).write_bytes(b"junk")
    Path(directory.epochs_path, "00000002.json.swp").write_bytes(b"junk")
    assert steps(directory.roots()) == [(1, 3)]
    assert [claim.epoch for claim in directory.claims()] == [1]
    Directory(directory.path).open(write=True)


def test_the_newest_is_the_greatest_epoch_and_step(directory: Directory) -> None:
    for step in (10, 9, 100):
        genkit.bare_root(directory, step)
    os.utime(directory.root_path(directory.roots()[0].name))  # whatever clocks say
    assert steps(directory.roots(fresh=True)) == [(1, 9), (1, 10), (1, 100)]
    assert not [name for name in os.listdir(directory.roots_path) if name.startswith(".tmp-")]


def test_a_root_under_another_name_is_refused(directory: Directory) -> None:
    name = genkit.bare_root(directory, 3)
    for other in (root_name(4, 1, "n"), root_name(3, 1, "m")):
        os.rename(directory.root_path(name), directory.root_path(other))
        name = other
        with pytest.raises(IntegrityError, match="another attempt") as caught:
            directory.read_root(other)
        assert caught.value.path == directory.root_path(other)


def test_every_byte_of_root_claim_and_run_json_matters(directory: Directory) -> None:
    name = genkit.bare_root(directory, 3)
    for path in (directory.root_path(name), os.path.join(directory.epochs_path, claim_name(1)), directory.run_path):
        good = Path(path).read_bytes()
        damaged = [good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in range(len(good))]
        damaged += [good[:size] for size in range(0, len(good), 7)] + [good + b"\n", good + b"x"]
        for bad in damaged:
            Path(path).write_bytes(bad)
            with pytest.raises((IntegrityError, FormatError)) as caught:
                Directory(directory.path).open()
            assert caught.value.path == path
        Path(path).write_bytes(good)
    Directory(directory.path).open()


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_what_is_no_file_is_refused_and_not_waited_for(directory: Directory, kind: str) -> None:
    name = genkit.bare_root(directory, 3)
    path = directory.root_path(name)
    os.unlink(path)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    else:
        with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.join(short, "s"))
            os.rename(os.path.join(short, "s"), path)
    with pytest.raises(IntegrityError, match="no regular file"):
        Directory(directory.path).open()


def test_a_file_too_long_for_a_record_is_refused_unread(directory: Directory) -> None:
    name = genkit.bare_root(directory, 3)
    os.truncate(directory.root_path(name), (1 << 30) + 1)
    with pytest.raises(IntegrityError, match="too long"):
        directory.read_root(name)


# ---------------------------------------------------------------------- voids


def test_a_void_ends_an_attempt_for_good(directory: Directory) -> None:
    name = genkit.build(directory, genkit.Schema([]), {}, owners=1, publish=False)
    error = DeadlineError("owner 3 is silent", role=3, host="n1", roles=(1, 2))
    told = directory.void(name, error)
    assert isinstance(told, DeadlineError)
    assert told.to_record() == error.to_record()
    assert directory.publish_root(name, b"late") is False
    again = directory.void(name, StoreError("another reason"))
    assert isinstance(again, DeadlineError), "the first void decides"
    assert directory.is_root(name) is False
    assert directory.lineage() == []
    assert isinstance(directory.read_root(name), Void)
    assert len(directory.roots()) == 1
    Directory(directory.path).open(write=True)  # voids do not count: a fresh start


def test_a_void_finds_the_root_and_syncs_it(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    name = genkit.bare_root(directory, 3)
    synced: list[str] = []
    monkeypatch.setattr(commit, "sync_file", synced.append)
    monkeypatch.setattr(commit, "sync_directory", lambda path, fence=False: synced.append(path))
    assert directory.void(name, DeadlineError("silence")) == directory.read_root(name).digest  # type: ignore[union-attr]
    assert synced == [directory.root_path(name), directory.roots_path]


def test_a_store_that_cannot_answer_is_an_error(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    name = root_name(3, 1, "n")

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "")

    monkeypatch.setattr(_native, "pwrite_all", fail)
    with pytest.raises(StoreError):
        directory.void(name, DeadlineError("silence"))
    assert directory.roots() == []


def test_published_with_durability_unknown_stays(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    name = genkit.build(directory, genkit.Schema([]), {}, owners=1, publish=False, nonce="m")
    other = genkit.bare_root(directory, 3)
    data = Path(directory.root_path(other)).read_bytes()
    real = _native.fsync

    def fail(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "")
        real(fd)

    monkeypatch.setattr(_native, "fsync", fail)
    with pytest.raises(StoreError) as caught:
        directory.publish_root(name, data)
    assert commit.was_published(caught.value)
    assert os.path.exists(directory.root_path(name))


def test_an_attempt_has_a_directory_of_its_own(directory: Directory) -> None:
    name = root_name(3, 1, "n")
    path = directory.attempt(name)
    assert path == directory.data_of(name)
    assert os.path.isdir(path)
    with pytest.raises(StoreError) as caught:
        directory.attempt(name)
    assert caught.value.errno == errno.EEXIST


def test_the_way_to_a_new_store_is_synced_before_anything_stands_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = commit.sync_directory

    def sync_directory(path: str, fence: bool = False) -> None:
        synced.append(path)
        real(path, fence)

    monkeypatch.setattr(commit, "sync_directory", sync_directory)
    store = tmp_path / "a" / "run"
    Directory(store).open(write=True)
    path = [str(tmp_path / "a"), str(tmp_path)]
    assert [one for one in synced if one in path] == path
    assert synced.index(path[-1]) < synced.index(str(store)), "run.json would tell what is not true yet"
    synced.clear()
    Directory(store).open(write=True)
    assert not set(path) & set(synced), "it is known to be durable"


def test_the_way_to_a_new_store_ends_where_somebody_else_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = commit.sync_directory

    def sync_directory(path: str, fence: bool = False) -> None:
        if path == str(tmp_path):
            raise StoreError("not allowed", errno=errno.EACCES, path=path)
        assert not str(tmp_path).startswith(path + "/"), "the way goes on above it"
        real(path, fence)

    monkeypatch.setattr(commit, "sync_directory", sync_directory)
    Directory(tmp_path / "run").open(write=True)
    assert (tmp_path / "run" / "run.json").exists()
