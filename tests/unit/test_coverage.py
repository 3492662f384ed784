from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from blake3 import blake3

from mpickpt.errors import CoverageError
from mpickpt.state import coverage
from mpickpt.state.capture import Capture, Holding, Node, Part
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.state.region import Box, Region, Schema

NEST = Node("dict", "", {}, [])


def capture(*holdings: Holding) -> Capture:
    return Capture(sorted(holdings, key=lambda h: h.region.name), {}, NEST, [])


def boxes(name: str, shape: tuple[int, ...], *held: Box, copy: tuple[int, int] = (0, 1)) -> Holding:
    parts = [Part(box, np.zeros(box.shape, np.float32)) for box in held]
    return Holding(Region(name, "float32", shape, "array"), "boxes", copy, parts)


def whole(name: str, shape: tuple[int, ...]) -> Holding:
    box = Box.whole(shape)
    return Holding(Region(name, "float32", shape, "array"), "replicated", (0, 1), [Part(box, np.zeros(shape))])


def value(name: str, data: bytes = b"1") -> Holding:
    return Holding(Region(name, "uint8", None, "value"), "replicated", data=data)


def per_owner(name: str) -> Holding:
    return Holding(Region(name, "uint8", None, "per_owner"), "per_owner", data=b"rng")


def agreed(captures: list[Capture]) -> Declarations:
    each = [Declarations.of(one, role, Contract(), {}) for role, one in enumerate(captures)]
    return each[0].merge(each[1:])


def totals(captures: list[Capture]) -> tuple[int, int]:
    union = agreed(captures)
    found = sum(coverage.held_of(one, union, union.schema, role) for role, one in enumerate(captures))
    return found & coverage.MASK, coverage.expected_held(union, union.schema)


def faults(captures: list[Capture]) -> CoverageError | None:
    union = agreed(captures)
    claims: dict[int, list[coverage.Claim]] = {}
    for role, one in enumerate(captures):
        for ordinal, held in coverage.claims_of(one, union.schema, role).items():
            claims.setdefault(ordinal, []).extend(held)
    return coverage.find_fault(union.schema, claims, coverage.copies_of(union, union.schema))


def derived(tag: str, data: bytes) -> int:
    return int.from_bytes(blake3(data, derive_key_context=f"mpickpt 1 {tag}").digest(), "little")


def test_a_corner_is_the_digest_of_ordinal_and_coordinates() -> None:
    a, b = derived("corner", struct.pack("<3Q", 7, 1, 2)), derived("corner", struct.pack("<3Q", 7, 3, 2))
    assert coverage.corners(7, (8, 4), [Box((1, 2), (3, 4))]) == (a - b) % 2**256
    assert coverage.corners(7, (8, 4), [Box.whole((8, 4))]) == derived("corner", struct.pack("<3Q", 7, 0, 0))
    assert coverage.corners(7, (), [coverage.POINT]) == derived("corner", struct.pack("<Q", 7))


def test_a_weight_is_a_part_of_one_stream() -> None:
    stream = blake3(derive_key_context="mpickpt 1 weight").digest(length=96)
    assert [coverage.weight(k) for k in range(3)] == [
        int.from_bytes(stream[32 * k : 32 * k + 32], "little") for k in range(3)
    ]
    assert coverage.weight_sum(1, 3) == (coverage.weight(1) + coverage.weight(2)) % 2**256
    assert coverage.weight_sum(1, 1) == 0


def test_a_content_digest_has_the_box_in_it() -> None:
    box = Box((1, 2), (3, 4))
    expected = derived("content", struct.pack("<6Q", 7, 2, 1, 2, 3, 4) + b"abcdef")
    assert coverage.content(7, box, [b"abc", memoryview(b"def")]) == expected
    assert coverage.content(7, Box((1, 2), (4, 4)), [b"abcdef"]) != expected


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 4)])
def test_a_region_without_elements_counts_nothing(shape: tuple[int, ...]) -> None:
    assert coverage.corners(0, shape, [Box.whole(shape)]) == 0
    assert coverage.corners(0, shape, []) == 0
    assert coverage.expected_cover(Schema([Region("w", "bool", shape, "array")])) == 0


@pytest.mark.parametrize(
    "box",
    [Box((0, 0), (4, 5)), Box((-1, 0), (4, 4)), Box((3, 0), (2, 4)), Box((0,), (4,)), Box((), ()), Box((5, 0), (5, 4))],
)
def test_a_box_that_leaves_its_region_is_refused(box: Box) -> None:
    with pytest.raises(CoverageError, match="leaves its region"):
        coverage.corners(0, (4, 4), [box])
    with pytest.raises(CoverageError) as caught:
        coverage.cover_of(Schema([Region("w", "float32", (4, 4), "array")]), [(0, box)])
    assert caught.value.region == "w"


