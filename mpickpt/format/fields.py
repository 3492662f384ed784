"""Bounded reading of plain data: one JSON object, its keys taken one by one, each against its own limits."""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

from mpickpt import digest as digests
from mpickpt.errors import FormatError

FORMAT: Final = 1
MAX: Final = (1 << 63) - 1  # the greatest number in any record
MAX_AXES: Final = 64  # NumPy's own limit
MAX_TEXT: Final = 4096  # characters of a free text such as a host's name

_NONCE: Final = re.compile(r"[0-9A-Za-z]{1,64}")
_RUN: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_COVER: Final = re.compile(r"[0-9a-f]{64}")

Corner = tuple[int, ...]


def shown(found: object) -> str:
    """Show what was found; of a container only its length, since it may be long, or deeper than `repr` can go."""
    if type(found) in (list, dict):
        return f"{type(found).__name__} of {len(found)} items"  # type: ignore[arg-type]
    return repr(found)[:100]


def newer(found: object, what: str, path: str | None) -> NoReturn:
    """Refuse a record of another format version; a newer one with the version of mpickpt that reads it."""
    if type(found) is int and found > FORMAT:
        raise FormatError(
            f"{what} is of format {found}, which is newer than this mpickpt",
            path=path,
            expected=f"format {FORMAT}",
            found=f"format {found}",
            advice=f"read it with mpickpt {found}.0 or newer (mpickpt N.x reads the formats 1 to N)",
        )
    raise FormatError(f"{what} has no known format version", path=path, expected=FORMAT, found=shown(found))


def shortened(text: str) -> str:
    """Cut a free text to what a reader takes: a list of nodes, or a refusal that quotes much, may be longer."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


class Fields:
    """One JSON object that is read key by key.

    Parameters
    ----------
    value : object
        What the parser gave; anything but an object is refused.
    what : str
        What it is, for messages.
    path : str, optional
        The file it came from.
    """

    __slots__ = ("path", "value", "what")

    def __init__(self, value: object, what: str, path: str | None) -> None:
        self.what = what
        self.path = path
        if type(value) is not dict:
            raise FormatError(f"{what} is no object", path=path, found=shown(value))
        self.value: dict[str, Any] = value

    def refuse(self, key: str, expected: str, found: object) -> NoReturn:
        """Refuse the value of one key."""
        raise FormatError(f"{self.what}: bad {key!r}", path=self.path, expected=expected, found=shown(found))

    def keys(self, *names: str) -> None:
        """Check that exactly these keys are there."""
        if self.value.keys() != set(names):
            missing = sorted(set(names) - self.value.keys())
            unknown = sorted(self.value.keys() - set(names))
            raise FormatError(
                f"{self.what}: " + ("missing" if missing else "unknown") + " keys",
                path=self.path,
                expected=", ".join(sorted(names)),
                found="; ".join(
                    f"{kind} {', '.join(map(repr, some))[:200]}"
                    for kind, some in (("missing", missing), ("unknown", unknown))
                    if some
                ),
            )

    def integer(self, key: str, low: int = 0, high: int = MAX) -> int:
        """Read an integer of ``[low, high]``; a bool is none."""
        value = self.value[key]
        if type(value) is not int or not low <= value <= high:
            self.refuse(key, f"an integer of {low} to {high}", value)
        return value

    def integer_or_null(self, key: str, low: int = 0) -> int | None:
        """Read an integer of at least `low`, or null."""
        return None if self.value[key] is None else self.integer(key, low)

    def text(self, key: str) -> str:
        """Read a string of bounded length."""
        value = self.value[key]
        if type(value) is not str or len(value) > MAX_TEXT:
            self.refuse(key, f"a string of at most {MAX_TEXT} characters", value)
        return value

    def text_or_null(self, key: str) -> str | None:
        """Read a string of bounded length, or null."""
        return None if self.value[key] is None else self.text(key)

    def nonce(self, key: str) -> str:
        """Read a nonce: 1 to 64 ASCII letters and digits."""
        value = self.value[key]
        if type(value) is not str or not _NONCE.fullmatch(value):
            self.refuse(key, "1 to 64 ASCII letters and digits", value)
        return value

    def run(self, key: str) -> str:
        """Read a run id: 1 to 64 of ``0-9 A-Z a-z _ . -``, beginning with a letter or digit."""
        value = self.value[key]
        if type(value) is not str or not _RUN.fullmatch(value):
            self.refuse(key, "1 to 64 characters of 0-9 A-Z a-z _ . -", value)
        return value

    def digest(self, key: str) -> str:
        """Read a digest; a missing or null one is refused like any malformed one."""
        text = self.value[key]
        try:
            digests.parse(text if type(text) is str else shown(text), f"{self.what}: {key!r}")
        except FormatError as error:
            error.path = self.path
            raise
        found: str = text
        return found

    def digest_or_null(self, key: str) -> str | None:
        """Read a digest, or null."""
        return None if self.value[key] is None else self.digest(key)

    def cover(self, key: str) -> int:
        """Read a coverage sum: 64 hexadecimal digits, the most significant first."""
        value = self.value[key]
        if type(value) is not str or not _COVER.fullmatch(value):
            self.refuse(key, "64 hexadecimal digits", value)
        return int(value, 16)

    def mapping(self, key: str) -> dict[str, Any]:
        """Read an object whose content is free."""
        value = self.value[key]
        if type(value) is not dict:
            self.refuse(key, "an object", value)
        found: dict[str, Any] = value
        return found

    def items(self, key: str) -> list[Any]:
        """Read a list whose items the caller checks."""
        value = self.value[key]
        if type(value) is not list:
            self.refuse(key, "a list", value)
        found: list[Any] = value
        return found


def hex_cover(cover: int) -> str:
    """Write a coverage sum as records do."""
    return f"{cover:064x}"
