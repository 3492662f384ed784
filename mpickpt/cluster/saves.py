"""What a save is asked for, what of it is still being copied, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from mpickpt.store.threads import STAGING


@dataclass(frozen=True, slots=True)
class Published:
    """What the newest publication of this process was."""

    step: int
    cursor: int
    root: str
    name: str


@dataclass(frozen=True, slots=True)
class Options:
    """How saves are made: what all owners must have asked for alike, but for `staging`."""

    write: str
    algorithm: str
    nonfinite: Mapping[str, str]
    #: Bytes that a save may stage: each owner's own affair, and not compared.
    staging: int = STAGING

    def to_json(self) -> dict[str, Any]:
        """Give the options as plain data."""
        return {"write": self.write, "digest": self.algorithm, "nonfinite": dict(self.nonfinite)}


class Staged:
    """The copy of a state that is saved in the background.

    Attributes
    ----------
    complete : Future
        Done when nothing of the caller's is needed any more.
    seconds : float
        For how long it was copied; known then.
    number : int
        That the save's call was counted with.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.complete: Future[None] = Future()
        self.seconds = 0.0


__all__ = ["Options", "Published", "Staged"]
