"""What callers give `Checkpointer` and its methods, checked before anything else happens."""

from __future__ import annotations

from typing import Any, Final

from mpickpt.errors import StateError

_LONGEST_DEADLINE: Final = 1e6


def plain(number: Any) -> Any:
    """Give a whole number as int, so that NumPy's integers agree with Python's; anything else is judged later."""
    try:
        return int(number.__index__())
    except (AttributeError, TypeError):
        return repr(number)


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is none of those allowed."""
    if value not in allowed:
        raise StateError(f"{name} is none of its values", expected=" or ".join(map(repr, allowed)), found=repr(value))


def positive(name: str, value: object) -> None:
    """Refuse a number that is neither None nor a whole one above 0."""
    if value is not None and (type(value) is not int or value < 1):
        raise StateError(f"{name} is out of range", expected="a whole number of 1 or more, or None", found=repr(value))


def at_least(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number of `least` or more."""
    if type(value) is not int or value < least:
        raise StateError(f"{name} is out of range", expected=f"a whole number of {least} or more", found=repr(value))


def deadline(value: object) -> None:
    """Refuse a deadline that is no number of seconds, or ends never."""
    if type(value) not in (int, float) or not 0 < value <= _LONGEST_DEADLINE:  # type: ignore[operator]
        raise StateError(
            "deadline is out of range", expected=f"seconds, above 0 and up to {_LONGEST_DEADLINE:g}", found=repr(value)
        )
