"""What one owner does in the store as lists of file operations: its shards, its manifest, its syncs, the root.

Each is a `performing.Task`: made up by the thread of the call, done by one that needs no interpreter lock, concluded by
the call's again, or, where it failed, by a worker.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpickpt.errors import CheckpointError, StoreError
from mpickpt.format.layout import Layout
from mpickpt.format.manifest import ShardRecord
from mpickpt.format.names import shard_file
from mpickpt.store import commit, fencing
from mpickpt.store.directory import Directory
from mpickpt.store.files import names_in
from mpickpt.store.steps import Steps
from mpickpt.store.writing import ShardSteps, flat

if TYPE_CHECKING:
    from mpickpt.cluster.attempt import Attempt
    from mpickpt.state.plan import Piece

Part = tuple[Layout, "list[Piece]"]


class Shards:
    """This owner's shards: its own, and its part of what all hold alike."""

    def __init__(self, attempt: Attempt, parts: Sequence[ShardSteps | None], steps: Steps) -> None:
        self.steps = steps
        self._attempt = attempt
        self._parts = parts
        self._concluded = False

    @classmethod
    def of(cls, attempt: Attempt, parts: Sequence[Part | None], threads: int) -> Shards | None:
        """Make the list; None where a shard must be written in another way."""
        steps = Steps(attempt.progress)
        made: list[ShardSteps | None] = []
        for which, part in enumerate(parts):
            if part is None:
                made.append(None)
                continue
            layout, pieces = part
            source = flat(layout, pieces)
            if source is None:
                return None
            path = attempt.path(shard_file(attempt.role, which == 1))
            made.append(
                ShardSteps(
                    steps, path, os.path.dirname(path), layout, source, attempt.progress, attempt.refuses, threads
                )
            )
        steps.check()
        steps.reach("save.shards-written", raw=True)
        return cls(attempt, made, steps)

    def ended(self, patience: float) -> bool:
        """Wait for the end of the list, if it was begun; remove what it has made unless it went well."""
        if self._concluded:
            return True
        if self.steps.worker is not None:
            return self.steps.wait(patience)  # which removes it itself
        # One that is begun after this comes to its first check, and no further.
        if self.steps.begun and not self.steps.wait(patience):
            return False
        self._remove()
        return True

    def await_end(self) -> None:
        """The same, without a limit: for a thread that has nothing else to do."""
        while self.steps.worker is None and not self.ended(1e6):
            pass

    def _remove(self) -> None:
        for part in self._parts:
            if part is not None:
                part.abandon()
        self.steps.tidy()

    def conclude(self, error: BaseException | None) -> list[ShardRecord | None]:
        """Give their records."""
        self._concluded = True
        attempt = self._attempt
        if error is not None:
            self._remove()
            if self.steps.raised is None:
                attempt.missed(error)
            raise error
        records: list[ShardRecord | None] = []
        for which, part in enumerate(self._parts):
            if part is None:
                records.append(None)
                continue
            attempt.files.append(part.path)
            records.append(part.written().record(attempt.role, shard_file(attempt.role, which == 1)))
        return records


class GroupManifest:
    """A group's manifest, and then the folders that are this owner's to sync."""

    def __init__(self, attempt: Attempt, path: str, data: bytes, folders: Sequence[str], fence: bool) -> None:
        self.steps = steps = Steps(attempt.progress, slow=True)
        self._attempt = attempt
        self._path = path
        commit.add_new(steps, path, data, os.path.dirname(path))
        for folder in folders:
            commit.add_directory_sync(steps, folder, fence, absent=True)

    def conclude(self, error: BaseException | None) -> None:
        """Note that it is there."""
        if error is None:
            self._attempt.files.append(self._path)
            return
        if self.steps.went_behind(0):
            commit.remove_quietly(self._path)
        self.steps.tidy()
        self._attempt.missed(error)
        raise error


class Syncs:
    """At the root: the folders that are its to sync, the attempt's directory, and a look at the claims."""

    def __init__(
        self, directory: Directory, attempt: Attempt, folders: Sequence[str], steps: Steps | None = None
    ) -> None:
        self.steps = steps = Steps(attempt.progress) if steps is None else steps
        steps.slow = True
        self._epoch = attempt.prefix.epoch
        for folder in folders:
            commit.add_directory_sync(steps, folder, directory.fence, absent=True)
        commit.add_directory_sync(steps, attempt.directory, directory.fence)
        self._claims = _add_look(steps, directory)

    def conclude(self, error: BaseException | None) -> bool:
        """Tell whether there is a later claim, to be read before anything is published."""
        if error is not None:
            self.steps.tidy()
            raise error
        return fencing.later(self.steps.listed(self._claims), self._epoch)


class Root:
    """The root's publication, and then a look at the claims.

    Attributes
    ----------
    newer : bool
        Whether there is a later claim, or none could be seen: then they are to be read.
    """

    def __init__(self, directory: Directory, attempt: Attempt, data: bytes) -> None:
        self.steps = steps = Steps(attempt.progress, slow=True)
        self.newer = False
        self._directory = directory
        self._attempt = attempt
        self._publication = commit.Publication(
            directory.roots_path, attempt.name, data, directory.way, directory.fence, steps
        )
        steps.reach("save.root-placed", raw=True)
        self._claims = _add_look(steps, directory)

    def conclude(self, error: BaseException | None) -> bool | StoreError:
        """Say what came of it.

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
        name = self._attempt.name
        try:
            placed = self._publication.conclude(error)
        except StoreError as trouble:
            if commit.was_published(trouble):
                raise
            try:
                there = name in names_in(self._directory.roots_path)
            except (OSError, CheckpointError):
                raise trouble from None
            if there:
                raise
            return trouble
        if error is not None:
            self.steps.tidy()
            if self.steps.raised is not None:
                raise self.steps.raised
        if placed:
            self._directory.published(name)  # or each rotation would read the whole root to find that out
            self.newer = error is not None or fencing.later(self.steps.listed(self._claims), self._attempt.prefix.epoch)
        return placed


def _add_look(steps: Steps, directory: Directory) -> int:
    """Add a look at the claims that no network file system answers from its cache."""
    commit.add_refresh(steps, directory.epochs_path)
    return steps.names(directory.epochs_path)


__all__ = ["GroupManifest", "Part", "Root", "Shards", "Syncs"]
