"""How results are shown: tables on a terminal, plain aligned text in a pipe, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from mpickpt import units
from mpickpt.digest import ALGORITHMS
from mpickpt.errors import StoreError

F = TypeVar("F", bound=Callable[..., Any])

run_argument = click.argument("run", type=click.Path(path_type=str))


def json_option(function: F) -> F:
    """Add ``--json`` to a command, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document, for programs.")(function)


def printable(text: object) -> str:
    """Give `text` without control characters, so that no file of a run can steer a terminal."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in plain
    )


def size(nbytes: int | None) -> str:
    """Write a number of bytes for people: ``1.5 GiB``."""
    if nbytes is None:
        return "?"
    return units.human(nbytes)


def short(digest: str | None) -> str:
    """Write a digest with its first 12 hexadecimal digits; enough to name a generation to `show` and `diff`."""
    if digest is None:
        return "?"
    algorithm, _, digits = digest.partition(":")
    return f"{algorithm}:{digits[:12]}"


def roles(held: Sequence[int]) -> str:
    """Write sorted roles as ranges: ``0-3,7``."""
    spans: list[list[int]] = []
    for role in held:
        if spans and role == spans[-1][1] + 1:
            spans[-1][1] = role
        else:
            spans.append([role, role])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def selector(text: str | None) -> int | str | None:
    """Read how a generation is named on the command line: a step, or the beginning of a root digest.

    Raises
    ------
    click.UsageError
        If `text` is neither.
    """
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 20:
        return int(text)
    algorithm, _, digits = text.partition(":")
    if algorithm in ALGORITHMS and digits and not set(digits) - set("0123456789abcdef"):
        return text
    raise click.UsageError(f"{printable(text)!r} is neither a step nor the beginning of a root digest (blake3:...)")


def document(value: object) -> None:
    """Write one JSON document to stdout."""
    _write(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n")


def line(text: str = "") -> None:
    """Write one line to stdout."""
    _write(printable(text) + "\n")


def say(text: str) -> None:
    """Write one line to stdout at once, for whoever watches."""
    line(text)
    flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Write a table to stdout.

    Parameters
    ----------
    columns : sequence of str
        The heads.
    rows : sequence of sequences
        Cells, one a column; None is shown as ``?``.
    right : sequence of str
        Heads of the columns that are numbers, set to the right.
    """
    cells = [["?" if cell is None else printable(cell) for cell in row] for row in rows]
    if sys.stdout is not None and sys.stdout.isatty():
        _rich_table(columns, cells, right)
        return
    widths = [max([len(head), *(len(row[at]) for row in cells)]) for at, head in enumerate(columns)]
    for row in ([*columns], *cells):
        text = "  ".join(
            cell.rjust(width) if head in right else cell.ljust(width)
            for head, cell, width in zip(columns, row, widths, strict=True)
        )
        _write(text.rstrip() + "\n")


def _rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"live": "green", "ok": "green", "orphaned": "yellow", "damaged": "bold red", "DAMAGED": "bold red"}
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in columns:
        shown.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in cells:
        shown.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    try:
        Console(file=sys.stdout).print(shown)
    except OSError as error:
        raise _unwritten(error) from error


def _write(text: str) -> None:
    """Write to stdout whatever its encoding can hold; what it cannot is escaped, never an error."""
    if sys.stdout is None:
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    except OSError as error:
        raise _unwritten(error) from error


def flush() -> None:
    """Write out what was held back.

    Raises
    ------
    BrokenPipeError
        If the reader of a pipe is gone.
    StoreError
        If the result could not be written for another reason: a full disk.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        raise _unwritten(error) from error


def _unwritten(error: OSError) -> OSError:
    if isinstance(error, BrokenPipeError):
        return error
    return StoreError(f"the result could not be written ({error.strerror})", errno=error.errno)
