"""What stands in a file's place is of another save, of another run, or no file at all: refused at once, and named.

Nothing is waited for and nothing is read without end. A link to the true file is taken: files may be relocated.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from damage import DAMAGE, Store, in_memory, states

import mpickpt
from mpickpt import _native
from mpickpt.errors import CheckpointError, IntegrityError, NotFoundError, StoreError
from mpickpt.sharded import save_sharded
from mpickpt.store.commit import make_directory

KINDS = ("run.json", "epochs/*.json", "roots/*.json", "data/*/*/000001.json", "data/*/*/000000.safetensors",
         "data/*/*/000001.r.safetensors", "data/*/*/000001.safetensors")  # fmt: skip


@pytest.fixture
def store() -> Iterator[Store]:
    with in_memory() as folder:
        yield Store.of_two(folder / "run")


# ---------------------------------------------------------------- no file at all


def fifo(file: Path) -> None:
    os.mkfifo(file)


def listening(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(file.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{here}/{file.name}")  # a socket's own path may not be long
        finally:
            os.close(here)


def folder_with_a_file(file: Path) -> None:
    file.mkdir()
    (file / "x").write_bytes(b"x")


def dangling(file: Path) -> None:
    file.symlink_to(file.parent / "nothing-there")


def loop(file: Path) -> None:
    file.symlink_to(file.name)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda file: file.symlink_to(target)


STRANGE: dict[str, Callable[[Path], None]] = {
    "a FIFO": fifo,
    "a socket": listening,
    "a folder": Path.mkdir,
    "a folder with a file in it": folder_with_a_file,
    "a link to nothing": dangling,
    "a link to itself": loop,
    "a link to a device without end": link_to("/dev/zero"),
    "a link to a device that is empty": link_to("/dev/null"),
    "a link to a terminal": link_to("/dev/tty"),
    "a link to a folder": link_to("/"),
    "a link to a file of the system": link_to("/proc/self/environ"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", STRANGE)
def test_what_is_no_file_is_refused_at_once(what: str, kind: str, store: Store) -> None:
    file = store.file(kind)
    file.unlink()
    STRANGE[what](file)
    tracemalloc.start()
    try:
        error = store.refused(file, (*DAMAGE, StoreError), readonly=False, told=what)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    if what in ("a link to nothing", "a link to itself"):
        assert type(error) is (IntegrityError if "nothing" in what else StoreError)
    elif what not in ("a link to a terminal", "a link to a file of the system"):  # there may be none; that is one
        assert "no regular file" in error.message


@pytest.mark.parametrize("what", STRANGE)
@pytest.mark.parametrize("name", ["epochs/00000001.ended", "pins/{root}", "events.jsonl"])
def test_what_is_beside_the_format_stands_in_nobodys_way(what: str, name: str, store: Store) -> None:
    root = next((store.path / "roots").glob("*.json")).name
    file = store.path / name.format(root=root)
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    STRANGE[what](file)
    began = time.monotonic()
    with mpickpt.Checkpointer(store.path, alone=True) as ckpt:
        step = ckpt.resume(store.blank(), repartition=True).step
        assert ckpt.verify().ok
    found = mpickpt.open_store(store.path)
    assert [one.step for one in found.generations()][-1] == step
    for verdict in found.verify_all().failed:
        assert isinstance(verdict.error, CheckpointError)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("size", [1 << 20, 1 << 40])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_a_hole_takes_no_more_memory_than_a_record_may_have(kind: str, size: int, store: Store) -> None:
    file = store.file(kind)
    with file.open("r+b") as opened:
        opened.truncate(size)
    tracemalloc.start()
    try:
        store.refused(file)
        assert tracemalloc.get_traced_memory()[1] < (4 << 20) + 10 * min(size, 1 << 20)
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def as_somebody_else() -> Iterator[None]:
    """Give up the rights of root, who may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_may_not_be_read_is_refused_and_named(kind: str) -> None:
    with in_memory() as folder:
        folder.chmod(0o755)
        store = Store.of_two(folder / "run")
        file = store.file(kind)
        with as_somebody_else():
            store.well()
        file.chmod(0)
        try:
            with as_somebody_else():
                error = store.refused(file, (StoreError,))
            assert isinstance(error, PermissionError | StoreError)
            assert error.errno == 13  # type: ignore[union-attr]
        finally:
            file.chmod(0o644)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grows", [True, False])
