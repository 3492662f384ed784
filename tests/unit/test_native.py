"""The byte kernels of the C extension: CRC-32C, the scan for what is not finite, buffers."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from mpickpt import _native

Crc = Callable[..., int]
Scan = Callable[[object, str], int]
Array = npt.NDArray[np.generic]

BOTH_CRC = pytest.mark.parametrize("crc", [_native.crc32c, _native.crc32c_table], ids=["chosen", "table"])
BOTH_SCANS = pytest.mark.parametrize(
    "scan", [_native.first_nonfinite, _native.first_nonfinite_portable], ids=["chosen", "portable"]
)

FLOATING: dict[str, type] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.complex64,
    "complex128": np.complex128,
}
WHOLE = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
BLOCK = 16384
"""Bytes that the scan tests at once; the places around its multiples are the ones to try."""


def test_the_extension_is_the_one_to_be_tested() -> None:
    where = os.environ.get("MPICKPT_TEST_NATIVE")
    assert where is None or Path(str(_native.__file__)).is_relative_to(where)


# CRC-32C


@BOTH_CRC
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0xC1D04330),
        (b"123456789", 0xE3069283),
        # RFC 3720, B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (
            bytes.fromhex(
                "01c00000"
                + "00" * 12
                + "14000000"
                + "00000400"
                + "00000014"
                + "00000018"
                + "28"
                + "00" * 7
                + "02"
                + "00" * 7
            ),
            0xD9963A56,
        ),
    ],
)
def test_crc_of_known_vectors(crc: Crc, data: bytes, expected: int) -> None:
    assert crc(data) == expected


def _crc_bit_by_bit(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@BOTH_CRC
def test_crc_of_every_small_size_and_alignment(crc: Crc) -> None:
    data = random.Random(1).randbytes(96)
    for start in range(9):
        for size in range(80):
            piece = memoryview(data)[start : start + size]
            assert crc(piece) == _crc_bit_by_bit(bytes(piece))


@BOTH_CRC
def test_crc_around_the_sizes_of_interleaved_stretches(crc: Crc) -> None:
    for base in (3 * 256, 6 * 256, 3 * 8192, 3 * 8192 + 3 * 256, 6 * 8192):
        for size in (base - 8, base - 1, base, base + 1, base + 9):
            data = random.Random(size).randbytes(size)
            assert crc(data) == _crc_bit_by_bit(data)


def test_crc_by_instruction_equals_crc_by_table() -> None:
    draw = random.Random(2)
    data = np.frombuffer(draw.randbytes(1 << 20), np.uint8)
    for _ in range(100):
        start, start_value = draw.randrange(1 << 10), draw.randrange(1 << 32)
        size = draw.randrange(len(data) - start)
        piece = data[start : start + size]
        assert _native.crc32c(piece, start_value) == _native.crc32c_table(piece, start_value)


@BOTH_CRC
def test_crc_continues(crc: Crc) -> None:
    data = random.Random(3).randbytes(60_000)
    whole = crc(data)
    for cut in (0, 1, 7, 255, 24_576, 30_001, 60_000):
        assert crc(data[cut:], crc(data[:cut])) == whole
        assert crc(data[cut:], crc=crc(data[:cut])) == whole


@BOTH_CRC
def test_crc_sees_every_single_flipped_bit(crc: Crc) -> None:
    data = bytearray(random.Random(4).randbytes(2 * 3 * 256 + 11))
    seen = {crc(data)}
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        seen.add(crc(data))
        data[place] ^= 1 << place % 8
    assert len(seen) == len(data) + 1


@BOTH_CRC
@pytest.mark.parametrize("start", [-1, 1 << 32, 1 << 64])
def test_crc_refuses_a_start_that_is_no_crc(crc: Crc, start: int) -> None:
    with pytest.raises(OverflowError):
        crc(b"abc", start)


@BOTH_CRC
def test_crc_refuses_a_start_that_is_no_integer(crc: Crc) -> None:
    with pytest.raises(TypeError):
        crc(b"abc", 1.5)


def test_crc_kind_is_what_the_processor_has() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    machine = os.uname().machine
    if machine == "x86_64":
        assert _native.crc32c_kind == ("sse4.2" if " sse4_2 " in flags else "table")
    elif machine == "aarch64":
        assert _native.crc32c_kind == ("armv8" if " crc32" in flags else "table")
    else:
        assert _native.crc32c_kind == "table"


# The scan


def _little(array: Array) -> npt.NDArray[np.uint8]:
    """Give an array's bytes, little-endian."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _finite(array: Array) -> npt.NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):  # the conversion of a signalling NaN of bfloat16
        return np.asarray(np.isfinite(array), dtype=np.bool_)


