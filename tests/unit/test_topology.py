"""The tree as arithmetic: who is whose parent, at every size, fan-out and size of nodes; and the options for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpickpt
from mpickpt.cluster.topology import MOST_IN_A_STAR, Starts, Topology
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import StateError


def nodes_of(per_node: int | None) -> tuple[Starts, ...]:
    return () if per_node is None else (((0, per_node),),)


@given(st.integers(1, 400), st.integers(2, 20), st.one_of(st.none(), st.integers(2, 40)))
def test_every_role_has_one_parent_and_subtrees_are_ranges(owners: int, fan_out: int, per_node: int | None) -> None:
    topology = Topology.of("tree", owners, fan_out, nodes_of(per_node))
    for role in range(owners):
        place = topology.place(role)
        at = role + 1
        for child, size in place.children:
            assert child == at  # in preorder, without a gap
            assert topology.place(child).parent == role
            assert topology.place(child).size == size
            assert topology.place(child).height == place.height + 1
            at += size
        assert at == role + place.size
        assert len(place.children) <= fan_out


@given(st.integers(2, 400), st.integers(2, 20))
def test_children_share_as_evenly_as_can_be_larger_first(owners: int, fan_out: int) -> None:
    for role in range(owners):
        sizes = [size for _, size in Topology.of("tree", owners, fan_out).place(role).children]
        assert sizes == sorted(sizes, reverse=True)
        assert not sizes or max(sizes) - min(sizes) <= 1


@given(st.integers(2, 400), st.integers(2, 20), st.integers(2, 40))
def test_a_range_that_spans_nodes_is_cut_where_nodes_begin(owners: int, fan_out: int, per_node: int) -> None:
    topology = Topology.of("tree", owners, fan_out, nodes_of(per_node))
    for role in range(owners):
        place = topology.place(role)
        if (role + 1) // per_node != (role + place.size - 1) // per_node:
            assert all(child % per_node == 0 for child, _ in place.children[1:])


def starts_of(sizes: list[int]) -> Starts:
    """Give where groups of such sizes begin, one entry a group."""
    return tuple((sum(sizes[:at]), size) for at, size in enumerate(sizes))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(2, 20))
def test_nodes_of_any_sizes_are_followed(sizes: list[int], fan_out: int) -> None:
    owners, starts = sum(sizes), starts_of(sizes)
    begins = {first for first, _ in starts}
    topology = Topology.of("tree", owners, fan_out, (starts,))
    for role in range(owners):
        place, at = topology.place(role), role + 1
        for child, size in place.children:
            assert child == at
            assert topology.place(child).parent == role
            at += size
        assert at == role + place.size
        assert len(place.children) <= fan_out
        if begins & set(range(role + 2, role + place.size)):
            assert all(child in begins for child, _ in place.children[1:])


@given(st.integers(2, 400), st.integers(2, 20), st.integers(2, 40))
def test_equal_nodes_told_one_by_one_are_the_same_tree(owners: int, fan_out: int, per_node: int) -> None:
    starts = starts_of([per_node] * -(-owners // per_node))
    for role in range(owners):
        assert Topology.of("tree", owners, fan_out, (starts,)).place(role) == Topology.of(
            "tree", owners, fan_out, nodes_of(per_node)
        ).place(role)


def test_subtrees_lie_below_one_switch_where_that_leaves_them_even_enough() -> None:
    nodes, leaves = ((0, 4),), starts_of([20, 28, 20, 28])  # 4 owners a node; four switches

    def children(fan_out: int, *grounds: Starts) -> list[int]:
        return [child for child, _ in Topology.of("tree", 96, fan_out, grounds).place(0).children]

    assert children(4, nodes) == [1, 24, 48, 72]
    assert children(4, leaves, nodes) == [1, 20, 48, 68]
    # Of two halves, one begins where a cut is near; the others stay where nodes begin, and there are as many as before.
    halves = starts_of([40, 56])
    assert children(6, nodes) == [1, 16, 32, 48, 64, 80]
    assert children(6, halves, nodes) == [1, 16, 40, 48, 64, 80]
    assert children(4, starts_of([48, 48]), leaves, nodes) == [1, 20, 48, 68]


def test_nodes_that_are_whole_subtrees_have_one_owner_each_whose_parent_is_elsewhere() -> None:
    topology = Topology.of("tree", 256, 16, nodes_of(8))
    crossing = [r for r in range(1, 256) if (topology.place(r).parent or 0) // 8 != r // 8]
    assert crossing == list(range(8, 256, 8))


def test_auto_is_a_star_up_to_a_number_of_owners() -> None:
    assert Topology.of("auto", MOST_IN_A_STAR, 4).star
    assert not Topology.of("auto", MOST_IN_A_STAR + 1, 4).star
    assert len(Topology.of("star", 500, 4).place(0).children) == 499


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topology": "ring"}, "'auto' or 'star' or 'tree'"),
        ({"topology": None}, "'auto' or 'star' or 'tree'"),
        ({"fan_out": 1}, "2 or more"),
        ({"fan_out": True}, "2 or more"),
        ({"fan_out": "16"}, "2 or more"),
    ],
)
def test_options_that_are_none_are_refused(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(StateError, match=expected) as caught:
        mpickpt.Checkpointer(tmp_path / "run", alone=True, **options)
    assert caught.value.found == repr(next(iter(options.values())))


def test_gather_is_refused_in_a_tree_before_anything_is_made(tmp_path: Path) -> None:
    (one, *_) = Wiring.local(8, Topology.of("tree", 8, 2))
    with pytest.raises(StateError, match="only for a star"):
        mpickpt.Checkpointer(tmp_path / "run", one, write="gather")
    assert not (tmp_path / "run").exists()
