"""The slow path: when sums differ, and only then, owners are asked what they hold, to name the fault.

Owner 0 sends a question down, each owner answers for itself and passes on its subtree's answers. Its cost may grow
with the owners: the save has failed already, and a person waits for the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from mpickpt import canonical, digest
from mpickpt.cluster.channel import Call, Kind
from mpickpt.cluster.contents import contents
from mpickpt.errors import CheckpointError, CoverageError, ReplicaError
from mpickpt.state import coverage
from mpickpt.state.declare import Declarations
from mpickpt.state.dtypes import dtype_of
from mpickpt.state.nest import Capture, Holding
from mpickpt.state.region import Box, Schema
from mpickpt.state.values import decode, encode

_HEADER: Final = struct.Struct("<QQ")
#: Elements a block when the first difference between two copies is looked for.
_BLOCK: Final = 1 << 16
_CONTENT: Final = 8  # bytes of a block's digest that travel
_AROUND: Final = 30
_SHOWN: Final = 200


class Respondent:
    """What one owner can be asked about: its capture under the agreed schema."""

    def __init__(self, capture: Capture, declarations: Declarations, schema: Schema, role: int, host: str) -> None:
        self.host = host
        self.capture = capture
        self.declarations = declarations
        self.schema = schema
        self.role = role
        self._by_ordinal = {schema.ordinal(holding.region.name): holding for holding in capture.holdings}

    def answer(self, question: Mapping[str, Any]) -> bytes:
        """Answer one question; empty where it does not concern this owner."""
        what = question["what"]
        if what == "boxes":
            return canonical.dumps(self._boxes())
        if what == "contents":
            return canonical.dumps(self._contents())
        if self.role not in question["roles"]:
            return b""
        if what == "host":
            return self.host.encode()
        holding = self._by_ordinal[question["ordinal"]]
        box = Box(tuple(question["lo"]), tuple(question["hi"]))
        memory = _memory(holding, box)
        if what == "blocks":
            size = _BLOCK * memory.itemsize
            flat = memory.reshape(-1).view(np.uint8).data
            return b"".join(
                digest.digest("blake3", "block", flat[start : start + size])[:_CONTENT]
                for start in range(0, flat.nbytes, size)
            )
        start = question["block"] * _BLOCK
        return memory.reshape(-1)[start : start + _BLOCK].tobytes()

    def _boxes(self) -> list[Any]:
        held = coverage.claims_of(self.capture, self.schema, self.role)
        return [[ordinal, copy, box.lo, box.hi] for ordinal in held for _, copy, box in held[ordinal]]

    def _contents(self) -> list[Any]:
        found = []
        for ordinal, holding in self._by_ordinal.items():
            entry = self.declarations.entries[holding.region.name]
            if coverage.copies_factor(holding, entry, self.role):
                for box, value in contents(ordinal, holding):
                    found.append([ordinal, box.lo, box.hi, f"{value:064x}"])
        return found


def _memory(holding: Holding, box: Box) -> np.ndarray[Any, Any]:
    if holding.data is not None:
        return np.frombuffer(holding.data, np.uint8)
    array = next(part.array for part in holding.parts if part.box == box)
    plain = np.ascontiguousarray(array)
    return plain.astype(plain.dtype.newbyteorder("<"), copy=False)


def ask(call: Call, respondent: Respondent, question: Mapping[str, Any]) -> dict[int, bytes]:
    """Ask all owners (owner 0)."""
    body = canonical.dumps(dict(question))
    call.down(Kind.INQUIRE, body)
    return _collect(call, respondent, question)


def reply(call: Call, respondent: Respondent, body: bytes) -> None:
    """Answer a question for this owner's subtree."""
    call.down(Kind.INQUIRE, body)
    answers = _collect(call, respondent, canonical.loads(body, what="a question"))
    call.up(Kind.ANSWER, b"".join(_HEADER.pack(role, len(text)) + text for role, text in answers.items()))


def _collect(call: Call, respondent: Respondent, question: Mapping[str, Any]) -> dict[int, bytes]:
    answers = {respondent.role: call.run(respondent.answer, question)}
    for body in call.from_children(Kind.ANSWER).values():
        at = 0
        while at < len(body):
            role, size = _HEADER.unpack_from(body, at)
            at += _HEADER.size
            answers[role] = body[at : at + size]
            at += size
    return answers


