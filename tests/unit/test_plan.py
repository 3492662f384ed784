from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest

from mpickpt.errors import StateError
from mpickpt.state import coverage
from mpickpt.state import plan as plan_module
from mpickpt.state.capture import Capture, Holding, Node, Part
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.state.layout import Spec
from mpickpt.state.plan import Piece, plan, shared_boxes
from mpickpt.state.region import Box, Region

NEST = Node("dict", "", {}, [])
GLOBAL = np.arange(35, dtype=np.float32).reshape(7, 5)


def capture(*holdings: Holding) -> Capture:
    return Capture(sorted(holdings, key=lambda h: h.region.name), {}, NEST, [])


def boxes(name: str, *held: Box, copy: tuple[int, int] = (0, 1)) -> Holding:
    parts = [Part(box, GLOBAL[box.relative(Box.whole((7, 5)))]) for box in held]
    return Holding(Region(name, "float32", (7, 5), "array"), "boxes", copy, parts)


def whole(name: str, array: np.ndarray) -> Holding:
    region = Region(name, "float32", array.shape, "array")
    return Holding(region, "replicated", (0, 1), [Part(Box.whole(array.shape), array)])


def value(name: str, data: bytes = b'{"int":"1"}') -> Holding:
    return Holding(Region(name, "uint8", None, "value"), "replicated", data=data)


def per_owner(name: str, data: bytes) -> Holding:
    return Holding(Region(name, "uint8", None, "per_owner"), "per_owner", data=data)


def planned(captures: Sequence[Capture], writers: Sequence[int]) -> list[tuple[list[Piece], list[Piece]]]:
    each = [Declarations.of(one, role, Contract(), {}) for role, one in enumerate(captures)]
    union = each[0].merge(each[1:])
    schema = union.schema
    found = [plan(one, union, schema, role, len(captures), writers) for role, one in enumerate(captures)]
    pieces = [piece for own, shared in found for piece in chain(own, shared)]
    # whatever the state is: all pieces together tile every region once, and each is of its box's shape
    assert coverage.cover_of(schema, [(p.ordinal, p.box) for p in pieces]) == coverage.expected_cover(schema)
    for piece in pieces:
        assert not piece.box.empty
        assert schema[piece.ordinal] == piece.region
        if isinstance(piece.data, np.ndarray):
            assert piece.data.shape == piece.box.shape
    for role, (_, shared) in enumerate(found):
        told = shared_boxes(union, schema, len(captures), writers, role)
        assert told == [(piece.ordinal, piece.box) for piece in shared]
    return found


