"""What many owners found of many files, in a size that grows with neither.

Each owner checks a share of the files. What travels between them are counts, and of what is damaged a few by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mpickpt.errors import from_record
from mpickpt.store.report import Report, Verdict

MOST_NAMED: Final = 20
"""Damaged files that are told by name: the first, by their paths."""


class Tally:
    """How many files are well and how many are not, and which those are.

    Each file is counted by the one owner in whose share it is. A damaged manifest is named by all that had to read it
    on their way, and kept once.
    """

    def __init__(self) -> None:
        self.good = 0
        self.damaged = 0
        self._named: dict[str, Verdict] = {}

    def add(self, verdict: Verdict, counted: bool = True) -> None:
        """Take one verdict; `counted`: the file is in the share of who found it."""
        if counted and verdict.ok:
            self.good += 1
        elif counted:
            self.damaged += 1
        if not verdict.ok:
            self._name(verdict)

    def merge(self, other: Tally) -> None:
        """Take in what another share came to."""
        self.good += other.good
        self.damaged += other.damaged
        for verdict in other._named.values():
            self._name(verdict)

    def _name(self, verdict: Verdict) -> None:
        self._named.setdefault(verdict.path, verdict)
        if len(self._named) > MOST_NAMED:
            del self._named[max(self._named)]

    def report(self, level: str) -> Report:
        """Say it as users get it."""
        named = tuple(self._named[path] for path in sorted(self._named))
        # What only somebody else than its own checker found damaged is one of the damaged all the same.
        damaged = max(self.damaged, len(named))
        good = max(0, self.good + self.damaged - damaged)
        return Report(named, level, unnamed_good=good, unnamed_damaged=damaged - len(named))

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        named = [self._named[path].to_json() for path in sorted(self._named)]
        return {"good": self.good, "damaged": self.damaged, "named": named}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Tally:
        """Read what `to_json` wrote."""
        self = cls()
        self.good, self.damaged = found["good"], found["damaged"]
        for one in found["named"]:
            self._name(Verdict(one["path"], one["ok"], None if one["error"] is None else from_record(one["error"])))
        return self


__all__ = ["MOST_NAMED", "Tally"]