def test_a_file_that_grows_or_is_cut_while_it_is_read(
    grows: bool, kind: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more is read than stood there at first: it is refused, or what was read before is right."""
    file = store.file(kind)
    real = _native.pread_full

    def pread_full(fd: int, into: memoryview, offset: int) -> int:
        if os.path.samestat(os.fstat(fd), file.stat()):
            with file.open("r+b") as opened:
                opened.truncate(file.stat().st_size + (1 << 20) if grows else 0)
        return int(real(fd, into, offset))

    expected = store.read()
    monkeypatch.setattr(_native, "pread_full", pread_full)
    tracemalloc.start()
    try:
        for reader in (store.read, store.resume):
            try:
                found = reader()
            except DAMAGE as error:
                named = str(error.path)
            else:
                named = file.name
                assert grows
                assert isinstance(found, mpickpt.Continuation) or repr(found) == repr(expected)
            assert grows or named.endswith(file.name)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_to_the_true_file_elsewhere_is_taken(kind: str, store: Store) -> None:
    file = store.file(kind)
    moved = store.path.parent / "elsewhere"
    file.rename(moved)
    file.symlink_to(moved)
    store.well()


@pytest.mark.parametrize("name", ["roots", "epochs", "data"])
@pytest.mark.parametrize("what", [name for name in STRANGE if "folder" not in name])
def test_what_is_no_folder_is_refused_at_once(what: str, name: str, store: Store) -> None:
    place = store.path / name
    place.rename(store.path.parent / "moved")
    STRANGE[what](place)
    kinds = (*DAMAGE, StoreError, NotFoundError)
    store.refused(None, kinds, readonly=False, told=what)


# ---------------------------------------------------------------- another save's, another run's


@pytest.fixture
def two_steps() -> Iterator[Store]:
    with in_memory() as folder:
        yield Store.of_two(folder / "run", (1, 2))


@pytest.mark.parametrize("name", ["000001.json", "000000.safetensors", "000001.safetensors", "000001.r.safetensors"])
def test_files_of_two_saves_that_are_swapped_are_refused(name: str, two_steps: Store) -> None:
    one, two = two_steps.files(f"data/*/*/{name}")
    assert len(two_steps.kept[one]) == len(two_steps.kept[two])
    one.write_bytes(two_steps.kept[two])
    two.write_bytes(two_steps.kept[one])
    assert type(two_steps.refused(two)) is IntegrityError
    for step, file in ((1, one), (2, two)):
        with pytest.raises(IntegrityError) as info:
            mpickpt.open_store(two_steps.path).read(step)
        assert info.value.path == str(file)
    with pytest.raises(IntegrityError):
        two_steps.resume(step=1)


def test_roots_of_two_saves_that_are_swapped_are_refused(two_steps: Store) -> None:
    one, two = two_steps.files("roots/*.json")
    one.write_bytes(two_steps.kept[two])
    two.write_bytes(two_steps.kept[one])
    assert type(two_steps.refused(two)) is IntegrityError


def test_folders_of_two_saves_that_are_swapped_are_refused(two_steps: Store) -> None:
    one, two = (two_steps.path / "data" / file.stem for file in two_steps.files("roots/*.json"))
    one.rename(two.with_name("aside"))
    two.rename(one)
    two.with_name("aside").rename(two)
    assert type(two_steps.refused(None)) is IntegrityError


def test_shards_of_two_owners_that_are_swapped_are_refused(store: Store) -> None:
    mine = store.file("data/*/*/000000.safetensors")
    theirs = mine.with_name("000001.safetensors")
    mine.write_bytes(store.kept[theirs])
    theirs.write_bytes(store.kept[mine])
    assert type(store.refused(mine)) is IntegrityError
    assert type(store.refused(None)) is IntegrityError


@pytest.fixture
def another(store: Store) -> Store:
    """Another run's store, of the same step and the same states."""
    return Store.of_two(store.path.parent / "another")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("roots/*.json", "data/*/*/000001.json")])
def test_a_file_of_another_run_in_its_place_is_refused(kind: str, store: Store, another: Store) -> None:
    file = store.file(kind)
    file.write_bytes(another.kept[another.file(kind)])
    error = store.refused(None)
    assert type(error) is IntegrityError


@pytest.mark.parametrize("kind", ["roots/*.json", "data/*/*/000001.json"])
def test_a_manifest_of_another_run_in_its_place_is_refused_and_named(kind: str, store: Store, another: Store) -> None:
    file = store.file(kind)
    file.write_bytes(another.kept[another.file(kind)])
    assert type(store.refused(file)) is IntegrityError


def test_a_whole_generation_of_another_run_beside_the_own_ones_is_refused(store: Store) -> None:
    """It is intact, and newer than what the run has: yet it is no state of this run."""
    save_sharded(states(5.0), store.path.parent / "another", 5)
    for name in ("roots", "data"):
        for found in (store.path.parent / "another" / name).iterdir():
            (shutil.copytree if found.is_dir() else shutil.copy)(found, store.path / name / found.name)
    (root,) = (store.path / "roots").glob("000000000005-*")
    error = store.refused(root, (IntegrityError,), readonly=False)
    assert "another run" in error.message


def test_a_store_whose_claims_are_of_another_run_is_refused(store: Store, another: Store) -> None:
    for file in store.files("epochs/*.json"):
        file.write_bytes(another.kept[another.file("epochs/*.json")])
    store.file("run.json").unlink()
    assert type(store.refused(None)) is IntegrityError


def test_a_moved_store_is_taken(store: Store) -> None:
    moved = store.path.parent / "moved" / "further"
    make_directory(str(moved.parent))
    store.path.rename(moved)
    assert not Store(moved).resume().fresh
