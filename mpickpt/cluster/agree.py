"""One declaration, one set of facts: the round with which every collective call begins (protocol.md, Publish 1).

Up go the facts that must be equal everywhere, and the name of the union that this owner last agreed to, if its own
declarations are still those. Where any owner names none or another, owner 0 asks once, and every owner sends its
merged list. Down comes what owner 0 decided, with the union where it is new. What travels grows with distinct regions,
never with the number of owners.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from mpickpt import canonical
from mpickpt.cluster.channel import Call, Kind
from mpickpt.cluster.suspicion import SAME_CALLS
from mpickpt.errors import DisagreementError
from mpickpt.state.declare import Declarations

_LENGTH: Final = struct.Struct("<I")
_MOST_DIFFERENCES: Final = 20
#: The fact that says which call an owner has made.
_CALL: Final = "call"

Facts = Mapping[str, Any]


def frame(head: Mapping[str, Any], tail: bytes = b"") -> bytes:
    """Put a small record and raw bytes into one message."""
    text = canonical.dumps(head)
    return _LENGTH.pack(len(text)) + text + tail


def unframe(body: bytes) -> tuple[dict[str, Any], bytes]:
    """Take apart what `frame` put together."""
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size
    head = canonical.loads(body[start : start + length], what="the head of a message")
    return head, body[start + length :]


def agree(
    call: Call,
    action: str,
    facts: Facts,
    declarations: Declarations,
    agreed: str,
    decide: Callable[[Declarations | None], dict[str, Any]],
    alike: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], Declarations | None]:
    """Agree on facts and declarations, and learn what owner 0 decided.

    Parameters
    ----------
    action : str
        What the callers called, ``save`` or ``resume``: the first fact.
    facts : mapping
        What must be equal on all owners; JSON-able.
    declarations : Declarations
        This owner's own.
    agreed : str
        Digest of the union that was agreed last, if this owner's declarations have not changed since; else empty.
    decide : callable
        Runs in a worker at owner 0, with the union or None where nothing changed; gives the decision for all.
    alike : mapping
        What may differ, by name, of which all shall know whether it does.

    Returns
    -------
    decision : dict
        With ``alike`` in it: of each name whether that was the same, and not empty, on all owners.
    union : Declarations or None
        None where no owner's declarations changed.

    Raises
    ------
    DisagreementError
        Naming at most 20 differences, with roles.
    """
    mine: dict[str, Any] = {"agreed": agreed, "facts": {_CALL: action, **facts}, "differs": [], "more": 0}
    mine["alike"] = dict(alike or {})
    hosts = call.line.transport.hosts
    for role, body in sorted(call.from_children(Kind.READY).items()):
        _compare(mine, call.place.role, unframe(body)[0], role, hosts.get(role))
    if call.place.parent is not None:
        call.up(Kind.READY, frame(mine))
        kind, body = call.from_parent(Kind.ASK, Kind.GO)
        if kind is Kind.ASK:
            call.down(Kind.ASK)
            merged, known = _merged(call, declarations)
            # Who is named in a refusal further up is named with its host: those who declare something first.
            told = {str(role): known[role] for role in call.run(Declarations.named, merged) if role in known}
            call.up(Kind.DECLARE, frame({"hosts": told}, call.run(Declarations.to_bytes, merged)))
            _, body = call.from_parent(Kind.GO)
        call.down(Kind.GO, body)
        decision, tail = unframe(body)
        return decision, call.run(Declarations.from_bytes, tail, declarations) if tail else None
    if mine["differs"]:
        raise _disagreement(action, mine["differs"], mine["more"])
    union = None
    if not mine["agreed"]:
        call.down(Kind.ASK)
        union, _ = _merged(call, declarations)
    decision = call.run(decide, union) | {"alike": {name: bool(word) for name, word in mine["alike"].items()}}
    call.down(Kind.GO, frame(decision, b"" if union is None else call.run(Declarations.to_bytes, union)))
    return decision, union


def _merged(call: Call, declarations: Declarations) -> tuple[Declarations, dict[int, str]]:
    """Unite the own declarations with those of the subtree; gives the hosts of those whom they name, too."""
    hosts = {call.place.role: call.line.host}
    below: list[bytes] = []
    for _, body in sorted(call.from_children(Kind.DECLARE).items()):
        head, tail = unframe(body)
        hosts |= {int(role): host for role, host in head["hosts"].items()}
        below.append(tail)
    if not below:
        return declarations, hosts
    try:
        merged = call.run(lambda: declarations.merge([Declarations.from_bytes(body, declarations) for body in below]))
    except DisagreementError as error:
        error.host = None if error.role is None else hosts.get(error.role)
        raise
    return merged, hosts


def _compare(mine: dict[str, Any], role: int, theirs: dict[str, Any], other: int, host: str | None) -> None:
    """Take a child's word into ours: what it agreed to last, and what differs."""
    if theirs["agreed"] != mine["agreed"]:
        mine["agreed"] = ""
    for name, word in mine["alike"].items():
        if theirs["alike"].get(name) != word:
            mine["alike"][name] = ""
    differs = mine["differs"]
    for name in sorted({*mine["facts"], *theirs["facts"]}):
        a, b = mine["facts"].get(name), theirs["facts"].get(name)
        if a != b:
            differs.append([name, role, _text(a), other, _text(b), host])
    differs.extend(theirs["differs"])
    mine["more"] += theirs["more"] + max(0, len(differs) - _MOST_DIFFERENCES)
    del differs[_MOST_DIFFERENCES:]


def _text(value: object) -> str:
    return str(value)[:200]


def _disagreement(action: str, differs: list[list[Any]], more: int) -> DisagreementError:
    what, advice = f"owners called {action} with different arguments", "make every owner call with the same arguments"
    if calls := [entry for entry in differs if entry[0] == _CALL]:
        differs, more = calls, 0  # the arguments differ because of that
        what, advice = "owners made different calls", SAME_CALLS
    lines = [f"{name} {a} at owner {role}, {b} at owner {other}" for name, role, a, other, b, _ in differs]
    name, role, a, other, b, host = differs[0]
    return DisagreementError(
        f"{what}: " + "; ".join(lines) + (f"; and {more} more" if more else ""),
        role=other,
        host=host,
        roles=sorted({role, *(entry[3] for entry in differs)}),
        expected=f"{name} {a}, as at owner {role}",
        found=f"{name} {b}",
        unharmed="the store and all arrays: nothing was written",
        advice=advice,
    )
