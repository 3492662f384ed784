"""Verified range reads: what is wanted comes back exactly, what is damaged never does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import shardkit

from mpickpt import _native
from mpickpt.errors import CheckpointError, FormatError, IntegrityError, StateError, StoreError
from mpickpt.state.plan import Piece
from mpickpt.state.region import Box, Region, Schema
from mpickpt.store.bulk import work_off
from mpickpt.store.destination import Want
from mpickpt.store.reader import Reading, read_shard
from mpickpt.store.shard import Shard
from mpickpt.store.threads import Buffers
from mpickpt.store.writer import Cancelled, Progress

pytestmark = pytest.mark.usefixtures("no_leak")


def opened(path: Path, record: Any, schema: Schema) -> Shard:
    return Shard(str(path), record, shardkit.prefix_of(schema), schema)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record reads as (offset, bytes)."""
    reads: list[tuple[int, int]] = []
    real = _native.pread_full

    def read(fd: int, into: Any, offset: int) -> int:
        reads.append((offset, memoryview(into).nbytes))
        return real(fd, into, offset)

    monkeypatch.setattr(_native, "pread_full", read)
    return reads


@pytest.mark.parametrize("chunk", [16, 64, 256, 1 << 20])
@pytest.mark.parametrize("level", ["full", "fast"])
def test_any_box_of_any_dtype_comes_back(tmp_path: Path, chunk: int, level: str) -> None:
    rng = np.random.default_rng(2)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "c": (rng.standard_normal((5, 7)) + 1j).astype(np.complex128),
        "d": rng.standard_normal((3, 4, 5)),
        "f": rng.standard_normal((11, 13)).astype(np.float32),
        "h": rng.standard_normal((9,)).astype(ml_dtypes.bfloat16),
        "i": np.arange(2 * 3 * 4 * 5, dtype=np.int16).reshape(2, 3, 4, 5),
        "s": np.array(5, np.int32),
        "u": rng.integers(0, 255, (17, 3), np.uint8),
    }
    schema = shardkit.array_schema(arrays)
    path = tmp_path / "0"
    _, record = shardkit.write(path, schema, shardkit.whole_pieces(schema, arrays), chunk=chunk)
    with opened(path, record, schema) as shard:
        for _ in range(40):
            wants, expected = [], []
            for name, array in arrays.items():
                lo = [int(rng.integers(0, n)) for n in array.shape]
                hi = [int(rng.integers(low + 1, n + 1)) for low, n in zip(lo, array.shape, strict=True)]
                box = Box(tuple(lo), tuple(hi))
                dtype = array.dtype
                if rng.random() < 0.3 and dtype.kind != "V":
                    dtype = dtype.newbyteorder(">")
                out = np.zeros(box.shape, dtype)
                if rng.random() < 0.3:
                    out = np.zeros(box.shape[::-1], dtype).T
                wants.append(Want(schema.ordinal(name), box, out))
                expected.append(array[box.relative(Box.whole(array.shape))])
            assert read_shard(shard, wants, level=level) == {}
            for want, array in zip(wants, expected, strict=True):
                np.testing.assert_array_equal(want.out, array)


def test_nan_payloads_come_back_bit_for_bit(tmp_path: Path) -> None:
    bits = np.array([0x7FF0000000000001, 0xFFF8000000000123, 0x8000000000000000], np.uint64)
    arrays = {"w": bits.view(np.float64)}
    schema = shardkit.array_schema(arrays)
    _, record = shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, arrays))
    for out in (np.zeros(3), np.zeros(3, ">f8"), np.zeros((3, 2))[:, 0]):
        with opened(tmp_path / "0", record, schema) as shard:
            read_shard(shard, [Want(0, Box.whole((3,)), out)])
        assert np.ascontiguousarray(out, "<f8").view(np.uint64).tolist() == bits.tolist()


def test_several_boxes_of_one_region_fill_one_destination(tmp_path: Path) -> None:
    whole = np.arange(60, dtype=np.int64).reshape(6, 10)
    schema = Schema([Region("w", "int64", (6, 10), "array")])
    boxes = [Box((0, 0), (2, 10)), Box((2, 0), (6, 4)), Box((2, 4), (6, 10))]
    pieces = [shardkit.box_piece(schema, "w", box, whole) for box in boxes]
    _, record = shardkit.write(tmp_path / "0", schema, pieces)
    out = np.zeros((6, 10), np.int64)
    other = np.zeros((4, 4), np.int64)
    with opened(tmp_path / "0", record, schema) as shard:
        read_shard(shard, [Want(0, Box.whole((6, 10)), out), Want(0, Box((1, 2), (5, 6)), other)])
    np.testing.assert_array_equal(out, whole)
    np.testing.assert_array_equal(other, whole[1:5, 2:6])


