"""What is done for thousands of arrays at once gives what it gives for each alone, and refuses what that refuses."""

from __future__ import annotations

import dataclasses
import itertools
import json
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpickpt import canonical, digest
from mpickpt.errors import CheckpointError, CoverageError, FormatError, StateError
from mpickpt.format import pieces
from mpickpt.format.layout import PieceSpec, arrange, order
from mpickpt.format.manifest import Manifest, Prefix, ShardRecord, decode_root
from mpickpt.format.records import record
from mpickpt.native import _native
from mpickpt.state import names, nest
from mpickpt.state.apart import alone
from mpickpt.state.capture import Restored
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.state.holders import Run, each_holder, unite_runs
from mpickpt.state.layout import Sharded, Spec
from mpickpt.state.places import Places, lies_flat
from mpickpt.state.policy import policy_of, refusing
from mpickpt.state.region import Box, Region, Schema
from mpickpt.store.destination import Want
from mpickpt.store.memory import memory_for_all
from mpickpt.store.wanted import Wanted

# -- where arrays lie


def strange() -> list[np.ndarray[Any, Any]]:
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    fixed = np.arange(3)
    fixed.flags.writeable = False
    return [
        grid, grid[:, ::2], grid[1:3], grid.T, grid[::-1], grid.astype(">f4"), np.array(2.5), np.zeros((3, 0)), fixed,
        np.zeros(4, ml_dtypes.bfloat16), np.broadcast_to(np.float32(1), (2, 2)), np.zeros(3, np.bool_),
    ]  # fmt: skip


def test_places_are_those_that_numpy_tells() -> None:
    arrays = strange()
    places = Places.of(arrays)
    assert places.addresses.tolist() == [array.__array_interface__["data"][0] for array in arrays]
    assert places.nbytes.tolist() == [array.nbytes for array in arrays]
    assert places.contiguous.tolist() == [array.flags.c_contiguous for array in arrays]
    assert places.writeable.tolist() == [array.flags.writeable for array in arrays]
    assert places.flat.tolist() == [lies_flat(array) for array in arrays]
    assert Places.of([]).addresses.size == 0


@pytest.mark.parametrize("wrong", [["a list"], np.zeros(3), None])
def test_places_are_asked_of_a_tuple(wrong: Any) -> None:
    with pytest.raises(TypeError, match="tuple"):
        _native.places(wrong)


def test_places_of_what_is_no_array_are_refused() -> None:
    class Other:
        __array_struct__ = 5

    with pytest.raises(AttributeError):
        _native.places((np.zeros(3), object()))
    with pytest.raises(ValueError, match="PyCapsule"):
        _native.places((Other(),))


def test_arrays_that_share_memory_are_found_among_many() -> None:
    table = np.zeros((500, 8))
    arrays = {f"row{i}": [row] for i, row in enumerate(table)}
    assert alone(arrays) == arrays.keys()
    assert alone(arrays | {"none": [table[3:3]]}) == {*arrays, "none"}
    assert alone(arrays | {"late": [table[7, 5:]]}) == arrays.keys() - {"row7"}
    # Strided ones lie between each other without sharing anything.
    assert alone({"even": [table[:, ::2]], "odd": [table[:, 1::2]]}) == {"even", "odd"}
    # One that reaches over many, of which only the last shares memory with it.
    comb = np.lib.stride_tricks.as_strided(table, (2,), (64 * 499,))
    assert alone(arrays | {"comb": [comb]}) == arrays.keys() - {"row0", "row499"}


def test_destinations_of_all_kinds_are_filled() -> None:
    saved = {f"a{i}": np.full((4, 6), i, np.float32) for i in range(6)}
    grid = np.zeros((4, 12), np.float32)
    fixed = np.zeros((4, 6), np.float32)
    fixed.flags.writeable = False
    given: dict[str, Any] = {
        "a0": np.zeros((4, 6), np.float32),
        "a1": np.zeros((4, 6), ">f4"),
        "a2": grid[:, ::2],
        "a3": np.zeros((6, 4), np.float32).T,
        "a4": fixed,
        "a5": np.zeros((4, 6), np.float32),
    }
    capture = nest.flatten(given, 0, 1, destination=True)
    filled = nest.commit(capture, Restored({name: [array] for name, array in saved.items()}), {})
    for name, array in saved.items():
        assert np.array_equal(filled[name], array)
        assert (filled[name] is given[name]) == (name != "a4")
    assert not fixed.any()
    assert not grid[:, 1::2].any()


