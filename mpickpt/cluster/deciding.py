"""What a save does in the store so that it is published, or never will be. All of it runs in workers.

Whichever file stands under the root's name in ``roots/`` decides: the root, or a void record (docs/protocol.md, P5
and P8). Failpoints: save.doubt.
"""

from __future__ import annotations

import os

from mpickpt import failpoints
from mpickpt.cluster.attempt import Attempt
from mpickpt.cluster.topology import Place
from mpickpt.errors import CheckpointError, StoreError
from mpickpt.format.names import shard_file
from mpickpt.store import commit
from mpickpt.store.directory import Directory
from mpickpt.store.files import names_in


def sync_folders(directory: Directory, attempt: Attempt, place: Place) -> None:
    """Sync the folders of this owner's files and of its leaves', each once; other children have synced their own."""
    roles = [place.role, *(role for role, size in place.children if size == 1)]
    for folder in sorted({os.path.dirname(attempt.path(shard_file(role))) for role in roles}):
        if os.path.isdir(folder):
            commit.sync_directory(folder, directory.fence)


def sync_attempt(directory: Directory, attempt: Attempt, place: Place) -> None:
    """Sync, at the root, its group's folders and then the attempt's directory."""
    sync_folders(directory, attempt, place)
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
