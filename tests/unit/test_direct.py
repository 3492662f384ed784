"""A second descriptor past the page cache: where one is opened, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scene import failing

import mpickpt
from mpickpt import failpoints
from mpickpt.store import direct, filesystem
from mpickpt.store.steps import Steps

#: Whether the pieces lie in memory as in the payload: then they are written as a list, else by a `ShardWriter`.
FLAT = pytest.mark.parametrize("flat", [True, False], ids=["list", "writer"])


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take any file system for one where it is faster."""
    monkeypatch.setattr(direct, "FASTER", frozenset(filesystem.KINDS))
    yield
    failpoints.hook = None


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[bool]]:
    """Tell for every shard whether a descriptor was opened past the cache."""
    found: list[Callable[[], bool]] = []
    again, row = direct.open_again, Steps.direct

    def open_again(path: str, fd: int, payload: int) -> int:
        second = again(path, fd, payload)
        found.append(lambda: second >= 0)
        return second

    def add(self: Steps, *args: Any) -> int:
        at = len(self)
        found.append(lambda: self._work.found(at)[1] == 1)
        return row(self, *args)

    monkeypatch.setattr(direct, "open_again", open_again)
    monkeypatch.setattr(Steps, "direct", add)
    return lambda: [one() for one in found]


def save(folder: Path, size: int, flat: bool) -> np.ndarray[Any, Any]:
    array = np.random.default_rng(1).random(size // 8)
    with mpickpt.Checkpointer(folder / "run") as ckpt:
        ckpt.resume({"w": array})
        ckpt.save({"w": array if flat else np.repeat(array, 2)[::2]}, step=1)
    return array


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def direct_here(folder: Path) -> bool:
    path = folder / "probe"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Let every opening fail."""
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def another_file(folder: Path) -> Iterator[None]:
    """Let another file have the name of the one shard."""
    (path,) = (one for one in (folder / "run" / "data").rglob("*") if one.is_file())
    away = path.with_name("away")
    path.rename(away)
    path.write_bytes(b"another's")
    yield
    away.replace(path)


@FLAT
def test_a_large_shard_is_written_past_the_cache_and_comes_back(
    tmp_path: Path, opened: Callable[[], list[bool]], flat: bool
) -> None:
    if not direct_here(tmp_path):
        pytest.skip("no O_DIRECT here")
    before = descriptors()
    array = save(tmp_path, (5 << 20) + 808, flat)
    assert opened() == [True]
    assert descriptors() == before
    back = np.zeros_like(array)
    with mpickpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.resume({"w": back})
    assert np.array_equal(back, array)
    assert mpickpt.open_store(tmp_path / "run").verify().ok


@FLAT
def test_a_small_one_is_not(tmp_path: Path, opened: Callable[[], list[bool]], flat: bool) -> None:
    save(tmp_path, 8000, flat)
    assert opened() == [False]


@FLAT
@pytest.mark.parametrize("refused", ["kind", "open", "another"])
def test_where_it_is_not_to_be_had_all_goes_through_the_cache(
    tmp_path: Path, opened: Callable[[], list[bool]], monkeypatch: pytest.MonkeyPatch, refused: str, flat: bool
) -> None:
    """Another kind of file system, no second descriptor to be had, another file under the name by now."""
    meanwhile = contextlib.ExitStack()

    def hook(name: str) -> None:
        if name == "writer.created":
            meanwhile.enter_context(no_more_descriptors() if refused == "open" else another_file(tmp_path))
        if name == "writer.chunk":
            meanwhile.close()

    if refused == "kind":
        monkeypatch.setattr(direct, "FASTER", frozenset({1}))
    else:
        failpoints.hook = hook
    before = descriptors()
    save(tmp_path, 5 << 20, flat)
    failpoints.hook = None
    assert opened() == [False]
    assert descriptors() == before
    assert mpickpt.open_store(tmp_path / "run").verify().ok


def test_a_look_that_fails_leaves_no_second_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with path.open("wb") as file:
        before = len(os.listdir("/proc/self/fd"))
        with failing(os, "fstat", errno.EIO) as failed:
            assert direct.open_again(str(path), file.fileno(), 1 << 20) == -1
        assert failed
        assert len(os.listdir("/proc/self/fd")) == before