def _bad_values(name: str) -> list[bytes]:
    """Give every way, or the telling ways, in which an element of a dtype is not finite."""
    if name == "float8_e4m3fn":
        return [b"\x7f", b"\xff"]
    if name == "float8_e5m2":
        return [bytes([v]) for v in (0x7C, 0xFC, 0x7D, 0x7E, 0x7F, 0xFF)]
    if name == "float16":
        return [v.to_bytes(2, "little") for v in (0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF)]
    if name == "bfloat16":
        return [v.to_bytes(2, "little") for v in (0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF)]
    if name == "float32":
        return [v.to_bytes(4, "little") for v in (0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0xFFFFFFFF)]
    if name == "float64":
        return [v.to_bytes(8, "little") for v in (0x7FF << 52, 0xFFF << 52, (0x7FF << 52) + 1, (1 << 64) - 1)]
    part = "float32" if name == "complex64" else "float64"
    zero = bytes(4 if name == "complex64" else 8)
    return [pair for bad in _bad_values(part) for pair in (bad + zero, zero + bad)]


def _largest(name: str, elements: int) -> npt.NDArray[np.uint8]:
    """Give elements of the greatest finite size and either sign: one bit away from what is refused."""
    dtype = FLOATING[name]
    part = {"complex64": np.float32, "complex128": np.float64}.get(name, dtype)
    greatest = ml_dtypes.finfo(part).max  # type: ignore[no-untyped-call]
    numbers: Array = np.full(elements * (np.dtype(dtype).itemsize // np.dtype(part).itemsize), greatest, part)
    numbers[::2] = -greatest
    return _little(numbers)


@BOTH_SCANS
@pytest.mark.parametrize("name", FLOATING)
def test_every_position_of_small_buffers(scan: Scan, name: str) -> None:
    size = np.dtype(FLOATING[name]).itemsize
    bad = _bad_values(name)
    for elements in range(1, 70):
        data = _largest(name, elements)
        assert scan(data, name) == -1
        for index in range(elements):
            place = slice(index * size, (index + 1) * size)
            good = data[place].copy()
            data[place] = np.frombuffer(bad[(elements + index) % len(bad)], np.uint8)
            assert scan(data, name) == index
            data[place] = good


@BOTH_SCANS
@pytest.mark.parametrize("name", FLOATING)
def test_every_bad_value_at_every_alignment(scan: Scan, name: str) -> None:
    size = np.dtype(FLOATING[name]).itemsize
    for shift in range(17):
        room = np.full(shift + 40 * size + 1, 0xFF, np.uint8)  # what lies before and behind must not be looked at
        data = room[shift : shift + 40 * size]
        data[:] = _largest(name, 40)
        assert scan(data, name) == -1
        for bad in _bad_values(name):
            data[17 * size : 18 * size] = np.frombuffer(bad, np.uint8)
            assert scan(data, name) == 17


@BOTH_SCANS
@pytest.mark.parametrize("name", FLOATING)
def test_random_and_boundary_positions_of_a_large_buffer(scan: Scan, name: str) -> None:
    size = np.dtype(FLOATING[name]).itemsize
    elements = (1 << 20) // size + 3
    data = _largest(name, elements)
    draw = random.Random(name)
    edges = [BLOCK * k // size + d for k in (0, 1, 2, 63, 64) for d in (-1, 0, 1)]
    for index in [i for i in edges if 0 <= i < elements] + [draw.randrange(elements) for _ in range(60)]:
        place = slice(index * size, (index + 1) * size)
        good = data[place].copy()
        data[place] = np.frombuffer(draw.choice(_bad_values(name)), np.uint8)
        assert scan(data, name) == index
        data[place] = good
    assert scan(data, name) == -1


@BOTH_SCANS
def test_the_first_of_several_is_found(scan: Scan) -> None:
    data = np.zeros(100_000, np.float32)
    for index in (99_999, 70_000, 69_999, 5, 0):
        data[index] = np.nan
        assert scan(data, "float32") == index


@BOTH_SCANS
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_bit_pattern_of_the_small_dtypes(scan: Scan, name: str) -> None:
    dtype = np.dtype(FLOATING[name])
    patterns = np.arange(1 << 8 * dtype.itemsize, dtype=f"<u{dtype.itemsize}")
    finite = _finite(patterns.view(dtype))
    assert 0 < finite.sum() < len(patterns)
    found = [scan(patterns[i : i + 1], name) == -1 for i in range(len(patterns))]
    assert found == finite.tolist()


@BOTH_SCANS
@pytest.mark.parametrize(("name", "word"), [("float32", "<u4"), ("float64", "<u8")])
def test_random_bit_patterns_of_the_wide_dtypes(scan: Scan, name: str, word: str) -> None:
    draw = np.random.default_rng(5)
    bits = draw.integers(0, np.iinfo(word).max, size=4000, dtype=word, endpoint=True)
    exponent = np.asarray(FLOATING[name](np.inf)).view(word)
    bits[::3] |= exponent
    bits[1::50] = exponent
    finite = _finite(bits.view(name))
    assert 1000 < finite.sum() < 3000
    found = [scan(bits[i : i + 1], name) == -1 for i in range(len(bits))]
    assert found == finite.tolist()


@BOTH_SCANS
@pytest.mark.parametrize("name", WHOLE)
def test_integers_are_always_finite(scan: Scan, name: str) -> None:
    assert scan(np.full(64, 0xFF, np.uint8), name) == -1


@BOTH_SCANS
@pytest.mark.parametrize("name", [*FLOATING, *WHOLE])
def test_nothing_is_finite(scan: Scan, name: str) -> None:
    assert scan(b"", name) == -1


@BOTH_SCANS
@pytest.mark.parametrize("name", ["", "float", "longdouble", "float32 ", "object", "FLOAT32"])
def test_unknown_dtypes_are_refused(scan: Scan, name: str) -> None:
    with pytest.raises(ValueError, match="unknown dtype"):
        scan(bytes(16), name)


@BOTH_SCANS
@pytest.mark.parametrize(("name", "size"), [("float16", 3), ("float64", 4), ("complex64", 12), ("complex128", 8)])
def test_a_part_of_an_element_is_refused(scan: Scan, name: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes are no whole number of {name} elements"):
        scan(bytes(size), name)


# Buffers


def test_buffers_of_every_kind_are_taken() -> None:
    data = np.arange(64, dtype=np.float32)
    expected = _native.crc32c(data.tobytes())
    read_only = data.copy()
    read_only.flags.writeable = False
    room = mmap.mmap(-1, 256)
    room.write(data.tobytes())
    for buffer in (
        bytearray(data.tobytes()),
        memoryview(data.tobytes()),
        data,
        data.reshape(8, 8),
        read_only,
        room,
        (ctypes.c_char * 256).from_buffer_copy(data.tobytes()),
    ):
        assert _native.crc32c(buffer) == expected
        assert _native.first_nonfinite(buffer, "float32") == -1


@pytest.mark.parametrize("call", [_native.crc32c, _native.crc32c_table, lambda b: _native.first_nonfinite(b, "uint8")])
def test_what_is_not_contiguous_is_refused(call: Callable[[object], int]) -> None:
    for array in (np.zeros((4, 4))[:, :2], np.zeros(8)[::2], np.zeros((4, 3), order="F")):
        with pytest.raises((BufferError, ValueError)):
            call(array)
    with pytest.raises(TypeError):
        call("text")


def test_a_read_only_buffer_is_not_read_into(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abcd")
    fixed = np.zeros(4, np.uint8)
    fixed.flags.writeable = False
    fd = os.open(path, os.O_RDONLY)
    try:
        for buffer in (bytes(4), memoryview(bytes(4)), fixed):
            with pytest.raises((TypeError, BufferError, ValueError)):
                _native.pread_full(fd, buffer, 0)
    finally:
        os.close(fd)
    assert not fixed.any()


def test_no_call_keeps_its_buffer() -> None:
    held = bytearray(16)
    _native.crc32c(held)
    _native.first_nonfinite(held, "float32")
    for wrong in (
        lambda: _native.first_nonfinite(held, "none"),
        lambda: _native.first_nonfinite(held[:15], "float32"),
        lambda: _native.crc32c(held, -1),
        lambda: _native.pwrite_all(-1, held, 0),
        lambda: _native.pread_full(-1, held, 0),
    ):
        with pytest.raises((ValueError, OverflowError, OSError)):
            wrong()
    held.append(1)  # BufferError if a buffer were still exported
    assert len(held) == 17
