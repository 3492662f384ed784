"""Opaque regions: plain Python values with their types, as tagged canonical JSON.

None, booleans, strings and lists stand for themselves. Everything else is an object of one key, its tag:

=============  =====================================================================================
tag            content
=============  =====================================================================================
``int``        decimal string; above 4096 bits hexadecimal, ``0x...``
``f64``        `float.hex`, ``inf``, ``-inf``, or ``nan:`` and 16 hexadecimal digits, most significant first
``complex``    two strings as of ``f64``
``bytes``      base64; ``bytearray`` likewise
``tuple``      list
``dict``       list of ``[key, value]`` in the dict's order
``set``        list, ordered by the canonical JSON of its elements; ``frozenset`` likewise
``numpy``      a NumPy scalar: ``[dtype, base64]`` of its little-endian bytes
``array``      ``[dtype, [length, ...], base64]`` of its little-endian bytes in C order
``generator``  ``[kind, state]``
=============  =====================================================================================
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from mpickpt import canonical
from mpickpt.errors import FormatError, StateError
from mpickpt.state import dtypes, generators

MAX_DEPTH: Final = 64
_DECIMAL_BITS: Final = 4096


def encode(x: object, region: str | None = None) -> bytes:
    """Write a value.

    Parameters
    ----------
    x : object
        None, bool, int, float, complex, str, bytes, bytearray, NumPy scalars and arrays, random generators, and
        lists, tuples, dicts, sets and frozensets of them, of exactly these types: a subclass would come back as
        something else.
    region : str, optional
        The region's name, for messages.

    Returns
    -------
    bytes
        Canonical JSON.

    Raises
    ------
    StateError
        For anything that would not come back as it is, a container that holds itself, and nesting beyond 64 levels.
    """
    if type(x) is int and x.bit_length() <= _DECIMAL_BITS:
        return b'{"int":"%d"}' % x
    if type(x) is float:
        return b'{"f64":"%s"}' % _float_out(x).encode()
    try:
        return canonical.dumps(_Encoder(region).out(x, 0))
    except UnicodeError:
        raise StateError(
            "a string holds a lone surrogate, which is no text", region=region, found=ascii(x)[:100]
        ) from None


def decode(data: bytes, region: str | None = None, path: str | None = None) -> Any:
    """Read a value back.

    Raises
    ------
    FormatError
        For anything that `encode` would not write.
    """
    try:
        return _read(canonical.loads(bytes(data), what="a value"), 0)
    except FormatError as error:
        raise FormatError(error.message, region=region, path=path, expected=error.expected, found=error.found) from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise FormatError("a malformed value", region=region, path=path, found=str(error)[:200]) from None


def nonfinite(x: object) -> bool:
    """Tell whether there is a NaN or an infinity anywhere in a value; the state of generators does not count."""
    if isinstance(x, float | complex):
        return not (math.isfinite(x.real) and math.isfinite(x.imag))
    if isinstance(x, np.generic | np.ndarray):
        return dtypes.is_floating(dtypes.name_of(x.dtype)) and not bool(np.isfinite(x).all())
    if isinstance(x, dict):
        return any(nonfinite(key) or nonfinite(value) for key, value in x.items())
    if isinstance(x, list | tuple | set | frozenset):
        return any(map(nonfinite, x))
    return False


def _float_out(x: float) -> str:
    return x.hex() if x == x else f"nan:{struct.pack('>d', x).hex()}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _array_out(x: np.ndarray[Any, Any] | np.generic, name: str) -> str:
    return _base64(np.asarray(x).astype(dtypes.dtype_of(name), copy=False).tobytes())


class _Encoder:
    """Turns one value into canonical JSON's plain data; knows the containers that it is in, to find cycles."""

    def __init__(self, region: str | None) -> None:
        self.region = region
        self.within: set[int] = set()

    def refuse(self, what: str, x: object, advice: str | None = None) -> StateError:
        return StateError(
            what,
            region=self.region,
            expected="None, bool, int, float, complex, str, bytes, NumPy arrays and scalars, generators, "
            "and lists, tuples, dicts, sets of them",
            found=f"{type(x).__module__}.{type(x).__qualname__}",
            advice=advice,
        )

    def out(self, x: Any, depth: int) -> Any:
        kind = type(x)
        if x is None or kind is bool or kind is str:
            return x
        if kind is int:
            return {"int": str(x) if x.bit_length() <= _DECIMAL_BITS else hex(x)}
        if kind is float:
            return {"f64": _float_out(x)}
        if kind is complex:
            return {"complex": [_float_out(x.real), _float_out(x.imag)]}
        if kind is bytes or kind is bytearray:
            return {kind.__name__: _base64(bytes(x))}
        if isinstance(x, np.generic):
            name = dtypes.name_of(x.dtype, self.region)
            return {"numpy": [name, _array_out(x, name)]}
        if kind is np.ndarray or kind is np.memmap:
            name = dtypes.name_of(x.dtype, self.region)
            return {"array": [name, list(x.shape), _array_out(x, name)]}
        if isinstance(x, generators.GENERATORS):
            name, state = generators.read(x, self.region)
            return {"generator": [name, self.out(state, depth + 1)]}
        if kind not in (list, tuple, dict, set, frozenset):
            raise self.refuse(
                "a value that would not come back as it is",
                x,
                "give its numbers, strings and arrays in plain containers, or an object with state_dict()",
            )
        if id(x) in self.within:
            raise self.refuse("a container that holds itself", x)
        if depth >= MAX_DEPTH:
            raise self.refuse(f"a value nested beyond {MAX_DEPTH} levels", x)
        self.within.add(id(x))
        found = self.container(kind, x, depth + 1)
        self.within.remove(id(x))
        return found

    def container(self, kind: type, x: Any, depth: int) -> Any:
        if kind is dict:
            return {"dict": [[self.out(key, depth), self.out(value, depth)] for key, value in x.items()]}
        items = [self.out(item, depth) for item in x]
        if kind is list:
            return items
        return {kind.__name__: items if kind is tuple else sorted(items, key=canonical.dumps)}


