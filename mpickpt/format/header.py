"""Parsing a shard's header: hostile bytes in, a `Layout` out (docs/format.md, "Shard: checks").

In this order: the length bytes, canonical JSON and its padding, the metadata with the format version first, each
entry by itself, the entries' places, the tables, the file's size, and the schema where it is given. Work and memory
are linear in the header's own length; nothing is allocated by a number that it claims.
"""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from mpickpt import canonical
from mpickpt import digest as digests
from mpickpt.errors import CheckpointError, FormatError
from mpickpt.format.fields import FORMAT, MAX, MAX_AXES, Fields, newer, shown
from mpickpt.format.layout import (
    CRC_BYTES,
    CRCS,
    DIGEST_BYTES,
    DIGESTS,
    MAX_CHUNK,
    MAX_JSON,
    PAGE,
    STORED,
    Entry,
    Layout,
    PieceSpec,
    good_chunk,
    layout,
    order,
)
from mpickpt.state.region import Box, Region, Schema

if TYPE_CHECKING:
    from mpickpt.format.manifest import Prefix, ShardRecord

_NATIVE: Final = {stored: (name, size) for name, (stored, size, wide) in STORED.items() if not wide}
_WIDE: Final = {name for name, (_, _, wide) in STORED.items() if wide}
_ENTRY_KEYS: Final = {"data_offsets", "dtype", "shape"}
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_NAME: Final = re.compile(r"([^\[\],:\x00-\x1f\x7f]*)\[([0-9:,]*)\]")
_METADATA: Final = (
    "algorithm", "attempt", "chunk", "cursor", "dtypes", "epoch", "format", "role", "schema", "shared", "step",
)  # fmt: skip
_OFFSETS: Final = re.compile(rb"([0-9]{1,19}),([0-9]{1,19})\]")
_POINT: Final = Box((), ())
_INT: Final = frozenset({int})


def head_size(first8: bytes, file_bytes: int, path: str | None = None) -> int:
    """Read the length bytes of a shard.

    Parameters
    ----------
    first8 : bytes
        The file's first eight bytes.
    file_bytes : int
        Size of the file in bytes.
    path : str, optional
        The file, for messages.

    Returns
    -------
    int
        Bytes of the head: the length bytes and the padded header.

    Raises
    ------
    FormatError
        If it is no multiple of 4096, too great, or longer than the file.
    """
    if len(first8) != 8:
        raise FormatError("a shard without its length", path=path, expected="8 bytes", found=f"{len(first8)} bytes")
    size = 8 + int.from_bytes(first8, "little")
    if size % PAGE or size > MAX_JSON + 8 or size > file_bytes:
        raise FormatError(
            "a shard's header has no possible length",
            path=path,
            expected=f"8 less than a multiple of {PAGE}, within the file's {file_bytes} bytes, at most {MAX_JSON}",
            found=size - 8,
        )
    return size


