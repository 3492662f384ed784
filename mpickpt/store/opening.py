"""Opening a run's directory: what is there, what the file system can do, what is missing."""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import uuid
from typing import TYPE_CHECKING

from mpickpt.errors import CheckpointError, NotFoundError, StoreError
from mpickpt.format.fields import FORMAT
from mpickpt.format.manifest import Manifest
from mpickpt.format.records import RunInfo
from mpickpt.store import commit
from mpickpt.store.files import names_in, read_record
from mpickpt.store.presence import is_directory, there
from mpickpt.store.refusal import store_error

if TYPE_CHECKING:
    from mpickpt.store.directory import Directory

_log = logging.getLogger("mpickpt")


def open_directory(directory: Directory, write: bool, check: bool) -> None:
    """Look, probe, check, make what is missing: in this order. See `Directory.open`."""
    path = directory.path
    made: list[str] = []
    if not is_directory(path):
        if there(path) and not is_directory(path):  # looked at again: a rival may just have made it
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
    while not is_directory(path) and os.path.dirname(path) != path:
        missing.append(path)
        path = os.path.dirname(path)
    return [path for path in reversed(missing) if commit.make_directory(path, sync_parent=False)]


def _sync_path(path: str, fence: bool) -> None:
    """Make the names durable that lead to a new store.

    Not before the probe has told whether that takes a fence. Directories that were there may have been made by a job
    that was killed before it synced them; where this user cannot write, no job of theirs made any.
    """
    device = _device(path)
    while (above := os.path.dirname(path)) != path:
        if _device(above) != device or not os.access(above, os.R_OK | os.W_OK | os.X_OK):
            return
        try:
            commit.sync_directory(above, fence)
        except StoreError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):  # a server may know better than `access`
                return
            raise
        path = above


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError as error:
        raise store_error(error, "a look at a directory", path) from error


def _prepare(directory: Directory) -> None:
    """Make what is missing and durable; run.json comes last, and where it stands all else is known to be durable."""
    new = not there(directory.run_path)
    if new:
        _sync_path(directory.path, directory.fence)
    for path in (directory.roots_path, directory.data_path, directory.epochs_path):
        if commit.make_directory(path, sync_parent=False):
            new = True
        else:
            commit.refresh(path)  # writable, before anything is claimed; and no listing out of a cache
    if new:
        commit.sync_directory(directory.path, directory.fence)
    if not there(directory.run_path):
        run = known_run(directory) or uuid.uuid4().hex
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        directory.publish(directory.path, "run.json", RunInfo(format=FORMAT, run=run, created=now).encode()[0])


def read_run(directory: Directory) -> RunInfo:
    """Read run.json, or, where it is purged, say so and find the run's id elsewhere; see `Directory.run`."""
    path = directory.run_path
    try:
        return RunInfo.decode(read_record(path, "run.json"), path)
    except FileNotFoundError:
        run = known_run(directory)
    if run is None:
        raise NotFoundError("this directory is no store", path=directory.path, expected="run.json")
    _log.warning("run.json is missing in %s; the run is taken from its claims and roots", directory.path)
    return RunInfo(format=FORMAT, run=run, created="unknown")


def own_run(directory: Directory) -> str | None:
    """Give the run's id as run.json or the newest claim tells it; None where neither can be read."""
    path = directory.run_path
    try:
        return RunInfo.decode(read_record(path, "run.json"), path).run
    except FileNotFoundError:
        pass
    except CheckpointError:
        return None
    try:
        newest = directory.newest_claim()
    except CheckpointError:
        return None
    return None if newest is None else newest.run


def known_run(directory: Directory) -> str | None:
    """Give the run's id as claims or roots tell it."""
    newest = directory.newest_claim()
    if newest is not None:
        return newest.run
    for root in reversed(directory.roots()):
        try:
            found = directory.read_root(root.name)
        except CheckpointError:
            continue  # an older one may be readable
        if isinstance(found, Manifest):
            return found.prefix.run
    return None
