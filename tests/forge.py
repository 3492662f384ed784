"""Forge a generation: change bytes, headers and records, and make every digest above them right again.

What a forger can do who knows the format, done without mpickpt's own writers and parsers: files are taken apart by
docs/format.md alone. Only the coverage sums are computed by the library, and only where a test asks for it.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpickpt import _native
from mpickpt import digest as digests
from mpickpt.format.fields import hex_cover
from mpickpt.state import coverage
from mpickpt.state.region import Box, Schema

Record = dict[str, Any]


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def seal(value: object) -> tuple[bytes, str]:
    """Write a record of two lines; give it and its digest."""
    first = value if isinstance(value, bytes) else canonical(value)
    name = "blake3:" + digests.digest("blake3", "record", first).hex()
    return first + b"\n" + canonical({"digest": name}) + b"\n", name


def read(path: Path) -> Record:
    """Read the first line of a record."""
    return dict(json.loads(path.read_bytes().split(b"\n")[0]))


@dataclass
class Shard:
    """A shard, taken apart: its header, its pieces by entry name; `write` puts it together with right tables.

    Offsets and shapes in the header are the test's own business, but for `resize`, which moves what lies behind.
    """

    path: Path
    header: dict[str, Any]
    payload: bytearray

    @classmethod
    def of(cls, path: Path) -> Shard:
        data = path.read_bytes()
        size = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:size])
        payload = data[size : size + header["mpickpt.digests"]["data_offsets"][0]]
        return cls(path, header, bytearray(payload))

    def entry(self, name: str) -> tuple[str, dict[str, Any]]:
        """Find the one entry of a region: its full name and what the header says of it."""
        (found,) = ((key, item) for key, item in self.header.items() if key.rpartition("[")[0] == name)
        return found

    def poke(self, name: str, at: int, data: bytes) -> None:
        """Change bytes of a piece, from byte `at` of it on."""
        begin = self.entry(name)[1]["data_offsets"][0] + at
        assert self.payload[begin : begin + len(data)] != data, "the case changes nothing"
        self.payload[begin : begin + len(data)] = data

    def resize(self, name: str, data: bytes) -> None:
        """Give an opaque piece other bytes of any length."""
        key, entry = self.entry(name)
        begin, end = entry["data_offsets"]
        grown = len(data) - (end - begin)
        self.payload[begin:end] = data
        entry["shape"] = [len(data)]
        for other, item in self.header.items():
            if other != "__metadata__" and not other.startswith("mpickpt.") and item["data_offsets"][0] > begin:
                item["data_offsets"] = [offset + grown for offset in item["data_offsets"]]
        entry["data_offsets"] = [begin, begin + len(data)]
        assert key in self.header

    def write(self) -> tuple[int, str]:
        """Write it with tables and a header that fit; give the file's bytes and the shard's digest."""
        chunk, size = int(self.header["__metadata__"]["chunk"]), len(self.payload)
        parts = [bytes(self.payload[at : at + chunk]) for at in range(0, size, chunk)]
        table = b"".join(digests.digest("blake3", "chunk", part) for part in parts)
        crcs = b"".join(struct.pack("<I", _native.crc32c(part)) for part in parts)
        count = len(parts)
        self.header["mpickpt.digests"] = {
            "data_offsets": [size, size + 32 * count],
            "dtype": "U8",
            "shape": [count, 32],
        }
        self.header["mpickpt.crc32c"] = {
            "data_offsets": [size + 32 * count, size + 36 * count], "dtype": "U8", "shape": [count, 4],
        }  # fmt: skip
        text = canonical(self.header)
        length = -(-(8 + len(text)) // 4096) * 4096 - 8
        head = length.to_bytes(8, "little") + text.ljust(length)
        self.path.write_bytes(head + self.payload + table + crcs)
        name = "blake3:" + digests.digest("blake3", "shard", head, table, crcs).hex()
        return len(head) + size + 36 * count, name


def forge(
    store: Path,
    *,
    shards: Callable[[Shard], None] | None = None,
    groups: Callable[[Record], None] | None = None,
    root: Callable[[Record], None] | None = None,
    covers: bool = False,
) -> str:
    """Change the one generation of a star's store from the leaves up; give the new root's digest.

    Parameters
    ----------
    shards, groups, root : callable
        Changes each shard, each group manifest, the root, before it is written with a right digest.
    covers : bool
        Whether the coverage sums are made to fit the pieces that the records list.
    """
    (path,) = (store / "roots").glob("*.json")
    data = store / "data" / path.stem
    top = read(path)
    records = {manifest: read(manifest) for manifest in sorted(data.rglob("*.json"))}
    for record in (*records.values(), top):
        for shard in record["shards"]:
            opened = Shard.of(data / shard["file"])
            if shards is not None:
                shards(opened)
            shard["bytes"], shard["digest"] = opened.write()
    # Children's digests come first, so that a test may still change them; sums need the schema as it will be.
    after = copy.deepcopy(top)
    if root is not None:
        root(after)
    schema = Schema.from_json(after["schema"]) if covers else Schema([])
    for manifest, record in records.items():
        role = record["role"]
        if groups is not None:
            groups(record)
        if covers:
            record["cover"] = cover_of(schema, record)
        text, name = seal(record)
        manifest.write_bytes(text)
        for child in top["children"]:
            if child["role"] == role:
                child["digest"] = name
                child["cover"] = record["cover"] if covers else child["cover"]
    if root is not None:
        root(top)
    if covers:
        top["cover"] = cover_of(schema, top)
    text, name = seal(top)
    path.write_bytes(text)
    return name


def cover_of(schema: Schema, record: Record) -> str:
    """Compute the sum that belongs to the pieces and children that a manifest lists."""
    pieces = [(o, Box(tuple(lo), tuple(hi))) for shard in record["shards"] for o, lo, hi in shard["pieces"]]
    below = sum(int(child["cover"], 16) for child in record["children"])
    return hex_cover((coverage.cover_of(schema, pieces) + below) & coverage.MASK)