def parse(head: bytes, file_bytes: int, path: str | None = None, schema: Schema | None = None) -> Layout:
    """Parse the head of a shard.

    Parameters
    ----------
    head : bytes
        Length bytes and padded header, `head_size` bytes.
    file_bytes : int
        Size of the file in bytes.
    path : str, optional
        The file, for messages.
    schema : Schema, optional
        The schema of its capture: gives the pieces their ordinals, and each must be a piece of its region.

    Raises
    ------
    FormatError
        If anything is not as `layout` writes it.
    """
    if head_size(head[:8], file_bytes, path) != len(head):
        raise FormatError("a shard's header is cut", path=path, expected="its whole length", found=f"{len(head)} bytes")
    text = head[8:].rstrip(b" ")
    if len(head) - 8 - len(text) >= PAGE:
        raise FormatError("a shard's header has too much padding", path=path, expected=f"fewer than {PAGE} spaces")
    header = Fields(canonical.loads(text, what="a shard's header", path=path), "a shard's header", path).value
    metadata, wide = _metadata(header.pop("__metadata__", None), path)
    tables = [header.pop(name, None) for name in (DIGESTS, CRCS)]
    placed = _entries(header, wide, schema, path)
    payload = 0
    entries: list[Entry] = []
    last: tuple[Any, ...] = ()
    for begin, spec in placed:
        if begin != payload:
            _refuse("entries leave a gap or overlap", path, spec.name, f"begin {payload}", f"begin {begin}")
        key = order(spec)
        if key <= last:
            _refuse("entries are not in their order", path, spec.name, "larger elements first, then by name and box")
        last = key
        entries.append(Entry(spec, begin))
        payload += spec.nbytes
    chunk: int = metadata["chunk"]
    chunks = -(-payload // chunk)
    place = payload
    for name, width, entry in zip((DIGESTS, CRCS), (DIGEST_BYTES, CRC_BYTES), tables, strict=True):
        expected = {"data_offsets": [place, place + chunks * width], "dtype": "U8", "shape": [chunks, width]}
        if not _is_entry(entry) or entry != expected:
            _refuse("a table is not where it must be", path, name, str(expected), entry)
        place += chunks * width
    if file_bytes != len(head) + place:
        _refuse("a shard has not the size that its header says", path, None, f"{len(head) + place} bytes", file_bytes)
    return Layout(head=head, entries=entries, payload=payload, chunks=chunks, **metadata)


def _refuse(message: str, path: str | None, name: str | None, expected: str, found: object = None) -> NoReturn:
    region = None if name is None else name[:200]
    where = None if found is None else found if type(found) is int else shown(found)
    raise FormatError(message, region=region, path=path, expected=expected, found=where)


def _metadata(value: object, path: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Check the metadata; give fields of `Layout`, and region -> dtype of what safetensors has no dtype for."""
    what = "a shard's metadata"
    fields = Fields(value, what, path)
    if any(type(text) is not str for text in fields.value.values()):
        raise FormatError(f"{what} are strings", path=path)
    version = fields.value.get("format", "")
    if version != str(FORMAT):
        newer(int(version) if _NUMBER.fullmatch(version) else version, what, path)
    fields.keys(*_METADATA)
    found: dict[str, Any] = {}
    for key in ("role", "step", "cursor", "epoch", "chunk"):
        text = fields.value[key]
        if not _NUMBER.fullmatch(text) or int(text) > MAX:
            fields.refuse(key, f"a decimal number of 0 to {MAX}", text)
        found[key] = int(text)
    if not good_chunk(found["chunk"]):
        fields.refuse("chunk", f"a power of two up to {MAX_CHUNK}", found["chunk"])
    found["schema"] = fields.digest("schema")
    found["attempt"] = fields.nonce("attempt")
    found["algorithm"] = fields.value["algorithm"]
    if found["algorithm"] not in digests.ALGORITHMS:
        fields.refuse("algorithm", " or ".join(digests.ALGORITHMS), found["algorithm"])
    if fields.value["shared"] not in ("0", "1"):
        fields.refuse("shared", "0 or 1", fields.value["shared"])
    found["shared"] = fields.value["shared"] == "1"
    data = fields.value["dtypes"].encode("utf-8")
    wide = Fields(canonical.loads(data, what=f"{what}: 'dtypes'", path=path), f"{what}: 'dtypes'", path)
    for region, dtype in wide.value.items():
        if type(dtype) is not str or dtype not in _WIDE:
            wide.refuse(region[:100], " or ".join(sorted(_WIDE)), dtype)
    return found, wide.value


def _is_entry(entry: object) -> bool:
    """Tell whether an entry has its three keys, a string, and lists of integers (bools are none).

    Their values need no check of their own: each must equal one that follows from name, dtype and place.
    """
    return (
        type(entry) is dict
        and entry.keys() == _ENTRY_KEYS
        and type(entry["dtype"]) is str
        and type(entry["shape"]) is list
        and type(entry["data_offsets"]) is list
        and len(entry["data_offsets"]) == 2
        and _INT.issuperset(map(type, entry["data_offsets"] + entry["shape"]))
    )


def _entries(
    header: dict[str, Any], wide: dict[str, str], schema: Schema | None, path: str | None
) -> list[tuple[int, PieceSpec]]:
    """Check each piece's entry by itself; give (first byte, piece), by first byte."""
    if not header:
        _refuse("a shard without pieces", path, None, "at least one piece")
    placed: list[tuple[int, PieceSpec]] = []
    widened = set()
    boxes = {"": _POINT}  # many regions have the same box
    for name, entry in header.items():
        match = _NAME.fullmatch(name)
        if match is None:
            _refuse("an entry's name is not one of a piece", path, name, "REGION[lo:hi,...]")
        if not _is_entry(entry):
            _refuse("a malformed entry", path, name, "dtype, shape and data_offsets, with integers >= 0", entry)
        region = match[1]
        box = boxes.get(match[2]) or boxes.setdefault(match[2], _box(match[2], name, path))
        shape: list[int] = entry["shape"]
        begin, end = entry["data_offsets"]
        dtype = wide.get(region)
        if dtype is None:
            if entry["dtype"] not in _NATIVE:
                _refuse("an entry's dtype is none of format 1", path, name, ", ".join(_NATIVE), entry["dtype"])
            dtype, size = _NATIVE[entry["dtype"]]
            mine = list(map(operator.sub, box.hi, box.lo))
            if not mine and dtype == "uint8" and len(shape) == 1 and shape[0] > 1:
                mine = shape  # opaque
        else:
            widened.add(region)
            size = STORED[dtype][1]
            mine = [*map(operator.sub, box.hi, box.lo), size]
            if entry["dtype"] != "U8":
                _refuse(f"an entry of {dtype} is not stored as U8", path, name, "U8", entry["dtype"])
            size = 1
        if shape != mine:
            _refuse("an entry's shape is not its box's", path, name, str(mine)[:200], shape)
        nbytes = math.prod(shape) * size
        if end - begin != nbytes:
            _refuse("an entry has not the bytes of its shape", path, name, f"{nbytes} bytes", end - begin)
        ordinal = -1 if schema is None else _ordinal(schema, region, dtype, box, shape, path)
        placed.append((begin, PieceSpec(ordinal, region, box, dtype, nbytes)))
    if len(widened) != len(wide):
        unused = min(wide.keys() - widened)
        _refuse("a dtype is given for a region without a piece", path, unused, "only regions of this shard")
    placed.sort(key=operator.itemgetter(0))
    return placed


def _box(text: str, name: str, path: str | None) -> Box:
    """Read ``lo:hi,lo:hi,...``; no axis may be empty."""
    bounds = [axis.split(":") for axis in text.split(",")]
    if len(bounds) > MAX_AXES or not all(
        len(pair) == 2 and _NUMBER.fullmatch(pair[0]) and _NUMBER.fullmatch(pair[1]) for pair in bounds
    ):
        _refuse("an entry's box is malformed", path, name, f"lo:hi of at most {MAX_AXES} axes, in decimal digits")
    lo = tuple([int(pair[0]) for pair in bounds])
    hi = tuple([int(pair[1]) for pair in bounds])
    if any(map(operator.ge, lo, hi)) or max(hi) > MAX:
        _refuse("an entry's box is empty or too great", path, name, f"lo < hi <= {MAX} on every axis")
    return Box(lo, hi)


def _ordinal(schema: Schema, region: str, dtype: str, box: Box, shape: list[int], path: str | None) -> int:
    """Find a piece's region in the schema and check that it can be a piece of it."""
    if region not in schema:
        _refuse("a piece of a region that the schema does not have", path, region, "a region of the schema")
    ordinal = schema.ordinal(region)
    whole = schema[ordinal]
    if whole.dtype != dtype or (whole.shape is None) != (dtype == "uint8" and not box.lo and len(shape) == 1):
        expected = f"{whole.kind} of {whole.dtype}"
        _refuse("a piece has another dtype or kind than its region", path, region, expected, dtype)
    if whole.shape is not None and (len(whole.shape) != len(box.hi) or any(map(operator.gt, box.hi, whole.shape))):
        _refuse("a piece lies outside its region", path, region, f"within shape {whole.shape}"[:200], box.text())
    return ordinal


def foreseen(head: bytes, record: ShardRecord, prefix: Prefix, schema: Schema, chunk: int) -> Layout | None:
    """Make the layout that a manifest prescribes, and see whether it has this head, byte for byte.

    Then `parse` and `agree` would give the same: of thousands of pieces, far sooner made than parsed and compared.

    Parameters
    ----------
    head : bytes
        Length bytes and padded header.
    record : ShardRecord
        The manifest's record of the shard.
    prefix : Prefix
        The manifest's prefix.
    schema : Schema
        The schema of its capture.
    chunk : int
        Bytes under one digest; like the sizes of opaque pieces, which are looked for in `head`, a guess: where it is
        wrong, the heads differ.

    Returns
    -------
    Layout or None
        None where the head is another: what is wrong with it, if anything is, the other two tell.
    """
    specs: list[PieceSpec] = []
    forms: dict[Any, tuple[Box, int]] = {}  # of thousands of pieces most are like others
    opaque: list[Region] = []
    regions, count = schema.regions, len(schema)
    for ordinal, lo, hi in record.pieces:
        if not 0 <= ordinal < count:
            return None
        region = regions[ordinal]
        name, dtype, shape, _, _ = region
        if shape is None:
            if lo:
                return None
            opaque.append(region)
            continue
        like = dtype, shape, lo, hi
        form = forms.get(like)
        if form is None:
            if len(lo) != len(shape) or min(lo, default=0) < 0 or any(map(operator.gt, hi, shape)):
                return None
            box = Box(lo, hi)
            form = forms[like] = box, box.size * STORED[dtype][1]
        specs.append(PieceSpec(ordinal, name, form[0], dtype, form[1]))
    at = 0
    for name in sorted(f"{region.name}[]" for region in opaque):  # as they stand in the head
        text = f'{canonical.quoted(name)}:{{"data_offsets":['.encode("utf-8", "replace")
        at = head.find(text, at)
        match = None if at < 0 else _OFFSETS.match(head, at + len(text))
        if match is None or (size := int(match[2]) - int(match[1])) < 2:
            return None
        specs.append(PieceSpec(schema.ordinal(name[:-2]), name[:-2], _POINT, "uint8", size))
    try:
        made = layout(
            specs, role=record.role, schema=prefix.schema, step=prefix.step, cursor=prefix.cursor, epoch=prefix.epoch,
            attempt=prefix.attempt, algorithm=record.digest.partition(":")[0], shared=record.shared, chunk=chunk,
        )  # fmt: skip
    except CheckpointError:
        return None
    return made if made.head == head and made.file_bytes == record.bytes else None


def agree(layout: Layout, record: ShardRecord, prefix: Prefix, path: str | None = None) -> None:
    """Check that a shard's header says what its manifest says of it.

    Parameters
    ----------
    layout : Layout
        The header, parsed with the schema.
    record : ShardRecord
        The manifest's record of the shard.
    prefix : Prefix
        The manifest's prefix.
    path : str, optional
        The shard's file, for messages.

    Raises
    ------
    FormatError
        If role, capture, size or pieces differ.
    """
    fields: tuple[tuple[str, int | str, int | str], ...] = (
        ("role", layout.role, record.role),
        ("shared", layout.shared, record.shared),
        ("schema", layout.schema, prefix.schema),
        ("step", layout.step, prefix.step),
        ("cursor", layout.cursor, prefix.cursor),
        ("epoch", layout.epoch, prefix.epoch),
        ("attempt", layout.attempt, prefix.attempt),
        ("bytes", layout.file_bytes, record.bytes),
    )
    for field, mine, theirs in fields:
        if mine != theirs:
            _refuse(f"a shard's header and its manifest disagree about {field!r}", path, None, str(theirs), mine)
    specs = [entry.spec for entry in layout.entries]
    pieces = sorted((spec.ordinal, spec.box.lo, spec.box.hi) for spec in specs)
    if pieces != sorted(record.pieces):
        odd = min(set(pieces) ^ set(record.pieces), default=None)
        _refuse(
            "a shard's header and its manifest disagree about its pieces",
            path,
            None if odd is None or odd[0] < 0 else next((s.region for s in specs if s.ordinal == odd[0]), None),
            f"{len(record.pieces)} pieces",
            f"{len(pieces)} pieces; the first that one of them lacks: {odd}",
        )