def test_an_array_that_became_read_only_is_not_written() -> None:
    target = np.zeros(4, np.float32)
    capture = nest.flatten({"a": target}, 0, 1, destination=True)
    fill = nest.prepare(capture, Restored({"a": [np.ones(4, np.float32)]}), {})
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        fill()
    assert not target.any()


def test_memory_for_many_boxes_overlaps_nowhere() -> None:
    forms = [((), "float64"), ((3,), "int8"), ((0, 4), "float32"), ((5, 7), "bfloat16"), ((3,), "int8"), ((), "uint8")]
    boxes = [(Region(f"r{i}", dtype, shape, "array"), Box.whole(shape)) for i, (shape, dtype) in enumerate(forms * 20)]
    made = memory_for_all(boxes)
    for (region, box), array in zip(boxes, made, strict=True):
        assert array.shape == box.shape
        assert array.nbytes == region.nbytes
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.size == 0 or array.ctypes.data % 64 == 0
    assert alone({f"r{i}": [array] for i, array in enumerate(made)}) == {f"r{i}" for i in range(len(made))}
    assert memory_for_all([]) == []


# -- names and rules


@given(st.lists(st.text(), max_size=5))
def test_plain_keys_are_those_that_escape_themselves(keys: list[str]) -> None:
    def same(key: str) -> bool:
        try:
            return names.escape(key) == key
        except StateError:
            return False

    assert names.all_plain(keys) == (bool(keys) and all(map(same, keys)))


@pytest.mark.parametrize("keys", [["a", 1], [True], [], ["a", ""], ["\ud800"]])
def test_other_keys_are_not_plain(keys: list[Any]) -> None:
    assert not names.all_plain(keys)


@pytest.mark.parametrize("rules", [{"*": "allow"}, {"*": "refuse", "a": "allow"}, {"a": "allow", "*": "refuse"}, {}])
def test_the_first_rule_that_fits_holds(rules: dict[str, str]) -> None:
    refuses = refusing(policy_of(rules))
    assert refuses("a") == (next(iter(rules.values()), "refuse") == "refuse")
    assert refuses("b") == (rules.get("*", "refuse") == "refuse")


@given(st.permutations(range(8)))
def test_pieces_are_placed_alike_in_whatever_order_they_come(places: list[int]) -> None:
    forms = ["float64", "uint8", "float32", "complex64"] * 2
    specs = []
    for i, dtype in enumerate(forms):
        opaque = dtype == "uint8"
        box = Box((), ()) if opaque else Box((0,), (3,))
        size = {"float64": 24, "uint8": 5, "float32": 12, "complex64": 24}[dtype]
        specs.append(PieceSpec(i, f"r{i}", box, dtype, size))
    made = arrange([specs[place] for place in places], 0)
    assert [entry.spec for entry in made.entries] == sorted(specs, key=order)
    assert made == arrange(specs, 0)


# -- who holds the regions


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12))
def test_holders_in_runs_are_united_as_one_by_one(pairs: list[tuple[int, int]]) -> None:
    def runs(values: list[int]) -> list[Run]:
        return [((value, 1, 7 + value), 1) for value in values]

    mine, theirs = runs([one for one, _ in pairs]), runs([two for _, two in pairs])
    found = unite_runs(mine, theirs)
    assert list(each_holder(found)) == [(min(one, two), 2, 14 + one + two) for one, two in pairs]
    assert all(one[0] != two[0] for one, two in itertools.pairwise(found))


def test_a_union_of_like_declarations_is_that_of_unlike_ones() -> None:
    state = {f"a{i}": np.zeros(i % 5) for i in range(40)}
    owners = [Declarations.of(nest.flatten(state, role, 3), role, Contract(), {}) for role in range(3)]
    union = owners[1].merge([owners[2], Declarations.from_bytes(owners[0].to_bytes(), owners[1])])
    apart = Declarations(owners[1].entries, {}, owners[1].contract, {}, 1)
    del apart.entries["a3"]  # so that the other way is gone
    other = apart.merge([owners[2], owners[0]])
    assert union.entries.pop("a3").count == 3
    assert other.entries.pop("a3").count == 2
    assert union.entries == other.entries
    assert union.first == other.first == 0
    assert union.named() == {0, 1, 2} & {union.first}


# -- lists of pieces in manifests

