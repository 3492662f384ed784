"""Shards: safetensors files with a digest table and a CRC table (docs/format.md, "Shard").

A writer asks `layout` where every byte will be. A reader goes the other way, in this order: `head_size` of the first
eight bytes, `locate_tables`, `verify_tables` against the digest that it knows, then `parse` and `agree`, then the
chunks that it needs, each with `chunk_digest`. So damage is named as damage before a hostile header is looked at.
"""

from __future__ import annotations

import re
from typing import Final

from mpickpt import digest as digests
from mpickpt.errors import IntegrityError
from mpickpt.format.header import agree, foreseen, head_size, parse
from mpickpt.format.layout import CHUNK, CRC_BYTES, DIGEST_BYTES, Entry, Layout, PieceSpec, layout

_CHUNK_FIELD: Final = re.compile(rb'"chunk":"([1-9][0-9]{0,18})"')


def chunk_digest(algorithm: str, data: digests.BytesLike) -> bytes:
    """Hash one chunk of pieces; 32 bytes, as the digest table holds them."""
    return digests.digest(algorithm, "chunk", data)


def shard_digest(algorithm: str, head: digests.BytesLike, table: digests.BytesLike, crcs: digests.BytesLike) -> str:
    """Hash the head and both tables: the name of a shard in manifests, ``blake3:HEX``.

    Parameters
    ----------
    algorithm : {"blake3", "sha256"}
    head : bytes-like
        Length bytes and padded header, as in the file.
    table, crcs : bytes-like
        The digest table and the CRC table, as in the file.
    """
    return digests.name(algorithm, digests.digest(algorithm, "shard", head, table, crcs))


def locate_tables(head: bytes, file_bytes: int) -> tuple[int, int]:
    """Say where the tables of a shard stand, from its size and chunk size alone, so that they are checked first.

    The header is not parsed: whoever knows the shard's digest checks head and tables against it before a hostile
    header is looked at, so that mere damage is always named as damage.

    Parameters
    ----------
    head : bytes
        Length bytes and padded header.
    file_bytes : int
        Size of the file in bytes.

    Returns
    -------
    (int, int)
        Offset of the digest table from the start of the file, and the number of chunks. What they say holds only
        when the shard's digest does; both lie within the file.
    """
    match = _CHUNK_FIELD.search(head)
    chunk = int(match[1]) if match else CHUNK
    rest = max(file_bytes - len(head), 0)
    chunks = -(-rest // (chunk + DIGEST_BYTES + CRC_BYTES))
    tables = min(chunks * (DIGEST_BYTES + CRC_BYTES), rest)
    return len(head) + rest - tables, tables // (DIGEST_BYTES + CRC_BYTES)


def verify_tables(
    head: digests.BytesLike, table: digests.BytesLike, crcs: digests.BytesLike, expected: str, path: str | None = None
) -> None:
    """Check head and tables of a shard against the digest that a manifest gives.

    Parameters
    ----------
    head, table, crcs : bytes-like
        As for `shard_digest`.
    expected : str
        The recorded digest.
    path : str, optional
        The file, for messages.

    Raises
    ------
    IntegrityError
        If they are not the bytes that the digest names.
    """
    algorithm, _ = digests.parse(expected, "a shard's record")
    found = shard_digest(algorithm, head, table, crcs)
    if found != expected:
        raise IntegrityError(
            "a shard's header or tables are not what its manifest names", path=path, expected=expected, found=found
        )


__all__ = [
    "CHUNK",
    "CRC_BYTES",
    "DIGEST_BYTES",
    "Entry",
    "Layout",
    "PieceSpec",
    "agree",
    "chunk_digest",
    "foreseen",
    "head_size",
    "layout",
    "locate_tables",
    "parse",
    "shard_digest",
    "verify_tables",
]
