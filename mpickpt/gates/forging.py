"""Changing a real checkpoint from the leaves up, with every digest above the change made right again.

What a forger can do, or a program that repairs digests: the refusals that remain are of what the checkpoint says, and
not of its bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpickpt import canonical
from mpickpt.format.layout import CHUNK, CRC_BYTES, CRCS, DIGEST_BYTES, DIGESTS, PAGE
from mpickpt.format.records import record
from mpickpt.format.shard import chunk_digest, shard_digest
from mpickpt.native import _native

Record = dict[str, Any]


class ShardFile:
    """A shard, taken apart: header, payload; `write` puts it together with tables that fit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes()
        head = 8 + int.from_bytes(data[:8], "little")
        self.header: dict[str, Any] = json.loads(data[8:head])
        self.payload = bytearray(data[head : head + self.header[DIGESTS]["data_offsets"][0]])

    @property
    def role(self) -> int:
        """Whose shard it is."""
        return int(self.header["__metadata__"]["role"])

    def entries(self, region: str) -> list[str]:
        """List the entries of a region's pieces."""
        return [name for name in self.header if name.rpartition("[")[0] == region]

    def poke(self, region: str, data: bytes, at: int = 0) -> bool:
        """Change bytes of a region's first piece; tells whether there is one."""
        for name in self.entries(region)[:1]:
            begin = self.header[name]["data_offsets"][0] + at
            self.payload[begin : begin + len(data)] = data
            return True
        return False

    def write(self) -> tuple[int, str]:
        """Write it; gives the file's bytes and the shard's digest."""
        size = len(self.payload)
        chunk = int(self.header["__metadata__"].get("chunk", CHUNK))
        parts = [bytes(self.payload[at : at + chunk]) for at in range(0, size, chunk)]
        table = b"".join(chunk_digest("blake3", part) for part in parts)
        crcs = b"".join(struct.pack("<I", _native.crc32c(part)) for part in parts)
        place = size
        for name, width in ((DIGESTS, DIGEST_BYTES), (CRCS, CRC_BYTES)):
            end = place + width * len(parts)
            self.header[name] = {"data_offsets": [place, end], "dtype": "U8", "shape": [len(parts), width]}
            place = end
        text = canonical.dumps(self.header)
        length = -(-(8 + len(text)) // PAGE) * PAGE - 8
        head = length.to_bytes(8, "little") + text.ljust(length)
        self.path.write_bytes(head + self.payload + table + crcs)
        return len(head) + place, shard_digest("blake3", head, table, crcs)


def newest(store: str | Path) -> Path:
    """Find the root manifest of a store's newest generation by name."""
    return max(Path(store, "roots").glob("*.json"), key=lambda path: (path.name.split("-")[1], path.name))


def data_of(root: Path) -> Path:
    """Give the directory of a generation's files."""
    return root.parents[1] / "data" / root.stem


def read(path: Path) -> Record:
    """Read the first line of a record."""
    return dict(json.loads(path.read_bytes().split(b"\n")[0]))


def forge(
    store: str | Path,
    *,
    shards: Callable[[ShardFile], None] = lambda shard: None,
    groups: Callable[[Record], None] = lambda record: None,
    root: Callable[[Record], None] = lambda record: None,
) -> None:
    """Change the newest generation of a star or a tree: each shard, each group manifest, then the root."""
    path = newest(store)
    data = data_of(path)
    top = read(path)
    _forge(data, top, shards, groups)
    root(top)
    path.write_bytes(record(top, "blake3")[0])


def _forge(data: Path, manifest: Record, shards: Callable[[ShardFile], None], groups: Callable[[Record], None]) -> None:
    """Change what lies below a manifest, and its records of it."""
    for child in manifest["children"]:
        (path,) = data.glob(f"*/{child['role']:06}.json")
        below = read(path)
        _forge(data, below, shards, groups)
        groups(below)
        text, child["digest"] = record(below, "blake3")
        path.write_bytes(text)
    for shard in manifest["shards"]:
        opened = ShardFile(data / shard["file"])
        shards(opened)
        shard["bytes"], shard["digest"] = opened.write()