COUNT = 400
SCHEMA = Schema(Region(f"r{i:04}", "float32", (256,) if i % 3 else (), "array") for i in range(COUNT))
PREFIX = Prefix("run", SCHEMA.digest("blake3"), Contract().digest(), 3, 9, 2, 1, "0123456789abcdef" * 2)
PIECES = tuple((i, (0,) if i % 3 else (), (256,) if i % 3 else ()) for i in range(COUNT))
SHARD = ShardRecord(1, "00000/000001.safetensors", 5, "blake3:" + 64 * "0", PIECES)
GROUP = Manifest("group", 1, 1, PREFIX, {}, (SHARD,), (), 0)


def plain(change: Any = lambda value: None) -> bytes:
    value = json.loads(GROUP.encode()[0].split(b"\n")[0])
    change(value)
    return record(value)[0]


def told(data: bytes, monkeypatch: pytest.MonkeyPatch, fewest: int) -> Any:
    """Decode with or without lists being taken out; gives the manifest, or the refusal's words."""
    monkeypatch.setattr(pieces, "_FEWEST", fewest)
    try:
        return Manifest.decode(data, "file", schema=SCHEMA)
    except CheckpointError as error:
        return type(error), str(error)


def lifted(data: bytes) -> dict[str, Any]:
    return pieces.lift(data.split(b"\n")[0])[1]


def test_a_long_list_is_taken_out_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = plain()
    assert list(lifted(data).values()) == [PIECES]
    assert told(data, monkeypatch, 1024) == told(data, monkeypatch, 1 << 30)
    assert Manifest.decode(data, schema=SCHEMA).shards[0].pieces == PIECES


def at(place: int, item: Any) -> Any:
    def change(value: dict[str, Any]) -> None:
        value["shards"][0]["pieces"][place] = item

    return change


@pytest.mark.parametrize(
    "item",
    [
        [200, [0], [257]], [200, [1], [1]], [200, [-1], [256]], [200, [0], [256, 1]], [200, [0, 0], [256, 256]],
        [199, [0], [256]], [5, [0], [256]], [-1, [0], [256]], [COUNT, [0], [256]], [10**19, [0], [256]],
        [10**30, [0], [256]], [200, [0], [10**30]], [200, [], []], [200, 0, 256], [200, [0]], [200, [0], [256], []],
        [200, [True], [256]], [200, [[0]], [256]], ["200", [0], [256]], [True, [0], [256]], [200, ["0"], [256]],
        200, [], {}, None, "x]],[y", [None, [0], [256]],
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 200, COUNT - 1])
def test_a_wrong_piece_is_refused_in_the_same_words(item: Any, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = plain(at(place, item))
    found = told(data, monkeypatch, 1024)
    assert found == told(data, monkeypatch, 1 << 30)
    assert found[0] is FormatError


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[200,[0]", b"[0200,[0]"),
        (b"[200,[0]", b"[+200,[0]"),
        (b"[200,[0]", b"[2_00,[0]"),
        (b"[200,[0]", b"[ 200,[0]"),
        (b"[200,[0]", b"[200, [0]"),
        (b"[200,[0],[256]", b"[200,[0],[256] "),
        (b"[200,[0]", b"[200,[00]"),
        (b"[200,[0]", b"[200,[-0]"),
        (b"[200,[0]", b"[200,[0.0]"),
        (b"[200,[0]", b"[2e2,[0]"),
        (b"[200,[0]", b"[\xd9\xa2,[0]"),
        (b"[399,[],[]]]", b"[399,[],[]],]"),
        (b"[399,[],[]]]", b"[399,[],[]]"),
        (b"[399,[],[]]]", b"[399,[],[]]]]"),
        (b"]],[200,", b"]], [200,"),
        (b'"pieces":[[', b'"pieces":[[['),
        (b'"pieces":[[', b'"pieces" :[['),
        (b'"pieces":', b'"pieces":[],"pieces":'),
        (b',"pieces":', b'x,"pieces":'),
    ],
)
def test_a_list_that_is_not_canonical_is_refused_in_the_same_words(
    old: bytes, new: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plain().split(b"\n")[0]
    changed = first.replace(old, new)
    assert changed != first
    name = digest.name("blake3", digest.digest("blake3", "record", changed))
    data = changed + b"\n" + canonical.dumps({"digest": name}) + b"\n"
    found = told(data, monkeypatch, 1024)
    assert found == told(data, monkeypatch, 1 << 30)
    assert found[0] is FormatError


def test_lists_elsewhere_and_words_that_look_like_them_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [[ordinal, list(lo), list(hi)] for ordinal, lo, hi in PIECES]
    text = ',"pieces":' + json.dumps(many, separators=(",", ":"))

    def change(value: dict[str, Any]) -> None:
        value["device"] = {"a": 1, "pieces": many, "text": text, "shards": [{"a": 1, "pieces": many}], text: text}

    data = plain(change)
    assert len(lifted(data)) == 3  # that of the shard, and two that are put back into nothing
    found = told(data, monkeypatch, 1024)
    assert found == told(data, monkeypatch, 1 << 30)
    assert found.device["pieces"] == many
    assert found.device["text"] == text


def test_a_root_is_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = Contract().to_json()
    root = dataclasses.replace(
        GROUP, kind="root", role=0, size=2, schema=SCHEMA, contract=contract, owners=2, lineage=((2, None, None),),
        topology={"kind": "star", "fan_out": 16},
    )  # fmt: skip
    data, name = root.encode()
    assert len(lifted(data)) == 1
    found = decode_root(data, digest=name, like=SCHEMA)
    assert isinstance(found, Manifest)
    assert found.schema is SCHEMA
    assert found == root


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=20))
def test_lists_of_many_forms_are_read_as_the_parser_reads_them(found: list[tuple[int, int, int]]) -> None:
    value = [[ordinal, [lo], [hi]] for ordinal, lo, hi in found]
    read = pieces._read(json.dumps(value, separators=(",", ":")).encode())
    if read is not None:
        assert [[ordinal, list(lo), list(hi)] for ordinal, lo, hi in read] == value
        assert all(lo < hi for _, lo, hi in found)
    elif all(lo < hi for _, lo, hi in found):
        assert len({(lo, hi) for _, lo, hi in found}) > 1 + len(found) // 8


