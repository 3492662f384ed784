"""Shards: layout, parsing back, digests, and the safetensors library as a second reader."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpickpt.errors import CoverageError, IntegrityError, StateError
from mpickpt.format.shard import (
    CHUNK,
    Layout,
    PieceSpec,
    chunk_digest,
    layout,
    locate_tables,
    parse,
    shard_digest,
    verify_tables,
)
from mpickpt.state import dtypes
from mpickpt.state.region import Box, Region, Schema

D = "blake3:" + "1f" * 32


def lay(pieces: list[PieceSpec], **changed: Any) -> Layout:
    fields: dict[str, Any] = {
        "role": 3, "schema": D, "step": 12, "cursor": 34, "epoch": 1, "attempt": "5f0c", "algorithm": "blake3",
    }  # fmt: skip
    return layout(pieces, **{**fields, **changed})


def piece(region: str, dtype: str, *bounds: tuple[int, int]) -> PieceSpec:
    box = Box(tuple(lo for lo, _ in bounds), tuple(hi for _, hi in bounds))
    return PieceSpec(-1, region, box, dtype, box.size * dtypes.itemsize(dtype))


ALL = [piece(f"x/{name}", name, (1, 3), (0, 5)) for name in dtypes.NAMES] + [
    piece(f"y/{name}", name) for name in dtypes.NAMES
]
OPAQUE = PieceSpec(-1, "rng", Box((), ()), "uint8", 17)


def file_of(found: Layout, payload: bytes) -> bytes:
    chunks = [payload[slice(*found.chunk_span(index))] for index in range(found.chunks)]
    table = b"".join(chunk_digest(found.algorithm, chunk) for chunk in chunks)
    return found.head + payload + table + bytes(4 * found.chunks)


@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("chunk", [1, 64, CHUNK])
def test_layout_parses_back(algorithm: str, shared: bool, chunk: int) -> None:
    found = lay([*ALL, OPAQUE], algorithm=algorithm, shared=shared, chunk=chunk)
    assert parse(found.head, found.file_bytes) == found
    assert len(found.head) % 4096 == 0
    assert found.payload == sum(spec.nbytes for spec in ALL) + 17
    assert found.chunks == -(-found.payload // chunk)
    assert found.file_bytes == len(found.head) + found.payload + 36 * found.chunks
    assert locate_tables(found.head, found.file_bytes) == (found.tables_offset, found.chunks)
    assert found.chunk_span(found.chunks - 1)[1] == found.payload
    assert found.chunks_of(0, found.payload) == range(found.chunks)


def test_pieces_stand_back_to_back_by_size_of_their_elements() -> None:
    found = lay([OPAQUE, *ALL])
    sizes = [dtypes.itemsize(entry.spec.dtype) for entry in found.entries]
    assert sizes == sorted(sizes, reverse=True)
    assert found.entries[-1].spec.opaque
    end = 0
    for entry in found.entries:
        assert entry.offset == end
        assert entry.spec.opaque or entry.offset % dtypes.itemsize(entry.spec.dtype) == 0
        end += entry.spec.nbytes
    assert lay(list(reversed([OPAQUE, *ALL]))) == found


def test_two_boxes_of_one_region_are_ordered_by_number() -> None:
    found = lay([piece("w", "int8", (10, 11)), piece("w", "int8", (9, 10)), piece("w", "int8", (0, 1))])
    assert [entry.spec.name for entry in found.entries] == ["w[0:1]", "w[9:10]", "w[10:11]"]
    assert parse(found.head, found.file_bytes) == found


def test_a_schema_gives_ordinals() -> None:
    schema = Schema([Region("v", "int8", (1,), "array"), Region("w", "int8", (11,), "array")])
    found = lay([piece("w", "int8", (0, 11)), piece("v", "int8", (0, 1))])
    parsed = parse(found.head, found.file_bytes, None, schema)
    assert [(entry.spec.region, entry.spec.ordinal) for entry in parsed.entries] == [("v", 0), ("w", 1)]


@pytest.mark.parametrize(
    ("pieces", "changed"),
    [
        ([], {}),
        ([piece("w", "int8", (0, 0))], {}),
        ([piece("w", "int8", (2, 1))], {}),
        ([PieceSpec(0, "w", Box((0,), (2,)), "int16", 3)], {}),
        ([PieceSpec(0, "w", Box((), ()), "uint8", 0)], {}),
        ([piece("\ud800", "int8", (0, 2))], {}),
        ([OPAQUE], {"chunk": 0}),
        ([OPAQUE], {"chunk": 48}),
        ([OPAQUE], {"chunk": -64}),
        ([OPAQUE], {"chunk": 1 << 31}),
        ([OPAQUE], {"algorithm": "md5"}),
        ([PieceSpec(0, "w", Box((), ()), "uint8", 1 << 62), PieceSpec(0, "v", Box((), ()), "uint8", 1 << 62)], {}),
    ],
)
def test_what_cannot_be_laid_out(pieces: list[PieceSpec], changed: dict[str, Any]) -> None:
    with pytest.raises(StateError):
        lay(pieces, **changed)


def test_a_piece_that_stands_twice_is_a_region_that_is_not_tiled() -> None:
    with pytest.raises(CoverageError, match=r"region w: one owner holds \[0:2\] twice"):
        lay([piece("w", "int8", (0, 2)), piece("w", "int8", (0, 2))])


def test_a_header_beyond_what_safetensors_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpickpt.format.layout.MAX_JSON", 4088)
    assert len(lay([piece("w", "int8", (n, n + 1)) for n in range(40)]).head) == 4096
    with pytest.raises(StateError, match="too many pieces"):
        lay([piece("w", "int8", (n, n + 1)) for n in range(80)])


def test_digests_name_every_byte_of_head_and_tables() -> None:
    found = lay([OPAQUE], chunk=8)
    data = file_of(found, bytes(range(17)))
    head, table = data[:4096], data[4096 + 17 : 4096 + 17 + 96]
    digest = shard_digest("blake3", head, table, data[-12:])
    verify_tables(head, table, data[-12:], digest)
    for bad in ((head[:-1] + b"x", table, data[-12:]), (head, table[1:], data[-12:]), (head, table, b"x" * 12)):
        with pytest.raises(IntegrityError) as info:
            verify_tables(*bad, digest, "f")
        assert info.value.path == "f"
        assert info.value.expected == digest


@pytest.mark.parametrize("framework", ["numpy", "deserialize"])
def test_the_safetensors_library_reads_every_dtype(framework: str, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    found = lay([*ALL, OPAQUE])
    payload = np.random.default_rng(5).bytes(found.payload)
    path = tmp_path / "000003.safetensors"
    path.write_bytes(file_of(found, payload))
    if framework == "deserialize":
        tensors = dict(safetensors.deserialize(path.read_bytes()))
        raw = {name: bytes(tensor["data"]) for name, tensor in tensors.items()}
        shapes = {name: list(tensor["shape"]) for name, tensor in tensors.items()}
    else:
        with safetensors.safe_open(path, "np") as file:
            assert file.metadata()["format"] == "1"
            assert json.loads(file.metadata()["dtypes"]) == {
                f"{x}/complex{bits}": f"complex{bits}" for x in "xy" for bits in (64, 128)
            }
            arrays = {name: file.get_tensor(name) for name in file.keys() if "float8" not in name}  # noqa: SIM118
        raw = {name: array.tobytes() for name, array in arrays.items()}
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        for spec in (*ALL, OPAQUE):
            if "complex" not in spec.dtype and "float8" not in spec.dtype:
                assert arrays[spec.name].dtype.itemsize == dtypes.itemsize(spec.dtype)
    for entry in found.entries:
        name = entry.spec.name
        if name in raw:
            assert raw[name] == payload[entry.offset : entry.offset + entry.spec.nbytes]
            shape = [17] if entry.spec.opaque else list(entry.spec.box.shape)
            if "complex" in entry.spec.dtype:
                shape.append(dtypes.itemsize(entry.spec.dtype))
            assert shapes[name] == shape
    assert shapes["mpickpt.digests"] == [1, 32]
    assert shapes["mpickpt.crc32c"] == [1, 4]


def test_thirty_thousand_pieces_are_quick_and_open_in_safetensors() -> None:
    safetensors = pytest.importorskip("safetensors")
    names = [f"model/layers/#{n}/weight" for n in range(30_000)]
    schema = Schema([Region(name, "float32", (2,), "array") for name in names])
    pieces = [piece(name, "float32", (0, 2)) for name in names]
    spent = []
    for _ in range(3):
        start = time.process_time()
        found = lay(pieces)
        parsed = parse(found.head, found.file_bytes, None, schema)
        spent.append(time.process_time() - start)
    assert [entry.offset for entry in parsed.entries] == list(range(0, 240_000, 8))
    assert min(spent) < 5.0, "about 0.5 s; something has become quadratic"
    tensors = safetensors.deserialize(file_of(found, bytes(found.payload)))
    assert len(tensors) == 30_002
