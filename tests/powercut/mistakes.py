"""Mistakes that a commit protocol could have, planted in a recorded job: what the proof is for must be found by it."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crashkit

from mpickpt import _native, failpoints
from mpickpt.cluster.lineage import Lineage
from mpickpt.cluster.publish import Publisher
from mpickpt.store import commit, keeping


def _syncs_only(which: Callable[[int], bool]) -> None:
    real = _native.fsync
    _native.fsync = lambda fd: real(fd) if which(fd) else None


def _is_directory(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def no_file_sync(*_: Any) -> None:
    """Files are never synced."""
    _syncs_only(_is_directory)


def no_directory_sync(*_: Any) -> None:
    """Directories are never synced."""
    _syncs_only(lambda fd: not _is_directory(fd))


def no_parent_sync(*_: Any) -> None:
    """A new directory's own name is not synced."""
    real = commit.make_directory

    def make_directory(path: str, sync_parent: bool = True, fence: bool = False, ours: bool = False) -> bool:
        return real(path, False, fence, ours)

    commit.make_directory = make_directory


def root_published_early(store: Path, folder: Path, role: int) -> None:
    """Shards and manifests are synced by the next save: their root stands before they are durable."""
    real, late = _native.fsync, []

    def fsync(fd: int) -> None:
        if "/data/" in os.readlink(f"/proc/self/fd/{fd}") and not _is_directory(fd):
            late.append(os.dup(fd))
        else:
            real(fd)

    _native.fsync = fsync
    save = Publisher.save

    def saved(self: Publisher, *args: Any) -> Any:
        while late:
            fd = late.pop()
            real(fd)
            os.close(fd)
        return save(self, *args)

    Publisher.save = saved  # type: ignore[method-assign]


def sync_retried(store: Path, folder: Path, role: int) -> None:
    """A sync that failed is tried again, and its "ok" believed."""
    real = _native.fsync

    def fsync(fd: int) -> None:
        with contextlib.suppress(OSError):
            return real(fd)
        real(fd)

    _native.fsync = fsync


def tell_newest(store: Path, folder: Path, role: int) -> None:
    """Tell of the newest root that stands in the store."""
    for path in sorted((store / "roots").glob("0*.json"), reverse=True):
        first, digest = path.read_bytes().splitlines()
        if json.loads(first).get("kind") == "root":
            crashkit.say(folder, role, json.loads(first)["prefix"]["step"], json.loads(digest)["digest"])
            return


def success_told_early(store: Path, folder: Path, role: int) -> None:
    """Owner 0 tells of a save as its root is in place, before the directory is synced."""
    before = failpoints.hook

    def hook(name: str) -> None:
        if before is not None:
            before(name)
        if name == "commit.placed":
            tell_newest(store, folder, role)

    failpoints.hook = hook


def rotated_before_publication(store: Path, folder: Path, role: int) -> None:
    """What is beyond `keep` goes as if the new generation were published already."""
    begin = Lineage.begin_save

    def begin_save(self: Lineage, *args: Any) -> dict[str, Any]:
        names = [root.name for root in self.directory.lineage()]
        keeping.remove_roots(self.directory, names[: max(0, len(names) - (self.keep or 1) + 1)])
        return begin(self, *args)

    Lineage.begin_save = begin_save  # type: ignore[method-assign]


MISTAKES = {
    mistake.__name__: mistake
    for mistake in (
        no_file_sync,
        no_directory_sync,
        no_parent_sync,
        root_published_early,
        sync_retried,
        success_told_early,
        rotated_before_publication,
    )
}


def plant(name: str | None, store: Path, folder: Path, role: int) -> None:
    """Plant one of them in this process; none for None."""
    if name is not None:
        MISTAKES[name](store, folder, role)


@contextlib.contextmanager
def planted(name: str | None, store: Path, folder: Path) -> Iterator[None]:
    """Plant one for the length of a with-block, for owners that are threads of this process."""
    saved = (
        _native.fsync,
        commit.make_directory,
        Publisher.save,
        Lineage.begin_save,
        failpoints.hook,
    )
    plant(name, store, folder, 0)
    try:
        yield
    finally:
        _native.fsync, commit.make_directory = saved[:2]
        Publisher.save, Lineage.begin_save = saved[2:4]  # type: ignore[method-assign]
        failpoints.hook = saved[4]
