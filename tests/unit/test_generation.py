"""Generations, read and verified: star and tree, only the manifests that are needed, every claim computed again."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dirkit
import genkit
import numpy as np
import pytest
from gencase import COLUMNS, OWNERS, ROWS, State, visits

from mpickpt.errors import (
    IntegrityError,
    NotFoundError,
)
from mpickpt.format.manifest import Manifest, shard_file
from mpickpt.state.plan import Piece
from mpickpt.state.region import Box, Region, Schema, shares
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation, Want
from mpickpt.store.threads import Pool
from mpickpt.store.writer import Progress

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return dirkit.claimed(tmp_path, Way.LINK)


TREES = pytest.mark.parametrize("fan_out", [None, 1, 2, 3])


@TREES
@pytest.mark.parametrize("level", ["full", "fast"])
def test_everything_comes_back(directory: Directory, fan_out: int | None, level: str) -> None:
    state = State()
    name = state.build(directory, fan_out=fan_out)
    with Pool(2, "read") as pool:
        generation = Generation(directory, name, pool=pool)
        wants = [state.want("boxes"), state.want("ruled"), state.want("common")]
        progress = Progress()
        found = generation.read(wants, [4], level=level, progress=progress, refuses=lambda _: True)
        state.check(wants)
        assert found == {4: b'"hello"'}
        assert progress.done > 2 * ROWS * COLUMNS * 8
        for role in range(OWNERS):
            assert Generation(directory, name).read([], [2], role) == {2: b'"rng%d"' % role}
        assert all(verdict.ok for verdict in generation.verify(level))
    assert generation.read([], [2], OWNERS) == {}
    assert generation.unlisted() == []


@TREES
def test_the_same_shape_reads_only_the_path_to_its_role(
    directory: Directory, fan_out: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    name = state.build(directory, fan_out=fan_out)
    tree = genkit.subtree(0, OWNERS, fan_out or OWNERS)
    for role, rows in enumerate(shares(ROWS, OWNERS)):
        box = Box((rows.start, 0), (rows.stop, COLUMNS))
        path, node = [], tree
        while node["role"] != role:
            node = next(child for child in node["children"] if child["role"] <= role < child["role"] + child["size"])
            path.append(node["role"])
        with monkeypatch.context() as patch:
            roles = visits(patch)
            wants = [state.want("boxes", box), state.want("ruled", box), state.want("common")]
            assert Generation(directory, name).read(wants, [2, 4], role) == {2: b'"rng%d"' % role, 4: b'"hello"'}
        assert roles == path
        state.check(wants)


@TREES
@pytest.mark.parametrize("region", ["boxes", "ruled"])
def test_other_boxes_read_only_the_subtrees_that_meet_them(
    directory: Directory, fan_out: int | None, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    name = state.build(directory, fan_out=fan_out)
    roles = visits(monkeypatch)
    rows = shares(ROWS, OWNERS)
    wants = [state.want(region, Box((rows[4].stop - 1, 2), (rows[5].stop, 3)))]
    Generation(directory, name).read(wants, [])
    state.check(wants)
    assert {4, 5} <= set(roles)
    tree = genkit.subtree(0, OWNERS, fan_out or OWNERS)

    def meeting(node: dict[str, Any]) -> set[int]:
        span = range(node["role"], node["role"] + node["size"])
        if not {4, 5} & set(span):
            return set()
        return {node["role"]}.union(*map(meeting, node["children"]))

    assert set(roles) == meeting(tree) - {0}


def test_replicated_bytes_and_values_need_the_root_alone(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State()
    name = state.build(directory)
    roles = visits(monkeypatch)
    wants = [state.want("common", Box((3, 1), (ROWS - 1, 2)))]
    assert Generation(directory, name).read(wants, [4]) == {4: b'"hello"'}
    state.check(wants)
    assert roles == []


def test_bounds_that_are_left_out_or_wrong_lose_nothing(directory: Directory) -> None:
    state = State()
    name = state.build(directory, bounds=False)
    wants = [state.want("boxes"), state.want("ruled")]
    Generation(directory, name).read(wants, [])
    state.check(wants)

    def narrow(manifest: Manifest) -> Manifest:
        children = tuple(replace(child, bounds=()) for child in manifest.children)
        return replace(manifest, children=children)

    name = state.build(directory, nonce="narrow", change=narrow, fan_out=2)
    wants = [state.want("boxes")]
    Generation(directory, name).read(wants, [])
    state.check(wants)


def test_gathered_shards_all_stand_in_the_root(directory: Directory) -> None:
    state = State()
    name = state.build(directory)
    generation = Generation(directory, name)
    own = [shard for _, manifest in list(generation.manifests())[1:] for shard in manifest.shards]
    root = replace(generation.root, shards=generation.root.shards + tuple(own), children=())
    os.unlink(directory.root_path(name))
    assert directory.publish_root(name, root.encode()[0])
    wants = [state.want("boxes"), state.want("common")]
    generation = Generation(directory, name)
    assert generation.read(wants, [2], 3) == {2: b'"rng3"'}
    state.check(wants)
    assert len(generation.unlisted()) == OWNERS - 1  # the group manifests are of no more use
    assert all(verdict.ok for verdict in generation.verify())


def test_files_that_were_moved_are_found_when_they_are_named(directory: Directory, tmp_path: Path) -> None:
    state = State()
    name = state.build(directory)
    place = tmp_path / "elsewhere"
    place.mkdir()
    bindings = {}
    for number, (folder, _, files) in enumerate(os.walk(directory.data_of(name))):
        for file in files:
            moved = place / f"{number}-{file}.moved"
            shutil.move(os.path.join(folder, file), moved)
            bindings[os.path.relpath(os.path.join(folder, file), directory.data_of(name))] = str(moved)
    root = place / "the root"
    shutil.move(directory.root_path(name), root)
    for generation in (Generation.at(str(root), bindings), Generation.at(str(root), bindings, data=str(tmp_path))):
        wants = [state.want("boxes"), state.want("common")]
        generation.read(wants, [4])
        state.check(wants)
        assert all(verdict.ok for verdict in generation.verify())
    # Records are matched by digest and role: two files that are exchanged are noticed.
    one, two = shard_file(3), shard_file(4)
    bindings[one], bindings[two] = bindings[two], bindings[one]
    with pytest.raises(IntegrityError):
        Generation.at(str(root), bindings).read([state.want("boxes")], [])
    with pytest.raises(NotFoundError):
        Generation.at(str(place / "absent"))


def test_thirty_thousand_regions_take_well_under_a_second_a_step(directory: Directory) -> None:
    count = 30_000
    block = np.arange(count * 16, dtype=np.float32).reshape(count, 16)
    schema = Schema([Region(f"layer{n:05}", "float32", (16,), "array") for n in range(count)])
    box = Box.whole((16,))
    pieces = [Piece(n, schema[n], box, block[n]) for n in range(count)]
    name = genkit.build(directory, schema, {0: pieces}, owners=1, chunk=1 << 16)
    out = np.zeros_like(block)
    began = time.process_time()
    generation = Generation(directory, name)
    generation.read([Want(n, box, out[n]) for n in range(count)], [], refuses=lambda _: True)
    took = time.process_time() - began
    np.testing.assert_array_equal(out, block)
    assert took < 10, f"{took:.1f} s of processor time"  # about 1 s alone: something quadratic would take minutes