def test_opaque_bytes(tmp_path: Path) -> None:
    schema = Schema([Region("v", "uint8", None, "value"), Region("z", "uint8", (), "array")])
    data = b'{"str":"' + b"x" * 300 + b'"}'
    pieces = [Piece(0, schema[0], Box((), ()), data), Piece(1, schema[1], Box((), ()), np.array(7, np.uint8))]
    _, record = shardkit.write(tmp_path / "0", schema, pieces)
    out = np.zeros((), np.uint8)
    with opened(tmp_path / "0", record, schema) as shard:
        assert read_shard(shard, [Want(1, Box((), ()), out)], [0]) == {0: data}
    assert out == 7


def test_only_the_chunks_that_are_needed_are_read_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"big": np.arange(1024, dtype=np.float64).reshape(64, 16)} | {
        f"small{n:03}": np.full(2, n, np.int16) for n in range(100)
    }
    schema = shardkit.array_schema(arrays)
    _, record = shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, arrays), chunk=256)
    with opened(tmp_path / "0", record, schema) as shard:
        reads = counted(monkeypatch)
        out = np.zeros((4, 16))
        read_shard(shard, [Want(0, Box((10, 0), (14, 16)), out)])
        base = shard.layout.data_offset
        assert reads == [(base + 256 * n, 256) for n in (5, 6)]
        reads.clear()
        column = np.zeros((2, 1))
        read_shard(shard, [Want(0, Box((0, 3), (2, 4)), column)])
        assert reads == [(base, 256)]
        reads.clear()
        outs = [np.zeros(2, np.int16) for _ in range(100)]
        read_shard(shard, [Want(1 + n, Box.whole((2,)), out) for n, out in enumerate(outs)])
        assert [size for _, size in reads] == [256, 144], "a chunk was read for each of its pieces"
        assert [int(out[0]) for out in outs] == list(range(100))


def test_a_chunk_without_any_wanted_element_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.arange(8 * 64, dtype=np.float64).reshape(8, 64)  # a row is two chunks of 256 bytes
    schema = shardkit.array_schema({"w": whole})
    _, record = shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, {"w": whole}), chunk=256)
    with opened(tmp_path / "0", record, schema) as shard:
        reads = counted(monkeypatch)
        out = np.zeros((8, 2))
        read_shard(shard, [Want(0, Box((0, 3), (8, 5)), out)])
    assert len(reads) == 8
    np.testing.assert_array_equal(out, whole[:, 3:5])


def test_a_chunk_goes_straight_into_a_contiguous_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(512, dtype=np.float64)
    schema = shardkit.array_schema({"w": array})
    _, record = shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, {"w": array}), chunk=1024)
    out = np.zeros(512)
    with opened(tmp_path / "0", record, schema) as shard:
        reading = Reading.of(shard, [Want(0, Box.whole((512,)), out)])
        monkeypatch.setattr(Buffers, "take", lambda _: pytest.fail("a buffer was used"))
        progress = Progress()
        work_off(None, reading.jobs("full", Buffers(1024), progress), progress)
    np.testing.assert_array_equal(out, array)
    assert progress.done == 4096


def test_a_cancelled_reader_stops(tmp_path: Path) -> None:
    array = np.arange(512, dtype=np.float64)
    schema = shardkit.array_schema({"w": array})
    _, record = shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, {"w": array}))
    with opened(tmp_path / "0", record, schema) as shard:
        reading = Reading.of(shard, [Want(0, Box.whole((512,)), np.zeros(512))])
        progress = Progress()
        progress.cancel()
        with pytest.raises(Cancelled):
            work_off(None, reading.jobs("full", Buffers(64), progress), progress)


# ---------------------------------------------------------------------- damage


def small(tmp_path: Path) -> tuple[Path, Any, Schema, np.ndarray[Any, Any]]:
    array = np.arange(24, dtype=np.float64).reshape(4, 6)
    schema = Schema([Region("w", "float64", (4, 6), "array"), Region("v", "uint8", None, "value")])
    pieces = [shardkit.box_piece(schema, "w", Box.whole((4, 6)), array), Piece(0, schema[0], Box((), ()), b'"abc"')]
    path = tmp_path / "shard"
    _, record = shardkit.write(path, schema, pieces)
    return path, record, schema, array


def read_all(path: Path, record: Any, schema: Schema, level: str) -> None:
    with opened(path, record, schema) as shard:
        read_shard(shard, [Want(1, Box.whole((4, 6)), np.zeros((4, 6)))], [0], level)