def test_a_region_of_which_one_part_cannot_be_filled_is_not_filled_in_place() -> None:
    fixed = np.zeros(2, np.float32)
    fixed.flags.writeable = False
    wide = np.zeros((2, 4), np.float32)
    given: dict[str, Any] = {
        "a": Sharded([(fixed, (0,)), (np.zeros(2, np.float32), (2,))], shape=(4,)),
        "b": Sharded([(np.zeros(2, np.float32), (0,)), (wide[:, 0], (2,))], shape=(4,)),
        "c": Spec((3,), "float32"),
        "d": 1.5,
        "e": wide[1],
    }
    capture = nest.flatten(given, 0, 1, destination=True)
    assert nest.check_destination(capture) == ["a", "c"]
    found = nest.in_place(capture)
    assert found.keys() == {"b", "e"}
    assert [array is part for array, (part, _) in zip(found["b"], given["b"].parts, strict=True)] == [True, True]


def test_a_schema_has_the_bytes_of_its_arrays() -> None:
    rng = Region("rng", "uint8", None, "per_owner")
    mixed = Schema([*SCHEMA, Region("x", "bfloat16", (3, 5), "array"), Region("y", "int8", (256,), "array"), rng])
    assert mixed.nbytes == sum(region.nbytes for region in SCHEMA) + 30 + 256


def test_memory_is_made_for_arrays_of_as_many_axes_as_there_may_be() -> None:
    for axes in (1, 63, 64):
        box = Box.whole((1,) * (axes - 1) + (2,))
        one, other = memory_for_all([(Region("x", "float64", box.hi, "array"), box)] * 2)
        one[:], other[:] = 1, 2
        assert one.shape == other.shape == box.hi
        assert one.sum() == 2
        assert not np.shares_memory(one, other)


@pytest.mark.parametrize("pieces", [[(0, 4), (1, 2)], [(1, 2), (0, 4)], [(0, 2), (2, 4), (1, 3)], [(0, 4), (0, 4)]])
def test_pieces_that_overlap_in_what_is_wanted_are_refused(pieces: list[tuple[int, int]]) -> None:
    """Also where the box was complete before: what is read last would win."""
    schema = Schema([Region("x", "float32", (4,), "array")])
    wanted = Wanted(schema, [Want(0, Box((0,), (4,)), None)], [], 0, 1)
    boxes = tuple((0, (lo,), (hi,)) for lo, hi in pieces)
    wanted.take([SimpleNamespace(pieces=boxes, file="s", role=0, shared=False)])  # type: ignore[list-item]
    with pytest.raises(CoverageError, match="overlap"):
        wanted.finish("root")