def coverage_fault(call: Call, respondent: Respondent) -> CheckpointError:
    """Name the region and box of which the held boxes do not tile (owner 0)."""
    claims: dict[int, list[coverage.Claim]] = {}
    for role, text in ask(call, respondent, {"what": "boxes"}).items():
        for ordinal, copy, lo, hi in canonical.loads(text, what="an answer"):
            claims.setdefault(ordinal, []).append((role, copy, Box(tuple(lo), tuple(hi))))
    schema = respondent.schema
    fault = coverage.find_fault(schema, claims, coverage.copies_of(respondent.declarations, schema))
    return fault or CoverageError(
        "the boxes that owners hold tile every region, but the sums that they sent do not say so",
        unharmed="earlier generations",
        advice="report this: an owner runs another program or another version of mpickpt",
    )


def copies_fault(call: Call, respondent: Respondent) -> CheckpointError:
    """Name the region, the owners, the first index and both values where copies differ (owner 0)."""
    digests: dict[int, list[tuple[int, Box, int]]] = {}
    for role, text in ask(call, respondent, {"what": "contents"}).items():
        for ordinal, lo, hi, value in canonical.loads(text, what="an answer"):
            digests.setdefault(ordinal, []).append((role, Box(tuple(lo), tuple(hi)), int(value, 16)))
    found = coverage.find_differing(digests)
    if found is None:
        return ReplicaError(
            "the contents of all copies are equal, but the sums that owners sent do not say so",
            unharmed="earlier generations",
            advice="report this, unless the arrays were changed while they were being saved",
        )
    ordinal, box, same, other = found
    region = respondent.schema[ordinal]
    where, mine, theirs = _first_difference(call, respondent, ordinal, box, same[0], other[0])
    return ReplicaError(
        f"copies that must be equal differ first at {where}",
        role=other[0],
        host=ask(call, respondent, {"what": "host", "roles": [other[0]]})[other[0]].decode(),
        region=region.name,
        roles=sorted((*same, *other)),
        expected=f"{mine}, as at owner {same[0]}",
        found=f"{theirs} at owner {other[0]}",
        unharmed="earlier generations and all arrays",
        advice="make the copies equal, or declare what differs by owner as PerOwner or Sharded",
    )


def _first_difference(
    call: Call, respondent: Respondent, ordinal: int, box: Box, role: int, other: int
) -> tuple[str, object, object]:
    question: dict[str, Any] = {"ordinal": ordinal, "lo": box.lo, "hi": box.hi, "roles": [role, other]}
    region = respondent.schema[ordinal]
    blocks = ask(call, respondent, {"what": "blocks", **question})
    a, b = blocks[role], blocks[other]
    block = next(
        (i // _CONTENT for i in range(0, len(a), _CONTENT) if a[i : i + _CONTENT] != b[i : i + _CONTENT]),
        len(a) // _CONTENT,
    )
    elements = ask(call, respondent, {"what": "block", "block": block, **question})
    if region.shape is None:
        return _values(elements[role], elements[other], block * _BLOCK, region.name)
    dtype = dtype_of(region.dtype)
    x, y = np.frombuffer(elements[role], dtype), np.frombuffer(elements[other], dtype)
    differs = (x.view(np.uint8) != y.view(np.uint8)).reshape(-1, dtype.itemsize).any(axis=1)
    first = int(np.argmax(differs))
    inside = np.unravel_index(block * _BLOCK + first, box.shape) if box.shape else ()
    index = tuple(int(i) + lo for i, lo in zip(inside, box.lo, strict=True))
    return f"index {index}", x[first], y[first]


def _values(mine: bytes, theirs: bytes, start: int, region: str) -> tuple[str, str, str]:
    """Say where two values differ: the place within them, or, of long ones, the bytes around it as they are stored."""
    if start == 0 and max(len(mine), len(theirs)) < _BLOCK:
        path, one, two = _unequal(decode(mine, region), decode(theirs, region), region)
        return f"its value{path}", _shown(one), _shown(two)
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs)))
    one, two = (bytes(data[max(0, at - _AROUND) : at + _AROUND]).decode("ascii", "replace") for data in (mine, theirs))
    return f"byte {start + at} of its stored value", f"... {one} ...", f"... {two} ..."


def _unequal(mine: Any, theirs: Any, region: str) -> tuple[str, Any, Any]:
    """Descend to the first item that differs; type and bits count."""
    path = ""
    while type(mine) is type(theirs):
        if isinstance(mine, dict) and list(mine) == list(theirs):
            keys: Any = mine
        elif isinstance(mine, list | tuple) and len(mine) == len(theirs):
            keys = range(len(mine))
        else:
            break
        differing = [key for key in keys if encode(mine[key], region) != encode(theirs[key], region)]
        if not differing:
            break
        path += f"[{differing[0]!r}]"
        mine, theirs = mine[differing[0]], theirs[differing[0]]
    return path, mine, theirs


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + f" ... ({len(text)} characters)"
