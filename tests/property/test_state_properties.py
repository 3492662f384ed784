"""Names, cuts, values and nests come back exactly, whatever they are."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpickpt.errors import FormatError
from mpickpt.state import dtypes, values
from mpickpt.state.nest import Restored, build, commit, flatten, join, split
from mpickpt.state.region import Rule, Schema, flat_boxes, shares

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=6) | st.text("%/[],:#\x00\x7f\x85 20a", max_size=6)
keys = texts | st.integers(-(10**19) + 1, 10**19 - 1)
paths = st.lists(keys, max_size=4).map(tuple)


@given(paths)
def test_split_reads_what_join_writes(path: tuple[Any, ...]) -> None:
    name = join(path)
    assert split(name) == path
    assert not set(name) & set("[],:")
    assert all(ord(letter) >= 32 for letter in name)


@given(paths, paths)
def test_different_paths_have_different_names(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    assert (join(one) == join(two)) == (one == two)


@given(st.text("%/#25FaéB0[-", max_size=8))
def test_a_name_is_read_only_in_its_one_form(name: str) -> None:
    try:
        path = split(name)
    except FormatError:
        return
    assert join(path) == name


@given(st.integers(0, 1000), st.integers(1, 40))
def test_shares_tile_and_differ_by_at_most_one(length: int, owners: int) -> None:
    found = shares(length, owners)
    assert [row for share in found for row in share] == list(range(length))
    sizes = [len(share) for share in found]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert [Rule("balanced", 0).box((length,), role, owners).text() for role in range(owners)] == [
        f"{share.start}:{share.stop}" for share in found
    ]


@given(st.integers(0, 200), st.integers(1, 40))
def test_the_ceil_rule_tiles_in_blocks_of_one_size(length: int, owners: int) -> None:
    boxes = [Rule("ceil", 0).box((length,), role, owners) for role in range(owners)]
    assert [row for box in boxes for row in range(box.lo[0], box.hi[0])] == list(range(length))
    assert {box.size for box in boxes if box.hi[0] < length and not box.empty} <= {-(-length // owners)}


@st.composite
def flat_ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    size = math.prod(shape)
    start = draw(st.integers(0, size))
    return shape, start, draw(st.integers(start, size))


@given(flat_ranges())
def test_flat_boxes_are_contiguous_few_and_exactly_the_range(case: tuple[tuple[int, ...], int, int]) -> None:
    shape, start, stop = case
    flat = np.arange(math.prod(shape)).reshape(shape)
    found = flat_boxes(shape, start, stop)
    assert len(found) <= max(1, 2 * len(shape) - 1)
    at = start
    for first, box in found:
        inside = flat[tuple(map(slice, box.lo, box.hi))].ravel()
        assert first == at
        assert np.array_equal(inside, np.arange(at, at + box.size))
        assert not box.empty
        at += box.size
    assert at == stop


floats = st.integers(0, (1 << 64) - 1).map(lambda bits: struct.unpack("<d", bits.to_bytes(8, "little"))[0])


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Any bits of any dtype in any shape, in any memory form."""
    name = draw(st.sampled_from(dtypes.NAMES))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    nbytes = math.prod(shape) * dtypes.itemsize(name)
    raw = np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8)
    array = (raw % 2 if name == "bool" else raw).view(dtypes.dtype_of(name)).reshape(shape)
    form = draw(st.sampled_from(["c", "transposed", "reversed", "big"]))
    if form == "transposed":
        return array.T
    if form == "reversed":
        return array[::-1] if shape else array
    if form == "big":
        return array.astype(array.dtype.newbyteorder(">"))
    return array.copy()


hashables = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.binary(max_size=4) | texts,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
plain_values = st.recursive(
    hashables
    | st.builds(complex, floats, floats)
    | st.binary(max_size=4).map(bytearray)
    | st.integers(-(1 << 5000), 1 << 5000),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(hashables, max_size=3)
        | st.dictionaries(hashables, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain_values)
def test_values_come_back_to_the_bit(x: Any) -> None:
    data = values.encode(x)
    again = values.decode(data)
    assert type(again) is type(x)
    assert values.encode(again) == data  # which tells types and bits apart


@given(arrays())
def test_arrays_in_values_come_back_to_the_bit(x: Any) -> None:
    again = values.decode(values.encode(x))
    assert (again.dtype, again.shape) == (dtypes.dtype_of(dtypes.name_of(x.dtype)), x.shape)
    assert again.tobytes() == x.astype(again.dtype).tobytes()


def text_keys(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(texts, inner, max_size=3)


nests = st.recursive(
    arrays() | plain_values,
    lambda inner: (
        text_keys(inner)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers(-(10**6), 10**6), inner, max_size=3)
    ),
    max_leaves=10,
)


def bits(x: Any) -> Any:
    """A nest in a form that compares by type and bit, dicts by content."""
    if isinstance(x, np.ndarray):
        name = dtypes.name_of(x.dtype)
        return (name, x.shape, x.astype(dtypes.dtype_of(name)).tobytes())
    if isinstance(x, dict):
        return ("dict", sorted(((bits(key), bits(value)) for key, value in x.items()), key=repr))
    if isinstance(x, list | tuple):
        return (type(x).__name__, [bits(item) for item in x])
    return values.encode(x)


def read_back(state: Any) -> tuple[Restored, dict[str, str]]:
    saved = flatten(state, 0, 1)
    schema = Schema(holding.region for holding in saved.holdings)
    assert [holding.region.name for holding in saved.holdings] == [region.name for region in schema]
    restored = Restored()
    for holding in saved.holdings:
        if holding.data is not None:
            restored.opaque[holding.region.name] = holding.data
        else:
            (part,) = holding.parts
            restored.arrays[holding.region.name] = [np.array(part.array).astype(dtypes.dtype_of(holding.region.dtype))]
    return restored, saved.containers


@settings(max_examples=200)
@given(nests)
def test_nests_come_back_from_names_alone(state: Any) -> None:
    restored, containers = read_back(state)
    assert bits(build(restored, containers)) == bits(state)


def emptied(x: Any) -> Any:
    """A destination of the same form that holds nothing yet."""
    if isinstance(x, np.ndarray):
        return np.zeros_like(x)
    if isinstance(x, dict):
        return {key: emptied(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(emptied(item) for item in x)
    return None


@settings(max_examples=200)
@given(nests)
def test_nests_come_back_into_a_destination(state: Any) -> None:
    restored, containers = read_back(state)
    target = emptied(state)
    assert bits(commit(flatten(target, 0, 1, destination=True), restored, containers)) == bits(state)
