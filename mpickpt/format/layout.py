"""Where every byte of a shard will be, before the first is written (docs/format.md, "Shard").

So a shard is written in one pass, tables last. `mpickpt.format.header` gives the same `Layout` back from the bytes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mpickpt import canonical
from mpickpt import digest as digests
from mpickpt.errors import StateError
from mpickpt.format.fields import FORMAT, MAX
from mpickpt.state import dtypes
from mpickpt.state.region import Box

CHUNK: Final = 4 << 20  # bytes of pieces under one digest
MAX_CHUNK: Final = 1 << 30  # a reader needs a chunk in memory to check it
PAGE: Final = 4096  # data begins on such a boundary
MAX_JSON: Final = 100_000_000  # bytes of padded header that the safetensors library takes
DIGEST_BYTES: Final = digests.SIZE
CRC_BYTES: Final = 4
DIGESTS: Final = "mpickpt.digests"
CRCS: Final = "mpickpt.crc32c"

# dtype name -> (safetensors dtype, bytes of an element, whether it is stored as U8 with one more axis)
STORED: Final = {
    name: (stored, dtypes.itemsize(name), stored == "U8" and name != "uint8")
    for name, stored in {
        "bool": "BOOL",
        "int8": "I8",
        "int16": "I16",
        "int32": "I32",
        "int64": "I64",
        "uint8": "U8",
        "uint16": "U16",
        "uint32": "U32",
        "uint64": "U64",
        "float16": "F16",
        "bfloat16": "BF16",
        "float32": "F32",
        "float64": "F64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "complex64": "U8",
        "complex128": "U8",
    }.items()
}


@dataclass(frozen=True, slots=True)
class PieceSpec:
    """One piece of a shard.

    Parameters
    ----------
    ordinal : int
        Its region's place in the schema; -1 where a header was parsed without a schema.
    region : str
        Its region's escaped name.
    box : Box
        Which part of the region; ``Box((), ())`` for opaque bytes.
    dtype : str
        The region's dtype; ``uint8`` for opaque bytes.
    nbytes : int
        Bytes in the file, > 0. Opaque bytes are tagged JSON, never fewer than two: a ``uint8`` piece without axes is
        a 0-d array if it has one byte, and opaque otherwise.
    """

    ordinal: int
    region: str
    box: Box
    dtype: str
    nbytes: int

    @property
    def opaque(self) -> bool:
        """Whether it is the bytes of a ``value`` or ``per_owner`` region."""
        return self.nbytes != 1 and not self.box.lo and self.dtype == "uint8"

    @property
    def name(self) -> str:
        """Its entry's name in the header: ``REGION[lo:hi,...]``."""
        return f"{self.region}[{self.box.text()}]"


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece and its place: `offset` counts bytes from the start of the data."""

    spec: PieceSpec
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every byte of a shard is.

    Parameters
    ----------
    head : bytes
        Eight length bytes and the padded JSON; a multiple of 4096.
    entries : list of Entry
        The pieces in file order.
    payload : int
        Bytes of all pieces together.
    chunk, chunks : int
        Bytes of pieces under one digest, and the number of digests.
    algorithm : {"blake3", "sha256"}
        Of the chunk digests.
    role, schema, step, cursor, epoch, attempt, shared
        Whose shard of which capture this is; `shared` marks the ``.r`` shard of replicated bytes.
    """

    head: bytes
    entries: list[Entry]
    payload: int
    chunk: int
    chunks: int
    algorithm: str
    role: int
    schema: str
    step: int
    cursor: int
    epoch: int
    attempt: str
    shared: bool

    @property
    def data_offset(self) -> int:
        """Where the pieces begin, in bytes from the start of the file."""
        return len(self.head)

    @property
    def tables_offset(self) -> int:
        """Where the tables begin, in bytes from the start of the file: the digests, then the CRCs."""
        return len(self.head) + self.payload

    @property
    def tables_bytes(self) -> int:
        """Bytes of both tables."""
        return self.chunks * (DIGEST_BYTES + CRC_BYTES)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.head) + self.payload + self.tables_bytes

    def chunk_span(self, index: int) -> tuple[int, int]:
        """Give ``(start, stop)`` of a chunk, in bytes from the start of the data."""
        return index * self.chunk, min((index + 1) * self.chunk, self.payload)

    def chunks_of(self, start: int, stop: int) -> range:
        """Give the chunks that hold bytes ``[start, stop)``, ``start < stop``, counted from the start of the data."""
        return range(start // self.chunk, -(-stop // self.chunk))


def order(spec: PieceSpec) -> tuple[Any, ...]:
    """Sort key of pieces in a file: opaque ones last, larger elements first, then by name of region and box."""
    return spec.opaque, -STORED[spec.dtype][1], spec.region, spec.box.lo, spec.box.hi


def layout(
    pieces: Sequence[PieceSpec],
    *,
    role: int,
    schema: str,
    step: int,
    cursor: int,
    epoch: int,
    attempt: str,
    algorithm: str,
    shared: bool = False,
    chunk: int = CHUNK,
) -> Layout:
    """Lay out a shard.

    Parameters
    ----------
    pieces : sequence of PieceSpec
        At least one, in any order.
    role : int
        Whose shard it is.
    schema : str
        The schema's digest, ``blake3:HEX``.
    step, cursor, epoch : int
        The moment.
    attempt : str
        The attempt's nonce.
    algorithm : {"blake3", "sha256"}
        Of the chunk digests.
    shared : bool
        Whether it is the ``.r`` shard of replicated bytes.
    chunk : int
        Bytes under one digest: a power of two of at most `MAX_CHUNK`.

    Raises
    ------
    StateError
        If a piece is empty, stands twice or has not the bytes of its box, or if the header becomes too long.
    """
    if not good_chunk(chunk):
        raise StateError("bad chunk size", expected=f"a power of two up to {MAX_CHUNK}", found=chunk)
    if algorithm not in digests.ALGORITHMS:
        raise StateError("unknown digest algorithm", expected=" or ".join(digests.ALGORITHMS), found=repr(algorithm))
    if not pieces:
        raise StateError("a shard without pieces", role=role, advice="an owner without pieces writes no shard")
    header: dict[str, Any] = {}
    wide: dict[str, str] = {}
    entries: list[Entry] = []
    offset = 0
    for spec in sorted(pieces, key=order):
        stored, size, widened = STORED[spec.dtype]
        shape = list(map(operator.sub, spec.box.hi, spec.box.lo))
        if spec.opaque:
            shape = [spec.nbytes]
        elif math.prod(shape) * size != spec.nbytes or min(shape, default=1) < 1:
            raise StateError(
                "a piece is empty or has not the bytes of its box",
                region=spec.region,
                expected=f"{math.prod(shape) * size} bytes of {spec.dtype} for [{spec.box.text()}]",
                found=spec.nbytes,
            )
        if spec.nbytes < 1:
            raise StateError("a piece without bytes", region=spec.region)
        if widened:
            wide[spec.region] = spec.dtype
            shape.append(size)
        header[spec.name] = {"data_offsets": [offset, offset + spec.nbytes], "dtype": stored, "shape": shape}
        entries.append(Entry(spec, offset))
        offset += spec.nbytes
    if len(header) != len(entries):
        raise StateError("a piece stands twice in one shard", role=role, region=_twice(entries))
    chunks = -(-offset // chunk)
    middle = offset + chunks * DIGEST_BYTES
    end = middle + chunks * CRC_BYTES
    header[DIGESTS] = {"data_offsets": [offset, middle], "dtype": "U8", "shape": [chunks, DIGEST_BYTES]}
    header[CRCS] = {"data_offsets": [middle, end], "dtype": "U8", "shape": [chunks, CRC_BYTES]}
    head = _head(
        header,
        {
            "algorithm": algorithm,
            "attempt": attempt,
            "chunk": str(chunk),
            "cursor": str(cursor),
            "dtypes": canonical.dumps(wide).decode(),
            "epoch": str(epoch),
            "format": str(FORMAT),
            "role": str(role),
            "schema": schema,
            "shared": "1" if shared else "0",
            "step": str(step),
        },
    )
    if len(head) + end > MAX:
        raise StateError("a shard is too long", role=role, expected=f"at most {MAX} bytes", found=len(head) + end)
    return Layout(head, entries, offset, chunk, chunks, algorithm, role, schema, step, cursor, epoch, attempt, shared)


def _head(header: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """Write length bytes and canonical JSON, padded with spaces to the next page."""
    try:
        text = canonical.dumps({"__metadata__": metadata, **header})
    except UnicodeError as error:
        raise StateError("a region's name is no Unicode text", found=str(error)[:200]) from None
    size = -(-(8 + len(text)) // PAGE) * PAGE
    if size - 8 > MAX_JSON:
        raise StateError(
            "too many pieces in one shard",
            expected=f"a header of at most {MAX_JSON} bytes",
            found=f"{len(header) - 2} pieces with a header of {size - 8} bytes",
        )
    return (size - 8).to_bytes(8, "little") + text.ljust(size - 8)


def _twice(entries: Sequence[Entry]) -> str | None:
    seen: set[str] = set()
    for entry in entries:
        if entry.spec.name in seen:
            return entry.spec.region
        seen.add(entry.spec.name)
    return None


def good_chunk(chunk: int) -> bool:
    """Tell whether a chunk size is a power of two of at most `MAX_CHUNK`."""
    return 0 < chunk <= MAX_CHUNK and chunk & (chunk - 1) == 0
