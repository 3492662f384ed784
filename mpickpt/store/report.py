"""What the store tells its readers: one record a generation, one verdict a file, one report a check.

These are the public forms; `mpickpt.store.generation` reads the bytes they speak of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mpickpt.errors import CheckpointError, IntegrityError

LIVE = "live"
ORPHANED = "orphaned"
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation as a listing shows it.

    Of a damaged root only what its file's name says is known; the rest is None.

    Attributes
    ----------
    step : int
        Committed steps (optimizer updates).
    cursor : int or None
        Inputs consumed by all owners together.
    epoch : int
        The membership epoch that produced it.
    root : str or None
        Digest of the root manifest, ``blake3:HEX``.
    owners : int or None
        How many owners saved it.
    nbytes : int or None
        Bytes of all regions of known size, each counted once (values and per-owner data are not in it).
    created : str or None
        When its save ended, as the saving job told it (ISO 8601, UTC); never compared.
    status : {"live", "orphaned", "damaged"}
        Live: on the lineage, and its root and what the root itself records are there. Orphaned: off the lineage.
        A listing reads no shard; `Store.verify` does.
    name : str
        The root's file name under ``roots/``.
    """

    step: int
    cursor: int | None
    epoch: int
    root: str | None
    owners: int | None
    nbytes: int | None
    created: str | None
    status: str
    name: str

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {field: getattr(self, field) for field in self.__slots__}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found of one file.

    Attributes
    ----------
    path : str
        The file, relative to the run's directory.
    ok : bool
        Whether every byte that was checked is what its record names.
    error : CheckpointError or None
        The refusal, where not `ok`.
    """

    path: str
    ok: bool
    error: CheckpointError | None = None

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {"path": self.path, "ok": self.ok, "error": None if self.error is None else self.error.to_record()}


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of a check: a verdict for every file.

    Attributes
    ----------
    verdicts : tuple of Verdict
    level : {"fast", "full"}
        Fast compares CRCs, full also digests.
    generations : tuple of Generation
        What was checked.
    """

    verdicts: tuple[Verdict, ...]
    level: str
    generations: tuple[Generation, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every verdict is well."""
        return all(verdict.ok for verdict in self.verdicts)

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """The verdicts that are not well."""
        return tuple(verdict for verdict in self.verdicts if not verdict.ok)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __bool__(self) -> bool:
        return self.ok

    def raise_for_damage(self) -> None:
        """Raise the refusal of the first file that is not well; do nothing where all are.

        Raises
        ------
        CheckpointError
            Mostly IntegrityError or FormatError; StoreError where a file could not be read at all.
        """
        for verdict in self.failed:
            if verdict.error is not None:
                raise verdict.error
            raise IntegrityError("the file is not what its record names", path=verdict.path)

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {
            "ok": self.ok,
            "level": self.level,
            "generations": [generation.to_json() for generation in self.generations],
            "files": [verdict.to_json() for verdict in self.verdicts],
        }