def test_a_box_with_too_many_corners_is_refused() -> None:
    shape = (2,) * 17
    assert coverage.corners(0, shape, [Box((0,) * 17, (1,) * 2 + (2,) * 15)])
    with pytest.raises(CoverageError, match="too many corners"):
        coverage.corners(0, shape, [Box((0,) * 17, (1,) * 17)])


def test_one_number_for_all_regions() -> None:
    schema = Schema(
        [
            Region("a", "float32", (4,), "array"),
            Region("b", "uint8", None, "value"),
            Region("c", "uint8", None, "per_owner"),
        ]
    )
    pieces = [(0, Box((0,), (2,))), (1, coverage.POINT), (2, coverage.POINT), (0, Box((2,), (4,)))]
    assert coverage.cover_of(schema, pieces) == coverage.expected_cover(schema)
    assert coverage.cover_of(schema, pieces[:-1]) != coverage.expected_cover(schema)
    moved = [(0, Box((0,), (2,))), (0, coverage.POINT)]
    with pytest.raises(CoverageError):
        coverage.cover_of(schema, moved)


def halves(k: int, copies: int) -> list[Holding]:
    return [boxes("w", (4, 4), Box((2 * i, 0), (2 * i + 2, 4)), copy=(k, copies)) for i in range(2)]


def test_two_copies_of_two_shards() -> None:
    captures = [capture(h, value("v"), per_owner("r")) for h in halves(0, 2) + halves(1, 2)]
    found, expected = totals(captures)
    assert found == expected
    assert faults(captures) is None


def test_a_copy_doubled_while_another_is_missing() -> None:
    captures = [capture(h) for h in halves(0, 2) + halves(0, 2)]
    found, expected = totals(captures)
    assert found != expected
    error = faults(captures)
    assert error is not None
    assert error.region == "w"
    assert error.roles == (0, 1, 2, 3)
    assert "copy 0 of 2 tiles the region 2 times: held by owners 0, 1, 2, 3" in error.message
    assert "copy 1 of 2 is missing" in error.message


def test_a_gap_and_an_overlap_of_equal_bytes() -> None:
    captures = [capture(boxes("w", (8,), Box((0,), (4,)))), capture(boxes("w", (8,), Box((3,), (7,))))]
    found, expected = totals(captures)
    assert found != expected
    error = faults(captures)
    assert error is not None
    assert (error.region, error.roles) == ("w", (0, 1))
    assert error.message == (
        "pieces do not tile region w: overlap in the region: [3:4] is held 2 times by owners 0, 1 "
        "([0:4] at owner 0; [3:7] at owner 1)"
    )
    assert "first index (3,)" in str(error)


def test_a_gap_names_what_lies_beside_it() -> None:
    held = [Box((0, 0), (2, 4)), Box((2, 0), (4, 1)), Box((2, 3), (4, 4))]
    error = faults([capture(boxes("w", (4, 4), box)) for box in held])
    assert error is not None
    assert error.roles == (0, 1, 2)
    assert "no owner holds [2:4,1:3]" in error.message
    assert "shape (4, 4)" in str(error.expected)


def test_copies_with_different_boxes() -> None:
    rows = [boxes("w", (4, 4), Box((2 * i, 0), (2 * i + 2, 4)), copy=(0, 2)) for i in range(2)]
    columns = [boxes("w", (4, 4), Box((0, 2 * i), (4, 2 * i + 2)), copy=(1, 2)) for i in range(2)]
    captures = [capture(h) for h in rows + columns]
    found, expected = totals(captures)
    assert found == expected  # each copy tiles; it is the contents that cannot be compared
    error = faults(captures)
    assert error is not None
    assert "copies 0 and 1 have different boxes: [0:2,0:4] at owner 0, against [0:4,0:2] at owner 2" in error.message
    assert error.roles == (0, 2, 3)


def test_a_pinwheel_is_a_tiling() -> None:
    wheel = [
        Box((0, 0), (1, 2)), Box((0, 2), (2, 3)), Box((1, 1), (2, 2)), Box((1, 0), (3, 1)), Box((2, 1), (3, 3)),
    ]  # fmt: skip
    assert coverage.corners(0, (3, 3), wheel) == coverage.corners(0, (3, 3), [Box.whole((3, 3))])
    assert coverage.diagnose(Region("w", "bool", (3, 3), "array"), [(0, 0, box) for box in wheel], 1) is None


