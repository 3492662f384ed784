"""What is checked of every refusal, beside what its row says.

One refusal at all owners, in time, that a person can read, with everything as it was before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpilaunch

SECONDS = 3.0
"""A refusal that waits for nobody has come by then, on a slow machine too."""


@dataclass(frozen=True)
class Expect:
    """What one refusal must be.

    Attributes
    ----------
    cls : str
        Its class.
    message, region, path, expected, found, advice : str
        Patterns that the field must contain; ``""``: the field may be absent. ``LAST`` stands for the last role.
    role : int or None
        The role that it names, -1 for the last; None: none is checked.
    roles : sequence of int
        The roles concerned; empty: none are checked. -1 for the last.
    added : list of str
        What may be new in the store: nothing, or a void record.
    seconds : float
        Within which every owner has raised it.
    apart : sequence of int
        Owners that did not take part, or that an interrupt went through: they raised nothing. -1 for the last.
    """

    cls: str
    message: str
    region: str = ""
    path: str = ""
    expected: str = ""
    found: str = ""
    advice: str = ""
    role: int | None = None
    roles: Sequence[int] = ()
    added: Sequence[str] = ()
    seconds: float = SECONDS
    apart: Sequence[int] = ()


def owners_of(program: Path) -> dict[str, tuple[int, ...]]:
    """Give the owner counts of every case of a program: what stands in its ``@at(...)``."""
    found = {}
    for node in ast.parse(program.read_text()).body:
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(mark) == "rank.case" for mark in node.decorator_list):
            (mark,) = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
            found[node.name] = tuple(ast.literal_eval(argument) for argument in mark.args)
    assert list(found) == mpilaunch.cases(program)
    return found


def parameters(program: Path, cases: Sequence[str]) -> list[tuple[str, int]]:
    """List (case, owner count) for some cases of a program."""
    owners = owners_of(program)
    return [(case, count) for case in cases for count in owners[case]]


def outcomes(program: Path, mpi: str, case: str, owners: int) -> list[Any]:
    """Give what a case returned at each owner; all cases of a program run once for an MPI."""
    return mpilaunch.batch(program, mpi, owners=(2, 3, 5), timeout=240.0).passed(case, owners)


def check_refused(found: Sequence[Mapping[str, Any]], expect: Expect) -> dict[str, Any]:
    """Check what every owner saw of one refused call; give the refusal's record."""
    owners = len(found)
    apart = {role % owners for role in expect.apart}
    for role, outcome in enumerate(found):
        assert ("raised" in outcome) == (role not in apart), (role, outcome.get("value"))
    raised = [outcome["raised"] for role, outcome in enumerate(found) if role not in apart]
    for one in raised:
        assert "record" in one, f"no refusal of mpickpt: {one['traceback']}"
    records = [one["record"] for one in raised]
    assert all(record == records[0] for record in records), records
    assert max(outcome["seconds"] for outcome in found) < expect.seconds
    check_record(records[0], raised[0]["message"], expect, owners)
    return dict(records[0])


def check_record(record: Mapping[str, Any], message: str, expect: Expect, owners: int) -> None:
    """Check one refusal's fields and that a person can read it."""
    last = owners - 1
    assert record["class"] == expect.cls, message
    for field in ("message", "region", "path", "expected", "found", "advice"):
        pattern = getattr(expect, field).replace("LAST", str(last))
        assert not pattern or re.search(pattern, str(record.get(field, ""))), (field, pattern, record)
    if expect.role is not None:
        assert record.get("role") == expect.role % owners, record
    if expect.roles:
        assert record.get("roles") == sorted({role % owners for role in expect.roles}), record
    check_readable(record, message)


def check_readable(record: Mapping[str, Any], message: str) -> None:
    """Check that a refusal says what happened, to whom, where, what is unharmed and what to do, in plain words."""
    first = message.splitlines()[0]
    assert all(line in message.splitlines() or first.startswith(line) for line in record["message"].splitlines())
    assert record.get("unharmed"), f"does not say what is unharmed: {message}"
    assert record.get("advice"), f"does not say what to do: {message}"
    assert f"  unharmed: {record['unharmed']}" in message
    assert f"  next: {record['advice']}" in message
    if "role" in record:
        assert record.get("host"), f"names an owner without its host: {message}"
        assert f"owner {record['role']} (host {record['host']})" in message
    else:
        assert record.get("roles"), f"names no owner: {message}"
    if "region" in record:
        assert f"region {record['region']!r}" in first
    if "path" in record:
        assert f"file {record['path']}" in first
    assert len(message) < 4000, "nobody reads that much"
    assert not re.search(r"Traceback|<[\w.]+ object|0x[0-9a-f]{9}|np\.\w+\(|array\(|b'", message), message
    assert not re.search(r"KeyError|IndexError|JSONDecodeError|struct\.error|UnicodeDecodeError", message), message


def check_unharmed(found: Sequence[Mapping[str, Any]], added: Sequence[str] = ()) -> None:
    """Check that arrays and older generations are as they were, and that nothing but `added` is new in the store."""
    assert [outcome["arrays"] for outcome in found] == [True] * len(found)
    assert found[0]["changed"] == []
    assert [name for name in found[0]["added"] if name not in added] == []
    assert found[0].get("older", True), "an older generation does not verify any more"


def check_next_save(found: Sequence[Mapping[str, Any]]) -> None:
    """Check that the next save gave one root at all owners."""
    roots = {outcome["next"] for outcome in found}
    assert len(roots) == 1
    assert str(roots.pop()).startswith(("blake3:", "sha256:"))
