"""Where arrays lie in memory, of many at once: NumPy itself takes a microsecond to tell it of one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from mpickpt.native import _native

_Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

# NumPy's own numbers, those of the array interface.
_CONTIGUOUS: Final = 0x1
_NATIVE_ORDER: Final = 0x200
_WRITEABLE: Final = 0x400


def lies_flat(array: np.ndarray[Any, Any]) -> bool:
    """Tell whether an array's memory is the array in C order, little-endian."""
    order = array.dtype.byteorder
    return array.flags.c_contiguous and order != ">" and not (order == "=" and sys.byteorder == "big")


@dataclass(frozen=True, slots=True)
class Places:
    """Where each of some arrays lies, for as long as these are kept.

    Attributes
    ----------
    addresses, nbytes : numpy.ndarray of int64, shape (n,)
        Of the first element; of all elements together.
    contiguous, flat, writeable : numpy.ndarray of bool, shape (n,)
        In C order without gaps; and little-endian besides (`lies_flat`); as NumPy's flag.
    """

    addresses: _Numbers
    nbytes: _Numbers
    contiguous: _Flags
    flat: _Flags
    writeable: _Flags

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray[Any, Any]]) -> Places:
        """Look where arrays lie."""
        rows = np.frombuffer(_native.places(tuple(arrays)), np.int64).reshape(-1, 3)
        flags = rows[:, 2]
        contiguous = (flags & _CONTIGUOUS) != 0
        if sys.byteorder == "little":
            flat = contiguous & ((flags & _NATIVE_ORDER) != 0)
        else:
            flat = np.fromiter(map(lies_flat, arrays), np.bool_, len(rows))
        return cls(rows[:, 0], rows[:, 1], contiguous, flat, (flags & _WRITEABLE) != 0)
