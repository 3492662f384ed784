"""What the proofs have counted in this session: told at its end (`tests/conftest.py`)."""

from __future__ import annotations

from collections import Counter

counts: Counter[str] = Counter()
failures: Counter[str] = Counter()


def add(what: str, count: int, failed: int = 0) -> None:
    """Count checks of one kind, and those that failed."""
    counts[what] += count
    failures[what] += failed


def text(tests: int) -> str:
    """Say it in one line, with so many tests that have failed; empty if nothing was counted."""
    if not counts:
        return ""
    failed = max(sum(failures.values()), tests)  # not all tests count what failed in them
    return ", ".join(f"{counts[what]:,} {what}" for what in counts) + f": {failed} failures"
