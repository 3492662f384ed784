"""The sums accept boxes exactly when each copy tiles its region once, and the slow path names what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpickpt.state import coverage
from mpickpt.state.region import Box, Region, Schema

Claim = tuple[int, int, Box]
Shape = tuple[int, ...]

shapes = st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)


@st.composite
def tilings(draw: st.DrawFn, shape: Shape) -> list[Box]:
    """Cut a region again and again, each time one box along one axis."""
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 8)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(box.lo[axis], box.hi[axis]))  # at an end: one half is empty
        boxes += [
            Box(box.lo, (*box.hi[:axis], cut, *box.hi[axis + 1 :])),
            Box((*box.lo[:axis], cut, *box.lo[axis + 1 :]), box.hi),
        ]
    return boxes


@st.composite
def decompositions(draw: st.DrawFn) -> tuple[Shape, int, list[Claim]]:
    shape = draw(shapes)
    copies = draw(st.integers(1, 3))
    boxes = draw(tilings(shape))
    roles = st.integers(0, 4)
    return shape, copies, [(draw(roles), k, box) for k in range(copies) for box in boxes]


def held(shape: Shape, claims: Sequence[Claim], ordinal: int = 5) -> int:
    return sum(coverage.weight(k) * coverage.corners(ordinal, shape, [box]) for _, k, box in claims) & coverage.MASK


def expected(shape: Shape, copies: int, ordinal: int = 5) -> int:
    whole = coverage.corners(ordinal, shape, [Box.whole(shape)])
    return coverage.weight_sum(0, copies) * whole & coverage.MASK


def counts(shape: Shape, copies: int, claims: Sequence[Claim]) -> np.ndarray:
    """How often each element of each copy is held: the definition, element by element."""
    found = np.zeros((copies, *shape), dtype=int)
    for _, k, box in claims:
        found[(k, *box.relative(Box.whole(shape)))] += 1
    return found


def region_of(shape: Shape) -> Region:
    return Region("w", "float32", shape, "array")


def check_named(shape: Shape, copies: int, claims: Sequence[Claim]) -> None:
    """Check what `find_fault` says against the count of every element."""
    error = coverage.find_fault(Schema([region_of(shape)]), {0: claims}, {0: copies})
    assert error is not None
    assert error.region == "w"
    fault = coverage.diagnose(region_of(shape), claims, copies)
    assert fault is not None
    assert fault.text in error.message
    found = counts(shape, copies, claims)
    wrong = [k for k in range(copies) if (found[k] != 1).any()]
    assert fault.copy == wrong[0]
    mine = found[fault.copy]
    at = mine[fault.box.relative(Box.whole(shape))]
    assert at.size > 0
    assert (at == at.flat[0]).all()
    if fault.kind == "missing":
        assert (mine == 0).all()
    elif fault.kind == "doubled":
        assert (mine == mine.flat[0]).all()
        assert mine.flat[0] > 1
    else:
        assert fault.kind == ("gap" if at.flat[0] == 0 else "overlap")
        first = np.unravel_index(int(np.argmax(mine.ravel() != 1)), shape) if shape else ()
        assert fault.box.lo == tuple(map(int, first))
    if fault.kind == "overlap":
        holders = {role for role, k, box in claims if k == fault.copy and box.contains(fault.box)}
        assert holders <= set(fault.roles)


@given(decompositions())
def test_each_tiling_is_accepted(case: tuple[Shape, int, list[Claim]]) -> None:
    shape, copies, claims = case
    assert held(shape, claims) == expected(shape, copies)
    assert coverage.find_fault(Schema([region_of(shape)]), {0: claims}, {0: copies}) is None


@settings(max_examples=200)
@given(decompositions(), st.data())
def test_each_planted_fault_is_refused_and_named(case: tuple[Shape, int, list[Claim]], data: st.DataObject) -> None:
    shape, copies, claims = case
    full = [i for i, (_, _, box) in enumerate(claims) if not box.empty]
    index = data.draw(st.sampled_from(full))
    role, k, box = claims[index]
    kinds = ["gap", "twice"]
    axes = [a for a, end in enumerate(shape) if box.hi[a] < end or box.lo[a] > 0]
    if axes:
        kinds.append("shift")
    if copies > 1:
        kinds += ["doubled", "relabelled"]
    kind = data.draw(st.sampled_from(kinds))
    broken = list(claims)
    if kind == "gap":
        del broken[index]
    elif kind == "twice":
        broken.append((role + 1, k, box))
    elif kind == "shift":  # as many bytes as before, elsewhere
        axis = data.draw(st.sampled_from(axes))
        by = 1 if box.hi[axis] < shape[axis] else -1
        lo, hi = list(box.lo), list(box.hi)
        lo[axis] += by
        hi[axis] += by
        broken[index] = (role, k, Box(tuple(lo), tuple(hi)))
    elif kind == "doubled":  # a whole copy under the number of another
        broken = [(r, (k if copy == (k + 1) % copies else copy), b) for r, copy, b in claims]
    else:
        broken[index] = (role, (k + 1) % copies, box)
    assert held(shape, broken) != expected(shape, copies)
    check_named(shape, copies, broken)


@settings(max_examples=200)
@given(shapes, st.integers(1, 2), st.data())
def test_sums_agree_with_the_count_of_every_element(shape: Shape, copies: int, data: st.DataObject) -> None:
    """Whatever the boxes are, not only those that were a tiling once."""
    edges = [st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted) for n in shape]
    boxes = st.tuples(*edges).map(lambda pairs: Box(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)))
    claims = data.draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, copies - 1), boxes), min_size=1, max_size=6)
    )
    tiled = bool((counts(shape, copies, claims) == 1).all())
    assert (held(shape, claims) == expected(shape, copies)) == tiled
    if not tiled:
        check_named(shape, copies, claims)


@given(decompositions())
def test_contents_of_equal_copies_cancel_and_one_flipped_byte_does_not(
    case: tuple[Shape, int, list[Claim]],
) -> None:
    shape, copies, claims = case
    values = np.arange(int(np.prod(shape)), dtype="<u2").reshape(shape)

    def total(claims: Sequence[Claim], spoilt: int | None) -> int:
        found = 0
        for i, (_, k, box) in enumerate(claims):
            if box.empty or copies == 1:
                continue
            part = np.array(values[box.relative(Box.whole(shape))])
            if i == spoilt:
                part.flat[0] ^= 1
            factor = coverage.weight(k) if k else -coverage.weight_sum(1, copies)
            found += factor * coverage.content(5, box, [part.tobytes()])
        return found & coverage.MASK

    assert total(claims, None) == 0
    full = [i for i, (_, _, box) in enumerate(claims) if not box.empty]
    if copies > 1:
        assert total(claims, full[len(full) // 2]) != 0


@pytest.mark.parametrize("many", [4000])
def test_thousands_of_boxes_are_diagnosed_at_once(many: int) -> None:
    side = int(many**0.5)
    shape = (side * 3, side * 5)
    grid = [
        (i % 7, 0, Box((3 * (i // side), 5 * (i % side)), (3 * (i // side) + 3, 5 * (i % side) + 5)))
        for i in range(side * side)
    ]
    assert coverage.diagnose(region_of(shape), grid, 1) is None
    at = len(grid) // 2 + 3
    missing = grid.pop(at)
    fault = coverage.diagnose(region_of(shape), grid, 1)
    assert fault is not None
    assert (fault.kind, fault.box.lo) == ("gap", missing[2].lo)
    assert fault.box == missing[2]
