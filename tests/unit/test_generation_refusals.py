"""What a generation is refused for: damage, contradiction, gaps, non-finite values; a verdict for every file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import dirkit
import numpy as np
import pytest
from gencase import COLUMNS, OWNERS, ROWS, State

import mpickpt
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
from mpickpt.state.region import Box
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation, Want
from mpickpt.store.writer import Cancelled, Progress

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return dirkit.claimed(tmp_path, Way.LINK)


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


@pytest.mark.parametrize("shares", [1, 3, 2 * OWNERS + 1])
@pytest.mark.parametrize("fan_out", [None, 3])
def test_verify_in_shares_checks_each_file_once(directory: Directory, shares: int, fan_out: int | None) -> None:
    name = State().build(directory, fan_out=fan_out)
    whole = [verdict.path for verdict in Generation(directory, name).verify()]
    parts = [Generation(directory, name).verify("full", (k, shares)) for k in range(shares)]
    assert sorted(v.path for part in parts for v in part) == sorted(whole)
    # A share of the roles is at most one role more than another: two files, and of what the root names, one or two.
    assert max(map(len, parts)) - min(map(len, parts)) <= 4


def test_more_shares_than_owners_check_each_file_too(tmp_path: Path) -> None:
    with mpickpt.Checkpointer(tmp_path / "run", alone=True) as ckpt:
        ckpt.save({"all": np.ones(3), "own": mpickpt.PerOwner(1)}, step=1)
    directory = Directory(tmp_path / "run")
    (root,) = directory.roots()
    found = [v.path for k in range(4) for v in Generation(directory, root.name).verify("full", (k, 4))]
    assert sorted(found) == sorted(v.path for v in Generation(directory, root.name).verify())
    assert len(found) == 3


def test_verify_in_shares_reads_only_the_manifests_on_the_way(directory: Directory) -> None:
    name = State().build(directory, fan_out=3)
    whole = Generation(directory, name)
    owners = whole.root.owners
    for role in range(owners):
        generation, way, children = Generation(directory, name), [], whole.root.children
        assert all(verdict.ok for verdict in generation.verify("full", (role, owners)))
        while record := next((child for child in children if child.role <= role < child.role + child.size), None):
            way.append(record.role)
            children = whole.child(record).children
        assert sorted(generation._manifests) == way


def test_a_damaged_manifest_is_told_by_all_that_have_to_read_it(directory: Directory) -> None:
    name = State().build(directory, fan_out=2)
    generation = Generation(directory, name)
    owners, child = generation.root.owners, generation.root.children[0]
    assert child.size > 1
    path = os.path.join(directory.data_of(name), manifest_file(child.role))
    os.truncate(path, 10)
    shown = os.path.relpath(path, directory.path)
    for role in range(owners):
        told = {verdict.path: verdict.ok for verdict in Generation(directory, name).verify("full", (role, owners))}
        assert told.get(shown, True) == (role not in range(child.role, child.role + child.size))


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