def where(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    return [(piece.region.name, piece.box.text()) for piece in pieces]


@pytest.fixture
def cut_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small arrays too."""
    monkeypatch.setattr(plan_module, "WHOLE_BYTES", 0)


def test_small_arrays_go_whole_to_writers_in_turn() -> None:
    held = [capture(*(whole(f"w{i}", np.zeros((3, 2), np.float32)) for i in range(4))) for _ in range(3)]
    found = planned(held, [0, 2])
    assert [where(shared) for _, shared in found] == [[("w0", "0:3,0:2"), ("w2", "0:3,0:2")], [], [
        ("w1", "0:3,0:2"), ("w3", "0:3,0:2")]]  # fmt: skip


@pytest.mark.usefixtures("cut_all")
def test_what_all_hold_is_written_in_shares_by_root_and_children() -> None:
    arrays = [GLOBAL.copy() for _ in range(4)]
    found = planned([capture(whole("w", array)) for array in arrays], [0, 1, 3])
    assert [where(shared) for _, shared in found] == [[("w", "0:3,0:5")], [("w", "3:5,0:5")], [], [("w", "5:7,0:5")]]
    assert not any(own for own, _ in found)
    for role, (_, shared) in enumerate(found):
        for piece in shared:
            assert isinstance(piece.data, np.ndarray)
            assert np.shares_memory(piece.data, arrays[role])
            np.testing.assert_array_equal(piece.data, GLOBAL[piece.box.lo[0] : piece.box.hi[0]])


def test_scalars_and_values_go_whole_to_writers_in_turn() -> None:
    state = [whole("a", np.array(1, np.float32)), value("b"), whole("c", np.array(2, np.float32)), value("d")]
    found = planned([capture(*state) for _ in range(3)], [0, 2])
    assert [where(shared) for _, shared in found] == [[("a", ""), ("c", "")], [], [("b", ""), ("d", "")]]
    assert [piece.data for piece in found[2][1]] == [b'{"int":"1"}'] * 2


@pytest.mark.usefixtures("cut_all")
def test_fewer_rows_than_writers_and_no_rows() -> None:
    found = planned([capture(whole("w", GLOBAL[:2]), whole("z", GLOBAL[:0])) for _ in range(4)], [0, 1, 2, 3])
    assert [where(shared) for _, shared in found] == [[("w", "0:1,0:5")], [("w", "1:2,0:5")], [], []]


def test_what_some_declare_is_written_by_the_first_of_them_in_its_own_shard() -> None:
    found = planned(
        [capture(), capture(whole("w", GLOBAL), value("v")), capture(whole("w", GLOBAL), value("v"))], [0, 1, 2]
    )
    assert [where(own) for own, _ in found] == [[], [("v", ""), ("w", "0:7,0:5")], []]
    assert not any(shared for _, shared in found)


def test_one_owner_writes_all() -> None:
    ((own, shared),) = planned([capture(whole("w", GLOBAL), value("v"), per_owner("r", b"x"))], [0])
    assert where(own) == [("r", "")]
    assert where(shared) == [("v", ""), ("w", "0:7,0:5")]


def test_copies_share_the_rows_of_each_box() -> None:
    left, right = Box((0, 0), (7, 2)), Box((0, 2), (7, 5))
    found = planned([capture(boxes("w", box, copy=(k, 2))) for k in range(2) for box in (left, right)], [0, 1, 2, 3])
    assert [where(own) for own, _ in found] == [
        [("w", "0:4,0:2")],
        [("w", "0:4,2:5")],
        [("w", "4:7,0:2")],
        [("w", "4:7,2:5")],
    ]
    for own, _ in found:
        for piece in own:
            np.testing.assert_array_equal(piece.data, GLOBAL[piece.box.relative(Box.whole((7, 5)))])


def test_of_one_row_in_three_copies_only_the_first_writes() -> None:
    held = Box((0, 0), (1, 5)), Box((1, 0), (7, 5))
    found = planned([capture(boxes("w", *held, copy=(k, 3))) for k in range(3)], [0])
    assert [where(own) for own, _ in found] == [
        [("w", "0:1,0:5"), ("w", "1:3,0:5")],
        [("w", "3:5,0:5")],
        [("w", "5:7,0:5")],
    ]


def test_a_scalar_box_in_copies_is_written_by_copy_0() -> None:
    region = Region("s", "float32", (), "array")
    array = np.zeros((), np.float32)
    held = [capture(Holding(region, "boxes", (k, 2), [Part(Box((), ()), array)])) for k in range(2)]
    found = planned(held, [0, 1])
    assert [where(own) for own, _ in found] == [[("s", "")], []]
    assert found[0][0][0].data is array


def test_boxes_and_per_owner_go_to_ones_own_shard() -> None:
    none, top, rest = Box((3, 0), (3, 5)), Box((0, 0), (3, 5)), Box((3, 0), (7, 5))
    found = planned(
        [
            capture(boxes("w", none), per_owner("r", b"0")),
            capture(boxes("w"), per_owner("r", b"1")),
            capture(boxes("w", rest, top)),
        ],
        [0, 1, 2],
    )
    assert [[(p.region.name, p.data) for p in own] for own, _ in found[:2]] == [[("r", b"0")], [("r", b"1")]]
    assert where(found[2][0]) == [("w", "3:7,0:5"), ("w", "0:3,0:5")]


@pytest.mark.usefixtures("cut_all")
def test_pieces_keep_strides_and_byte_order() -> None:
    strided = np.arange(70, dtype=">f4").reshape(10, 7)[::2].T  # (7, 5), neither C nor F contiguous
    found = planned([capture(whole("w", strided)) for _ in range(2)], [0, 1])
    for _, shared in found:
        assert isinstance(shared[0].data, np.ndarray)
        assert shared[0].data.dtype == np.dtype(">f4")
        assert np.shares_memory(shared[0].data, strided)


def test_a_spec_has_no_bytes_to_save() -> None:
    region = Region("w", "float32", (7, 5), "array")
    held = capture(Holding(region, "replicated", (0, 1), [Part(Box.whole((7, 5)), Spec((7, 5), "float32"))]))
    with pytest.raises(StateError, match="no bytes to save") as caught:
        planned([held], [0])
    assert (caught.value.region, caught.value.role) == ("w", 0)


def test_an_opaque_region_of_a_destination_has_no_bytes_to_save() -> None:
    with pytest.raises(StateError, match="without its bytes"):
        planned([capture(Holding(Region("v", "uint8", None, "value"), "replicated"))], [0])
