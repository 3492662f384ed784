"""Lists of thousands of pieces in a manifest: taken out of its text and read apart, for most differ in few digits.

``[[0,[0],[256]],[4,[0],[256]],...]``: all but the ordinals stands there in few forms, each of which is parsed once.
What is taken out is canonical and well-formed; anything else is left in the text, where the parser finds what is wrong.
"""

from __future__ import annotations

import operator
import secrets
from typing import Any, Final

from mpickpt import canonical
from mpickpt.errors import FormatError
from mpickpt.format.fields import MAX, MAX_AXES
from mpickpt.format.prefix import PieceBox
from mpickpt.state.region import Schema, Shape

#: A comma and unescaped quotes: in no string could they stand so. The list is not the first key of its record.
_BEGINS: Final = b',"pieces":[['
_ENDS: Final = b"]]]"
_FEWEST: Final = 1024
"""Bytes of a list from which on it is worth it."""


def lift(text: bytes) -> tuple[bytes, dict[str, tuple[PieceBox, ...]]]:
    """Take lists of pieces out of canonical JSON.

    Parameters
    ----------
    text : bytes
        Of a record; hostile.

    Returns
    -------
    (bytes, dict)
        The text with a random word in place of each list that was taken out, and these by their words. The text that
        is left is canonical if and only if the whole was.
    """
    found: dict[str, tuple[PieceBox, ...]] = {}
    left: list[bytes] = []
    at = 0
    while (start := text.find(_BEGINS, at)) >= 0:
        start += len(_BEGINS) - 2
        stop = text.find(_ENDS, start) + len(_ENDS)
        if stop < len(_ENDS):
            break
        pieces = _read(text[start:stop]) if stop - start >= _FEWEST else None
        if pieces is None:
            left.append(text[at:stop])
        else:
            word = secrets.token_hex(16)
            found[word] = pieces
            left += text[at:start], canonical.dumps(word)
        at = stop
    return b"".join((*left, text[at:])), found


def put_back(value: Any, found: dict[str, tuple[PieceBox, ...]]) -> bool:
    """Put lists that were taken out where their words stand, as tuples: the ``pieces`` of shard records.

    Returns
    -------
    bool
        Whether each had its place there. Else `value` is of no use.
    """
    shards = value.get("shards") if type(value) is dict else None
    for shard in shards if type(shards) is list else ():
        word = shard.get("pieces") if type(shard) is dict else None
        if type(word) is str and word in found:
            shard["pieces"] = found.pop(word)
    return not found


def fit(pieces: tuple[PieceBox, ...], schema: Schema | None) -> bool:
    """Tell whether lists that were taken out ascend strictly, and lie within the regions of a schema."""
    if not all(map(operator.lt, pieces, pieces[1:])):
        return False
    regions = None if schema is None else schema.regions
    if pieces[0][0] < 0 or pieces[-1][0] >= (MAX if regions is None else len(regions)):
        return False
    if regions is None:
        return True
    forms = {(regions[ordinal].shape, hi) for ordinal, _, hi in pieces}
    return all(len(shape or ()) == len(hi) and not any(map(operator.gt, hi, shape or ())) for shape, hi in forms)


def _read(text: bytes) -> tuple[PieceBox, ...] | None:
    """Read ``[[ordinal,lo,hi],...]``; None for what is malformed, not canonical, or of too many forms."""
    try:
        items = [item.partition(",") for item in text[2:-3].decode("ascii").split("]],[")]
        digits = [item[0] for item in items]
        if max(map(len, digits)) > canonical.MAX_DIGITS:
            return None
        ordinals = list(map(int, digits))
    except ValueError:
        return None
    if list(map(str, ordinals)) != digits:
        return None  # 007, +7, 1_0 and other ways of writing a number
    rests = [item[2] for item in items]
    forms = set(rests)
    if len(forms) > 1 + len(rests) // 8:
        return None
    lows: dict[str, Shape] = {}
    highs: dict[str, Shape] = {}
    for form in forms:
        corners = _corners(form)
        if corners is None:
            return None
        lows[form], highs[form] = corners
    return tuple(zip(ordinals, map(lows.__getitem__, rests), map(highs.__getitem__, rests), strict=True))


def _corners(form: str) -> tuple[Shape, Shape] | None:
    """Read what follows an ordinal: ``[lo,...],[hi,...`` of a box that is not empty."""
    try:
        value = canonical.loads(f"[{form}]]".encode(), what="a box")
    except FormatError:
        return None
    if len(value) != 2 or not all(type(corner) is list for corner in value):
        return None
    lo, hi = value
    if len(lo) != len(hi) or len(lo) > MAX_AXES or not all(type(one) is int for one in (*lo, *hi)):
        return None
    return (tuple(lo), tuple(hi)) if all(0 <= a < b <= MAX for a, b in zip(lo, hi, strict=True)) else None
