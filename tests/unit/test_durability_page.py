"""The table of docs/durability.md is the one in the code, from which `mpickpt fsprobe` prints."""

from __future__ import annotations

from pathlib import Path

from mpickpt.store import filesystem

PAGE = Path(__file__).resolve().parents[2] / "docs" / "durability.md"
HEAD = ("file system", "a root is placed by", "fence", "durable", "a finished save rests on")


def test_the_page_has_the_table_of_the_code() -> None:
    rows = [HEAD, ("---",) * len(HEAD), *filesystem.table()]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    assert table in PAGE.read_text(), f"docs/durability.md should say:\n{table}"
