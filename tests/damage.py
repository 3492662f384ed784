"""A small generation that is to be damaged, and what everybody who reads it must say: a refusal that names the file.

Whatever is wrong with a store, `refused` has it verified, read and resumed afresh, and checks that each of them refuses
at once with a class that fits, names the file, and has left the destination as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import mpickpt
from mpickpt.errors import CheckpointError, FormatError, IntegrityError
from mpickpt.sharded import save_sharded

DAMAGE = (IntegrityError, FormatError)
PATIENCE = 5.0
"""Seconds in which a refusal must have come: damage is never waited for."""


def states(fill: float) -> list[dict[str, Any]]:
    """What two ranks hold: arrays in parts, values, something of each rank's own."""
    return [
        {
            "w": np.full((rows, 4), fill, np.float32),
            "half": np.full(5 - rows, fill, np.float16),
            "lr": fill,
            "own": mpickpt.PerOwner([fill, rows], on_resize="keep"),
        }
        for rows in (2, 4)
    ]


def whole(fill: float) -> dict[str, Any]:
    """The same for one owner who takes all."""
    return {
        "w": np.full((6, 4), fill, np.float32),
        "half": np.full(4, fill, np.float16),
        "lr": fill,
        "own": mpickpt.PerOwner([fill, 0], on_resize="keep"),
    }


@dataclass
class Store:
    """A store with one generation or more, whose files can be put back as they were."""

    path: Path
    blank: Callable[[], dict[str, Any]] = lambda: whole(0.0)
    kept: dict[Path, bytes] = field(default_factory=dict)

    @classmethod
    def of_two(cls, path: Path, steps: tuple[int, ...] = (1,)) -> Store:
        """Saved by two owners; resumed by one."""
        for step in steps:
            save_sharded(states(float(step)), path, step)
        return cls(path).keep()

    @classmethod
    def of_one(cls, path: Path) -> Store:
        """Saved by one owner, with a shard of its own beside that of replicated bytes."""

        def state(fill: float) -> dict[str, Any]:
            return {**whole(fill), "s": mpickpt.Sharded(np.full(3, fill, "c8"), shape=(3,), at=(0,))}

        with mpickpt.Checkpointer(path, alone=True) as ckpt:
            ckpt.resume(state(0.0))
            ckpt.save(state(1.0), step=1)
        return cls(path, lambda: state(0.0)).keep()

    def keep(self) -> Store:
        """Remember all files as they are."""
        self.kept = {file: file.read_bytes() for file in sorted(self.path.rglob("*")) if file.is_file()}
        return self

    def again(self) -> None:
        """Put every file back."""
        shutil.rmtree(self.path)
        for file, data in self.kept.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def files(self, pattern: str) -> list[Path]:
        """List the files that were there."""
        return [file for file in self.kept if file.relative_to(self.path).match(pattern)]

    def file(self, pattern: str) -> Path:
        """Give the one file of this pattern."""
        (found,) = self.files(pattern)
        return found

    # -- readers

    def read(self) -> Any:
        return mpickpt.open_store(self.path).read()

    def resume(self, **options: Any) -> mpickpt.Continuation:
        """Resume with a fresh Checkpointer; after a refusal the destination is as it was."""
        into = self.blank()
        try:
            with mpickpt.Checkpointer(self.path, alone=True) as ckpt:
                return ckpt.resume(into, repartition=True, **options)
        except BaseException:
            arrays = [x.parts[0][0] if isinstance(x, mpickpt.Sharded) else x for x in into.values()]
            assert not any(x.any() for x in arrays if isinstance(x, np.ndarray)), "a destination was partly filled"
            raise

    def well(self) -> None:
        """Check that everybody takes it."""
        assert mpickpt.open_store(self.path).verify().ok
        self.read()
        assert not self.resume(readonly=True).fresh

    def refused(
        self,
        file: Path | None,
        kinds: tuple[type[CheckpointError], ...] = DAMAGE,
        *,
        readonly: bool = True,
        verified: bool = True,
        told: object = "",
    ) -> CheckpointError:
        """Check that everybody refuses, at once, and names the file; give the refusal of `resume`.

        Parameters
        ----------
        file : Path, optional
            None: whichever.
        readonly : bool
            Whether the resume is one that writes nothing (quicker, and otherwise the same).
        verified : bool
            Whether `verify` must find it too: it cannot where all digests are right and only the numbers are not.
        told : object
            What to say where a check fails.
        """
        self._refusal(self.read, file, kinds, told)
        error = self._refusal(lambda: self.resume(readonly=readonly), file, kinds, told)
        if verified:
            failed = {verdict.path: type(verdict.error) for verdict in mpickpt.open_store(self.path).verify().failed}
            assert failed, (told, "verified")
            assert set(failed.values()) <= {*kinds}, (told, failed)
            assert file is None or str(file.relative_to(self.path)) in failed, (told, failed)
        return error

    def _refusal(
        self, reader: Callable[[], object], file: Path | None, kinds: tuple[type[CheckpointError], ...], told: object
    ) -> CheckpointError:
        begun = time.monotonic()
        found: CheckpointError | None = None
        try:
            reader()
        except CheckpointError as error:
            found = error
        assert found is not None, (told, "taken without a word")
        assert type(found) in kinds, (told, found)
        assert file is None or found.path == str(file), (told, found.path, found)
        assert time.monotonic() - begun < PATIENCE, told
        return found


@contextlib.contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in which thousands of files are written without a disk's syncs, where there is one."""
    shared = Path("/dev/shm")
    where = str(shared) if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mpickpt-", dir=where) as folder:
        yield Path(folder)
