"""The round in which all owners tell how their reading went: one refusal for all, or what owner 0 concludes.

Between its own outcome and the result an owner is in doubt: where it hears nothing it asks the store, in which either
the claim of this very continuation stands, and it goes on, or something else, and it refuses. Failpoints: resume.told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpickpt import canonical, failpoints
from mpickpt.cluster.channel import Call, Kind, Outcome, Settle, merge_outcomes
from mpickpt.errors import CheckpointError, from_record


def agree_on_outcome(
    call: Call,
    mine: CheckpointError | None,
    conclude: Callable[[], dict[str, Any]],
    judge: Callable[[CheckpointError], dict[str, Any] | None] = lambda error: None,
    settle: Settle | None = None,
) -> dict[str, Any]:
    """Tell the own outcome and learn that of all.

    Parameters
    ----------
    mine : CheckpointError or None
        This owner's refusal.
    conclude : callable
        At owner 0, in a worker, where nobody refuses: gives the result; may raise.
    judge : callable
        At owner 0, in a worker, where somebody refuses: may add advice to the refusal, or give a result in its place.
    settle : callable, optional
        How an owner that hears nothing asks the store; None where the store has nothing to decide.
    """
    if mine is not None:
        mine.complete(call.unharmed)
    worst = merge_outcomes(mine, call.from_children(Kind.OUTCOME))
    try:
        if worst is None and settle is not None:
            call.decided_by(settle)
            call.committed()
        elif worst is None:
            call.look()
        body = _root(call, worst, conclude, judge) if call.place.parent is None else _other(call, worst)
        call.down(Kind.RESULT, body)
    except Outcome as settled:  # what stands in the store has been told to the children already
        body = settled.release
    call.reopen()
    result: dict[str, Any] = canonical.loads(body, what="the result of all")
    if result["error"] is not None:
        call.over()
        if mine is not None and mine.role == result["error"].get("role"):
            mine.advice = result["error"].get("advice")
        if mine is not None and mine.to_record() == result["error"]:
            raise mine
        raise from_record(result["error"])
    return result


def _root(
    call: Call,
    worst: CheckpointError | None,
    conclude: Callable[[], dict[str, Any]],
    judge: Callable[[CheckpointError], dict[str, Any] | None],
) -> bytes:
    result: dict[str, Any] = {"error": None}
    if worst is None:
        try:
            result |= call.run(conclude)
        except CheckpointError as error:
            worst = error.at(0, call.line.host)
    else:
        instead = call.run(judge, worst)
        if instead is not None:
            return canonical.dumps(result | instead)
    if worst is not None:
        result["error"] = worst.complete(call.unharmed).to_record()
    return canonical.dumps(result)


def _other(call: Call, worst: CheckpointError | None) -> bytes:
    call.up(Kind.OUTCOME, canonical.dumps(None if worst is None else worst.to_record()))
    failpoints.reach("resume.told")
    return call.from_parent(Kind.RESULT, Kind.RELEASE)[1]
