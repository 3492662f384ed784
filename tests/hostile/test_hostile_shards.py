"""One hostile shard header a refusal. No digest stands between these bytes and the parser."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from mpickpt import canonical
from mpickpt.errors import FormatError, IntegrityError
from mpickpt.format.manifest import Prefix, ShardRecord
from mpickpt.format.shard import (
    Layout,
    PieceSpec,
    agree,
    head_size,
    layout,
    locate_tables,
    parse,
    shard_digest,
    verify_tables,
)
from mpickpt.state.region import Box, Region, Schema

D = "blake3:" + "1f" * 32
SCHEMA = Schema(
    [
        Region("a", "float32", (8, 4), "array"),
        Region("c", "complex64", (3,), "array"),
        Region("r", "uint8", None, "value"),
        Region("s", "uint8", (), "array"),
    ]
)
PIECES = [
    PieceSpec(0, "a", Box((0, 0), (2, 4)), "float32", 32),
    PieceSpec(1, "c", Box((1,), (3,)), "complex64", 16),
    PieceSpec(2, "r", Box((), ()), "uint8", 9),
    PieceSpec(3, "s", Box((), ()), "uint8", 1),
]
VALID: Layout = layout(
    PIECES, role=1, schema=D, step=3, cursor=4, epoch=2, attempt="5f0c", algorithm="blake3", chunk=32
)
TEXT = VALID.head[8:].rstrip(b" ")
HEADER: dict[str, Any] = json.loads(TEXT)


def headed(text: bytes) -> bytes:
    size = -(-(len(text) + 8) // 4096) * 4096 - 8
    return size.to_bytes(8, "little") + text.ljust(size)


def refused(head: bytes, file_bytes: int = VALID.file_bytes) -> FormatError:
    with pytest.raises(FormatError) as info:
        parse(head, file_bytes, "some/file.safetensors", SCHEMA)
    assert info.value.path == "some/file.safetensors"
    assert len(str(info.value)) < 4000
    return info.value


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    header = copy.deepcopy(HEADER)
    change(header)
    text = canonical.dumps(header)
    assert text != TEXT, "the case changes nothing"
    return headed(text)


def test_the_unchanged_header_is_taken() -> None:
    assert headed(TEXT) == VALID.head
    assert parse(VALID.head, VALID.file_bytes, None, SCHEMA) == VALID


@pytest.mark.parametrize(
    "first8",
    [b"", b"\0" * 7, b"\0" * 8, b"\xff" * 8, (4096).to_bytes(8, "little"), (2**40 - 8).to_bytes(8, "little"),
     (8184).to_bytes(8, "little"), (100_003_832).to_bytes(8, "little"), b"\0" * 9],
)  # fmt: skip
def test_lengths_that_lie(first8: bytes) -> None:
    with pytest.raises(FormatError):
        head_size(first8, VALID.file_bytes, "f")
    refused(first8 + VALID.head[8:])


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 4095])
def test_cut_heads(length: int) -> None:
    refused(VALID.head[:length])


@pytest.mark.parametrize("by", [-VALID.file_bytes, -4096, -1, 1, 4096, 2**62])
def test_files_of_another_size(by: int) -> None:
    refused(VALID.head, VALID.file_bytes + by)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        b"\xff",
        TEXT + b"x",
        TEXT.replace(b'":', b'": ', 1),
        TEXT.replace(b'"a[0:2,0:4]"', b'"a[0:2,0:4]":0,"a[0:2,0:4]"'),
        TEXT.replace(b"[2,4]", b"[2,NaN]", 1),
        TEXT.replace(b"[2,4]", b"[2,1e400]", 1),
        TEXT.replace(b"[2,4]", b"[2,4.0]", 1),
        TEXT.replace(b"[2,4]", b"[2," + b"9" * 5000 + b"]", 1),
        TEXT.replace(b'"F32"', b'"\\ud800"', 1),
        TEXT.replace(b'"F32"', b'"\xed\xa0\x80"', 1),
        b'{"a[]":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 100_000,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_what_is_no_canonical_object(text: bytes) -> None:
    head = headed(text)
    refused(head, len(head) + VALID.file_bytes - 4096)


def test_a_page_of_needless_padding() -> None:
    head = (len(VALID.head) + 4096 - 8).to_bytes(8, "little") + VALID.head[8:] + b" " * 4096
    refused(head, VALID.file_bytes + 4096)


@pytest.mark.parametrize("padding", [b"\0", b"\t", b"\n"])
def test_padding_of_something_else(padding: bytes) -> None:
    refused(VALID.head[:-1] + padding)


def test_a_newer_format_names_its_reader() -> None:
    head = changed(lambda h: h["__metadata__"].update(format="3", novelty="x"))
    assert "mpickpt 3.0 or newer" in str(refused(head))


METADATA = [
    *[(key, bad) for key in ("role", "step", "cursor", "epoch", "chunk") for bad in ("", "-1", "01", "1.0", "x", " 1",
                                                                                    "٣", str(2**63), "9" * 5000)],
    *[("chunk", bad) for bad in ("0", "3", "33", str(2**31), "1" + "0" * 18)],
    *[("format", bad) for bad in ("", "0", "x", "-1", "01", "1.0")],
    *[("schema", bad) for bad in ("", "blake3:", D[:-1], D.upper())],
    *[("attempt", bad) for bad in ("", "../x", "a b")],
    *[("algorithm", bad) for bad in ("", "md5", "BLAKE3")],
    *[("shared", bad) for bad in ("", "true", "2")],
    *[("dtypes", bad) for bad in ("", "[]", "null", "{", '{"c":"float32"}', '{"c":1}', "{}", '{"c": "complex64"}',
                                  '{"a":"complex64","c":"complex64"}', '{"c":"complex64","x":"complex64"}',
                                  '{"c":"complex128"}', "[" * 100_000)],
]  # fmt: skip


@pytest.mark.parametrize(("key", "bad"), METADATA, ids=lambda value: repr(value)[:20])
def test_bad_metadata(key: str, bad: str) -> None:
    head = changed(lambda h: h["__metadata__"].update({key: bad}))
    refused(head, VALID.file_bytes + len(head) - 4096)


@pytest.mark.parametrize("key", sorted(HEADER["__metadata__"]))
def test_metadata_that_is_missing_or_no_string(key: str) -> None:
    refused(changed(lambda h: h["__metadata__"].pop(key)))
    for bad in (None, 1, [], {}):
        refused(changed(lambda h, bad=bad: h["__metadata__"].update({key: bad})))  # type: ignore[misc]


def test_metadata_that_is_unknown_or_no_object() -> None:
    refused(changed(lambda h: h["__metadata__"].update(unknown="1")))
    refused(changed(lambda h: h.pop("__metadata__")))
    refused(changed(lambda h: h.update(__metadata__="x")))


@pytest.mark.parametrize(
    "name",
    ["", "a", "a[", "a]", "[]a", "a[0:2,0:4", "a[0:2,0:4]]", "a[0:2;0:4]", "a[0:2,,0:4]", "a[0:2,0:4,]", "a[,]", "a[:]",
     "a[0:2:1,0:4]", "a[0-2,0:4]", "a[00:2,0:4]", "a[+0:2,0:4]", "a[0:٢,0:4]", "a[-1:1,0:4]", "a[2:0,0:4]",
     "a[1:1,0:4]", "a[0:9,0:4]", "a[6:9,0:4]", "a[0:2,0:4,0:1]", "a[0:8]", "a[]", "b[0:2,0:4]", "a\n[0:2,0:4]",
     "a\0[0:2,0:4]",
     "a[0:2,0:" + "9" * 5000 + "]", "a[" + ",".join(["0:1"] * 65) + "]", "mpickpt.other", "a [0:2,0:4]"],
    ids=lambda name: repr(name)[:30],
)  # fmt: skip
def test_bad_names(name: str) -> None:
    head = changed(lambda h: h.update({name: h.pop("a[0:2,0:4]")}))
    refused(head, VALID.file_bytes + len(head) - 4096)


ENTRIES: list[tuple[str, Any]] = [
    *[("dtype", bad) for bad in ("F64", "I32", "C64", "f32", "", None, 1, [], "F8_E8M0", "U8")],
    *[("shape", bad) for bad in (None, {}, [], [2], [2, 4, 1], [4, 2], [8], [2, True], [2, -4], ["2", "4"], [2, None],
                                 [2, 10**19], [0, 4], [[2], 4])],
    *[("data_offsets", bad) for bad in (None, [], [16], [16, 48, 49], [0, 32], [17, 49], [15, 47], [16, 47], [16, 49],
                                        [48, 16], [-16, 16], [16, "48"], [True, 33], [16, 10**19],
                                        [10**19, 10**19 + 32])],
]  # fmt: skip


@pytest.mark.parametrize(("key", "bad"), ENTRIES, ids=repr)
def test_bad_entries(key: str, bad: object) -> None:
    refused(changed(lambda h: h["a[0:2,0:4]"].update({key: bad})))


def test_entries_that_are_none() -> None:
    for bad in (None, [], "x", 1, {}):
        refused(changed(lambda h, bad=bad: h.update({"a[0:2,0:4]": bad})))  # type: ignore[misc]
    refused(changed(lambda h: h["a[0:2,0:4]"].update(unknown=1)))
    refused(changed(lambda h: h["a[0:2,0:4]"].pop("shape")))


@pytest.mark.parametrize("table", ["mpickpt.digests", "mpickpt.crc32c"])
def test_bad_tables(table: str) -> None:
    begin, end = HEADER[table]["data_offsets"]
    count, width = HEADER[table]["shape"]
    refused(changed(lambda h: h.pop(table)))
    for bad in (
        {"data_offsets": [begin + 1, end + 1]},
        {"data_offsets": [begin, end - width]},
        {"data_offsets": [0, end - begin]},
        {"shape": [count * width]},
        {"shape": [count + 1, width]},
        {"shape": [count, width + 1]},
        {"shape": [10**19, width]},
        {"shape": [True, width]},
        {"dtype": "I8"},
        {"dtype": None},
    ):
        refused(changed(lambda h, bad=bad: h[table].update(bad)))  # type: ignore[misc]


def test_pieces_that_are_lacking_or_in_another_order() -> None:
    tables = ("__metadata__", "mpickpt.digests", "mpickpt.crc32c")
    refused(changed(lambda h: [h.pop(name) for name in list(h) if name not in tables]))
    refused(changed(lambda h: h.pop("a[0:2,0:4]")))

    def swap(header: dict[str, Any]) -> None:
        header["s[]"]["data_offsets"] = [57, 58]
        header["r[]"]["data_offsets"] = [48, 57]

    assert "order" in str(refused(changed(swap)))


def test_opaque_bytes_too_few_to_be_a_value() -> None:
    for shape in ([0], [1], [True], [9, 1], [-9]):
        refused(changed(lambda h, shape=shape: h["r[]"].update(shape=shape)))  # type: ignore[misc]


def test_an_opaque_piece_of_an_array_and_the_other_way_round() -> None:
    head = changed(lambda h: h.update({"q[]": h.pop("r[]")}))
    schema = Schema([*(r for r in SCHEMA if r.name != "r"), Region("q", "uint8", (), "array")])
    with pytest.raises(FormatError, match="another dtype or kind"):
        parse(head, VALID.file_bytes, None, schema)
    schema = Schema([*(r for r in SCHEMA if r.name != "s"), Region("s", "uint8", None, "value")])
    with pytest.raises(FormatError, match="another dtype or kind"):
        parse(VALID.head, VALID.file_bytes, None, schema)


def test_a_huge_count_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        refused(changed(lambda h: h["mpickpt.digests"].update(shape=[2**62, 32])))
        refused(changed(lambda h: h["r[]"].update(shape=[2**62], data_offsets=[49, 49 + 2**62])))
        locate_tables(VALID.head, 2**62)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_every_flipped_byte_of_a_head_is_found_before_it_is_parsed() -> None:
    tables = bytes(VALID.tables_bytes)
    digest = shard_digest("blake3", VALID.head, tables[:64], tables[64:])
    verify_tables(VALID.head, tables[:64], tables[64:], digest)
    for at in range(8, len(TEXT) + 16):
        head = bytearray(VALID.head)
        head[at] ^= 4
        start, chunks = locate_tables(bytes(head), VALID.file_bytes)
        assert len(head) <= start
        assert start + 36 * chunks <= VALID.file_bytes
        with pytest.raises(IntegrityError):
            verify_tables(head, tables[:64], tables[64:], digest, "f")


RECORD = ShardRecord(
    1, "00000/000001.safetensors", VALID.file_bytes, D,
    ((0, (0, 0), (2, 4)), (1, (1,), (3,)), (2, (), ()), (3, (), ())),
)  # fmt: skip
PREFIX = Prefix("run-1", D, D, 3, 4, 2, 5, "5f0c")


def test_header_and_manifest_that_agree() -> None:
    agree(VALID, RECORD, PREFIX)


@pytest.mark.parametrize(
    "change",
    [
        {"role": 2},
        {"file": "00000/000001.r.safetensors"},
        {"bytes": VALID.file_bytes + 1},
        {"pieces": RECORD.pieces[:-1]},
        {"pieces": (*RECORD.pieces, (4, (), ()))},
        {"pieces": ((0, (0, 0), (2, 3)), *RECORD.pieces[1:])},
        {"schema": D.replace("1f", "2e")},
        {"step": 4},
        {"cursor": 5},
        {"epoch": 3},
        {"attempt": "5f0d"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_header_and_manifest_that_disagree(change: dict[str, Any]) -> None:
    fields = {name: getattr(RECORD, name) for name in RECORD.__dataclass_fields__}
    moment = {name: getattr(PREFIX, name) for name in PREFIX.__dataclass_fields__}
    for key, value in change.items():
        (fields if key in fields else moment)[key] = value
    with pytest.raises(FormatError, match="disagree") as info:
        agree(VALID, ShardRecord(**fields), Prefix(**moment), "f")
    assert info.value.path == "f"
