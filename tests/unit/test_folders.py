"""Each folder of an attempt is synced by exactly one owner, which hears of all files in it before it does so."""

from __future__ import annotations

from collections import Counter

import pytest

from mpickpt.cluster.deciding import folders_of
from mpickpt.cluster.topology import Topology
from mpickpt.format.names import FOLDER


@pytest.mark.parametrize("fan_out", [2, 3, 16, 5000])
@pytest.mark.parametrize("per_node", [None, 4, 7, 64])
@pytest.mark.parametrize("owners", [1, 2, 3, 64, 512, 513, 1000, 1024, 1025, 4000])
def test_each_folder_is_synced_once_by_who_has_heard_of_all_in_it(
    owners: int, fan_out: int, per_node: int | None
) -> None:
    topology = Topology.of("tree", owners, fan_out, () if per_node is None else (((0, per_node),),))
    synced = Counter[int]()
    for role in range(owners):
        place = topology.place(role)
        for folder in folders_of(place):
            synced[folder] += 1
            first, end = FOLDER * folder, min(owners, FOLDER * (folder + 1))
            assert role <= first
            assert end <= role + place.size
            # The owner that is alone in a folder has written in it itself; all others say so by their commitments.
            assert place.children or owners == 1
    assert synced == dict.fromkeys(range(-(-owners // FOLDER)), 1)


def test_no_owner_of_a_tree_syncs_more_folders_than_it_has_children_and_one() -> None:
    for owners in (1000, 10_000, 200_000):
        topology = Topology.of("tree", owners, 16)
        for role in (0, *(child for child, _ in topology.place(0).children)):
            assert len(list(folders_of(topology.place(role)))) <= 17
