"""What a save does in the store so that it is published, or never will be. All of it runs in workers.

Whichever file stands under the root's name in ``roots/`` decides: the root, or a void record (docs/protocol.md, P5
and P8). Failpoints: save.doubt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from mpickpt import failpoints
from mpickpt.cluster.attempt import Attempt
from mpickpt.cluster.topology import Place
from mpickpt.errors import CheckpointError, StoreError
from mpickpt.format.names import FOLDER, shard_file
from mpickpt.store import commit
from mpickpt.store.directory import Directory
from mpickpt.store.files import names_in
from mpickpt.store.threads import Pool, share


def folders_of(place: Place) -> Iterator[int]:
    """Give the folders, by number, of which all owners are in this subtree, but not all in that of one child.

    So each folder is one owner's to sync, who knows by its children's commitments that all files in it are made.
    A leaf has none: a folder of its own is its parent's.
    """
    if place.parent is not None and not place.children:
        return
    at, end = _folders_within(place.role, place.size, place.owners)
    for role, size in place.children:
        first, last = _folders_within(role, size, place.owners)
        if size > 1 and first < last:
            yield from range(at, first)
            at = last
    yield from range(at, end)


def _folders_within(role: int, size: int, owners: int) -> tuple[int, int]:
    """Give (first, end) of the folders of which all owners are among `size` roles from `role` on."""
    stop = role + size
    return -(-role // FOLDER), -(-stop // FOLDER) if stop == owners else stop // FOLDER


def sync_folders(directory: Directory, attempt: Attempt, place: Place, pool: Pool) -> None:
    """Sync the folders that are this owner's to sync, several at a time."""

    def sync(folder: int) -> None:
        path = os.path.dirname(attempt.path(shard_file(folder * FOLDER)))
        if os.path.isdir(path):  # of owners that hold nothing there may be no file
            commit.sync_directory(path, directory.fence)

    share(pool, sync, list(folders_of(place)))


def sync_attempt(directory: Directory, attempt: Attempt, place: Place, pool: Pool) -> None:
    """Sync, at the root, the folders that are its to sync, and then the attempt's directory."""
    sync_folders(directory, attempt, place, pool)
    commit.sync_directory(attempt.directory, directory.fence)


def place_root(directory: Directory, attempt: Attempt, data: bytes) -> bool | StoreError:
    """Publish the root.

    Returns
    -------
    bool or StoreError
        True: published. False: the name was taken. The error, where nothing stands under the name and nothing will:
        the store has nothing to decide then.

    Raises
    ------
    StoreError
        If the root stands there, or may: see `commit.was_published`.
    """
    try:
        return directory.publish_root(attempt.name, data)
    except StoreError as error:
        if commit.was_published(error):
            raise
        try:
            there = attempt.name in names_in(directory.roots_path)
        except (OSError, CheckpointError):
            raise error from None
        if there:
            raise
        return error


def settle(directory: Directory, attempt: Attempt, error: CheckpointError) -> CheckpointError | bytes:
    """Void the attempt, or learn that it is published; gives what holds, as `mpickpt.cluster.channel.Settle` says."""
    failpoints.reach("save.doubt")
    verdict = directory.void(attempt.name, error)
    return verdict.encode() if isinstance(verdict, str) else verdict
