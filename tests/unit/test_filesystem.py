"""The probe: what a file system can do is tried with free names, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mpickpt import _native
from mpickpt.errors import StoreError
from mpickpt.store import filesystem
from mpickpt.store.commit import Way

FUSE, LUSTRE, NFS, TMPFS, EXT4 = 0x65735546, 0x0BD00BD0, 0x6969, 0x01021994, 0xEF53


def refuse(number: int) -> Any:
    def call(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    return call


def replacing(source: str, target: str) -> None:
    """A client that ignores the flag, as older FUSE clients did."""
    os.rename(source, target)


def kind(monkeypatch: pytest.MonkeyPatch, magic: int) -> None:
    monkeypatch.setattr(_native, "statfs_type", lambda _: magic)


def test_here(tmp_path: Path) -> None:
    promise = filesystem.probe(str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert promise.link is True
    assert promise.durable in ("proven", "vendor", "server", "none")
    told = promise.to_json()
    assert json.loads(json.dumps(told)) == told
    assert told["way"] in ("renameat2", "link")


def test_no_replace_by_rename_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind(monkeypatch, EXT4)
    monkeypatch.setattr(_native, "have_renameat2", True)

    def rename(source: str, target: str) -> None:
        os.link(source, target)
        os.unlink(source)

    monkeypatch.setattr(_native, "rename_noreplace", rename)
    promise = filesystem.probe(str(tmp_path))
    assert (promise.kind, promise.way, promise.no_replace, promise.fence) == ("ext4", Way.RENAME, True, False)
    assert promise.durable == "proven"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_link_where_the_flag_is_refused(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind(monkeypatch, NFS)
    monkeypatch.setattr(_native, "rename_noreplace", refuse(number))
    promise = filesystem.probe(str(tmp_path))
    assert (promise.way, promise.no_replace, promise.link, promise.durable) == (Way.LINK, False, True, "server")
    assert os.listdir(tmp_path) == []


def test_link_where_the_flag_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "rename_noreplace", replacing)
    promise = filesystem.probe(str(tmp_path))
    assert (promise.way, promise.no_replace) == (Way.LINK, False)


def test_eexist_for_an_unknown_flag_does_not_deceive_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(source: str, target: str) -> None:
        raise OSError(errno.EEXIST if os.path.exists(target) else errno.EINVAL, "")

    monkeypatch.setattr(_native, "rename_noreplace", cannot)
    assert filesystem.probe(str(tmp_path)).way is Way.LINK


def test_fuse_is_trusted_with_link_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind(monkeypatch, FUSE)
    promise = filesystem.probe(str(tmp_path))
    assert (promise.kind, promise.way) == ("fuse", Way.LINK)
    assert "link is used" in promise.rests_on


def test_a_kernel_without_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "have_renameat2", False)
    monkeypatch.setattr(_native, "rename_noreplace", replacing)  # would be noticed: it replaces
    assert filesystem.probe(str(tmp_path)).way is Way.LINK


def test_neither_way_is_refused_before_the_first_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "rename_noreplace", refuse(errno.EINVAL))
    monkeypatch.setattr(_native, "link", refuse(errno.EPERM))
    with pytest.raises(StoreError) as caught:
        filesystem.probe(str(tmp_path))
    assert "link" in str(caught.value.expected)
    assert caught.value.path == str(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("magic", "name", "fence", "durable"),
    [
        (LUSTRE, "lustre", True, "vendor"),
        (0x19830326, "beegfs", True, "vendor"),
        (0x47504653, "gpfs", True, "vendor"),
        (0x00C36400, "ceph", False, "vendor"),
        (TMPFS, "tmpfs", False, "none"),
        (0x58465342, "xfs", False, "proven"),
        (0x9123683E, "btrfs", False, "proven"),
        (0x794C7630, "overlay", False, "proven"),
        (0x12345678, "unknown", True, "none"),
    ],
)
def test_the_table(
    tmp_path: Path, magic: int, name: str, fence: bool, durable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind(monkeypatch, magic)
    promise = filesystem.probe(str(tmp_path))
    assert (promise.kind, promise.fence, promise.durable) == (name, fence, durable)
    assert promise.to_json()["magic"] == f"0x{magic:08X}"


def test_memory_says_that_it_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind(monkeypatch, TMPFS)
    assert "not durable" in filesystem.probe(str(tmp_path)).rests_on


@pytest.mark.parametrize("name", ["rename_noreplace", "link", "fsync", "pwrite_all"])
def test_a_fault_is_told_as_one_and_leaves_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "")

    monkeypatch.setattr(_native, name, fail)
    with pytest.raises(StoreError) as caught:
        filesystem.probe(str(tmp_path))
    assert caught.value.errno == errno.EIO
    assert caught.value.path == str(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "")

    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(StoreError) as caught:
        filesystem.probe(str(tmp_path))
    assert caught.value.errno == errno.EROFS
    monkeypatch.undo()
    with pytest.raises(StoreError) as caught:
        filesystem.probe(str(tmp_path / "absent"))
    assert caught.value.errno == errno.ENOENT


def test_tmpfs_here() -> None:
    if not os.path.isdir("/dev/shm") or _native.statfs_type("/dev/shm") != TMPFS:
        pytest.skip("no tmpfs at /dev/shm")
    place = Path("/dev/shm") / f"mpickpt-probe-{os.getpid()}"
    place.mkdir()
    try:
        assert filesystem.probe(str(place)).durable == "none"
        assert os.listdir(place) == []
    finally:
        shutil.rmtree(place)
