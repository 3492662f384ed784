"""Where every byte of a shard will be, before the first is written (docs/format.md, "Shard").

So a shard is written in one pass, tables last. `mpickpt.format.header` gives the same `Layout` back from the bytes.
"""

from __future__ import annotations

import bisect
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mpickpt import canonical
from mpickpt import digest as digests
from mpickpt.errors import CoverageError, StateError
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
_METADATA: Final = "__metadata__"

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


# An element's bytes, the largest first.
_PLACES: Final = {name: -size for name, (_, size, _) in STORED.items()}


class PieceSpec(NamedTuple):
    """One piece of a shard. A tuple, since there may be tens of thousands.

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


class Entry(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Pieces in their places, and their part of a header: the same at every save of the same pieces.

    Parameters
    ----------
    entries : list of Entry
        In file order.
    payload, chunk, chunks : int
        As of `Layout`.
    dtypes : str
        The metadata's ``dtypes``.
    before, after : str
        The header's entries that stand before and behind its metadata, in the order of their names.
    """

    entries: list[Entry]
    payload: int
    chunk: int
    chunks: int
    dtypes: str
    before: str
    after: str


def arrange(pieces: Sequence[PieceSpec], role: int, chunk: int = CHUNK) -> Arrangement:
    """Give pieces, at least one and in any order, their places in a shard of `role`; raises as `layout`."""
    if not good_chunk(chunk):
        raise StateError("bad chunk size", expected=f"a power of two up to {MAX_CHUNK}", found=chunk)
    if not pieces:
        raise StateError("a shard without pieces", role=role, advice="an owner without pieces writes no shard")
    forms: dict[tuple[str, Box], _Form] = {}
    wide: dict[str, str] = {}
    texts: dict[str, str] = {}
    entries: list[Entry] = []
    offset = 0
    for spec in _ordered(pieces):
        _, region, box, dtype, nbytes = spec
        form = forms.get((dtype, box))
        if form is None:  # thousands of pieces have one shape: it is worked out and written once
            form = forms[dtype, box] = _Form.of(dtype, box)
        end = offset + nbytes
        rest = form.rest
        if form.nbytes != nbytes or form.empty:
            if not spec.opaque:
                raise StateError(
                    "a piece is empty or has not the bytes of its box",
                    region=region,
                    expected=f"{form.nbytes} bytes of {dtype} for [{box.text()}]",
                    found=nbytes,
                )
            if nbytes < 1:
                raise StateError("a piece without bytes", region=region)
            rest = _rest(form.stored, f"[{nbytes}]")
        if form.wide:
            wide[region] = dtype
        texts[region + form.suffix] = f"[{offset},{end}{rest}"
        entries.append(Entry(spec, offset))
        offset = end
    if len(texts) != len(entries):
        twice = _twice(entries)
        raise CoverageError(
            f"pieces do not tile region {twice.region}: one owner holds [{twice.box.text()}] twice",
            role=role,
            region=twice.region,
            expected="each box once",
            found=f"[{twice.box.text()}] twice",
            advice="check `at` of what this owner declares",
        )
    chunks = -(-offset // chunk)
    middle = offset + chunks * DIGEST_BYTES
    end = middle + chunks * CRC_BYTES
    texts[DIGESTS] = f"[{offset},{middle}{_rest('U8', f'[{chunks},{DIGEST_BYTES}]')}"
    texts[CRCS] = f"[{middle},{end}{_rest('U8', f'[{chunks},{CRC_BYTES}]')}"
    names = sorted(texts)
    quoted = map(canonical.quoted, names)
    lines = [
        f'{name}:{{"data_offsets":{text}' for name, text in zip(quoted, map(texts.__getitem__, names), strict=True)
    ]
    at = bisect.bisect(names, _METADATA)
    before, after = ",".join(lines[:at]), ",".join(lines[at:])
    return Arrangement(entries, offset, chunk, chunks, canonical.dumps(wide).decode(), before, after)


def _ordered(pieces: Sequence[PieceSpec]) -> Sequence[PieceSpec]:
    """Sort pieces by `order`; those whose regions ascend, as in a schema, without making that key of each."""
    names = [spec.region for spec in pieces]
    if not all(map(operator.lt, names, names[1:])):
        return sorted(pieces, key=order)
    places = [1 if spec.opaque else _PLACES[spec.dtype] for spec in pieces]
    if len(set(places)) == 1:
        return pieces
    return [pieces[at] for at in sorted(range(len(pieces)), key=places.__getitem__)]


def _rest(stored: str, shape: str) -> str:
    """Write what follows the offsets in an entry."""
    return f'],"dtype":"{stored}","shape":{shape}}}'


@dataclass(frozen=True, slots=True)
class _Form:
    """What pieces of one dtype and box have alike; of opaque ones `rest` and `nbytes` are their own."""

    stored: str
    wide: bool
    suffix: str
    rest: str
    nbytes: int
    empty: bool

    @classmethod
    def of(cls, dtype: str, box: Box) -> _Form:
        stored, size, wide = STORED[dtype]
        shape = list(map(operator.sub, box.hi, box.lo))
        nbytes, empty = math.prod(shape) * size, min(shape, default=1) < 1
        if wide:
            shape.append(size)
        return cls(stored, wide, f"[{box.text()}]", _rest(stored, canonical.dumps(shape).decode()), nbytes, empty)


def layout(
    pieces: Sequence[PieceSpec] | Arrangement,
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
    pieces : sequence of PieceSpec, or Arrangement
        At least one, in any order; or what `arrange` gave for them.
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
        Bytes under one digest: a power of two of at most `MAX_CHUNK`. An arrangement has its own.

    Raises
    ------
    StateError
        If a piece is empty or has not the bytes of its box, or if the header becomes too long.
    CoverageError
        If a piece stands twice.
    """
    if algorithm not in digests.ALGORITHMS:
        raise StateError("unknown digest algorithm", expected=" or ".join(digests.ALGORITHMS), found=repr(algorithm))
    placed = pieces if isinstance(pieces, Arrangement) else arrange(pieces, role, chunk)
    metadata = {
        "algorithm": algorithm,
        "attempt": attempt,
        "chunk": str(placed.chunk),
        "cursor": str(cursor),
        "dtypes": placed.dtypes,
        "epoch": str(epoch),
        "format": str(FORMAT),
        "role": str(role),
        "schema": schema,
        "shared": "1" if shared else "0",
        "step": str(step),
    }
    head = _head(placed, f'"{_METADATA}":{canonical.dumps(metadata).decode()}')
    size = len(head) + placed.payload + placed.chunks * (DIGEST_BYTES + CRC_BYTES)
    if size > MAX:
        raise StateError("a shard is too long", role=role, expected=f"at most {MAX} bytes", found=size)
    return Layout(
        head, placed.entries, placed.payload, placed.chunk, placed.chunks, algorithm, role, schema, step, cursor, epoch,
        attempt, shared,
    )  # fmt: skip


def _head(placed: Arrangement, metadata: str) -> bytes:
    """Write length bytes and canonical JSON, padded with spaces to the next page."""
    try:
        text = ("{" + ",".join(part for part in (placed.before, metadata, placed.after) if part) + "}").encode("utf-8")
    except UnicodeError as error:
        raise StateError("a region's name is no Unicode text", found=str(error)[:200]) from None
    size = -(-(8 + len(text)) // PAGE) * PAGE
    if size - 8 > MAX_JSON:
        raise StateError(
            "too many pieces in one shard",
            expected=f"a header of at most {MAX_JSON} bytes",
            found=f"{len(placed.entries)} pieces with a header of {size - 8} bytes",
        )
    return (size - 8).to_bytes(8, "little") + text.ljust(size - 8)


def _twice(entries: Sequence[Entry]) -> PieceSpec:
    """Find the piece that stands twice; there is one."""
    counts = Counter(entry.spec.name for entry in entries)
    return next(entry.spec for entry in entries if counts[entry.spec.name] > 1)


def good_chunk(chunk: int) -> bool:
    """Tell whether a chunk size is a power of two of at most `MAX_CHUNK`."""
    return 0 < chunk <= MAX_CHUNK and chunk & (chunk - 1) == 0
