"""The one entry point for digests: an algorithm, a domain tag, bytes in, 32 bytes out.

Every hash of mpickpt has a domain tag, so that the bytes of one kind of record never pass for another:
blake3 takes it as the context of its key derivation mode (`b3sum --derive-key`), sha256 as a first line.
docs/format.md lists the tags.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Final, TypeAlias

from blake3 import blake3

from mpickpt.errors import FormatError, StateError

BytesLike: TypeAlias = bytes | bytearray | memoryview

ALGORITHMS: Final = ("blake3", "sha256")
SIZE: Final = 32


def context(tag: str) -> str:
    """Give the domain string of a tag."""
    return f"mpickpt 1 {tag}"


@functools.lru_cache(maxsize=64)
def hasher(tag: str) -> blake3:
    """Give the BLAKE3 hasher of a domain, to be copied and never updated: a copy costs half of what a new one does."""
    return blake3(derive_key_context=context(tag))


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
