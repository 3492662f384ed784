"""The dtypes of format 1: their names, and the NumPy dtypes that hold them in memory."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from mpickpt.errors import StateError

_TABLE: Final[dict[str, np.dtype[Any]]] = {
    **{
        name: np.dtype(name).newbyteorder("<")
        for name in (
            "bool",
            *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
            *("float16", "float32", "float64", "complex64", "complex128"),
        )
    },
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")},
}
NAMES: Final = tuple(sorted(_TABLE))
_FLOATING: Final = frozenset(name for name in NAMES if "float" in name or "complex" in name)
_ITEMSIZE: Final = {name: dtype.itemsize for name, dtype in _TABLE.items()}

# Every memory form of a dtype leads to one name: byte order is not part of it.
_BY_DTYPE: Final[dict[np.dtype[Any], str]] = {dtype: name for name, dtype in _TABLE.items()} | {
    dtype.newbyteorder(">"): name for name, dtype in _TABLE.items()
}


def name_of(dtype: np.dtype[Any], region: str | None = None) -> str:
    """Name a NumPy dtype; its byte order does not matter.

    Raises
    ------
    StateError
        For a dtype that has no place in a checkpoint: object, longdouble, strings, records, dates.
    """
    try:
        name = _BY_DTYPE.get(dtype)
    except TypeError:  # a dtype that cannot be hashed is none of ours
        name = None
    if name is None:
        raise StateError(
            f"arrays of dtype {dtype} cannot be saved exactly",
            region=region,
            expected="one of " + ", ".join(NAMES),
            found=str(dtype),
            advice="convert to one of these dtypes, or store it as Value(...) of plain Python objects",
        )
    return name


def dtype_of(name: str) -> np.dtype[Any]:
    """Give the little-endian NumPy dtype called `name`.

    Raises
    ------
    StateError
        If format 1 has no such dtype.
    """
    dtype = _TABLE.get(name)
    if dtype is None:
        raise StateError("unknown dtype", expected="one of " + ", ".join(NAMES), found=repr(name)[:100])
    return dtype


def coerce(dtype: object, region: str | None = None) -> np.dtype[Any]:
    """Give the NumPy dtype that a user means by a name, a type or a dtype; StateError where it has no place here."""
    if isinstance(dtype, str) and dtype in _TABLE:
        return _TABLE[dtype]
    if dtype is None:  # numpy.dtype(None) is float64, which nobody has asked for
        raise StateError("a dtype is missing", region=region, expected="a NumPy dtype or its name", found="None")
    try:
        found: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise StateError("not a dtype", region=region, expected="a NumPy dtype or its name", found=str(error)) from None
    name_of(found, region)
    return found


def itemsize(name: str) -> int:
    """Give the bytes of one element."""
    return dtype_of(name).itemsize if name not in _ITEMSIZE else _ITEMSIZE[name]


def is_floating(name: str) -> bool:
    """Tell whether elements can be NaN or infinite: floating and complex dtypes."""
    return name in _FLOATING
