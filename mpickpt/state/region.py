"""Regions, boxes of them, and the schema: all regions of a checkpoint, by name.

A region is one named global array, or one opaque value. A box is a half-open cuboid of it. Nothing here knows who
holds what, except `Rule`, by which it is arithmetic.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from mpickpt import canonical, digest
from mpickpt.errors import FormatError, StateError
from mpickpt.state import dtypes, names

Shape: TypeAlias = tuple[int, ...]
Kind: TypeAlias = Literal["array", "per_owner", "value"]

MAX_CUTS: Final = 16
"""Axes that one box may cut before their ends: coverage counts at most 2**16 corners a box."""
_MAX_BYTES: Final = 1 << 62
MAX_NDIM: Final = 64


class Box(NamedTuple):
    """A half-open cuboid ``lo <= index < hi`` of a region. A tuple, since there may be tens of thousands."""

    lo: Shape
    hi: Shape

    @staticmethod
    def whole(shape: Sequence[int]) -> Box:
        """Give the box of a whole region; `shape` is its shape."""
        return _whole(shape if type(shape) is tuple else tuple(shape))

    @property
    def shape(self) -> Shape:
        """Lengths along each axis."""
        return tuple(map(operator.sub, self.hi, self.lo))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(map(operator.sub, self.hi, self.lo))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.lo)

    @property
    def empty(self) -> bool:
        """Whether it has no elements."""
        return any(map(operator.ge, self.lo, self.hi))

    def intersect(self, other: Box) -> Box | None:
        """Give the common box, or None where there is no common element."""
        lo = tuple(map(max, self.lo, other.lo))
        hi = tuple(map(min, self.hi, other.hi))
        return None if any(map(operator.ge, lo, hi)) else Box(lo, hi)

    def contains(self, other: Box) -> bool:
        """Tell whether every corner of `other` lies within this box."""
        return (
            len(self.lo) == len(other.lo)
            and all(map(operator.le, self.lo, other.lo))
            and all(map(operator.le, other.hi, self.hi))
        )

    def check(self, shape: Sequence[int], region: str | None = None) -> None:
        """Refuse a box that is none of a region of `shape`.

        Raises
        ------
        StateError
            If it has another number of axes, lies partly outside, or has more corners than coverage counts.
        """
        if not len(self.lo) == len(self.hi) == len(shape):
            raise StateError(
                "a box has another number of axes than its region",
                region=region,
                expected=f"{len(shape)} axes, for shape {tuple(shape)}",
                found=f"[{self.text()}]" if len(self.lo) == len(self.hi) else f"{len(self.lo)} and {len(self.hi)}",
            )
        cuts = 0
        for lo, hi, length in zip(self.lo, self.hi, shape, strict=True):
            if not 0 <= lo <= hi <= length:
                raise StateError(
                    "a box lies outside its region",
                    region=region,
                    expected=f"within shape {tuple(shape)}",
                    found=f"[{self.text()}]",
                    advice="check `at`, `shape` and the array's own shape",
                )
            cuts += hi < length
        if cuts > MAX_CUTS:
            raise StateError("a box cuts too many axes", region=region, expected=f"at most {MAX_CUTS}", found=f"{cuts}")

    def relative(self, origin: Box) -> tuple[slice, ...]:
        """Give this box as slices of an array that holds exactly the box `origin`."""
        return tuple(slice(lo - at, hi - at) for lo, hi, at in zip(self.lo, self.hi, origin.lo, strict=True))

    def rows(self, start: int, stop: int) -> Box:
        """Give rows ``[start, stop)`` of it along axis 0, counted from its own `lo`."""
        first = self.lo[0]
        return Box((first + start, *self.lo[1:]), (first + stop, *self.hi[1:]))

    def text(self) -> str:
        """Write it as names of pieces do: ``0:4,0:8``; nothing for 0 axes."""
        return ",".join(f"{lo}:{hi}" for lo, hi in zip(self.lo, self.hi, strict=True))


@functools.lru_cache(maxsize=4096)
def _whole(shape: Shape) -> Box:
    return Box((0,) * len(shape), shape)


def _index(value: object, what: str) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise StateError(f"{what} is no integer", expected="an integer", found=repr(value)[:100])


def share_of(length: int, owners: int, role: int) -> tuple[int, int]:
    """Give (start, stop) of one of `shares`, without the others."""
    size, longer = divmod(length, owners)
    start = role * size + min(role, longer)
    return start, start + size + (role < longer)


def shares(length: int, owners: int) -> list[range]:
    """Cut `length` rows into contiguous shares, one an owner, whose sizes differ by at most one, larger first.

    Parameters
    ----------
    length : int
        Rows, 0 or more.
    owners : int
        Owners, 1 or more.

    Returns
    -------
    list of range
        Role r holds the rows ``shares(length, owners)[r]``.

    Raises
    ------
    StateError
        For anything else than such integers.

    Examples
    --------
    >>> shares(5, 3)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    length, owners = _index(length, "a length"), _index(owners, "a number of owners")
    if length < 0:
        raise StateError("a length is negative", expected="0 or more rows", found=length)
    if owners < 1:
        raise StateError("a number of owners is not positive", expected="1 or more owners", found=owners)
    return [range(*share_of(length, owners, role)) for role in range(owners)]


