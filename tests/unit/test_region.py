"""Boxes, rules, the schema, and the flat order of elements."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mpickpt.errors import FormatError, StateError
from mpickpt.state import dtypes
from mpickpt.state.region import Box, Region, Rule, Schema, flat_boxes, shares

ROUND_TRIP_DTYPES = dtypes.NAMES


def test_box_geometry() -> None:
    box = Box((1, 2), (3, 6))
    assert (box.shape, box.size, box.ndim, box.empty, box.text()) == ((2, 4), 8, 2, False, "1:3,2:6")
    assert box.intersect(Box((2, 0), (9, 3))) == Box((2, 2), (3, 3))
    assert box.intersect(Box((3, 0), (9, 9))) is None
    assert box.contains(Box((1, 3), (2, 6)))
    assert not box.contains(Box((1, 3), (2, 7)))
    assert box.rows(1, 2) == Box((2, 2), (3, 6))
    assert Box.whole((2, 3)) == Box((0, 0), (2, 3))


def test_box_without_axes_is_one_element() -> None:
    box = Box((), ())
    assert (box.size, box.empty, box.text(), box.shape) == (1, False, "", ())
    assert box.intersect(box) == box
    assert box.relative(box) == ()


def test_relative_slices_pick_the_box_out_of_its_origin() -> None:
    whole = np.arange(40).reshape(5, 8)
    origin, box = Box((1, 2), (5, 8)), Box((2, 3), (4, 5))
    assert np.array_equal(whole[1:5, 2:8][box.relative(origin)], whole[2:4, 3:5])


@pytest.mark.parametrize(
    ("box", "shape"),
    [
        (Box((0,), (5,)), (4,)),
        (Box((-1,), (2,)), (4,)),
        (Box((3,), (2,)), (4,)),
        (Box((0, 0), (1, 1)), (4,)),
        (Box((), ()), (4,)),
        (Box((0,), (1, 1)), (4,)),
        (Box((0,) * 17, (1,) * 17), (2,) * 17),
    ],
)
def test_box_that_does_not_fit_is_refused_by_name(box: Box, shape: tuple[int, ...]) -> None:
    with pytest.raises(StateError) as caught:
        box.check(shape, "layer/w")
    assert caught.value.region == "layer/w"
    assert caught.value.expected is not None
    assert caught.value.found is not None


def test_box_uncut_on_many_axes_is_fine() -> None:
    Box((1,) * 20, (2,) * 20).check((2,) * 20, "many")


def test_shares_are_contiguous_and_balanced() -> None:
    assert shares(5, 3) == [range(2), range(2, 4), range(4, 5)]
    assert shares(2, 4) == [range(1), range(1, 2), range(2, 2), range(2, 2)]
    assert shares(0, 2) == [range(0), range(0)]
    assert shares(np.int64(4), np.int32(2)) == [range(2), range(2, 4)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "owners"), [(-1, 2), (3, 0), (3, -1), (2.0, 1), (True, 1), ("3", 1), (3, None)])
def test_shares_of_bad_input(length: Any, owners: Any) -> None:
    with pytest.raises(StateError):
        shares(length, owners)


def test_rules_give_every_role_its_box() -> None:
    balanced = [Rule("balanced", 0).box((5, 2), role, 3) for role in range(3)]
    assert [box.text() for box in balanced] == ["0:2,0:2", "2:4,0:2", "4:5,0:2"]
    ceil = [Rule("ceil", 1).box((2, 5), role, 4) for role in range(4)]
    assert [box.text() for box in ceil] == ["0:2,0:2", "0:2,2:4", "0:2,4:5", "0:2,5:5"]
    assert ceil[3].empty


def test_schema_orders_by_code_point_and_numbers() -> None:
    schema = Schema(
        [Region("b", "float32", (2,), "array"), Region("B", "int8", (), "array"), Region("é", "uint8", None, "value")]
    )
    assert [region.name for region in schema] == ["B", "b", "é"]
    assert (schema.ordinal("b"), schema[1].name, len(schema), "é" in schema, "x" in schema) == (1, "b", 3, True, False)
    assert (schema[1].nbytes, schema[0].nbytes, schema[2].nbytes) == (8, 1, 0)


def test_schema_with_one_name_twice_is_refused() -> None:
    with pytest.raises(StateError) as caught:
        Schema(
            [
                Region("w", "float32", (2,), "array"),
                Region("a", "int8", (), "array"),
                Region("w", "int8", (2,), "array"),
            ]
        )
    assert caught.value.region == "w"


def test_schema_digest_covers_dtype_shape_kind_and_not_the_rule() -> None:
    def digest(*region: Any) -> str:
        return Schema([Region(*region)]).digest("blake3")

    one = digest("w", "float32", (4, 2), "array")
    assert one.startswith("blake3:")
    assert one == digest("w", "float32", (4, 2), "array", Rule("balanced", 0))
    others = [("v", "float32", (4, 2), "array"), ("w", "int32", (4, 2), "array"), ("w", "float32", (2, 4), "array")]
    assert len({one, *(digest(*other) for other in others), digest("w", "uint8", None, "value")}) == 5
    assert digest("w", "uint8", None, "value") != digest("w", "uint8", None, "per_owner")
    assert Schema([]).digest("sha256").startswith("sha256:")


def test_schema_json_round_trip() -> None:
    schema = Schema(
        [
            Region("a/%2F", "bfloat16", (3, 0, 2), "array", Rule("ceil", 2)),
            Region("a/#3", "uint8", None, "per_owner"),
            Region("", "complex64", (), "array"),
        ]
    )
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_json(schema.to_json())[2].rule == Rule("ceil", 2)


ARRAY = {"dtype": "float32", "shape": [2, 3], "kind": "array"}


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("a:b", ARRAY),
        ("a//b", ARRAY),
        ("%41", ARRAY),
        ("w", None),
        ("w", {"dtype": "float32", "shape": [2]}),
        ("w", ARRAY | {"extra": 1}),
        ("w", ARRAY | {"kind": "none"}),
        ("w", ARRAY | {"kind": ["array"]}),
        ("w", ARRAY | {"dtype": "float128"}),
        ("w", ARRAY | {"dtype": ["float32"]}),
        ("w", ARRAY | {"shape": None}),
        ("w", ARRAY | {"shape": [-1]}),
        ("w", ARRAY | {"shape": [True]}),
        ("w", ARRAY | {"shape": [1 << 62]}),
        ("w", ARRAY | {"shape": [1 << 40, 0, 1 << 40]}),
        ("w", ARRAY | {"shape": [1] * 65}),
        ("w", ARRAY | {"rule": None}),
        ("w", ARRAY | {"rule": ["balanced", 2]}),
        ("w", ARRAY | {"rule": ["odd", 0]}),
        ("w", ARRAY | {"rule": [["odd"], 0]}),
        ("w", {"dtype": "uint8", "shape": [3], "kind": "value"}),
        ("w", {"dtype": "int8", "shape": None, "kind": "value"}),
        ("w", {"dtype": "uint8", "shape": None, "kind": "per_owner", "rule": ["ceil", 0]}),
    ],
)
def test_schema_json_that_nobody_writes(name: str, entry: Any) -> None:
    with pytest.raises(FormatError) as caught:
        Schema.from_json({name: entry}, "roots/x.json")
    assert caught.value.region == name
    assert caught.value.path == "roots/x.json"


def test_schema_json_that_is_no_object() -> None:
    with pytest.raises(FormatError):
        Schema.from_json([])


def test_flat_boxes_of_a_range_within_three_axes() -> None:
    assert [(at, box.text()) for at, box in flat_boxes((3, 4, 5), 7, 53)] == [
        (7, "0:1,1:2,2:5"),
        (10, "0:1,2:4,0:5"),
        (20, "1:2,0:4,0:5"),
        (40, "2:3,0:2,0:5"),
        (50, "2:3,2:3,0:3"),
    ]


def test_flat_boxes_of_everything_and_nothing() -> None:
    assert flat_boxes((3, 4), 0, 12) == [(0, Box((0, 0), (3, 4)))]
    assert flat_boxes((), 0, 1) == [(0, Box((), ()))]
    assert flat_boxes((3, 4), 5, 5) == []
    assert flat_boxes((3, 0), 0, 0) == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 13)])
def test_flat_boxes_outside_the_array(start: int, stop: int) -> None:
    with pytest.raises(StateError):
        flat_boxes((3, 4), start, stop)


@pytest.mark.parametrize("name", ROUND_TRIP_DTYPES)
def test_dtype_names_round_trip_in_either_byte_order(name: str) -> None:
    dtype = dtypes.dtype_of(name)
    assert dtypes.name_of(dtype) == name
    assert dtypes.name_of(dtype.newbyteorder(">")) == name
    assert dtypes.coerce(name) == dtype
    assert dtypes.itemsize(name) == dtype.itemsize
    assert dtypes.is_floating(name) == (name not in ("bool",) and "int" not in name)


@pytest.mark.parametrize("dtype", ["object", "longdouble", "clongdouble", "U4", "S4", "V3", "M8[s]", "m8[s]", "i4,f8"])
def test_dtypes_without_a_place_are_refused_by_region(dtype: str) -> None:
    with pytest.raises(StateError) as caught:
        dtypes.name_of(np.dtype(dtype), "opt/m")
    assert caught.value.region == "opt/m"


def test_other_small_floats_are_refused() -> None:
    with pytest.raises(StateError):
        dtypes.name_of(np.dtype(ml_dtypes.float8_e4m3b11fnuz))


@pytest.mark.parametrize("dtype", [None, "nothing", 3, object()])
def test_coerce_of_what_is_no_dtype(dtype: Any) -> None:
    with pytest.raises(StateError):
        dtypes.coerce(dtype)


def test_unknown_dtype_names() -> None:
    with pytest.raises(StateError):
        dtypes.dtype_of("float128")
    with pytest.raises(StateError):
        dtypes.itemsize("float128")


def test_sizes_agree_with_numpy() -> None:
    region = Region("w", "float16", (3, 5), "array")
    assert region.nbytes == math.prod((3, 5)) * np.dtype("float16").itemsize
