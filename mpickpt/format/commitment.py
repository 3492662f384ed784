"""Commitments: what a child says to its parent, in a fixed layout (docs/format.md, "Commitment").

Numbers are fixed-width and little-endian; texts stand in fixed fields. So a commitment's length depends on the
number of bounds and their axes, which the declarations settle, and never on the owner count.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from mpickpt import digest as digests
from mpickpt.errors import FormatError, StateError
from mpickpt.format.fields import MAX, MAX_AXES, Fields
from mpickpt.format.names import SHARED_SUFFIX, check_shard_name
from mpickpt.format.prefix import MAX_BOUNDS, PieceBox, Prefix

MAGIC: Final = b"mpickptC"
VERSION: Final = 1
NO_BOUNDS: Final = 0xFFFFFFFF

# magic, version, total bytes, algorithm, shared, run, attempt, schema, contract, step, cursor, epoch, call, role,
# size, manifest digest, cover, held, copies, .r file: name, bytes, digest; then the number of bounds
_FIXED: Final = struct.Struct("<8s I I B B 6x 64s 64s 32s 32s 6Q 32s 32s 32s 32s 64s Q 32s I 4x")
_BOUND: Final = struct.Struct("<Q Q")  # ordinal, axes; then lo and hi of that many axes, 8 bytes each
_TEXT: Final = 64


class SharedShard(NamedTuple):
    """The sender's ``.r`` shard: name below the attempt's directory, size in bytes, digest (``blake3:HEX``)."""

    file: str
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Commitment:
    """One subtree's commitment.

    Parameters
    ----------
    prefix : Prefix
        Which capture; its schema's digest says the algorithm of every digest here.
    role, size : int
        The subtree: roles ``[role, role + size)``.
    digest : bytes
        32 bytes: the digest of the sender's manifest (zeros where it writes none).
    cover, held, copies : int
        The three sums over the subtree, modulo 2**256.
    bounds : tuple of (ordinal, lo, hi) or None
        What encloses the subtree's pieces, for at most 64 regions that follow no rule.
    shared : SharedShard or None
        The sender's ``.r`` shard, which the root records.

    Examples
    --------
    >>> zero = "blake3:" + 64 * "0"
    >>> c = Commitment(Prefix("r", zero, zero, 1, 2, 1, 3, "n"), 4, 1, bytes(32), 5, 6, 7, None, None)
    >>> Commitment.unpack(c.pack()) == c
    True
    """

    prefix: Prefix
    role: int
    size: int
    digest: bytes
    cover: int
    held: int
    copies: int
    bounds: tuple[PieceBox, ...] | None
    shared: SharedShard | None

    def pack(self) -> bytes:
        """Write it.

        Raises
        ------
        StateError
            If a field does not fit the layout, or digests of two algorithms are mixed.
        """
        prefix = self.prefix
        algorithm, schema = digests.parse(prefix.schema, "a commitment")
        shared = SharedShard("", 0, digests.name(algorithm, bytes(32))) if self.shared is None else self.shared
        others = [digests.parse(text, "a commitment") for text in (prefix.contract, shared.digest)]
        texts = [text.encode("utf-8") for text in (prefix.run, prefix.attempt, shared.file)]
        bounds = () if self.bounds is None else self.bounds
        if (
            any(other != algorithm for other, _ in others)
            or max(map(len, texts)) > _TEXT
            or len(self.digest) != digests.SIZE
            or len(bounds) > MAX_BOUNDS
        ):
            raise StateError(
                "a commitment does not fit its layout",
                role=self.role,
                expected=f"one digest algorithm, texts of at most {_TEXT} bytes, at most {MAX_BOUNDS} bounds",
            )
        try:
            tail = [
                _BOUND.pack(ordinal, len(lo)) + struct.pack(f"<{2 * len(lo)}Q", *lo, *hi) for ordinal, lo, hi in bounds
            ]
            fixed = _FIXED.pack(
                MAGIC,
                VERSION,
                _FIXED.size + sum(map(len, tail)),
                digests.ALGORITHMS.index(algorithm),
                self.shared is not None,
                texts[0],
                texts[1],
                schema,
                others[0][1],
                prefix.step,
                prefix.cursor,
                prefix.epoch,
                prefix.call,
                self.role,
                self.size,
                self.digest,
                *(number.to_bytes(32, "little") for number in (self.cover, self.held, self.copies)),
                texts[2],
                shared.bytes,
                others[1][1],
                NO_BOUNDS if self.bounds is None else len(bounds),
            )
        except (struct.error, OverflowError) as error:
            raise StateError("a commitment has a number out of range", role=self.role, found=str(error)) from None
        return b"".join([fixed, *tail])

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Commitment:
        """Read it.

        Raises
        ------
        FormatError
            If `data` is not what `pack` writes: checked are magic, version and length, then the fields in their
            order, then the bounds.
        """
        if len(data) < _FIXED.size:
            _refuse("is cut", f"at least {_FIXED.size} bytes", len(data))
        magic, version, total, which, has_shared, run, attempt, schema, contract, *rest = _FIXED.unpack_from(data)
        step, cursor, epoch, call, role, size, digest, cover, held, copies, file, nbytes, file_digest, count = rest
        if magic != MAGIC or version != VERSION:
            _refuse("is none, or of another version", f"{MAGIC!r}, version {VERSION}", f"{magic!r}, version {version}")
        if total != len(data):
            _refuse("has another length than it says", total, len(data))
        if which >= len(digests.ALGORITHMS) or has_shared > 1:
            _refuse("has a bad algorithm or flag", "0 or 1", (which, has_shared))
        algorithm = digests.ALGORITHMS[which]
        prefix = Prefix.from_json(
            {
                "run": _text(run),
                "schema": digests.name(algorithm, schema),
                "contract": digests.name(algorithm, contract),
                "step": step,
                "cursor": cursor,
                "epoch": epoch,
                "call": call,
                "attempt": _text(attempt),
            },
            "a commitment",
        )
        subtree = Fields({"role": role, "size": size, "bytes": nbytes}, "a commitment", None)
        subtree.integer("size", 1, MAX - subtree.integer("role"))
        shared = None
        if has_shared:
            name = check_shard_name(_text(file), None)
            if not name.endswith(SHARED_SUFFIX):
                _refuse("names a file that is no .r shard", f"a name that ends in {SHARED_SUFFIX}", name)
            shared = SharedShard(name, subtree.integer("bytes", 1), digests.name(algorithm, file_digest))
        elif any(file) or nbytes or any(file_digest):
            _refuse("has a .r shard that it does not flag", "zeros", _text(file))
        found = cls(
            prefix,
            role,
            size,
            digest,
            int.from_bytes(cover, "little"),
            int.from_bytes(held, "little"),
            int.from_bytes(copies, "little"),
            _bounds(data, count),
            shared,
        )
        if found.pack() != data:
            _refuse("has bytes between its fields", "zeros", None)
        return found


def _text(raw: bytes) -> str:
    """Read a text field; what is not ASCII fails the check that follows, and bytes behind a zero fail the last."""
    return raw.rstrip(b"\0").decode("ascii", "replace")


def _bounds(data: bytes | bytearray | memoryview, count: int) -> tuple[PieceBox, ...] | None:
    if count == NO_BOUNDS:
        if len(data) != _FIXED.size:
            _refuse("goes on behind its end", _FIXED.size, len(data))
        return None
    if count > MAX_BOUNDS:
        _refuse("has too many bounds", f"at most {MAX_BOUNDS}", count)
    found: list[PieceBox] = []
    at = _FIXED.size
    last = -1
    for _ in range(count):
        if at + _BOUND.size > len(data):
            _refuse("is cut", f"{count} bounds", len(found))
        ordinal, axes = _BOUND.unpack_from(data, at)
        at += _BOUND.size
        if axes > MAX_AXES or at + 16 * axes > len(data):
            _refuse("has a bound that is cut or of too many axes", f"at most {MAX_AXES} axes", axes)
        corners = struct.unpack_from(f"<{2 * axes}Q", data, at)
        at += 16 * axes
        lo, hi = corners[:axes], corners[axes:]
        if not last < ordinal <= MAX or not all(low < high <= MAX for low, high in zip(lo, hi, strict=True)):
            _refuse("has a bad bound", "ascending ordinals, lo < hi on every axis", (ordinal, lo, hi))
        found.append((ordinal, lo, hi))
        last = ordinal
    if at != len(data):
        _refuse("goes on behind its end", at, len(data))
    return tuple(found)


def _refuse(what: str, expected: object, found: object) -> NoReturn:
    raise FormatError(f"a commitment {what}", expected=expected, found=None if found is None else str(found)[:200])
