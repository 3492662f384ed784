"""Names of regions: paths of keys, escaped so that different paths never have one name.

Keys are joined by ``/``. In a string key ``% / [ ] , : #`` and control characters stand as ``%XX``, byte by byte of
their UTF-8 form; an int key or a list index is ``#3``; the empty string is a single ``%``. The empty name is the
path of no key: the state itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from mpickpt.errors import FormatError, StateError

Key: TypeAlias = str | int

_SPECIAL: Final = re.compile(r"[%/\[\],:#\x00-\x1f\x7f-\x9f]")
_QUOTED: Final = re.compile(r"(?:%[0-9A-F]{2})+")
_INDEX: Final = re.compile(r"#(0|-?[1-9][0-9]{0,18})", re.ASCII)
_EMPTY: Final = "%"
#: Names that escape themselves, as nearly all do.
_PLAIN: Final = re.compile(r"[^%/\[\],:#\x00-\x1f\x7f]+(?:/[^%/\[\],:#\x00-\x1f\x7f]+)*")


def _quote(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8"))


@functools.lru_cache(maxsize=1 << 16, typed=True)
def escape(key: Key) -> str:
    """Write one key as a part of a name; kept, since the same come at every save.

    Raises
    ------
    StateError
        For a key that is neither string nor integer, or that is no valid Unicode.
    """
    if isinstance(key, str):
        if not key:
            return _EMPTY
        if not key.isascii():
            try:
                key.encode("utf-8")
            except UnicodeError:
                raise StateError("a key holds a lone surrogate, which is no text", found=ascii(key)[:100]) from None
        return _SPECIAL.sub(_quote, key)
    if type(key) is int and -(10**19) < key < 10**19:
        return f"#{key}"
    raise StateError(
        "a key cannot be part of a name", expected="a string, or an integer of at most 19 digits", found=repr(key)[:100]
    )


def all_plain(keys: Collection[object]) -> bool:
    """Tell whether each of many keys is a string that `escape` would give back as it is."""
    if set(map(type, keys)) != {str}:
        return False
    text = "".join(keys)  # type: ignore[arg-type]
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeError:
            return False
    return "" not in keys and _SPECIAL.search(text) is None


def unescape(part: str) -> Key:
    """Read back what `escape` wrote; FormatError for anything that it would not write."""
    if part == _EMPTY:
        return ""
    index = _INDEX.fullmatch(part)
    if index:
        return int(index.group(1))
    try:
        key = _QUOTED.sub(lambda match: bytes.fromhex(match.group().replace("%", "")).decode("utf-8"), part)
        same = escape(key) == part
    except (UnicodeError, StateError):
        same = False
    if not same:
        raise FormatError("malformed part of a region name", found=ascii(part)[:100])
    return key


def join(keys: Iterable[Key]) -> str:
    """Write a path of keys as a name."""
    return "/".join(map(escape, keys))


def split(name: str) -> tuple[Key, ...]:
    """Read a name back into its keys.

    Raises
    ------
    FormatError
        If `join` would not write this name.
    """
    parts = name.split("/") if name else []
    if name.isascii() and _PLAIN.fullmatch(name):
        return tuple(parts)
    return tuple(map(unescape, parts))


def below(prefix: str, part: str) -> str:
    """Give the name of `part`, already escaped, under the name `prefix`."""
    return f"{prefix}/{part}" if prefix else part
