"""What users wrap their state in, to say how it lies over the owners.

Wrappers only keep what they are given, in plain form. Whether a box fits its region is checked by
`mpickpt.state.nest.flatten`, which knows the region's name.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from mpickpt.errors import StateError
from mpickpt.state import dtypes

OnResize: TypeAlias = Literal["refuse", "keep", "drop"]


def _integer(value: object, what: str) -> int:
    if not isinstance(value, bool | np.bool_):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise StateError(f"{what} is no integer", expected="an integer", found=repr(value)[:100])


def _integers(values: object, what: str) -> tuple[int, ...]:
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        return tuple(_integer(value, what) for value in values)
    raise StateError(f"{what} is no sequence of integers", expected="a tuple of integers", found=repr(values)[:100])


def _shape(values: object, what: str) -> tuple[int, ...]:
    shape = _integers(values, what)
    if any(length < 0 for length in shape):
        raise StateError(f"{what} has a negative length", expected="0 or more along each axis", found=str(shape))
    return shape


class Spec:
    """Stand for an array that does not exist yet: a destination which becomes a new array.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype or str
        A NumPy dtype, or one of its names; ``"bfloat16"``, ``"float8_e4m3fn"``, ``"float8_e5m2"`` too.

    Raises
    ------
    StateError
        For a malformed shape, or a dtype that cannot be saved.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: object) -> None:
        self.shape = _shape(shape, "the shape of a Spec")
        self.dtype: np.dtype[Any] = dtypes.coerce(dtype)

    def __repr__(self) -> str:
        return f"Spec({self.shape}, {dtypes.name_of(self.dtype)!r})"


class Sharded:
    """This owner's boxes of a global array.

    Parameters
    ----------
    array : ndarray or Spec, or sequence of (ndarray or Spec, sequence of int)
        The one box that this owner holds; or several, each with where it begins; or none: an empty sequence.
    shape : sequence of int
        Shape of the global array.
    at : sequence of int, optional
        Where the one box begins in the global array.
    dtype : dtype or str, optional
        The global array's dtype; needed where this owner holds no box.
    replica : (int, int)
        ``(k, R)``: R owners hold this box, and this is copy k. All R copies must be equal.

    Raises
    ------
    StateError
        For malformed arguments; a box that does not fit is refused when the state is read.

    Examples
    --------
    >>> part = Sharded(np.zeros((2, 8)), shape=(8, 8), at=(4, 0))
    >>> nothing = Sharded([], shape=(8, 8), dtype="float64")
    """

    __slots__ = ("dtype", "parts", "replica", "shape", "single")

    def __init__(
        self,
        array: object,
        *,
        shape: Sequence[int],
        at: Sequence[int] | None = None,
        dtype: object = None,
        replica: tuple[int, int] = (0, 1),
    ) -> None:
        self.shape = _shape(shape, "the shape of a Sharded array")
        self.single = not isinstance(array, list | tuple)
        if isinstance(array, list | tuple):
            if at is not None:
                raise StateError("several boxes each say where they begin", expected="no at=", found=f"at={at}")
            for part in array:
                if not isinstance(part, list | tuple) or len(part) != 2:
                    raise StateError(
                        "malformed boxes of a Sharded array",
                        expected="a list of (array, at)",
                        found=f"an element that is {type(part).__name__}",
                    )
            self.parts = [(part[0], _integers(part[1], "where a box begins")) for part in array]
        else:
            if at is None:
                raise StateError("a box does not say where it begins", expected="at=(...)", found="no at")
            self.parts = [(array, _integers(at, "where a box begins"))]
        if dtype is None and not self.parts:
            raise StateError("a Sharded array without boxes has no dtype", expected="dtype=...", found="no dtype")
        self.dtype: np.dtype[Any] | None = None if dtype is None else dtypes.coerce(dtype)
        pair = _integers(replica, "replica")
        if len(pair) != 2 or not 0 <= pair[0] < pair[1]:
            raise StateError("malformed replica", expected="(k, R) with 0 <= k < R", found=repr(replica)[:100])
        self.replica = (pair[0], pair[1])

    def __repr__(self) -> str:
        return f"Sharded({len(self.parts)} boxes, shape={self.shape}, replica={self.replica})"


class Split:
    """This owner's share of the leading axis: contiguous, sizes differing by at most one, larger first, by rank.

    Parameters
    ----------
    array : ndarray or Spec
        The rows ``shares(length, owners)[rank]``, shape ``(rows, ...)``.
    length : int
        Rows of the whole array.

    Raises
    ------
    StateError
        If `length` is no integer of 0 or more; another number of rows is refused when the state is read.
    """

    __slots__ = ("array", "length")

    def __init__(self, array: object, *, length: int) -> None:
        self.array = array
        (self.length,) = _shape((length,), "the length of a Split array")

    def __repr__(self) -> str:
        return f"Split(length={self.length})"


class Replicated:
    """An array or a value that is equal on all owners which declare it; a plain array or value says the same.

    Parameters
    ----------
    content : ndarray, Spec, or plain Python value or container
    """

    __slots__ = ("content",)

    def __init__(self, content: object) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"Replicated({type(self.content).__name__})"


class PerOwner:
    """Something of this owner's own: a random generator, an array, a value, an object with state_dict.

    Opaque: it may have any size, and change it from save to save.

    Parameters
    ----------
    content : numpy Generator or RandomState, random.Random, ndarray, plain Python value or container, stateful object
        Generators are set in place at resume, arrays of the same shape and dtype filled in place.
    on_resize : {"refuse", "keep", "drop"}
        What happens when another number of owners resumes: nothing goes (`PlacementError`), the destination's
        own stays, or None takes its place.

    Raises
    ------
    StateError
        For another `on_resize`.
    """

    __slots__ = ("content", "on_resize")

    def __init__(self, content: object, on_resize: OnResize = "refuse") -> None:
        if on_resize not in get_args(OnResize):
            raise StateError("unknown on_resize", expected='"refuse", "keep" or "drop"', found=repr(on_resize)[:100])
        self.content = content
        self.on_resize: OnResize = on_resize

    def __repr__(self) -> str:
        return f"PerOwner({type(self.content).__name__}, on_resize={self.on_resize!r})"


class Value:
    """A value that is equal on all owners which declare it, stored with its types, whatever it holds.

    Opaque: it may have any size, and change it from save to save. Small arrays may be in it.

    Parameters
    ----------
    content : plain Python value or container, ndarray
    """

    __slots__ = ("content",)

    def __init__(self, content: object) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"Value({type(self.content).__name__})"


WRAPPERS = (Sharded, Split, Replicated, PerOwner, Value)
