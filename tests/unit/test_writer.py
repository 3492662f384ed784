"""Pieces -> shard file: every memory form, threads, non-finite values, faults, cancelling."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import shardkit

from mpickpt import _native, failpoints
from mpickpt.errors import NonFiniteError, StateError, StoreError
from mpickpt.format.shard import chunk_digest, shard_digest
from mpickpt.state.plan import Piece
from mpickpt.state.region import Box, Region, Schema
from mpickpt.store.source import Source, chunk_of
from mpickpt.store.threads import Pool
from mpickpt.store.writer import Cancelled, Progress, ShardWriter, write_shard

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(3, "test") as pool:
        yield pool


def forms() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    base = rng.standard_normal((24, 10)).astype(np.float32)
    frozen = np.arange(7, dtype=np.int16)
    frozen.flags.writeable = False
    return {
        "plain": base,
        "transposed": base.T,
        "strided": base[::3, 1::4],
        "reversed": base[::-1],
        "big-endian": np.arange(33, dtype=">f8").reshape(3, 11),
        "big-int": np.arange(5, dtype=">i4"),
        "scalar": np.array(3.5),
        "scalar-big": np.array(7, dtype=">u8"),
        "broadcast": np.broadcast_to(np.float64(2.5), (6, 5)),
        "frozen": frozen,
        "bool": np.array([True, False, True]),
        "complex": (base[:5, :3] + 1j).astype(np.complex128).T,
        "bf16": base[:9, ::2].astype(ml_dtypes.bfloat16),
        "f8": base[:4, :5].T.astype(ml_dtypes.float8_e4m3fn),
        "empty": np.empty((0, 4), np.float32),
        "four": np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)[:, ::-1, :, ::2],
    }


@pytest.mark.parametrize("chunk", [16, 64, 4096])
@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
def test_every_memory_form_is_written_exactly(tmp_path: Path, chunk: int, algorithm: str, pool: Pool) -> None:
    arrays = forms()
    schema = shardkit.array_schema(arrays)
    pieces = shardkit.whole_pieces(schema, arrays)
    path = tmp_path / "0.safetensors"
    written, record = shardkit.write(path, schema, pieces, chunk=chunk, algorithm=algorithm, pool=pool)
    layout = shardkit.layout_of(schema, pieces, chunk, algorithm)
    data = path.read_bytes()
    assert len(data) == layout.file_bytes == written.bytes == record.bytes
    payload = data[len(layout.head) : layout.tables_offset]
    for entry in layout.entries:
        array = arrays[entry.spec.region]
        expected = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        assert payload[entry.offset : entry.offset + entry.spec.nbytes] == expected, entry.spec.region
    digests = b"".join(chunk_digest(algorithm, payload[at : at + chunk]) for at in range(0, len(payload), chunk))
    crcs = b"".join(
        _native.crc32c(payload[at : at + chunk]).to_bytes(4, "little") for at in range(0, len(payload), chunk)
    )
    assert data[layout.tables_offset :] == digests + crcs
    assert written.digest == shard_digest(algorithm, layout.head, digests, crcs)
    assert list(record.pieces) == sorted((p.ordinal, p.box.lo, p.box.hi) for p in pieces)


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    arrays = {name: forms()[name] for name in ("plain", "transposed", "big-endian", "bool", "scalar", "four")}
    schema = shardkit.array_schema(arrays)
    path = tmp_path / "0.safetensors"
    shardkit.write(path, schema, shardkit.whole_pieces(schema, arrays))
    found = safetensors.numpy.load_file(path)
    for name, array in arrays.items():
        key = f"{name}[{Box.whole(array.shape).text()}]"
        np.testing.assert_array_equal(found[key], array)


def test_opaque_bytes_and_boxes(tmp_path: Path) -> None:
    whole = np.arange(60, dtype=np.int64).reshape(6, 10)
    schema = Schema([Region("w", "int64", (6, 10), "array"), Region("v", "uint8", None, "value")])
    boxes = [Box((0, 0), (2, 10)), Box((2, 5), (6, 10))]
    pieces = [shardkit.box_piece(schema, "w", box, whole) for box in boxes]
    pieces.append(Piece(0, schema[0], Box((), ()), b'{"int":"5"}'))
    path = tmp_path / "0.safetensors"
    written, _ = shardkit.write(path, schema, pieces)
    assert written.pieces == ((0, (), ()), (1, (0, 0), (2, 10)), (1, (2, 5), (6, 10)))
    assert b'{"int":"5"}' in path.read_bytes()


def test_one_sync_and_chunks_are_copies_that_the_caller_cannot_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.arange(4096, dtype=np.float64)
    schema = shardkit.array_schema({"w": array})
    pieces = shardkit.whole_pieces(schema, {"w": array})
    layout = shardkit.layout_of(schema, pieces, chunk=1024)
    buffer = bytearray(1024)
    source = Source(layout, pieces)
    for index in range(layout.chunks):
        view = chunk_of(layout, source, index, memoryview(buffer))
        assert not np.shares_memory(np.frombuffer(view, np.uint8), array)
    syncs: list[int] = []
    real = _native.fsync
    monkeypatch.setattr(_native, "fsync", lambda fd: (syncs.append(fd), real(fd)))
    shardkit.write(tmp_path / "0.safetensors", schema, pieces, chunk=1024)
    assert len(syncs) == 1


def test_arrays_that_change_while_they_are_written_are_never_torn_from_their_digests(tmp_path: Path) -> None:
    array = np.zeros(1 << 20, np.float32)
    schema = shardkit.array_schema({"w": array})
    pieces = shardkit.whole_pieces(schema, {"w": array})
    over = threading.Event()

    def change() -> None:
        value = 0
        while not over.is_set():
            value += 1
            array[::7] = value

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for number in range(5):
            path = tmp_path / f"{number}.safetensors"
            shardkit.write(path, schema, pieces, chunk=1 << 16)
            layout, data = shardkit.layout_of(schema, pieces, chunk=1 << 16), path.read_bytes()
            for index in range(layout.chunks):
                start, stop = layout.chunk_span(index)
                found = chunk_digest(layout.algorithm, data[len(layout.head) + start : len(layout.head) + stop])
                at = layout.tables_offset + 32 * index
                assert data[at : at + 32] == found
    finally:
        over.set()
        changing.join()


def test_chunk_of_takes_pieces_as_they_come(tmp_path: Path) -> None:
    arrays = forms()
    schema = shardkit.array_schema(arrays)
    pieces = shardkit.whole_pieces(schema, arrays)
    layout = shardkit.layout_of(schema, pieces, 64)
    path = tmp_path / "0.safetensors"
    shardkit.write(path, schema, pieces)
    buffer = memoryview(bytearray(64))
    payload = b"".join(bytes(chunk_of(layout, pieces[::-1], index, buffer)) for index in range(layout.chunks))
    assert payload == path.read_bytes()[len(layout.head) : layout.tables_offset]


def test_chunks_put_from_elsewhere_in_any_order_give_the_same_file(tmp_path: Path, pool: Pool) -> None:
    arrays = forms()
    schema = shardkit.array_schema(arrays)
    pieces = shardkit.whole_pieces(schema, arrays)
    first, _ = shardkit.write(tmp_path / "local", schema, pieces)
    layout = shardkit.layout_of(schema, pieces)
    writer = ShardWriter(str(tmp_path / "gathered"), layout, Progress(), None)
    source = Source(layout, pieces)
    chunks = [bytes(source.chunk(index, memoryview(bytearray(64)))) for index in range(layout.chunks)]
    for future in [pool.submit(writer.put, index, chunks[index]) for index in reversed(range(layout.chunks))]:
        future.result()
    assert writer.finish() == (first.bytes, first.digest)
    assert (tmp_path / "gathered").read_bytes() == (tmp_path / "local").read_bytes()


def test_progress_counts_payload(tmp_path: Path, pool: Pool) -> None:
    arrays = {"w": np.arange(1000, dtype=np.float32)}
    schema = shardkit.array_schema(arrays)
    progress = Progress()
    syncing: list[int] = []
    failpoints.hook = lambda name: syncing.append(progress.syncing) if name == "writer.synced" else None
    shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, arrays), progress=progress, pool=pool)
    assert progress.done == 4000
    assert syncing == [1]
    assert progress.syncing == 0


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize("chunk", [16, 64, 1 << 20])
@pytest.mark.parametrize(
    "name", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"]
)
def test_a_nan_is_refused_with_its_place_in_the_region(tmp_path: Path, name: str, chunk: int, pool: Pool) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    whole = np.ones((8, 12), dtype)
    whole[5, 7] = np.nan
    whole[6, 1] = np.nan
    schema = Schema([Region("a/fine", name, (3,), "array"), Region("b/w", name, (8, 12), "array")])
    box = Box((4, 2), (8, 12))
    pieces = [
        Piece(0, schema[0], Box.whole((3,)), np.ones(3, dtype)),
        shardkit.box_piece(schema, "b/w", box, whole),
    ]
    path = tmp_path / "0.safetensors"
    with pytest.raises(NonFiniteError) as caught:
        shardkit.write(path, schema, pieces, chunk=chunk, role=4, nonfinite=lambda _: True, pool=pool)
    assert caught.value.region == "b/w"
    assert caught.value.role == 4
    assert "(5, 7)" in str(caught.value.found)
    assert os.listdir(tmp_path) == []
    shardkit.write(path, schema, pieces, chunk=chunk, nonfinite=lambda region: region == "a/fine", pool=pool)
    assert path.exists()


def test_a_0d_nan_and_an_infinity(tmp_path: Path) -> None:
    for value in (np.nan, np.inf, -np.inf):
        arrays = {"s": np.array(value)}
        schema = shardkit.array_schema(arrays)
        with pytest.raises(NonFiniteError) as caught:
            shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, arrays), nonfinite=lambda _: True)
        assert "()" in str(caught.value.found)


@pytest.mark.parametrize("name", ["preallocate", "pwrite_all", "write_chunks", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_does_not_stay_full(
    tmp_path: Path, name: str, number: int, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"w": np.arange(1000, dtype=np.float32)}
    schema = shardkit.array_schema(arrays)
    pieces = shardkit.whole_pieces(schema, arrays)
    real = getattr(_native, name)
    calls: list[int] = []

    def fail(*args: Any) -> Any:
        calls.append(1)
        if name != "pwrite_all" or len(calls) > 1:  # the head goes well, the tables do not
            raise OSError(number, os.strerror(number))
        return real(*args)

    monkeypatch.setattr(_native, name, fail)
    with pytest.raises(StoreError) as caught:
        shardkit.write(tmp_path / "0.safetensors", schema, pieces, pool=pool)
    assert caught.value.errno == number
    assert caught.value.path == str(tmp_path / "0.safetensors")
    size = shardkit.layout_of(schema, pieces).file_bytes
    assert str(size) in str(caught.value.expected)
    assert os.listdir(tmp_path) == []
    if name == "fsync":
        assert len(calls) == 1, "a sync was tried again"


@pytest.mark.parametrize("stage", ["writer.created", "writer.chunk", "writer.written", "writer.synced"])
def test_a_fault_at_a_failpoint_removes_the_file(tmp_path: Path, stage: str, pool: Pool) -> None:
    arrays = {"w": np.arange(1000, dtype=np.float32)}
    schema = shardkit.array_schema(arrays)

    def fault(name: str) -> None:
        if name == stage:
            raise OSError(errno.EIO, "injected")

    failpoints.hook = fault
    with pytest.raises(StoreError):
        shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, arrays), pool=pool)
    assert os.listdir(tmp_path) == []


def test_cancelling_stops_before_the_next_chunk(tmp_path: Path) -> None:
    arrays = {"w": np.arange(1 << 22, dtype=np.float32)}
    schema = shardkit.array_schema(arrays)
    progress = Progress()
    failpoints.hook = lambda name: progress.cancel() if name == "writer.chunk" else None
    with pytest.raises(Cancelled):
        shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, arrays), chunk=4 << 20, progress=progress)
    assert progress.done == 4 << 20
    assert os.listdir(tmp_path) == []


def test_abandoning_under_a_thread_that_writes(tmp_path: Path) -> None:
    arrays = {"w": np.arange(64, dtype=np.float32)}
    schema = shardkit.array_schema(arrays)
    pieces = shardkit.whole_pieces(schema, arrays)
    layout = shardkit.layout_of(schema, pieces)
    writer = ShardWriter(str(tmp_path / "0"), layout, Progress(), None)
    inside, go_on = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        inside.set()
        assert go_on.wait(10)

    failpoints.hook = hold
    thread = threading.Thread(target=writer.put, args=(0, bytes(64)))
    thread.start()
    assert inside.wait(10)
    writer.abandon()
    assert os.listdir(tmp_path) == []
    with pytest.raises(Cancelled):
        writer.put(1, bytes(64))
    go_on.set()
    thread.join(10)
    with pytest.raises(Cancelled):
        writer.finish()
    writer.abandon()


def test_wrong_chunks_are_refused(tmp_path: Path) -> None:
    arrays = {"w": np.arange(40, dtype=np.float32)}
    schema = shardkit.array_schema(arrays)
    pieces = shardkit.whole_pieces(schema, arrays)
    writer = ShardWriter(str(tmp_path / "0"), shardkit.layout_of(schema, pieces), Progress(), None)
    for index, size in ((0, 63), (0, 65), (2, 64), (3, 32), (-1, 64)):
        with pytest.raises(StateError):
            writer.put(index, bytes(size))
    writer.put(0, bytes(64))
    with pytest.raises(StateError, match="twice"):
        writer.put(0, bytes(64))
    with pytest.raises(StateError, match="not complete"):
        writer.finish()
    writer.abandon()


def test_pieces_that_are_not_the_layouts_are_refused(tmp_path: Path) -> None:
    arrays = {"w": np.arange(40, dtype=np.float32), "v": np.arange(3, dtype=np.int8)}
    schema = shardkit.array_schema(arrays)
    pieces = shardkit.whole_pieces(schema, arrays)
    layout = shardkit.layout_of(schema, pieces)
    for wrong in (pieces[:1], [pieces[1], Piece(1, schema[1], pieces[0].box, np.arange(40, dtype=np.int32))]):
        writer = ShardWriter(str(tmp_path / "0"), layout, Progress(), None)
        with pytest.raises(StateError):
            write_shard(writer, wrong, None)
        assert os.listdir(tmp_path) == []


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    arrays = {"w": np.arange(40, dtype=np.float32)}
    schema = shardkit.array_schema(arrays)
    (tmp_path / "0").write_bytes(b"theirs")
    with pytest.raises(StoreError) as caught:
        shardkit.write(tmp_path / "0", schema, shardkit.whole_pieces(schema, arrays))
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "0").read_bytes() == b"theirs"