@pytest.mark.parametrize(
    ("claims", "kind", "role"),
    [
        ([(3, 0, Box((0,), (5,)))], "outside", 3),
        ([(3, 0, Box((0, 0), (4, 4)))], "outside", 3),
        ([(0, 0, Box((0,), (4,))), (4, 2, Box((0,), (4,)))], "copy", 4),
        ([(4, 0, Box((0,), (4,))), (5, -1, Box((0,), (4,)))], "missing", 5),
    ],
)
def test_claims_that_cannot_be(claims: list[coverage.Claim], kind: str, role: int) -> None:
    copies = 3 if kind == "missing" else 2
    fault = coverage.diagnose(Region("w", "bool", (4,), "array"), claims, copies)
    assert fault is not None
    assert fault.kind == kind
    assert role in fault.roles


def test_replicated_regions_are_held_by_all_who_declare_them() -> None:
    captures = [capture(whole("a", (3,)), value("v")), capture(whole("a", (3,))), capture(value("v"))]
    found, expected = totals(captures)
    assert found == expected
    assert faults(captures) is None
    union = agreed(captures)
    one = captures[1].holdings
    captures[1].holdings = []  # declared, and then not there
    found = sum(coverage.held_of(c, union, union.schema, role) for role, c in enumerate(captures)) & coverage.MASK
    assert found != expected
    claims = {0: [(0, -1, Box.whole((3,)))], 1: [(0, -1, coverage.POINT), (2, -1, coverage.POINT)]}
    error = coverage.find_fault(union.schema, claims, coverage.copies_of(union, union.schema))
    assert error is not None
    assert error.region == "a"
    assert "2 owners declared a copy, and 1 hold one: owner 0" in error.message
    captures[1].holdings = one


@pytest.mark.parametrize(
    "other",
    [
        capture(boxes("w", (4,), Box((0,), (4,)), copy=(0, 2))),
        capture(whole("w", (4,))),
        capture(boxes("other", (4,), Box((0,), (4,)))),
    ],
)
def test_what_was_not_agreed_is_refused(other: Capture) -> None:
    union = agreed([capture(boxes("w", (4,), Box((0,), (4,))))])
    with pytest.raises(CoverageError, match="not agreed") as caught:
        coverage.held_of(other, union, union.schema, 3)
    assert caught.value.role == 3
    assert caught.value.region == other.holdings[0].region.name


def test_factors_cancel_where_contents_are_equal() -> None:
    captures = [capture(whole("a", (3,)), boxes("w", (2,), Box((0,), (2,)), copy=(r, 3)), value("v")) for r in range(3)]
    captures.append(capture(whole("b", (3,)), per_owner("r"), boxes("x", (2,), Box((0,), (2,)))))
    union = agreed(captures)
    sums: dict[str, int] = {}
    factors: dict[str, list[int]] = {}
    for role, one in enumerate(captures):
        for holding in one.holdings:
            name = holding.region.name
            factor = coverage.copies_factor(holding, union.entries[name], role)
            factors.setdefault(name, []).append(factor)
            sums[name] = (sums.get(name, 0) + factor) % 2**256
    assert set(sums.values()) == {0}
    assert factors["b"] == factors["r"] == factors["x"] == [0]  # nothing to compare, nothing to hash
    assert factors["a"][1:] == factors["w"][1:] == [coverage.weight(1), coverage.weight(2)]
    assert all(all(factors[name]) for name in "avw")


def test_differing_copies_are_found_by_box() -> None:
    left, right = Box((0,), (2,)), Box((2,), (4,))
    equal = [(0, left, 5), (1, right, 6), (2, left, 5), (3, right, 6)]
    assert coverage.find_differing({0: equal}) is None
    assert coverage.find_differing({1: [*equal, (4, right, 7)], 0: equal}) == (1, right, (1, 3), (4,))


def test_thirty_thousand_uncut_regions_take_no_time() -> None:
    captures = [capture(*(whole(f"layer{i:05d}", (16, 16)) for i in range(30_000)))]
    union = agreed(captures)
    schema = union.schema
    start = time.process_time()
    assert coverage.held_of(captures[0], union, schema, 0) == coverage.expected_held(union, schema)
    assert coverage.expected_cover(schema)
    took = time.process_time() - start
    assert took < 3.0, "thirty times what it takes: something has become quadratic"
