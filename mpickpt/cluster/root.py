"""What owner 0 looks at before it publishes a root, and what it tells in it of how it was written (Publish 5)."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

from mpickpt._version import __version__
from mpickpt.cluster import inquire
from mpickpt.cluster.attempt import Attempt, Sums
from mpickpt.cluster.channel import Call, Line
from mpickpt.cluster.performing import reckon
from mpickpt.state import coverage


def compare(call: Call, attempt: Attempt, sums: Sums, size: int) -> None:
    """Refuse unless everything is tiled once, held as declared, and equal where it is held in copies.

    `size` says how much there is to add up, see `performing.reckon`.

    Raises
    ------
    CoverageError, ReplicaError
        Saying of which region, and at whom.
    """
    schema, declarations = attempt.agreed.schema, attempt.agreed.declarations
    respondent = inquire.Respondent(attempt.capture, declarations, schema, call.place.role, call.line.host)
    held = reckon(call, size, coverage.expected_held, declarations, schema)
    if sums.held != held or sums.cover != reckon(call, size, coverage.expected_cover, schema):
        raise inquire.coverage_fault(call, respondent)
    if sums.copies != 0:
        raise inquire.copies_fault(call, respondent)


def written(line: Line, began: float, owners: int) -> dict[str, Any]:
    """Say who wrote the generation, from `began` (by the monotonic clock) until now: told, never compared."""
    end = datetime.now(timezone.utc)
    start = end - timedelta(seconds=time.monotonic() - began)
    return {
        "mpickpt": __version__,
        "mpi": line.transport.name,
        "host": line.host,
        "owners": owners,
        "start": start.isoformat(timespec="milliseconds"),
        "end": end.isoformat(timespec="milliseconds"),
    }
