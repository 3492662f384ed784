"""The one entry point for digests: an algorithm, a domain tag, bytes in, 32 bytes out.

Every hash of mpickpt has a domain tag, so that the bytes of one kind of record never pass for another:
blake3 takes it as the context of its key derivation mode (`b3sum --derive-key`), sha256 as a first line.
docs/format.md lists the tags.
"""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from blake3 import blake3

from mpickpt.errors import FormatError, StateError
from mpickpt.native import _native

BytesLike: TypeAlias = bytes | bytearray | memoryview

ALGORITHMS: Final = ("blake3", "sha256")
SIZE: Final = 32
#: Bytes that are hashed in some ten microseconds.
_SHORT: Final = 1 << 14


def context(tag: str) -> str:
    """Give the domain string of a tag."""
    return f"mpickpt 1 {tag}"


@functools.lru_cache(maxsize=64)
def hasher(tag: str) -> blake3:
    """Give the BLAKE3 hasher of a domain, to be copied and never updated: a copy costs half of what a new one does."""
    return blake3(derive_key_context=context(tag))


@functools.lru_cache(maxsize=64)
def key(tag: str) -> bytes:
    """Give the 32 bytes that stand for a domain in BLAKE3, for passes of the C extension."""
    return _native.blake3_key(context(tag).encode())


def digest(algorithm: str, tag: str, *parts: BytesLike) -> bytes:
    """Hash the concatenation of `parts` in the domain `tag`.

    Parameters
    ----------
    algorithm : {"blake3", "sha256"}
    tag : str
        The kind of thing that is hashed: ``record``, ``chunk``, ``shard``, ``schema``, ...
    *parts : bytes-like
        C-contiguous buffers; large ones are hashed without the interpreter lock.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    StateError
        If the algorithm is none of `ALGORITHMS`.
    """
    if algorithm == "blake3":
        if sum(map(len, parts)) <= _SHORT:  # with the interpreter lock, which the other would give up
            return _native.blake3(key(tag), b"".join(parts))
        blake = hasher(tag).copy()
        for part in parts:
            blake.update(part)
        return blake.digest()
    if algorithm == "sha256":
        sha = hashlib.sha256(context(tag).encode() + b"\n")
        for part in parts:
            sha.update(part)
        return sha.digest()
    raise StateError("unknown digest algorithm", expected=" or ".join(ALGORITHMS), found=repr(algorithm))


def stream(tag: str, start: int, size: int) -> bytes:
    """Give bytes ``[start, start + size)`` of the one BLAKE3 output stream of a domain: fixed pseudo-random weights."""
    return blake3(derive_key_context=context(tag)).digest(length=size, seek=start)


def total(tag: str, heads: Sequence[bytes], memory: Iterable[tuple[int, int]] | None = None) -> int:
    """Add up the BLAKE3 digests of many inputs in one domain, by one call without the interpreter lock.

    Parameters
    ----------
    tag : str
    heads : sequence of bytes
        What each input begins with: at most 4096 bytes.
    memory : iterable of (int, int), optional
        What follows each head: address and number of bytes, which must stay as they are.

    Returns
    -------
    int
        The sum of the digests, each read as a little-endian number, modulo 2**256.
    """
    inputs = array("q")
    for head, (address, size) in zip(heads, ((0, 0) for _ in heads) if memory is None else memory, strict=True):
        inputs.extend((len(head), address, size))
    return int.from_bytes(_native.digest_sum(key(tag), b"".join(heads), inputs), "little")


def total_alike(tag: str, heads: bytes, size: int) -> int:
    """Add up the BLAKE3 digests of many inputs of `size` bytes each, which lie one behind the other; as `total`."""
    inputs = array("q", (size, 0, 0)) * (len(heads) // size)
    return int.from_bytes(_native.digest_sum(key(tag), heads, inputs), "little")


def name(algorithm: str, raw: bytes) -> str:
    """Write a digest as records do: ``blake3:hex``."""
    return f"{algorithm}:{raw.hex()}"


def parse(text: object, what: str) -> tuple[str, bytes]:
    """Read ``ALGORITHM:HEX``.

    Raises
    ------
    FormatError
        If `text` is not such a string; `what` says where it stands.
    """
    if isinstance(text, str):
        algorithm, _, digits = text.partition(":")
        if algorithm in ALGORITHMS and len(digits) == 2 * SIZE and not set(digits) - set("0123456789abcdef"):
            return algorithm, bytes.fromhex(digits)
    raise FormatError(
        f"malformed digest in {what}",
        expected="blake3:HEX or sha256:HEX with 64 hexadecimal digits",
        found=repr(text)[:100],
    )
