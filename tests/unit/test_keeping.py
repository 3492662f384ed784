"""Rotation, pins, sweeping: what goes, what stays, in which order."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import genkit
import pytest
from dirkit import damage, steps, tree

from mpickpt import _native, failpoints
from mpickpt.errors import (
    CheckpointError,
    DeadlineError,
    NotFoundError,
    StateError,
    StoreError,
)
from mpickpt.format.manifest import root_name
from mpickpt.store import commit, keeping
from mpickpt.store.directory import Directory

pytestmark = pytest.mark.usefixtures("no_leak")


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
