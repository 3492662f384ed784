"""Generations, read and verified: star and tree, only the manifests that are needed, every claim computed again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import genkit
import numpy as np
import pytest

from mpickpt.errors import (
    CheckpointError,
    CoverageError,
    DeadlineError,
    FormatError,
    IntegrityError,
    NonFiniteError,
    NotFoundError,
    StateError,
)
from mpickpt.format.manifest import ChildRecord, Manifest, manifest_file, shard_file
from mpickpt.state.plan import Piece
from mpickpt.state.region import Box, Region, Rule, Schema, shares
from mpickpt.store import generation as generation_module
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation, Want
from mpickpt.store.threads import Pool
from mpickpt.store.writer import Cancelled, Progress

ROWS, COLUMNS, OWNERS = 29, 6, 7
POINT = Box((), ())


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before, "a file descriptor leaked"


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    made = Directory(tmp_path / "run", way=Way.LINK).open(write=True)
    assert made.claim(genkit.claim_of(made))
    return made


class State:
    """A split region with and without a rule, a replicated one, values, per-owner bytes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.arrays = {
            "boxes": rng.standard_normal((ROWS, COLUMNS)),
            "common": rng.standard_normal((ROWS, 2)).astype(np.float32),
            "ruled": rng.standard_normal((ROWS, COLUMNS)),
        }
        self.schema = Schema(
            [
                Region("boxes", "float64", (ROWS, COLUMNS), "array"),
                Region("common", "float32", (ROWS, 2), "array"),
                Region("rng", "uint8", None, "per_owner"),
                Region("ruled", "float64", (ROWS, COLUMNS), "array", Rule("balanced", 0)),
                Region("text", "uint8", None, "value"),
            ]
        )
        self.own: dict[int, list[Piece]] = {}
        self.shared: dict[int, list[Piece]] = {}
        for role, rows in enumerate(shares(ROWS, OWNERS)):
            box = Box((rows.start, 0), (rows.stop, COLUMNS))
            self.own[role] = [self.piece("boxes", box), self.piece("ruled", box), self.opaque("rng", b'"rng%d"' % role)]
        half = Box((0, 0), (ROWS // 2, 2)), Box((ROWS // 2, 0), (ROWS, 2))
        self.shared[0] = [self.piece("common", half[0])]
        self.shared[1] = [self.piece("common", half[1]), self.opaque("text", b'"hello"')]

    def piece(self, name: str, box: Box) -> Piece:
        ordinal = self.schema.ordinal(name)
        array = self.arrays[name]
        return Piece(ordinal, self.schema[ordinal], box, array[box.relative(Box.whole(array.shape))])

    def opaque(self, name: str, data: bytes) -> Piece:
        ordinal = self.schema.ordinal(name)
        return Piece(ordinal, self.schema[ordinal], POINT, data)

    def want(self, name: str, box: Box | None = None) -> Want:
        array = self.arrays[name]
        box = box or Box.whole(array.shape)
        return Want(self.schema.ordinal(name), box, np.zeros(box.shape, array.dtype))

    def check(self, wants: list[Want]) -> None:
        for want in wants:
            array = self.arrays[self.schema[want.ordinal].name]
            np.testing.assert_array_equal(want.out, array[want.box.relative(Box.whole(array.shape))])

    def build(self, directory: Directory, **more: Any) -> str:
        return genkit.build(directory, self.schema, self.own, self.shared, owners=OWNERS, **more)


def visits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the roles whose manifests are read."""
    roles: list[int] = []
    real = generation_module.read_record

    def read(path: str, what: str) -> bytes:
        roles.append(int(os.path.basename(path).split(".")[0]))
        return real(path, what)

    monkeypatch.setattr(generation_module, "read_record", read)
    return roles


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


# ---------------------------------------------------------------------- refusals


def test_a_root_is_pinned_by_its_digest(directory: Directory) -> None:
    state = State()
    name = state.build(directory)
    digest = Generation(directory, name).digest
    assert Generation(directory, name, digest).digest == digest
    with pytest.raises(IntegrityError):
        Generation(directory, name, "blake3:" + 64 * "0")


def test_a_voided_attempt_is_no_generation(directory: Directory) -> None:
    name = State().build(directory, publish=False)
    directory.void(name, DeadlineError("silence"))
    with pytest.raises(NotFoundError, match="never published"):
        Generation(directory, name)
    with pytest.raises(NotFoundError):
        Generation(directory, name.replace("-n.", "-m."))


@pytest.mark.parametrize("file", [manifest_file(3), shard_file(3), shard_file(1, shared=True)])
def test_a_missing_file_is_damage_and_a_missing_root_is_rotation(directory: Directory, file: str) -> None:
    state = State()
    name = state.build(directory)
    generation = Generation(directory, name)
    path = os.path.join(directory.data_of(name), file)
    os.unlink(path)
    wants = [state.want("boxes"), state.want("common")]
    with pytest.raises(IntegrityError, match="missing") as caught:
        generation.read(wants, [])
    assert caught.value.path == path
    bad = [verdict for verdict in Generation(directory, name).verify() if not verdict.ok]
    assert [verdict.path for verdict in bad] == [os.path.relpath(path, directory.path)]
    os.unlink(directory.root_path(name))
    with pytest.raises(NotFoundError, match="rotated") as gone:
        generation.read(wants, [])
    assert isinstance(gone.value, FileNotFoundError)


def test_every_byte_of_a_manifest_matters(directory: Directory) -> None:
    state = State()
    name = state.build(directory, fan_out=2)
    path = Path(directory.data_of(name), manifest_file(4))
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
        with pytest.raises((IntegrityError, FormatError)) as caught:
            Generation(directory, name).child(_record(directory, name, 4))
        assert caught.value.path == str(path)
    path.write_bytes(good)
    Generation(directory, name).child(_record(directory, name, 4))


def _record(directory: Directory, name: str, role: int) -> ChildRecord:
    waiting = list(Generation(directory, name).root.children)
    generation = Generation(directory, name)
    while waiting:
        child = waiting.pop()
        if child.role == role:
            return child
        if child.role < role < child.role + child.size:
            waiting += generation.child(child).children
    raise AssertionError(role)


def test_a_manifest_of_another_capture_is_refused(directory: Directory) -> None:
    def older(manifest: Manifest) -> Manifest:
        if manifest.role == 2:
            return replace(manifest, prefix=replace(manifest.prefix, cursor=11))
        return manifest

    name = State().build(directory, change=older)
    with pytest.raises(FormatError, match="prefix") as caught:
        Generation(directory, name).read([State().want("ruled")], [])
    assert caught.value.path == os.path.join(directory.data_of(name), manifest_file(2))


@pytest.mark.parametrize("lies", [{0: 1}, {3: 1, 4: -1}])
def test_a_cover_is_computed_again(directory: Directory, lies: dict[int, int]) -> None:
    def lie(manifest: Manifest) -> Manifest:
        return replace(manifest, cover=(manifest.cover + lies.get(manifest.role, 0)) % 2**256)

    name = State().build(directory, change=lie)
    with pytest.raises(FormatError, match="cover"):
        Generation(directory, name).read([State().want("ruled")], [])
    bad = [verdict for verdict in Generation(directory, name).verify() if not verdict.ok]
    assert len(bad) == len(lies)
    assert all(isinstance(verdict.error, FormatError) for verdict in bad)


@pytest.mark.parametrize("what", ["gap", "overlap", "leave out a value"])
def test_pieces_that_do_not_tile_are_refused(directory: Directory, what: str) -> None:
    state = State()
    box = state.own[3][0].box
    if what == "gap":
        state.own[3][0] = state.piece("boxes", box.rows(0, 3))
    elif what == "overlap":  # though byte counts add up
        state.own[3][0] = state.piece("boxes", Box((box.lo[0] + 1, 0), (box.hi[0] + 1, COLUMNS)))
    else:
        state.shared[1].pop()
    name = state.build(directory)
    with pytest.raises(CoverageError) as caught:
        Generation(directory, name).read([], [])
    assert caught.value.path == directory.root_path(name)
    verdicts = Generation(directory, name).verify()
    assert [verdict.path for verdict in verdicts if not verdict.ok] == [f"roots/{name}"]


def test_a_gap_is_refused_by_the_reader_though_the_sums_were_made_to_fit(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    box = state.own[3][0].box
    state.own[3][0] = state.piece("boxes", Box((box.lo[0] + 1, 0), (box.hi[0] + 1, COLUMNS)))
    name = state.build(directory)
    monkeypatch.setattr(Generation, "check_root", lambda _: None)
    wants = [state.want("boxes")]
    with pytest.raises(CoverageError) as caught:
        Generation(directory, name).read(wants, [])
    assert caught.value.region == "boxes"
    assert not wants[0].out.any(), "a destination was filled"
    wants = [state.want("boxes", box)]
    with pytest.raises(CoverageError):
        Generation(directory, name).read(wants, [], 3)


def test_non_finite_values_are_refused_intact_digests_or_not(directory: Directory) -> None:
    state = State()
    state.arrays["boxes"][17, 4] = np.nan
    state.arrays["common"][2, 1] = -np.inf
    name = state.build(directory)
    for region, index in (("boxes", "(17, 4)"), ("common", "(2, 1)")):
        with pytest.raises(NonFiniteError) as caught:
            Generation(directory, name).read([state.want(region)], [], refuses=lambda _: True)
        assert caught.value.region == region
        assert index in str(caught.value.found)
    rows = Box((15, 3), (20, 6))
    with pytest.raises(NonFiniteError) as caught:
        Generation(directory, name).read([state.want("boxes", rows)], [], refuses=lambda name: name == "boxes")
    assert "(17, 4)" in str(caught.value.found)
    wants = [state.want("boxes"), state.want("common")]
    Generation(directory, name).read(wants, [], refuses=lambda _: False)
    state.check(wants)


def test_verify_gives_a_verdict_a_file_and_goes_on(directory: Directory) -> None:
    state = State()
    name = state.build(directory, fan_out=2)
    data = directory.data_of(name)
    good = Generation(directory, name).verify()
    assert len(good) == 1 + (OWNERS - 1) + OWNERS + 2
    assert good[0].path == f"roots/{name}"
    damaged = [shard_file(0), shard_file(6), manifest_file(2)]
    for file in damaged:
        with open(os.path.join(data, file), "r+b") as opened:
            opened.seek(-40, os.SEEK_END)
            opened.write(b"x")
    os.mkfifo(os.path.join(data, "00000", "fifo"))
    Path(data, "00000", "stray").write_bytes(b"")
    bad = {verdict.path: verdict.error for verdict in Generation(directory, name).verify() if not verdict.ok}
    assert set(bad) == {os.path.join("data", name[:-5], file) for file in damaged}
    assert all(isinstance(error, CheckpointError) for error in bad.values())
    for file in damaged:
        os.unlink(os.path.join(data, file))
    assert {v.path for v in Generation(directory, name).verify("fast") if not v.ok} == set(bad)
    with pytest.raises(StateError):
        Generation(directory, name).verify("thorough")


def test_verify_in_shares_checks_each_file_once(directory: Directory) -> None:
    name = State().build(directory, fan_out=3)
    whole = [verdict.path for verdict in Generation(directory, name).verify()]
    parts = [Generation(directory, name).verify("full", (k, 3)) for k in range(3)]
    assert sorted(v.path for part in parts for v in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_flipped_payload_is_noticed_by_both_levels(directory: Directory) -> None:
    state = State()
    name = state.build(directory)
    path = os.path.join(directory.data_of(name), shard_file(2))
    with open(path, "r+b") as opened:
        opened.seek(4096 + 70)
        opened.write(b"\xff\xee")
    for level in ("full", "fast"):
        with pytest.raises(IntegrityError) as caught:
            Generation(directory, name).read([state.want("boxes")], [], level=level)
        assert caught.value.path == path
        assert caught.value.role == 2
        bad = [verdict for verdict in Generation(directory, name).verify(level) if not verdict.ok]
        assert [verdict.path for verdict in bad] == [os.path.relpath(path, directory.path)]


def test_what_is_asked_for_wrongly_is_refused(directory: Directory) -> None:
    state = State()
    generation = Generation(directory, state.build(directory))
    out = np.zeros((ROWS, COLUMNS))
    whole = Box.whole((ROWS, COLUMNS))
    for want in (
        Want(9, whole, out),
        Want(-1, whole, out),
        Want(2, whole, out),
        Want(0, Box((0, 0), (ROWS + 1, COLUMNS)), np.zeros((ROWS + 1, COLUMNS))),
        Want(0, Box((0,), (ROWS,)), np.zeros(ROWS)),
        Want(0, whole, np.zeros((ROWS, COLUMNS), np.float32)),
        Want(0, whole, out.T),
    ):
        with pytest.raises(StateError):
            generation.read([want], [])
    for opaque in (0, 5, -1):
        with pytest.raises(StateError):
            generation.read([], [opaque])
    with pytest.raises(StateError, match="without a role"):
        generation.read([], [2])
    with pytest.raises(StateError):
        generation.read([], [], level="none")
    progress = Progress()
    progress.cancel()
    with pytest.raises(Cancelled):
        generation.read([state.want("boxes")], [], progress=progress)


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
