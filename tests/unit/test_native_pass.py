"""The extension's passes over chunks: BLAKE3 by every kernel is that of the package; what is written is read back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from mpickpt.native import _native

CONTEXT = "mpickpt 1 chunk"
KEY = _native.blake3_key(CONTEXT.encode())
CHUNK = 1 << 18
STRETCH = 1 << 17
HEAD = 4096


@pytest.fixture(params=[1, 4, 8, 16])
def lanes(request: pytest.FixtureRequest) -> Iterator[int]:
    """Have BLAKE3 run on kernels of at most so many lanes."""
    _native.blake3_limit(request.param)
    yield request.param
    _native.blake3_limit(16)


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def package(data: bytes) -> bytes:
    return blake3(data, derive_key_context=CONTEXT).digest()


def test_every_kernel_gives_the_digest_of_the_package(lanes: int) -> None:
    edges = [1 << 6, 1 << 10, 1 << 11, 1 << 12, 1 << 14, 1 << 16, STRETCH, 2 * STRETCH, 3 * STRETCH, 8 * STRETCH]
    sizes = sorted({0, 1, 3072, 5000, 17 << 10, 127 << 10, *(edge + more for edge in edges for more in (-1, 0, 1))})
    data = noise(max(sizes))
    for size in sizes:
        assert _native.blake3(KEY, data[:size]) == package(data[:size]), size


def test_limits_choose_the_kernels_that_there_are() -> None:
    assert _native.blake3_limit(1) == "scalar"
    assert _native.blake3_limit(16) in ("avx512", "avx2", "vector", "scalar")


def test_a_context_longer_than_a_leaf_and_a_key_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="1024"):
        _native.blake3_key(bytes(1025))
    with pytest.raises(ValueError, match="32 bytes"):
        _native.blake3(b"short", b"")


class Shard:
    """A file, its tables, and the memory that its payload comes from."""

    def __init__(self, path: Path, sizes: list[int], scan: int = -1) -> None:
        self.arrays = [np.frombuffer(bytearray(noise(size, i)), np.uint8) for i, size in enumerate(sizes)]
        if scan >= 0:
            for array in self.arrays:
                array.view(np.float32)[:] = 1
        self.payload = sum(sizes)
        self.chunks = -(-self.payload // CHUNK)
        offsets = np.cumsum([0, *sizes[:-1]])
        self.pieces = np.array(
            [
                (offset, array.nbytes, array.__array_interface__["data"][0], scan)
                for offset, array in zip(offsets, self.arrays, strict=True)
            ],
            np.int64,
        ).reshape(-1, 4)
        self.digests = bytearray(32 * self.chunks)
        self.crcs = bytearray(4 * self.chunks)
        self.watch = np.zeros(5, np.int64)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.direct, self.head, self.chunk = -1, HEAD, CHUNK

    @property
    def bytes(self) -> bytes:
        return b"".join(array.tobytes() for array in self.arrays)

    def write(self, turn: Any = None, most: int = 0, chunks: Any = None) -> tuple[int, int]:
        todo = np.arange(self.chunks) if chunks is None else np.array(chunks, np.int64)
        return _native.write_chunks(
            self.fd, self.direct, self.head, self.payload, self.chunk, KEY, self.digests, self.crcs, self.watch,
            np.zeros(2, np.int64) if turn is None else turn, most, todo, self.pieces,
        )  # fmt: skip

    def read(self, out: Any, by: int, scan: int = -1) -> tuple[int, int, bytes, int]:
        at = 0 if out is None else out.__array_interface__["data"][0]
        targets = np.array([(i, at and at + i * CHUNK, scan) for i in range(self.chunks)], np.int64).reshape(-1, 3)
        return _native.read_chunks(
            self.fd, HEAD, self.payload, CHUNK, KEY, bytes(self.digests), bytes(self.crcs), self.watch,
            np.zeros(2, np.int64), 0, targets, by,
        )  # fmt: skip


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    made = Shard(tmp_path / "shard", [5, 3 * CHUNK, 0, 17, STRETCH, 1000])
    yield made
    for fd in (made.fd, made.direct):
        if fd >= 0:
            os.close(fd)


@pytest.mark.parametrize("sizes", [[5, 3 * CHUNK, 0, 17, STRETCH, 1000], [9 << 20], [4096], [4095], [1]], ids=str)
@pytest.mark.parametrize("head", [4096, 4097])
def test_what_is_written_past_the_page_cache_is_the_same(tmp_path: Path, sizes: list[int], head: int) -> None:
    path = tmp_path / "shard"
    shard = Shard(path, sizes)
    try:
        shard.direct = os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    try:
        for chunk in (CHUNK, 8 << 20):  # of more than one block, too
            shard.head, shard.chunk = head, chunk
            shard.chunks = -(-shard.payload // chunk)
            shard.digests, shard.crcs = bytearray(32 * shard.chunks), bytearray(4 * shard.chunks)
            os.ftruncate(shard.fd, 0)
            assert shard.write() == (_native.DONE, -1)
            data = shard.bytes
            assert os.pread(shard.fd, len(data) + 1, head) == data
            cut = [data[at : at + chunk] for at in range(0, len(data), chunk)]
            assert bytes(shard.digests) == b"".join(map(package, cut))
    finally:
        os.close(shard.fd)
        os.close(shard.direct)


def test_an_error_of_a_write_past_the_cache_is_told(shard: Shard) -> None:
    shard.direct = os.open(os.devnull, os.O_RDONLY)
    shard.head = 4096
    with pytest.raises(OSError, match="Bad file descriptor"):
        shard.write()


def test_a_pass_writes_the_bytes_their_digests_and_their_sums(shard: Shard, lanes: int) -> None:
    assert shard.write() == (_native.DONE, -1)
    data = shard.bytes
    assert os.pread(shard.fd, len(data), HEAD) == data
    cut = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    assert bytes(shard.digests) == b"".join(map(package, cut))
    assert bytes(shard.crcs) == b"".join(_native.crc32c_table(part).to_bytes(4, "little") for part in cut)
    assert shard.watch[0] == len(data)
    for by in (_native.BY_DIGEST, _native.BY_CRC, _native.BY_DIGEST | _native.BY_CRC):
        out = np.zeros(len(data), np.uint8)
        assert shard.read(out, by)[0] == _native.DONE
        assert out.tobytes() == data
        assert shard.read(None, by)[0] == _native.DONE


def test_threads_share_a_list_and_do_each_chunk_once(shard: Shard) -> None:
    turn = np.zeros(2, np.int64)
    threads = [threading.Thread(target=shard.write, args=(turn,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert shard.watch[0] == shard.payload
    assert os.pread(shard.fd, shard.payload, HEAD) == shard.bytes


def test_a_call_does_at_most_so_many_chunks(shard: Shard) -> None:
    turn = np.zeros(2, np.int64)
    outcomes = [shard.write(turn, most=1)[0] for _ in range(shard.chunks + 1)]
    assert outcomes == [_native.MORE] * shard.chunks + [_native.DONE]


def test_a_cancelled_pass_ends_before_its_next_chunk(shard: Shard) -> None:
    shard.watch[1] = 1
    assert shard.write()[0] == _native.STOPPED
    assert shard.read(None, _native.BY_CRC)[0] == _native.STOPPED
    assert shard.watch[0] == 0
    assert os.fstat(shard.fd).st_size == 0


def test_a_failure_stops_the_other_threads(shard: Shard) -> None:
    turn = np.zeros(2, np.int64)
    os.close(shard.fd)
    fd, shard.fd = shard.fd, os.open("/", os.O_RDONLY)
    assert fd == shard.fd
    with pytest.raises(OSError, match="descriptor"):
        shard.write(turn)
    assert turn[1] == 1
    assert shard.write(turn)[0] == _native.STOPPED
    with pytest.raises(IsADirectoryError):
        shard.read(None, _native.BY_CRC)


@pytest.mark.parametrize("place", [0, CHUNK - 4, CHUNK, CHUNK + STRETCH, 2 * CHUNK + 40])
def test_a_value_that_is_not_finite_is_told_by_its_place(tmp_path: Path, place: int) -> None:
    shard = Shard(tmp_path / "shard", [CHUNK + 64, CHUNK], _native.scan_number("float32"))
    array, inside = (shard.arrays[0], place) if place < CHUNK + 64 else (shard.arrays[1], place - CHUNK - 64)
    array[inside : inside + 4].view(np.float32)[0] = np.inf
    assert shard.write() == (_native.NONFINITE, place)
    shard.pieces[:, 3] = -1
    assert shard.write()[0] == _native.DONE
    number = _native.scan_number("float32")
    assert shard.read(None, _native.BY_DIGEST, number)[:2] == (_native.NONFINITE, place)
    os.pwrite(shard.fd, b"\1", HEAD + place)  # bytes that are not what was saved are damage, and never judged
    assert shard.read(None, _native.BY_DIGEST, number)[:2] == (_native.DIFFERS, place // CHUNK)
    os.close(shard.fd)


def test_integers_have_no_number_to_scan_by() -> None:
    assert _native.scan_number("int64") == -1
    assert _native.scan_number("bfloat16") >= 0
    with pytest.raises(ValueError, match="unknown dtype"):
        _native.scan_number("float31")


@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, 3 * CHUNK + 900])
def test_a_byte_that_differs_is_told_with_what_was_found(shard: Shard, place: int) -> None:
    shard.write()
    data = bytearray(shard.bytes)
    data[place] ^= 1
    os.pwrite(shard.fd, data, HEAD)
    index = place // CHUNK
    part = bytes(data[index * CHUNK : (index + 1) * CHUNK])
    both = _native.BY_DIGEST | _native.BY_CRC
    assert shard.read(None, both) == (_native.DIFFERS, index, package(part), _native.crc32c(part))
    assert shard.read(None, _native.BY_CRC)[:2] == (_native.DIFFERS, index)
    assert shard.read(np.zeros(len(data), np.uint8), _native.BY_DIGEST)[:2] == (_native.DIFFERS, index)


def test_a_file_that_ends_within_a_chunk_is_told(shard: Shard) -> None:
    shard.write()
    os.ftruncate(shard.fd, HEAD + 2 * CHUNK + STRETCH)
    assert shard.read(None, _native.BY_DIGEST)[:2] == (_native.CUT, 2)


def test_pieces_that_leave_a_gap_are_refused(shard: Shard) -> None:
    shard.pieces[3, 0] += 1
    with pytest.raises(OSError, match="Invalid argument"):
        shard.write()
    shard.pieces = shard.pieces[:2]
    with pytest.raises(OSError, match="Invalid argument"):
        shard.write()
    shard.pieces = shard.pieces[:0]
    with pytest.raises(OSError, match="Invalid argument"):
        shard.write()


@pytest.mark.parametrize("fault", ["digests", "crcs", "chunk", "negative", "watch", "turn", "key", "payload"])
def test_tables_and_chunks_that_do_not_fit_are_refused(shard: Shard, fault: str) -> None:
    todo = np.array([{"chunk": shard.chunks, "negative": -1}.get(fault, 0)], np.int64)
    with pytest.raises(ValueError, match="do not fit"):
        _native.write_chunks(
            shard.fd, -1, HEAD, -1 if fault == "payload" else shard.payload, CHUNK, KEY[: 31 if fault == "key" else 32],
            shard.digests[: 1 if fault == "digests" else None], shard.crcs + (b"\0" if fault == "crcs" else b""),
            np.zeros(3 if fault == "watch" else 2, np.int64), np.zeros(1 if fault == "turn" else 2, np.int64), 0, todo,
            shard.pieces,
        )  # fmt: skip
