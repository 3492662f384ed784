"""Opening a run's directory: what is there, what the file system can do, what is missing."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import uuid
from typing import TYPE_CHECKING

from mpickpt.errors import NotFoundError, StoreError
from mpickpt.format.fields import FORMAT
from mpickpt.format.records import RunInfo
from mpickpt.store import commit
from mpickpt.store.files import names_in

if TYPE_CHECKING:
    from mpickpt.store.directory import Directory


def open_directory(directory: Directory, write: bool, check: bool) -> None:
    """Look, probe, check, make what is missing: in this order. See `Directory.open`."""
    path = directory.path
    made: list[str] = []
    if not os.path.isdir(path):
        if os.path.lexists(path):
            raise _no_directory(path)
        if not write:
            raise NotFoundError("there is no store", path=path)
        made = _make_path(path)
    try:
        names_in(path)
        if write:
            directory.probe()
    except StoreError:
        for empty in reversed(made):
            with contextlib.suppress(OSError):  # another process has put something there
                os.rmdir(empty)
        raise
    if check:
        directory.check()
    if write:
        _prepare(directory)


def _no_directory(path: str) -> StoreError:
    dangling = os.path.islink(path) and not os.path.exists(path)
    return StoreError(
        "the path of the store is a link to nothing" if dangling else "the path of the store is no directory",
        errno=errno.ENOENT if dangling else errno.ENOTDIR,
        path=path,
        expected="a directory, or nothing",
        unharmed="what stands there",
        advice="name another path for the store",
    )


def _make_path(path: str) -> list[str]:
    """Make the directory and those above it that are missing; give those that were made, outermost first."""
    missing = []
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        missing.append(path)
        path = os.path.dirname(path)
    return [path for path in reversed(missing) if commit.make_directory(path)]


def _prepare(directory: Directory) -> None:
    """Make what is missing, the claims' directory last: claims without ``roots/`` are damage."""
    for path in (directory.roots_path, directory.data_path, directory.epochs_path):
        if not commit.make_directory(path, fence=directory.fence):
            commit.refresh(path)  # writable, before anything is claimed; and no listing out of a cache
    if not os.path.lexists(directory.run_path):
        run = directory.known_run() or uuid.uuid4().hex
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        directory.publish(directory.path, "run.json", RunInfo(format=FORMAT, run=run, created=now).encode()[0])
