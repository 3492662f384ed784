"""What a gate found: a verdict a check, and the report for those who were not there."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mpickpt
from mpickpt.errors import CheckpointError
from mpickpt.store.filesystem import probe

FORMAT = 1


class NotRun(str):
    """A fault that says nothing of the build: its processes were not started, or did not come to their end."""


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict.

    Attributes
    ----------
    gate, name : str
    ok : bool
    control : bool
        Whether a broken build was run, and `ok` says that it was caught.
    detail : str
        What was seen; of a failure, what was expected.
    seconds : float
        Since the verdict before it.
    """

    gate: str
    name: str
    ok: bool
    control: bool
    detail: str
    seconds: float


class Report:
    """Collects verdicts and says each as it comes.

    Parameters
    ----------
    say : callable
        Takes one line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.checks: list[Check] = []
        self.gate = ""
        self._last = time.monotonic()
        self._begun = time.time()

    @property
    def ok(self) -> bool:
        """Whether there were checks, and every one passed."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def check(self, name: str, faults: Sequence[str], detail: str = "") -> bool:
        """Pass a verdict: well if there are no faults."""
        return self._add(name, not faults, False, detail if not faults else _short(faults))

    def control(self, name: str, faults: Sequence[str]) -> bool:
        """Pass a verdict on a broken build: well if there *are* faults, for then the gate can fail.

        Not where it was not run to its end: that would be taken for being caught whatever was broken.
        """
        idle = [fault for fault in faults if isinstance(fault, NotRun)]
        if idle:
            return self._add(name, False, True, f"a broken build was not run: {_short(idle)}")
        return self._add(
            name, bool(faults), True, f"caught: {_short(faults[:1])}" if faults else "a broken build was not caught"
        )

    def _add(self, name: str, ok: bool, control: bool, detail: str) -> bool:
        now = time.monotonic()
        check = Check(self.gate, name, ok, control, detail, round(now - self._last, 3))
        self._last = now
        self.checks.append(check)
        verdict = ("caught" if control else "ok") if ok else "FAILED"
        self.say(f"{verdict:7} {check.gate}: {name}" + (f"  ({detail})" if detail else ""))
        return ok

    def to_json(self, **told: Any) -> dict[str, Any]:
        """Give the report as plain data."""
        return {
            "format": FORMAT,
            "ok": self.ok,
            "began": int(self._begun),
            "seconds": round(time.time() - self._begun, 1),
            **told,
            "checks": [asdict(check) for check in self.checks],
        }


def surroundings(store: Path) -> dict[str, Any]:
    """Say where this process runs, and what the file system of a directory promises."""
    try:
        promise: dict[str, Any] = probe(str(store)).to_json()
    except CheckpointError as error:
        promise = {"refused": error.to_record()}
    return {
        "mpickpt": mpickpt.__version__,
        "python": sys.version.split()[0],
        "host": platform.node(),
        "system": platform.platform(),
        "file_system": promise,
    }


def write(path: Path, report: dict[str, Any]) -> None:
    """Write a report where it was asked for."""
    path.write_text(json.dumps(report, indent=2, ensure_ascii=True, allow_nan=False) + "\n")


def _short(faults: Sequence[str], most: int = 3) -> str:
    more = f"; and {len(faults) - most} more" if len(faults) > most else ""
    return "; ".join(fault[:400] for fault in faults[:most]) + more
