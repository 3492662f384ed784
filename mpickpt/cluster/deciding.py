"""What a save does in the store so that it is published, or never will be, beside the lists of `writing`: in workers.

Whichever file stands under the root's name in ``roots/`` decides: the root, or a void record (docs/protocol.md, P5
and P8). Failpoint: save.doubt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from mpickpt import failpoints
from mpickpt.cluster.attempt import Attempt
from mpickpt.cluster.topology import Place
from mpickpt.errors import CheckpointError
from mpickpt.format.names import FOLDER, shard_file
from mpickpt.store import commit, fencing
from mpickpt.store.directory import Directory
from mpickpt.store.presence import is_directory
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


def folder_paths(attempt: Attempt, place: Place) -> list[str]:
    """Give the folders that are this owner's to sync, by path."""
    return [os.path.dirname(attempt.path(shard_file(folder * FOLDER))) for folder in folders_of(place)]


def sync_folders(directory: Directory, paths: Sequence[str], pool: Pool) -> None:
    """Sync many folders, several at a time."""

    def sync(path: str) -> None:
        if is_directory(path):  # of owners that hold nothing there may be no file
            commit.sync_directory(path, directory.fence)

    share(pool, sync, paths)


def check_orphaned(directory: Directory, attempt: Attempt) -> None:
    """Refuse with EpochError where a newer job has continued the run, so that the root stands off the lineage."""
    error = fencing.orphaned(directory, attempt.name)
    if error is not None:
        raise error


def settle(directory: Directory, attempt: Attempt, error: CheckpointError) -> CheckpointError | bytes:
    """Void the attempt, or learn that it is published; gives what holds, as `mpickpt.cluster.channel.Settle` says."""
    failpoints.reach("save.doubt")
    verdict = directory.void(attempt.name, error)
    if isinstance(verdict, str):
        return fencing.orphaned(directory, attempt.name) or verdict.encode()
    return verdict