@pytest.mark.parametrize("level", ["full", "fast"])
def test_every_byte_flipped_is_refused_by_name(tmp_path: Path, level: str) -> None:
    path, record, schema, _ = small(tmp_path)
    good = path.read_bytes()
    spaces = good[: 8 + int.from_bytes(good[:8], "little")].rstrip(b" ")
    places = [*range(len(spaces)), *range(len(spaces), 4096, 331), *range(4096, len(good))]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << (place % 8)
        path.write_bytes(bad)
        with pytest.raises((IntegrityError, FormatError)) as caught:
            read_all(path, record, schema, level)
        assert caught.value.path == str(path)
        if place >= 8:
            assert isinstance(caught.value, IntegrityError), place
    path.write_bytes(good)
    read_all(path, record, schema, level)


def test_cut_or_lengthened_is_refused(tmp_path: Path) -> None:
    path, record, schema, _ = small(tmp_path)
    good = path.read_bytes()
    for size in [*range(20), *range(20, len(good), 97), len(good) - 1]:
        path.write_bytes(good[:size])
        with pytest.raises(IntegrityError, match="truncated") as caught:
            read_all(path, record, schema, "full")
        assert caught.value.expected == f"{len(good)} bytes"
        assert caught.value.found == f"{size} bytes"
    path.write_bytes(good + b"\0")
    with pytest.raises(IntegrityError, match="longer"):
        read_all(path, record, schema, "full")


def test_cut_while_it_is_read(tmp_path: Path) -> None:
    path, record, schema, _ = small(tmp_path)
    with opened(path, record, schema) as shard:
        os.truncate(path, 4100)
        with pytest.raises(IntegrityError, match="truncated"):
            read_shard(shard, [Want(1, Box.whole((4, 6)), np.zeros((4, 6)))])


def test_damage_elsewhere_does_not_matter_to_a_chunk_that_is_whole(tmp_path: Path) -> None:
    path, record, schema, array = small(tmp_path)
    data = bytearray(path.read_bytes())
    data[4096 + 100] ^= 1  # chunk 1
    path.write_bytes(data)
    out = np.zeros((1, 6))
    with opened(path, record, schema) as shard:
        read_shard(shard, [Want(1, Box((0, 0), (1, 6)), out)])
        with pytest.raises(IntegrityError) as caught:
            read_shard(shard, [Want(1, Box((2, 0), (3, 6)), out)])
    assert caught.value.region == "w"
    np.testing.assert_array_equal(out, array[:1])


def test_a_record_of_another_shard_is_refused(tmp_path: Path) -> None:
    path, record, schema, _ = small(tmp_path)
    prefix = shardkit.prefix_of(schema)
    for wrong in (
        replace(record, role=1),
        replace(record, pieces=record.pieces[:1]),
        replace(record, file="00000/000000.r.safetensors"),
    ):
        with pytest.raises(FormatError):
            Shard(str(path), wrong, prefix, schema)
    with pytest.raises(IntegrityError):
        Shard(str(path), replace(record, digest="blake3:" + 64 * "1"), prefix, schema)
    others = {"step": 4, "cursor": 31, "epoch": 2, "attempt": "other", "schema": shardkit.CONTRACT}
    for field, value in others.items():
        with pytest.raises(FormatError):
            Shard(str(path), record, replace(prefix, **{field: value}), schema)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path, record, schema, _ = small(tmp_path)
    prefix = shardkit.prefix_of(schema)
    os.mkfifo(tmp_path / "fifo")
    os.mkdir(tmp_path / "directory")
    for name in ("fifo", "directory"):
        with pytest.raises(CheckpointError) as caught:
            Shard(str(tmp_path / name), record, prefix, schema)
        assert caught.value.path == str(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Shard(str(tmp_path / "absent"), record, prefix, schema)
    os.symlink(path, tmp_path / "link")  # relocated through a link: fine
    Shard(str(tmp_path / "link"), record, prefix, schema).close()


def test_a_read_error_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, record, schema, _ = small(tmp_path)

    def fail(*_: Any) -> int:
        raise OSError(5, "injected")

    with opened(path, record, schema) as shard:
        monkeypatch.setattr(_native, "pread_full", fail)
        monkeypatch.setattr(_native, "read_chunks", fail)
        with pytest.raises(StoreError) as caught:
            read_shard(shard, [Want(1, Box.whole((4, 6)), np.zeros((4, 6)))])
    assert caught.value.errno == 5
    with pytest.raises(StoreError):
        opened(path, record, schema)


def test_a_destination_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path, record, schema, _ = small(tmp_path)
    frozen = np.zeros((4, 6))
    frozen.flags.writeable = False
    with opened(path, record, schema) as shard:
        for out in (np.zeros((4, 5)), np.zeros((4, 6), np.float32), frozen):
            with pytest.raises(StateError):
                Reading.of(shard, [Want(1, Box.whole((4, 6)), out)])
        with pytest.raises(StateError):
            read_shard(shard, [Want(1, Box.whole((4, 6)), np.zeros((4, 6)))], level="none")