def _read(plain: Any, depth: int) -> Any:
    if plain is None or isinstance(plain, bool | str):
        return plain
    if isinstance(plain, list):
        return [_read(item, depth) for item in plain]
    if isinstance(plain, dict) and len(plain) == 1:
        ((tag, content),) = plain.items()
        reader = _READERS.get(tag)
        if reader is not None:
            return reader(content, depth + 1)
    raise FormatError("a value of unknown kind", found=repr(plain)[:100])


def _exactly(same: bool, what: str) -> None:
    if not same:
        raise FormatError("a value that is not in its one form", found=what)


def _read_int(text: Any, depth: int) -> int:
    number = int(text, 16 if text[:3].lstrip("-")[:2] == "0x" else 10)
    _exactly((str(number) if number.bit_length() <= _DECIMAL_BITS else hex(number)) == text, "an int")
    return number


def _read_float(text: Any, depth: int) -> float:
    if isinstance(text, str) and text.startswith("nan:"):
        (x,) = struct.unpack(">d", bytes.fromhex(text[4:]))
    else:
        x = float.fromhex(text)
    _exactly(_float_out(x) == text, "a float")
    return float(x)


def _read_complex(parts: Any, depth: int) -> complex:
    real, imag = parts
    return complex(_read_float(real, depth), _read_float(imag, depth))


def _read_bytes(text: Any, depth: int) -> bytes:
    data = base64.b64decode(text, validate=True)
    _exactly(isinstance(text, str) and _base64(data) == text, "bytes")
    return data


def _read_array(parts: Any, depth: int) -> np.ndarray[Any, Any]:
    name, shape, text = parts
    if name not in dtypes.NAMES or not isinstance(shape, list) or len(shape) > 64:
        raise FormatError("an array of unknown kind", found=repr((name, shape))[:100])
    data = _read_bytes(text, depth)
    _exactly(
        all(type(length) is int and length >= 0 for length in shape)
        and math.prod(shape) * dtypes.itemsize(name) == len(data),
        "an array",
    )
    found: np.ndarray[Any, Any] = np.frombuffer(data, dtypes.dtype_of(name)).reshape(shape).copy()
    return found


def _read_scalar(parts: Any, depth: int) -> Any:
    name, text = parts
    return _read_array([name, [], text], depth)[()]


def _read_list(items: Any, depth: int) -> list[Any]:
    _exactly(isinstance(items, list), "a list")
    return [_read(item, depth) for item in items]


def _read_set(items: Any, depth: int) -> frozenset[Any]:
    elements = _read_list(items, depth)
    _exactly(sorted(items, key=canonical.dumps) == items, "a set")
    found = frozenset(elements)
    _exactly(len(found) == len(items), "a set")
    return found


def _read_dict(pairs: Any, depth: int) -> dict[Any, Any]:
    found = {_read(key, depth): _read(value, depth) for key, value in pairs}
    _exactly(len(found) == len(pairs), "a dict")
    return found


def _read_generator(parts: Any, depth: int) -> Any:
    kind, state = parts
    return generators.make(kind, _read(state, depth))


_READERS: Final[dict[str, Callable[[Any, int], Any]]] = {
    "int": _read_int,
    "f64": _read_float,
    "complex": _read_complex,
    "bytes": _read_bytes,
    "bytearray": lambda text, depth: bytearray(_read_bytes(text, depth)),
    "tuple": lambda items, depth: tuple(_read_list(items, depth)),
    "dict": _read_dict,
    "set": lambda items, depth: set(_read_set(items, depth)),
    "frozenset": _read_set,
    "numpy": _read_scalar,
    "array": _read_array,
    "generator": _read_generator,
}
