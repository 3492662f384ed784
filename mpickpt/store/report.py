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
class Epoch:
    """One continuation: what it goes on from, who took it, what it saved.

    Of an epoch whose claim is missing only the number and the generations are known.

    Attributes
    ----------
    epoch : int
    origin : (int, int) or None
        (epoch, step) of the generation that it goes on from; None for a fresh start.
    status : {"taken", "superseded", "void", "missing"}
        Superseded: the same job claimed once more, from a newer generation. Void: it ended before it began.
    owners : int or None
    job, host, nodes, time, reason : str or None
        As the claimant told.
    restarts : int or None
        How often the scheduler had started its job again.
    ended : str or None
        Why that job ended, or began to, as it said itself; None where it has said nothing: it runs, or was killed.
    accepted : tuple of (field, then, now, reason)
        Differences of the contract that were meant.
    generations : tuple of Generation
        What was saved in it, oldest first.
    """

    epoch: int
    origin: tuple[int, int] | None
    status: str
    owners: int | None
    job: str | None
    host: str | None
    nodes: str | None
    time: str | None
    reason: str | None
    accepted: tuple[tuple[str, str, str, str], ...]
    generations: tuple[Generation, ...]
    restarts: int | None = None
    ended: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        found = {field: getattr(self, field) for field in self.__slots__}
        return found | {"generations": [generation.to_json() for generation in self.generations]}


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
    """Outcome of a check.

    `Store.verify` has a verdict for every file. `Checkpointer.verify`, which is collective, names damaged files only,
    20 at most, and counts all others: what owners tell each other does not grow with their number.

    Attributes
    ----------
    verdicts : tuple of Verdict
    level : {"fast", "full"}
        Fast compares CRCs, full also digests.
    generations : tuple of Generation
        What was checked; none from a collective check.
    unnamed_good, unnamed_damaged : int
        Files that were checked, too, and have no verdict in `verdicts`.
    """

    verdicts: tuple[Verdict, ...]
    level: str
    generations: tuple[Generation, ...] = ()
    unnamed_good: int = 0
    unnamed_damaged: int = 0

    @property
    def ok(self) -> bool:
        """Whether every file is well."""
        return self.damaged == 0

    @property
    def good(self) -> int:
        """How many files are well."""
        return sum(verdict.ok for verdict in self.verdicts) + self.unnamed_good

    @property
    def damaged(self) -> int:
        """How many files are not."""
        return len(self.failed) + self.unnamed_damaged

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
            "good": self.good,
            "damaged": self.damaged,
            "generations": [generation.to_json() for generation in self.generations],
            "files": [verdict.to_json() for verdict in self.verdicts],
        }
