"""The run's directory: what is listed, what is damage, what goes when."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import genkit
import pytest

from mpickpt import _native, failpoints
from mpickpt.errors import (
    CheckpointError,
    DeadlineError,
    FormatError,
    IntegrityError,
    NotFoundError,
    StateError,
    StoreError,
)
from mpickpt.format.manifest import Manifest, Void, claim_name, root_name
from mpickpt.format.records import record
from mpickpt.store import commit, keeping
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from mpickpt.store.lineage import RootName


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before, "a file descriptor leaked"


@pytest.fixture(params=list(Way))
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    """An empty store with the claim of epoch 1."""
    made = Directory(tmp_path / "run", way=request.param).open(write=True)
    assert made.claim(genkit.claim_of(made))
    return made


def steps(roots: list[RootName]) -> list[tuple[int, int]]:
    return [(root.epoch, root.step) for root in roots]


def tree(path: str) -> dict[str, bytes]:
    found = {}
    for folder, _, files in os.walk(path):
        for file in files:
            place = os.path.join(folder, file)
            found[os.path.relpath(place, path)] = Path(place).read_bytes()
    return found


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
    assert directory.void(name, DeadlineError("silence")) is None
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


# ---------------------------------------------------------------------- claims, lineage, damage


def test_of_two_that_claim_one_gets_it(directory: Directory) -> None:
    assert directory.claim(genkit.claim_of(directory, nonce="other")) is False
    assert directory.claim(genkit.claim_of(directory)) is True, "one's own nonce: won"
    newest = directory.newest_claim(fresh=True)
    assert newest is not None
    assert (newest.epoch, newest.nonce) == (1, "claimed")


def test_the_lineage_follows_from_the_claims(directory: Directory) -> None:
    for step in (1, 2, 3):
        genkit.bare_root(directory, step)
    directory.claim(genkit.claim_of(directory, 2, (1, 2)))
    for step in (3, 4):
        genkit.bare_root(directory, step, 2)
    assert steps(directory.lineage()) == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert steps(directory.off_lineage(directory.claims(), directory.roots())) == [(1, 3)]
    directory.claim(genkit.claim_of(directory, 3, (2, 3)))
    assert steps(directory.lineage()) == [(1, 1), (1, 2), (2, 3)]
    directory.claim(genkit.claim_of(directory, 4, (1, 1)))
    assert steps(directory.lineage()) == [(1, 1)]
    directory.claim(genkit.claim_of(directory, 5))  # a fresh start
    assert directory.lineage() == []
    assert len(directory.roots()) == 5
    directory.check()


def test_an_old_claim_that_is_missing_is_a_warning(directory: Directory, caplog: pytest.LogCaptureFixture) -> None:
    genkit.bare_root(directory, 1)
    directory.claim(genkit.claim_of(directory, 2, (1, 1)))
    os.unlink(os.path.join(directory.epochs_path, claim_name(1)))
    with caplog.at_level(logging.WARNING, "mpickpt"):
        assert steps(Directory(directory.path).open().lineage()) == [(1, 1)]
    assert "older" in caplog.text


def damage(directory: Directory, what: str) -> None:
    name = genkit.bare_root(directory, 1)
    if what == "no roots":
        for root in directory.roots():
            os.unlink(directory.root_path(root.name))
        os.rmdir(directory.roots_path)
    elif what == "root newer than every claim":
        os.unlink(os.path.join(directory.epochs_path, claim_name(1)))
    elif what == "no root readable":
        genkit.bare_root(directory, 2)
        for root in directory.roots():
            os.truncate(directory.root_path(root.name), 100)
        directory.void(root_name(3, 1, "void"), DeadlineError("silence"))
    elif what == "origin missing":
        directory.claim(genkit.claim_of(directory, 2, (1, 2)))
    elif what == "origin void":
        directory.void(root_name(2, 1, "void"), DeadlineError("silence"))
        directory.claim(genkit.claim_of(directory, 2, (1, 2)))
    elif what == "claim of another run":
        other = Directory(directory.path + "2").open(write=True)
        other.claim(genkit.claim_of(other))
        os.replace(os.path.join(other.epochs_path, claim_name(1)), os.path.join(directory.epochs_path, claim_name(1)))
    elif what == "claim under another name":
        path = os.path.join(directory.epochs_path, claim_name(1))
        os.rename(path, os.path.join(directory.epochs_path, claim_name(2)))
    assert directory.root_path(name)


@pytest.mark.parametrize(
    "what",
    [
        "no roots",
        "root newer than every claim",
        "no root readable",
        "origin missing",
        "origin void",
        "claim of another run",
        "claim under another name",
    ],
)
def test_a_damaged_store_is_never_taken_for_an_empty_one(directory: Directory, what: str) -> None:
    damage(directory, what)
    before = tree(directory.path)
    for write in (False, True):
        with pytest.raises(IntegrityError) as caught:
            Directory(directory.path).open(write=write)
        assert caught.value.path is not None
    assert tree(directory.path) == before
    Directory(directory.path).open(check=False)  # tools look at it all the same


def test_one_unreadable_root_among_readable_ones_is_not_gone_past(directory: Directory) -> None:
    genkit.bare_root(directory, 1)
    name = genkit.bare_root(directory, 2)
    os.truncate(directory.root_path(name), 100)
    found = Directory(directory.path).open(write=True)
    assert steps(found.lineage()) == [(1, 1), (1, 2)]
    assert found.is_root(name) is None
    with pytest.raises(IntegrityError):
        found.read_root(found.lineage()[-1].name)


def test_an_unreadable_directory_is_a_store_error(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> list[str]:
        raise OSError(errno.EACCES, "")

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(StoreError) as caught:
        directory.roots()
    assert caught.value.errno == errno.EACCES


# ---------------------------------------------------------------------- keeping


def test_rotation_keeps_the_newest(directory: Directory) -> None:
    names = [genkit.bare_root(directory, step) for step in range(1, 7)]
    assert directory.rotate(2) == names[:4]
    assert steps(directory.lineage()) == [(1, 5), (1, 6)]
    assert sorted(os.listdir(directory.data_path)) == sorted(name[:-5] for name in names[4:])
    assert directory.rotate(2) == []
    assert directory.rotate(None) == []


def test_rotation_leaves_multiples_pins_protected_and_unreadable(directory: Directory) -> None:
    names = [genkit.bare_root(directory, step) for step in range(1, 9)]
    directory.pin(names[1])
    directory.pin(names[1])
    os.truncate(directory.root_path(names[7]), 10)
    fresh = Directory(directory.path, way=directory.way)
    assert fresh.pins() == {names[1]}
    assert fresh.rotate(1, keep_every=4, protect={names[2]}) == [names[0], names[4], names[5]]
    assert {step for _, step in steps(fresh.roots())} == {2, 3, 4, 7, 8}
    assert set(os.listdir(fresh.data_path)) == {names[n][:-5] for n in (1, 2, 3, 6, 7)}


def test_keep_1_never_removes_the_newest(directory: Directory) -> None:
    for step in range(1, 5):
        genkit.bare_root(directory, step)
        directory.rotate(1)
        assert steps(directory.lineage()) == [(1, step)]


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "2"])
def test_a_keep_that_is_none_is_refused(directory: Directory, keep: Any) -> None:
    genkit.bare_root(directory, 1)
    with pytest.raises(StateError):
        directory.rotate(keep)
    with pytest.raises(StateError):
        directory.rotate(1, keep_every=keep)
    assert len(directory.lineage()) == 1


def test_rotation_leaves_what_is_off_the_lineage(directory: Directory) -> None:
    for step in (1, 2, 3):
        genkit.bare_root(directory, step)
    directory.claim(genkit.claim_of(directory, 2, (1, 1)))
    genkit.bare_root(directory, 2, 2)
    directory.rotate(1)
    assert steps(directory.roots()) == [(1, 2), (1, 3), (2, 2)]


def test_the_root_goes_first_and_durably(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [genkit.bare_root(directory, step) for step in (1, 2)]
    seen: list[Any] = []

    def look(point: str) -> None:
        seen.append((point, os.path.exists(directory.root_path(names[0])), os.path.exists(directory.data_of(names[0]))))

    failpoints.hook = look
    synced: list[str] = []
    real = commit.sync_directory
    monkeypatch.setattr(commit, "sync_directory", lambda path, fence=False: (synced.append(path), real(path, fence)))
    directory.rotate(1)
    assert seen == [("rotate.roots-removed", False, True), ("rotate.directory-synced", False, True)]
    assert synced == [directory.roots_path]
    assert not os.path.exists(directory.data_of(names[0]))


def test_nothing_is_removed_of_data_when_the_sync_fails(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [genkit.bare_root(directory, step) for step in (1, 2)]

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "")

    monkeypatch.setattr(_native, "fsync", fail)
    with pytest.raises(StoreError):
        directory.rotate(1)
    assert os.path.exists(directory.data_of(names[0]))
    assert os.path.exists(directory.root_path(names[1]))


def test_a_link_in_place_of_data_is_removed_and_not_what_it_leads_to(directory: Directory, tmp_path: Path) -> None:
    names = [genkit.bare_root(directory, step) for step in (1, 2)]
    os.rename(directory.data_of(names[0]), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", directory.data_of(names[0]))
    directory.rotate(1)
    assert not os.path.lexists(directory.data_of(names[0]))
    assert (tmp_path / "elsewhere" / "00000" / "stray.bin").exists()


def test_a_pin_of_nothing_is_refused(directory: Directory) -> None:
    void = root_name(5, 1, "v")
    directory.void(void, DeadlineError("silence"))
    for name in (root_name(9, 1, "n"), void, "../run.json"):
        with pytest.raises(NotFoundError):
            directory.pin(name)
    assert directory.pins() == set()


def test_sweep_leaves_the_live_attempt_and_the_newest_voids(directory: Directory) -> None:
    kept = genkit.bare_root(directory, 1)
    live = genkit.build(directory, genkit.Schema([]), {}, owners=1, step=2, publish=False, extra_file=True)
    voided = genkit.build(directory, genkit.Schema([]), {}, owners=1, step=3, publish=False, extra_file=True)
    directory.void(voided, DeadlineError("silence"))
    os.mkdir(os.path.join(directory.data_path, "mine"))
    assert directory.sweep() == [directory.data_of(voided)]
    assert sorted(os.listdir(directory.data_path)) == sorted([kept[:-5], live[:-5], "mine"])
    assert len(directory.roots()) == 2
    assert directory.sweep() == []


def test_sweep_removes_what_older_epochs_left(directory: Directory) -> None:
    genkit.bare_root(directory, 1)
    orphan = genkit.bare_root(directory, 2)
    pinned = genkit.bare_root(directory, 3)
    directory.pin(pinned)
    dead = genkit.build(directory, genkit.Schema([]), {}, owners=1, step=4, publish=False, extra_file=True)
    voided = genkit.build(directory, genkit.Schema([]), {}, owners=1, step=5, publish=False, extra_file=True)
    directory.void(voided, DeadlineError("silence"))
    directory.claim(genkit.claim_of(directory, 2, (1, 1)))
    assert directory.sweep() == [
        directory.data_of(dead),
        directory.data_of(voided),
        directory.root_path(voided),
    ]
    assert steps(directory.roots()) == [(1, 1), (1, 2), (1, 3)]
    assert directory.sweep(orphans=True) == [directory.root_path(orphan), directory.data_of(orphan)]
    assert steps(directory.roots()) == [(1, 1), (1, 3)]


def test_sweep_removes_old_temporary_files_only(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    old = os.path.join(directory.roots_path, ".tmp-old")
    young = os.path.join(directory.roots_path, ".tmp-young")
    probe = os.path.join(directory.path, ".tmp-probe-old")
    for path in (old, young):
        Path(path).write_bytes(b"")
    os.mkdir(probe)
    for path in (old, probe):
        os.utime(path, (1, 1))
    assert directory.sweep() == [probe, old]
    assert [name for name in os.listdir(directory.roots_path) if name.startswith(".tmp-")] == [".tmp-young"]
    monkeypatch.setattr(keeping, "STALE_SECONDS", -1.0)
    assert directory.sweep() == [young]


def test_nothing_is_swept_from_a_damaged_store(directory: Directory) -> None:
    damage(directory, "root newer than every claim")
    before = tree(directory.path)
    with pytest.raises(CheckpointError):
        directory.sweep(orphans=True)
    assert tree(directory.path) == before
