"""What ``mpickpt show RUN [STEP] --timings`` draws: what a run's saves took, and what their time went into."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mpickpt import units
from mpickpt.cli import output
from mpickpt.errors import NotFoundError
from mpickpt.store.events import NAME, read_events

#: One letter a phase, in the order in which a save goes through them.
PHASES: Final = {"planning": "p", "copy": "c", "digest": "d", "write": "w", "sync": "s", "waiting": "."}
_WIDTH: Final = 30


def of(run: str, events: str | None, generation: int | str | None) -> list[dict[str, Any]]:
    """Give the events of a run, or those of one step or root; the oldest first.

    Raises
    ------
    NotFoundError
        If there are none.
    """
    path = os.path.join(run, NAME) if events is None else events
    found = [event for event in read_events(path) if generation is None or _is(event, generation)]
    if not found:
        which = "in the file" if generation is None else f"of {generation}"
        raise NotFoundError(f"there are no events {which}", path=path)
    return found


def _is(event: Mapping[str, Any], generation: int | str) -> bool:
    if isinstance(generation, int):
        return event.get("step") == generation
    return str(event.get("root")).startswith(generation)


def draw(events: Sequence[Mapping[str, Any]], one: bool) -> None:
    """Write a table of events; of one generation what each phase took besides."""
    rows = [
        (
            event.get("step"),
            event.get("epoch"),
            event["event"],
            event.get("time"),
            *_speed(event),
            bar(event),
            _about(event),
        )
        for event in events
    ]
    columns = ("STEP", "EPOCH", "EVENT", "TIME", "SIZE", "TOOK", "SPEED", "PHASES", "ABOUT")
    output.table(columns, rows, right=("STEP", "EPOCH", "SIZE", "TOOK", "SPEED"))
    if any(bar(event) for event in events):
        output.line()
        output.line(
            "PHASES of the owner that was busy for longest: " + ", ".join(f"{c} {n}" for n, c in PHASES.items())
        )
    if one:
        for event in events:
            _phases(event)


def _speed(event: Mapping[str, Any]) -> tuple[str, str, str]:
    size, seconds, speed = (_number(event.get(name)) for name in ("bytes", "seconds", "throughput"))
    return (
        "" if size is None else units.human(size),
        "" if seconds is None else units.seconds(seconds),
        "" if not speed else units.rate(speed),
    )


def bar(event: Mapping[str, Any]) -> str:
    """Draw what the time went into: a letter for each thirtieth of it; empty where an event tells of none."""
    shares = _shares(event)
    if not shares:
        return ""
    drawn, end = "", 0.0
    for name, letter in PHASES.items():
        end += shares.get(name, 0.0)
        drawn += letter * (round(min(1.0, end) * _WIDTH) - len(drawn))
    return drawn


def _phases(event: Mapping[str, Any]) -> None:
    """Write a line for each phase: seconds and share, and the mean of all owners beside."""
    shares, seconds = _shares(event), _number(event.get("seconds"))
    if not shares or seconds is None:
        return
    mean = event.get("mean")
    output.line()
    rows = []
    for name in PHASES:
        share = shares.get(name, 0.0)
        usual = _number(mean.get(name)) if isinstance(mean, Mapping) else None
        told = "" if usual is None else units.seconds(usual)
        rows.append((name, units.seconds(share * seconds), f"{100 * share:.1f} %", told, "#" * round(share * _WIDTH)))
    head = f"OWNER {event.get('slowest')}"
    output.table(("PHASE", head, "SHARE", "MEAN OWNER", ""), rows, right=(head, "SHARE", "MEAN OWNER"))


def _shares(event: Mapping[str, Any]) -> dict[str, float]:
    fractions = event.get("fractions")
    if not isinstance(fractions, Mapping):
        return {}
    found = {name: _number(fractions.get(name)) for name in PHASES}
    return {name: min(1.0, share) for name, share in found.items() if share is not None}


def _number(value: object) -> float | None:
    """Give a number of a file that anybody may have written; None for what is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e300:
        return float(value)
    return None


def _about(event: Mapping[str, Any]) -> str:
    if event["event"] == "failed":
        return f"{event.get('error')}: {event.get('message')}".partition("\n")[0][:80]
    if event["event"] == "durable" and event.get("background"):
        return "in the background"
    if event["event"] == "resumed" and event.get("fresh"):
        return "a fresh start"
    return ""
