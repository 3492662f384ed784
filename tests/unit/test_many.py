"""What is done for thousands of small arrays at once is what would be done for each: digests, copies, heads, roots."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

import mpickpt
from mpickpt import canonical, digest
from mpickpt.cluster import contents
from mpickpt.errors import FormatError
from mpickpt.format.layout import STORED, PieceSpec, arrange, layout
from mpickpt.format.manifest import Prefix, ShardRecord
from mpickpt.format.names import shard_file
from mpickpt.format.shard import agree, foreseen, parse
from mpickpt.native import _native
from mpickpt.state import coverage, nest
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.state.region import Box, Region, Schema
from mpickpt.store.directory import Directory
from mpickpt.store.progress import Progress
from mpickpt.store.threads import Pool

SUM = 1 << 256
STRETCH = 1 << 17


def hashed(tag: str, data: bytes) -> int:
    return int.from_bytes(blake3(data, derive_key_context=f"mpickpt 1 {tag}").digest(), "little")


# -- digests


@pytest.mark.parametrize("size", [0, 1, 1024, STRETCH - 41, STRETCH - 40, STRETCH - 39, STRETCH, 3 * STRETCH + 7])
def test_the_sum_of_digests_is_that_of_single_ones(size: int) -> None:
    memory = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    heads = [b"h" * 40, b"", b"x" * 4096]
    places = [(memory.ctypes.data, size), (memory.ctypes.data, size), (0, 0)]
    expected = [heads[0] + memory.tobytes(), memory.tobytes(), heads[2]]
    assert digest.total("content", heads, places) == sum(hashed("content", data) for data in expected) % SUM
    assert digest.total("corner", heads) == sum(hashed("corner", head) for head in heads) % SUM
    assert digest.total("corner", []) == 0


@pytest.mark.parametrize(
    ("heads", "inputs"),
    [
        (b"ab", [1, 0, 0]),
        (b"ab", [3, 0, 0]),
        (b"", [-1, 0, 0, 1, 0, 0]),
        (b"a", [1, 0, -1]),
        (b"a" * 4097, [4097, 0, 0]),
        (b"", [0, 0]),
    ],
)
def test_inputs_that_do_not_fit_are_refused(heads: bytes, inputs: list[int]) -> None:
    with pytest.raises(ValueError, match="fit"):
        _native.digest_sum(digest.key("corner"), heads, np.array(inputs, np.int64))


def test_contents_are_hashed_alike_however_they_lie_in_memory() -> None:
    grid = np.arange(600, dtype=np.float32).reshape(20, 30)
    state: dict[str, Any] = {"plain": grid, "turned": np.asfortranarray(grid), "big": grid.astype(">f4"), "lr": 0.5}
    state |= {f"small{i}": np.full(3, i) for i in range(5000)} | {"none": np.zeros((0, 4)), "point": np.array(2.5)}
    capture = nest.flatten(state, 1, 2)
    mine = Declarations.of(capture, 1, Contract(), {})
    union = mine.merge([Declarations.of(nest.flatten(state, 0, 2), 0, Contract(), {})])
    pool = Pool(2, "test")
    progress = Progress()
    found = sum(task.result(60) for task in contents.begin(capture, union, union.schema, 1, pool, progress))
    pool.end()
    expected = 0
    for holding in capture.holdings:
        ordinal = union.schema.ordinal(holding.region.name)
        for box, value in contents.contents(ordinal, holding):
            data = holding.data
            if data is None:
                data = np.ascontiguousarray(state[holding.region.name]).astype(holding.region.dtype).tobytes()
            text = struct.pack(f"<{2 + 2 * box.ndim}Q", ordinal, box.ndim, *box.lo, *box.hi) + data
            assert value == hashed("content", text)
            expected += value
    assert found % SUM == expected * coverage.weight(1) % SUM
    assert progress.done == sum(3 * 8 for _ in range(5000)) + 3 * 2400 + 8 + len(capture.holdings[1].data or b"")


# -- copies


def test_pieces_get_their_bytes_and_no_others() -> None:
    payload = np.random.default_rng(1).integers(0, 256, 1000, np.uint8)
    out = [np.zeros(size, np.uint8) for size in (100, 300, 50)]
    rows = [(350, 300, out[1].ctypes.data, -1), (150, 100, out[0].ctypes.data, -1), (900, 50, out[2].ctypes.data, -1)]
    assert _native.scatter(payload[200:600], 200, np.array(rows, np.int64)) == -1
    assert not out[0][:50].any()  # before what was given
    assert (out[0][50:] == payload[200:250]).all()
    assert (out[1][:250] == payload[350:600]).all()
    assert not out[1][250:].any()
    assert not out[2].any()


def test_what_is_not_finite_is_found_and_its_piece_left_alone() -> None:
    values = np.arange(12, dtype=np.float32)
    values[7] = np.nan
    out = [np.zeros(16, np.uint8) for _ in range(3)]
    number = _native.scan_number("float32")
    rows = np.array([(16 * i, 16, each.ctypes.data, number) for i, each in enumerate(out)], np.int64)
    assert _native.scatter(values.view(np.uint8), 0, rows) == 28
    assert (out[0].view(np.float32) == values[:4]).all()
    assert not out[1].any()
    assert not out[2].any()
    with pytest.raises(ValueError, match="fit"):
        _native.scatter(values.view(np.uint8)[:30], 0, rows)
    with pytest.raises(ValueError, match="fit"):
        _native.scatter(values.view(np.uint8), 0, rows.reshape(-1)[:5])


# -- heads

REGIONS = [
    Region("Z", "float32", (8, 6), "array"),
    Region("a", "uint8", None, "value"),
    Region("a.b", "uint8", None, "value"),
    Region("é", "complex64", (4,), "array"),
    Region("point", "uint8", (), "array"),
    Region("rng", "uint8", None, "per_owner"),
    Region('w/"', "int8", (5, 5), "array"),
]
SCHEMA = Schema(REGIONS)
PREFIX = Prefix("run", SCHEMA.digest("blake3"), "blake3:" + 64 * "0", 3, 9, 2, 1, "0123456789abcdef" * 2)


def piece(region: Region, box: Box, size: int = 7) -> PieceSpec:
    nbytes = size if region.shape is None else box.size * STORED[region.dtype][1]
    return PieceSpec(SCHEMA.ordinal(region.name), region.name, box, region.dtype, nbytes)


def shard(specs: list[PieceSpec], chunk: int = 4 << 20) -> tuple[bytes, ShardRecord]:
    made = layout(
        specs, role=1, schema=PREFIX.schema, step=PREFIX.step, cursor=PREFIX.cursor, epoch=PREFIX.epoch,
        attempt=PREFIX.attempt, algorithm="blake3", chunk=chunk,
    )  # fmt: skip
    pieces = tuple(sorted((spec.ordinal, spec.box.lo, spec.box.hi) for spec in specs))
    return made.head, ShardRecord(1, shard_file(1), made.file_bytes, "blake3:" + 64 * "0", pieces)


ALL = [
    piece(region, Box((), ()) if region.shape is None else Box.whole(region.shape), 5 + i)
    for i, region in enumerate(REGIONS)
]


def test_a_head_that_is_foreseen_is_what_it_would_be_parsed_to() -> None:
    head, record = shard(ALL)
    made = foreseen(head, record, PREFIX, SCHEMA, 4 << 20)
    assert made is not None
    assert made == parse(head, record.bytes, None, SCHEMA)
    agree(made, record, PREFIX)
    assert foreseen(head, record, PREFIX, SCHEMA, 2 << 20) is None


def test_no_other_head_is_foreseen() -> None:
    head, record = shard(ALL)
    for at in range(len(head.rstrip())):
        changed = bytearray(head)
        changed[at] ^= 1
        assert foreseen(bytes(changed), record, PREFIX, SCHEMA, 4 << 20) is None, at
    assert foreseen(head[:-1], record, PREFIX, SCHEMA, 4 << 20) is None
    for other in (
        dataclasses.replace(record, role=2),
        dataclasses.replace(record, bytes=record.bytes + 1),
        dataclasses.replace(record, file=shard_file(1, True)),
        dataclasses.replace(record, pieces=record.pieces[1:]),
        dataclasses.replace(record, pieces=(*record.pieces, (len(SCHEMA), (), ()))),
    ):
        assert foreseen(head, other, PREFIX, SCHEMA, 4 << 20) is None
    assert foreseen(head, record, dataclasses.replace(PREFIX, step=4), SCHEMA, 4 << 20) is None


@pytest.mark.parametrize(
    ("name", "box", "size"),
    [
        ("Z", Box((0, 0), (9, 6)), 0),  # beyond its region
        ("Z", Box((0,), (8,)), 0),  # of other axes
        ("a", Box((), ()), 1),  # one byte is a 0-d array's, not a value's
    ],
)
def test_a_piece_that_no_parser_takes_is_not_foreseen(name: str, box: Box, size: int) -> None:
    region = SCHEMA[SCHEMA.ordinal(name)]
    head, record = shard([piece(region, box, size)])
    with pytest.raises(FormatError):
        parse(head, record.bytes, None, SCHEMA)
    assert foreseen(head, record, PREFIX, SCHEMA, 4 << 20) is None


def test_an_arrangement_serves_another_save() -> None:
    kept = arrange(ALL, 1)
    for step in (1, 22):
        moment: dict[str, Any] = {"role": 1, "schema": PREFIX.schema, "step": step, "cursor": 0, "epoch": 1}
        moment |= {"attempt": PREFIX.attempt, "algorithm": "blake3"}
        assert layout(kept, **moment) == layout(ALL, **moment)


# -- roots

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.dictionaries(st.sampled_from(["a", "schema", "z", 'x"schema']), PLAIN), known=PLAIN)
def test_what_is_known_is_not_parsed_and_changes_nothing(value: dict[str, Any], known: Any) -> None:
    mark = object()
    data = canonical.dumps(value)
    found = canonical.loads_around(data, "schema", canonical.dumps(known), mark, what="a test")
    if "schema" in value and canonical.dumps(value["schema"]) == canonical.dumps(known):
        # where the same words stand further in as well, the whole is parsed
        assert found == value | {"schema": mark} or found == value
    else:
        assert found == value


def test_words_further_in_are_not_taken_for_the_key() -> None:
    known = canonical.dumps({"w": 1})
    value = {"device": {"schema": {"w": 1}}, "schema": {"w": 2}}
    assert canonical.loads_around(canonical.dumps(value), "schema", known, object(), what="a test") == value


@pytest.mark.parametrize("text", [b'{"schema":{"w":1},"a":1}', b'{"schema":{"w":1}', b'{"schema":{"w":1},"z":1.5}'])
def test_what_is_not_canonical_around_it_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        canonical.loads_around(text, "schema", b'{"w":1}', object(), what="a test")


def test_a_rotation_reads_no_root_that_this_process_has_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    usual = Directory.read_root

    def reading(self: Directory, name: str, digest: str | None = None) -> Any:
        read.append(name)
        return usual(self, name, digest)

    with mpickpt.Checkpointer(tmp_path / "run", keep=2, alone=True) as ckpt:
        ckpt.resume({"w": np.zeros(3)})
        monkeypatch.setattr(Directory, "read_root", reading)
        for step in range(4):
            ckpt.save({"w": np.full(3, float(step))}, step=step)
    assert read == []
    with mpickpt.Checkpointer(tmp_path / "run", keep=2, alone=True) as ckpt:
        assert ckpt.resume({"w": np.zeros(3)}).step == 3
    assert len(read) == 1
    assert [root.step for root in Directory(tmp_path / "run").lineage()] == [2, 3]


def test_copies_are_shared_between_threads() -> None:
    source, target = np.arange(1 << 16, dtype=np.uint8), np.zeros(1 << 16, np.uint8)
    cuts = [0, 1, 7, 4096, 40000, 1 << 16]
    rows = [(target.ctypes.data + lo, source.ctypes.data + lo, hi - lo) for lo, hi in itertools.pairwise(cuts)]
    table, following = np.array(rows, np.int64), np.zeros(1, np.int64)
    threads = [threading.Thread(target=_native.copy_all, args=(table, following)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(target, source)
    for wrong, at in ((table.reshape(-1)[:-1], [0]), (table, [0, 0]), (table, [-1]), (-table, [0])):
        with pytest.raises(ValueError, match="no copies"):
            _native.copy_all(wrong, np.array(at, np.int64))
