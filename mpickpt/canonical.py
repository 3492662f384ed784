"""Canonical JSON: one text for one value, and a parser that takes only that text.

Sorted keys, no insignificant space, UTF-8 unescaped, whole numbers only. Since the parser refuses whatever it
would not have written itself, duplicate keys, NaN, 1e400, odd escapes and lone surrogates have no way in.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

from mpickpt.errors import FormatError

MAX_DIGITS: Final = 20
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def dumps(value: object) -> bytes:
    """Write plain data (dict with string keys, list, str, int, bool, None) as canonical JSON in UTF-8."""
    return _ENCODER.encode(value).encode("utf-8")


def quoted(text: str) -> str:
    """Write a string as `dumps` does; its lone surrogates, if it has any, are found where it is put into UTF-8."""
    return encode_basestring(text)


def _refuse_float(text: str) -> NoReturn:
    raise FormatError("a number that is no integer", found=text[:40])


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise FormatError("a number of too many digits", expected=f"at most {MAX_DIGITS}", found=len(text))
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FormatError("a key that stands twice in one object")
    return found


_DECODER: Final = json.JSONDecoder(
    parse_float=_refuse_float, parse_constant=_refuse_float, parse_int=_integer, object_pairs_hook=_unique
)
#: Without the hooks that cost most. Text that is canonical has no key twice; `_LONG` finds numbers that are too long.
_FAST: Final = json.JSONDecoder(parse_float=_refuse_float, parse_constant=_refuse_float)
_LONG: Final = re.compile(rf"(?:^|[\[:,-])[0-9]{{{MAX_DIGITS + 1}}}")


def loads_around(data: bytes, key: str, text: bytes, value: object, *, what: str, path: str | None = None) -> Any:
    """Parse canonical JSON of which a great part may be known already.

    Parameters
    ----------
    data : bytes
        The whole text, as for `loads`.
    key : str
        A key of the outermost object.
    text : bytes
        The canonical text that its value may have.
    value : object
        What then stands for that value in the result, in which it is not parsed.

    Raises
    ------
    FormatError
        As `loads`.
    """
    known = quoted(key).encode() + b":" + text
    before, found, after = data.partition(known)
    if found:
        token = secrets.token_hex(16)
        with contextlib.suppress(FormatError):  # what is wrong is told of the whole text
            rest = loads(before + quoted(key).encode() + b":" + quoted(token).encode() + after, what=what, path=path)
            # The same words may stand further in; then the token is not the value of this key.
            if type(rest) is dict and rest.get(key) == token:
                rest[key] = value
                return rest
    return loads(data, what=what, path=path)


def loads(data: bytes, *, what: str, path: str | None = None, exact: bool = True) -> Any:
    """Parse canonical JSON.

    Parameters
    ----------
    data : bytes
        The whole text, without a line end.
    what : str
        What is being read, for messages.
    path : str, optional
        The file it came from.
    exact : bool
        False: other spaces, order of keys and escapes will do, as a person or another program may have left them.

    Raises
    ------
    FormatError
        If `data` is not JSON or not canonical. Nesting beyond the interpreter's
        recursion limit is refused like any other text that is not JSON.
    """
    try:
        text = data.decode("utf-8")
        if exact and _LONG.search(text) is None:
            value = _FAST.decode(text)
            if dumps(value) == data:
                return value
        value = _DECODER.decode(text)
        same = dumps(value) == data or not exact
    except FormatError as error:
        raise FormatError(f"{what}: {error.message}", path=path, expected=error.expected, found=error.found) from None
    except RecursionError:
        raise FormatError(f"{what} is nested too deeply", path=path, expected="a few dozen levels at most") from None
    except (UnicodeError, ValueError) as error:
        raise FormatError(f"{what} is not JSON", path=path, found=str(error)[:200]) from None
    if not same:
        raise FormatError(
            f"{what} is not canonical JSON", path=path, expected="sorted keys, no spaces, no needless escapes"
        )
    return value
