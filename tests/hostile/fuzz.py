"""Coverage-guided fuzzing of everything that is parsed from files and messages: ``fuzz.py CORPUS [libFuzzer options]``.

An input's first byte chooses the parser, the rest is what it is given. Records are sealed with their right digest, so
that the parser behind it is met, and not the digest. What must hold of each (`check`): it is taken, or refused with a
CheckpointError whose message is short; what is taken is written as the very same bytes again; memory and time stay
within what the input's own length allows.

The corpus stands in ``tests/hostile/corpus``. `test_fuzz.py` replays it, and runs this for some seconds; ``make fuzz``
for an hour. Needs atheris; a corpus is replayed without.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import atheris
except ImportError:
    atheris = None

if atheris is not None and __name__ == "__main__":
    with atheris.instrument_imports(include=["mpickpt"]):
        importlib.import_module("mpickpt")

import test_hostile_formats as formats
import test_hostile_shards as shards

from mpickpt.errors import CheckpointError
from mpickpt.format.commitment import Commitment, SharedShard
from mpickpt.format.names import shard_file
from mpickpt.format.shard import CRC_BYTES, DIGEST_BYTES, head_size, locate_tables, parse
from mpickpt.state import values

#: Parsers by an input's first byte. Only additions at the end: the corpus names them by number.
KINDS = ("root", "group", "claim", "run", "void", "header", "locate", "commitment", "value", "raw", "ended")


def _record(kind: str, data: bytes) -> None:
    whole = formats.sealed(data)
    found = formats.VALID[kind][1](whole, None)
    encoded = found.encode()[0]
    assert encoded == whole, f"{kind} is written otherwise than it was read"


def _raw(data: bytes) -> None:
    for _, decode in formats.VALID.values():
        try:
            decode(data, None)
        except CheckpointError:
            continue


def _header(data: bytes) -> None:
    head = shards.headed(data)
    assert head_size(head[:8], shards.VALID.file_bytes) == len(head)
    found = parse(head, shards.VALID.file_bytes, None, shards.SCHEMA)
    assert found.head == head
    assert found.file_bytes == shards.VALID.file_bytes
    for entry in found.entries:
        assert 0 <= entry.offset <= entry.offset + entry.spec.nbytes <= found.payload


def _locate(data: bytes) -> None:
    head, size = shards.headed(data), shards.VALID.file_bytes
    assert head_size(head[:8], size) == len(head)
    start, chunks = locate_tables(head, size)
    assert len(head) <= start <= start + chunks * (DIGEST_BYTES + CRC_BYTES) <= size


def _commitment(data: bytes) -> None:
    assert Commitment.unpack(data).pack() == data


def _value(data: bytes) -> None:
    values.decode(data, "region")


PARSERS: dict[str, Callable[[bytes], None]] = {
    **{kind: lambda data, kind=kind: _record(kind, data) for kind in formats.VALID},  # type: ignore[misc]
    "header": _header,
    "locate": _locate,
    "commitment": _commitment,
    "value": _value,
    "raw": _raw,
}


def check(data: bytes) -> None:
    """Give one input to its parser; raises for whatever must not be."""
    if not data:
        return
    try:
        PARSERS[KINDS[data[0] % len(KINDS)]](data[1:])
    except CheckpointError as error:
        if len(str(error)) > 8000:
            raise AssertionError("a refusal that nobody can read") from error


def seeds() -> dict[str, bytes]:
    """Make the inputs to begin with: whatever is well formed."""
    found = {kind: formats.first_line(kind) for kind in formats.VALID}
    found["header"] = found["locate"] = shards.TEXT
    shared = SharedShard(shard_file(1, shared=True), 9000, formats.D)
    plain = {"prefix": formats.PREFIX, "role": 1, "size": 1, "digest": bytes(32), "cover": 1, "held": 2, "copies": 3}
    found["commitment"] = Commitment(**plain, bounds=((0, (2, 0), (4, 4)),), shared=shared).pack()
    value: Any = {"a": [1, 2.5, None, True, "x"], "b": (b"\0", 10**30), "c": {3: float("inf")}}
    found["value"] = values.encode(value, "region")
    found["raw"] = formats.ROOT.encode()[0]
    return {kind: bytes([KINDS.index(kind)]) + data for kind, data in found.items()}


def main() -> None:
    """Fuzz."""
    corpus = Path(sys.argv[1])
    corpus.mkdir(exist_ok=True)
    for kind, data in seeds().items():
        (corpus / f"seed-{kind}").write_bytes(data)
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    if atheris is None:
        print("atheris is absent", file=sys.stderr)
        os._exit(77)
    main()