class Rule(NamedTuple):
    """How a region is cut along one axis over all roles: by `shares`, or by equal rounded-up blocks as torch.chunk."""

    name: Literal["balanced", "ceil"]
    axis: int

    def box(self, shape: Sequence[int], role: int, owners: int) -> Box:
        """Give the box of a role; it may be empty."""
        length = shape[self.axis]
        if self.name == "balanced":
            start, stop = share_of(length, owners, role)
        else:
            block = -(-length // owners)
            start, stop = min(role * block, length), min((role + 1) * block, length)
        lo, hi = [0] * len(shape), list(shape)
        lo[self.axis], hi[self.axis] = start, stop
        return Box(tuple(lo), tuple(hi))


class Region(NamedTuple):
    """One named global array, or one opaque value (``uint8``, shape None: its length may differ from save to save)."""

    name: str
    dtype: str
    shape: Shape | None
    kind: Kind
    rule: Rule | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of an array region; 0 of an opaque one, whose length is not in the schema."""
        return 0 if self.shape is None else _bytes_of(self.shape, self.dtype)


@functools.lru_cache(maxsize=4096)
def _bytes_of(shape: Shape, dtype: str) -> int:
    return math.prod(shape) * dtypes.itemsize(dtype)


class Schema:
    """All regions of a checkpoint, ordered by code point of their names; a region's ordinal is its place here.

    Parameters
    ----------
    regions : iterable of Region

    Raises
    ------
    StateError
        If two regions have one name.
    """

    __slots__ = ("_digests", "_ordinals", "_text", "regions")

    def __init__(self, regions: Iterable[Region]) -> None:
        self.regions: tuple[Region, ...] = tuple(sorted(regions, key=operator.attrgetter("name")))
        self._ordinals = {region.name: ordinal for ordinal, region in enumerate(self.regions)}
        self._digests: dict[str, str] = {}
        self._text: bytes | None = None
        if len(self._ordinals) != len(self.regions):
            for one, two in zip(self.regions, self.regions[1:], strict=False):
                if one.name == two.name:
                    raise StateError("two regions have one name", region=one.name, expected=str(one), found=str(two))

    def __len__(self) -> int:
        return len(self.regions)

    def __iter__(self) -> Iterator[Region]:
        return iter(self.regions)

    def __getitem__(self, ordinal: int) -> Region:
        return self.regions[ordinal]

    def __contains__(self, name: object) -> bool:
        return name in self._ordinals

    def __eq__(self, other: object) -> bool:
        return self.regions == other.regions if isinstance(other, Schema) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @property
    def nbytes(self) -> int:
        """Bytes of all array regions together."""
        sizes = Counter(map(operator.itemgetter(1, 2), self.regions))  # by dtype and shape: most are like others
        return sum(count * _bytes_of(shape, dtype) for (dtype, shape), count in sizes.items() if shape is not None)

    def ordinal(self, name: str) -> int:
        """Give the place of the region called `name`; KeyError where there is none."""
        return self._ordinals[name]

    def digest(self, algorithm: str) -> str:
        """Hash name -> dtype, shape, kind of all regions, as ``ALGORITHM:HEX``. Rules and copies are not in it."""
        found = self._digests.get(algorithm)
        if found is None:
            ruled = any(region.rule is not None for region in self.regions)
            text = self._text_of(_without_rule) if ruled else self.text()
            found = digest.name(algorithm, digest.digest(algorithm, "schema", text))
            self._digests[algorithm] = found
        return found

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data: name -> dtype, shape (null where opaque), kind, and the rule where there is one."""
        return {region.name: _with_rule(region) for region in self.regions}

    def text(self) -> bytes:
        """Give `to_json` as canonical JSON; kept, since it stands in every root and in every declaration."""
        if self._text is None:
            self._text = self._text_of(_with_rule)
        return self._text

    def _text_of(self, told: Callable[[Region], dict[str, Any]]) -> bytes:
        """Write name -> what is told of the region as canonical JSON; most are like others in all but the name."""
        known: dict[tuple[Any, ...], str] = {}
        entries = []
        quoted = canonical.quoted
        for region in self.regions:
            like = region[1:]
            text = known.get(like)
            if text is None:
                text = known[like] = ":" + canonical.dumps(told(region)).decode()
            entries.append(quoted(region.name) + text)
        return ("{" + ",".join(entries) + "}").encode()

    @classmethod
    def from_json(cls, plain: object, path: str | None = None) -> Schema:
        """Read `to_json` back.

        Raises
        ------
        FormatError
            For anything that `to_json` would not write.
        """
        if not isinstance(plain, Mapping):
            raise FormatError("the schema is no JSON object", path=path, found=type(plain).__name__)
        return cls(_region(name, entry, path) for name, entry in plain.items())


def _without_rule(region: Region) -> dict[str, Any]:
    shape = None if region.shape is None else list(region.shape)
    return {"dtype": region.dtype, "kind": region.kind, "shape": shape}


def _with_rule(region: Region) -> dict[str, Any]:
    plain = _without_rule(region)
    return plain if region.rule is None else plain | {"rule": [region.rule.name, region.rule.axis]}


def _whole_number(value: object, below: int) -> bool:
    return type(value) is int and 0 <= value < below


def _region(name: str, entry: object, path: str | None) -> Region:
    def refuse(what: str, found: object) -> FormatError:
        return FormatError(f"malformed region in the schema: {what}", region=name, path=path, found=repr(found)[:100])

    try:
        names.split(name)
    except FormatError:
        raise refuse("its name", name) from None
    if not isinstance(entry, Mapping) or not {"dtype", "kind", "shape"} <= entry.keys() <= {
        "dtype",
        "kind",
        "rule",
        "shape",
    }:
        raise refuse("its fields", sorted(entry) if isinstance(entry, Mapping) else entry)
    kind, dtype, shape, rule = entry["kind"], entry["dtype"], entry["shape"], entry.get("rule")
    if kind not in ("array", "per_owner", "value"):
        raise refuse("its kind", kind)
    if kind != "array":
        if dtype != "uint8" or shape is not None or "rule" in entry:
            raise refuse("an opaque region is uint8 without shape or rule", dict(entry))
        return Region(name, dtype, None, kind)
    if not isinstance(dtype, str) or dtype not in dtypes.NAMES:
        raise refuse("its dtype", dtype)
    if not isinstance(shape, list) or len(shape) > MAX_NDIM or not all(_whole_number(n, _MAX_BYTES) for n in shape):
        raise refuse("its shape", shape)
    if math.prod(n for n in shape if n) * dtypes.itemsize(dtype) >= _MAX_BYTES:
        raise refuse("its size", shape)
    found = None
    if "rule" in entry:
        if (
            not isinstance(rule, list)
            or len(rule) != 2
            or rule[0] not in ("balanced", "ceil")
            or not _whole_number(rule[1], len(shape))
        ):
            raise refuse("its rule", rule)
        found = Rule(rule[0], rule[1])
    return Region(name, dtype, tuple(shape), "array", found)


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> list[tuple[int, Box]]:
    """Give elements ``[start, stop)`` of an array in C order as boxes, each contiguous in C order.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array.
    start, stop : int
        Flat indices, ``0 <= start <= stop <= size``.

    Returns
    -------
    list of (int, Box)
        At most ``2 * ndim - 1`` boxes, in order, each with the flat index of its first element.

    Raises
    ------
    StateError
        If `start` or `stop` lies outside the array.
    """
    if not 0 <= start <= stop <= math.prod(shape):
        raise StateError(
            "flat indices outside an array", expected=f"within shape {tuple(shape)}", found=f"[{start}, {stop})"
        )
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    found = []
    at = start
    while at < stop:
        lo, rest = [], at
        for stride in strides:
            index, rest = divmod(rest, stride)
            lo.append(index)
        hi = [index + 1 for index in lo]
        count = 1
        # The outermost axis along which whole blocks begin here; all axes within it are taken whole.
        for axis, stride in enumerate(strides):
            if at % stride == 0 and at + stride <= stop:
                blocks = min((stop - at) // stride, shape[axis] - lo[axis])
                hi[axis] = lo[axis] + blocks
                hi[axis + 1 :] = shape[axis + 1 :]
                count = blocks * stride
                break
        found.append((at, Box(tuple(lo), tuple(hi))))
        at += count
    return found
