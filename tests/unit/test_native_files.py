"""The system calls of the C extension: what they do, and which errno they raise."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mpickpt import _native

Publish = Callable[[object, object], None]

BOTH_WAYS = pytest.mark.parametrize("publish", [_native.rename_noreplace, _native.link], ids=["rename", "link"])


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    yield number
    os.close(number)


# Publication


@BOTH_WAYS
def test_publication_gives_the_file_its_name(publish: Publish, tmp_path: Path) -> None:
    source, target = tmp_path / "t.tmp", tmp_path / "t.json"
    source.write_bytes(b"root")
    inode = source.stat().st_ino
    publish(str(source), str(target))
    assert target.read_bytes() == b"root"
    assert target.stat().st_ino == inode
    assert source.exists() == (publish is _native.link)


@BOTH_WAYS
@pytest.mark.parametrize("taken", ["file", "directory", "dangling link", "itself"])
def test_publication_never_replaces(publish: Publish, tmp_path: Path, taken: str) -> None:
    source, target = tmp_path / "t.tmp", tmp_path / "t.json"
    source.write_bytes(b"new")
    if taken == "file":
        target.write_bytes(b"old")
    elif taken == "directory":
        target.mkdir()
    elif taken == "dangling link":
        target.symlink_to("nowhere")
    else:
        os.link(source, target)
    before = target.lstat()
    with pytest.raises(FileExistsError) as caught:
        publish(str(source), str(target))
    assert (caught.value.errno, caught.value.filename, caught.value.filename2) == (
        errno.EEXIST, str(source), str(target),
    )  # fmt: skip
    assert target.lstat() == before
    assert source.read_bytes() == b"new"


@BOTH_WAYS
def test_of_many_publications_one_wins(publish: Publish, tmp_path: Path) -> None:
    target, start = tmp_path / "root.json", threading.Barrier(8)
    won: list[int] = []

    def owner(number: int) -> None:
        source = tmp_path / f"{number}.tmp"
        source.write_text(str(number))
        start.wait()
        try:
            publish(str(source), str(target))
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=owner, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [target.read_text()] == [str(n) for n in won]


@BOTH_WAYS
def test_publication_errors_bear_errno_and_names(publish: Publish, tmp_path: Path) -> None:
    source, odd = tmp_path / "gone", tmp_path / "a b\udcff\n"
    with pytest.raises(FileNotFoundError) as caught:
        publish(source, odd)
    assert (caught.value.filename, caught.value.filename2) == (str(source), str(odd))
    source.write_bytes(b"")
    with pytest.raises(FileNotFoundError):
        publish(source, tmp_path / "no" / "folder")
    with pytest.raises(NotADirectoryError):
        publish(source, source / "below")
    with pytest.raises(OSError, match="too long") as long:
        publish(source, tmp_path / ("n" * 300))
    assert long.value.errno == errno.ENAMETOOLONG
    with pytest.raises(ValueError, match="null"):
        publish(source, "a\0b")
    with pytest.raises(TypeError):
        publish(source, 3)
    publish(os.fsencode(source), os.fsencode(odd))
    assert odd.exists()


def test_a_symbolic_link_is_linked_itself(tmp_path: Path) -> None:
    (tmp_path / "s").symlink_to("nowhere")
    _native.link(tmp_path / "s", tmp_path / "t")
    assert os.readlink(tmp_path / "t") == "nowhere"


def test_renameat2_is_there_where_it_works(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    answer = 0
    try:
        _native.rename_noreplace(tmp_path / "a", tmp_path / "b")
    except OSError as error:
        answer = error.errno or 0
    assert _native.have_renameat2 == (answer != errno.ENOSYS)


# Sync, write, read


def test_sync_of_file_and_directory(fd: int, tmp_path: Path) -> None:
    os.write(fd, b"x")
    _native.fsync(fd)
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _native.fsync(folder)
    finally:
        os.close(folder)


def test_sync_range(fd: int) -> None:
    os.write(fd, bytes(100_000))
    for wait in (False, True):
        for offset, size in ((0, 4096), (4096, 95_904), (0, 0), (1 << 30, 1 << 20)):
            _native.sync_range(fd, offset, size, wait)
    with pytest.raises(OSError, match="Invalid") as caught:
        _native.sync_range(fd, -1, 10, False)
    assert caught.value.errno == errno.EINVAL


def test_write_and_read_back(fd: int) -> None:
    data = np.random.default_rng(1).integers(0, 256, 300_000, np.uint8)
    _native.pwrite_all(fd, data, 7)
    assert os.fstat(fd).st_size == 300_007
    into = np.zeros(300_000, np.uint8)
    assert _native.pread_full(fd, into, 7) == 300_000
    np.testing.assert_array_equal(into, data)
    _native.pwrite_all(fd, b"", 1 << 40)
    assert os.fstat(fd).st_size == 300_007
    assert os.lseek(fd, 0, os.SEEK_CUR) == 0


def test_a_read_is_short_only_at_the_end_of_the_file(fd: int) -> None:
    _native.pwrite_all(fd, b"0123456789", 0)
    into = bytearray(b"-" * 8)
    assert _native.pread_full(fd, into, 6) == 4
    assert into == b"6789----"
    assert _native.pread_full(fd, into, 10) == 0
    assert _native.pread_full(fd, into, 1 << 50) == 0
    assert _native.pread_full(fd, bytearray(), 0) == 0
    assert into == b"6789----"


@pytest.mark.parametrize(
    "call",
    [
        _native.fsync,
        lambda fd: _native.sync_range(fd, 0, 1, True),
        lambda fd: _native.pwrite_all(fd, b"x", 0),
        lambda fd: _native.pread_full(fd, bytearray(1), 0),
        lambda fd: _native.preallocate(fd, 1),
    ],
    ids=["fsync", "sync_range", "pwrite_all", "pread_full", "preallocate"],
)
def test_a_closed_file_is_an_error(call: Callable[[int], object]) -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        call(-1)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OverflowError):
        call(1 << 31)


@pytest.mark.parametrize(
    "call",
    [lambda fd, at: _native.pwrite_all(fd, b"xy", at), lambda fd, at: _native.pread_full(fd, bytearray(2), at)],
    ids=["pwrite_all", "pread_full"],
)
def test_ranges_that_no_file_has(fd: int, call: Callable[[int, int], object]) -> None:
    for offset, expected in ((-1, errno.EINVAL), ((1 << 63) - 1, errno.EFBIG), ((1 << 63) - 2, None)):
        if expected is None and call(fd, 0) in (0, None):
            continue  # the last range that can be said is the kernel's to judge
        with pytest.raises(OSError, match=r"\w") as caught:
            call(fd, offset)
        assert caught.value.errno == expected
    with pytest.raises(OverflowError):
        call(fd, 1 << 63)


def test_a_write_beyond_the_limit_of_file_sizes_is_an_error(fd: int) -> None:
    """The kernel writes the part below the limit first: the short write is resumed, and then its reason comes out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            _native.pwrite_all(fd, b"a" * 8000, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert caught.value.errno == errno.EFBIG
    assert os.fstat(fd).st_size == 5000


def test_preallocate(fd: int) -> None:
    _native.preallocate(fd, 0)
    assert os.fstat(fd).st_size == 0
    _native.preallocate(fd, 1 << 20)
    assert os.fstat(fd).st_size in (0, 1 << 20)  # 0: a file system that cannot
    with pytest.raises(OSError, match="Invalid"):
        _native.preallocate(fd, -1)


def test_statfs_type(tmp_path: Path) -> None:
    assert _native.statfs_type("/proc") == 0x9FA0
    found = subprocess.run(["stat", "-f", "-c", "%t", tmp_path], check=True, capture_output=True, text=True)
    assert _native.statfs_type(tmp_path) == int(found.stdout, 16)
    with pytest.raises(FileNotFoundError) as caught:
        _native.statfs_type(tmp_path / "gone")
    assert caught.value.filename == str(tmp_path / "gone")
