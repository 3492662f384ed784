"""`open_store`: lists, reads and checks a store without MPI and without writing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import storekit

import mpickpt
from mpickpt import PerOwner, Sharded, Split, errors, shares
from mpickpt.format.names import root_name
from mpickpt.format.records import Void
from mpickpt.state.region import Region
from mpickpt.store import compare
from mpickpt.store.directory import Directory
from mpickpt.store.inspect import open_store


def states(owners: int = 3, shift: float = 0.0) -> list[dict[str, Any]]:
    """Make the same state for any number of owners: rows by rule, columns by boxes, copies, values, per-owner data."""
    whole = np.arange(40, dtype=np.float32).reshape(10, 4) + np.float32(shift)
    tall = np.arange(12, dtype=np.int64).reshape(3, 4)
    found = []
    for role, (rows, columns) in enumerate(zip(shares(10, owners), shares(4, owners), strict=True)):
        block = np.ascontiguousarray(tall[:, columns.start : columns.stop])
        found.append(
            {
                "w": Split(whole[rows.start : rows.stop].copy(), length=10),
                "tall": Sharded(block, shape=(3, 4), at=(0, columns.start)),
                "b": np.full(7, 0.5, ml_dtypes.bfloat16),
                "none": np.zeros((0, 3)),
                "point": np.array(5, np.uint8),
                "layers": [np.ones(2), (1, np.ones(1))],
                "opt": {"lr": 1e-3, "name": "adam é", "big": 10**30},
                "seed": PerOwner(("owner", role)),
            }
        )
    return found


def whole(owners: int = 3, shift: float = 0.0) -> dict[str, Any]:
    """Give what reading the whole state gives back."""
    return {
        "w": np.arange(40, dtype=np.float32).reshape(10, 4) + np.float32(shift),
        "tall": np.arange(12, dtype=np.int64).reshape(3, 4),
        "b": np.full(7, 0.5, ml_dtypes.bfloat16),
        "none": np.zeros((0, 3)),
        "point": np.array(5, np.uint8),
        "layers": [np.ones(2), (1, np.ones(1))],
        "opt": {"lr": 1e-3, "name": "adam é", "big": 10**30},
        "seed": {role: ("owner", role) for role in range(owners)},
    }


def same(one: Any, two: Any) -> bool:
    """Compare nests: types, dtypes, shapes, bytes."""
    if isinstance(one, np.ndarray):
        return type(two) is np.ndarray and (one.dtype, one.shape, one.tobytes()) == (
            two.dtype,
            two.shape,
            two.tobytes(),
        )
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def snapshot(path: Path) -> dict[str, tuple[int, int]]:
    """Give every file and folder with its change time and size."""
    found = {}
    for place in (path, *path.rglob("*")):
        stat = place.lstat()
        found[str(place)] = (stat.st_mtime_ns, stat.st_size)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two generations, steps 10 and 20, of three owners."""
    path = tmp_path / "run"
    storekit.publish(path, states(), step=10, cursor=640)
    storekit.publish(path, states(shift=1.0), step=20, cursor=1280)
    return path


@pytest.mark.parametrize("tree", [False, True], ids=["star", "tree"])
@pytest.mark.parametrize("owners", [1, 3])
def test_the_whole_state_is_read_as_it_was(tmp_path: Path, owners: int, tree: bool) -> None:
    storekit.publish(tmp_path / "run", states(owners), step=1, tree=tree)
    assert same(open_store(tmp_path / "run").read(), whole(owners))


def test_any_step_is_read(run: Path) -> None:
    store = open_store(run)
    assert same(store.read(10), whole())
    assert same(store.read(20), whole(shift=1.0))
    assert same(store.read(), whole(shift=1.0))


def test_chosen_regions_are_read_by_name(run: Path) -> None:
    found = open_store(run).read(10, ["opt/lr", "w", "seed", "layers/#1/#1"])
    expected = whole()
    assert list(found) == ["opt/lr", "w", "seed", "layers/#1/#1"]
    assert same(found["w"], expected["w"])
    assert found["opt/lr"] == 1e-3
    assert found["seed"] == expected["seed"]


def test_names_that_are_not_there_are_all_listed(run: Path) -> None:
    with pytest.raises(errors.SchemaError) as caught:
        open_store(run).read(None, ["w", "x", "y/z"])
    assert "'x', 'y/z'" in str(caught.value.found)


def test_generations_are_listed_oldest_first(run: Path) -> None:
    listed = open_store(run).generations()
    assert [(one.step, one.cursor, one.epoch, one.owners, one.status) for one in listed] == [
        (10, 640, 1, 3, "live"),
        (20, 1280, 1, 3, "live"),
    ]
    assert all(one.root is not None and one.root.startswith("blake3:") for one in listed)
    assert listed[0].nbytes == 160 + 96 + 14 + 0 + 1 + 16 + 8
    assert listed[0].created == "2026-01-01T00:00:00+00:00"


def test_nothing_is_written(run: Path) -> None:
    before = snapshot(run)
    store = open_store(run)
    store.generations()
    store.read()
    store.verify()
    store.verify_all("fast")
    assert snapshot(run) == before


def test_an_orphaned_generation_is_named_by_its_digest_only(run: Path) -> None:
    store = open_store(run)
    first, second = store.generations()
    assert first.root is not None
    assert second.root is not None
    storekit.claim(Directory(run), 2, (1, 10, first.root))
    assert [one.status for one in store.generations()] == ["live", "orphaned"]
    assert store.generation().step == 10
    with pytest.raises(errors.EpochError, match="off the lineage"):
        store.read(20)
    assert same(store.read(second.root[:20]), whole(shift=1.0))
    storekit.publish(run, states(shift=2.0), step=20, epoch=2)
    assert same(store.read(20), whole(shift=2.0))
    report = store.verify_all()
    assert report.ok
    assert [one.status for one in report.generations] == ["live", "orphaned", "live"]


def test_a_digest_that_names_none_or_several_is_refused(run: Path) -> None:
    store = open_store(run)
    with pytest.raises(errors.NotFoundError, match="several"):
        store.generation("blake3:")
    with pytest.raises(errors.NotFoundError, match="no root's digest"):
        store.generation("sha256:00")


def test_a_step_that_is_none_is_refused(run: Path) -> None:
    with pytest.raises(errors.NotFoundError) as caught:
        open_store(run).read(15)
    assert caught.value.found == "steps 10, 20"
    with pytest.raises(errors.StateError):
        open_store(run).generation(-1)
    with pytest.raises(errors.StateError):
        open_store(run).verify(10, "deep")


def test_a_void_is_no_generation_and_is_well(run: Path) -> None:
    name = root_name(30, 1, "dead")
    error = errors.DeadlineError("an owner is silent", role=1)
    (run / "roots" / name).write_bytes(Void(name.removesuffix(".json"), error.to_record()).encode()[0])
    store = open_store(run)
    assert [one.step for one in store.generations()] == [10, 20]
    assert store.generation().step == 20
    assert f"roots/{name}" in [verdict.path for verdict in store.verify_all() if verdict.ok]


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError):
        open_store(tmp_path / "absent")
    with pytest.raises(errors.NotFoundError, match="no store"):
        open_store(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.StoreError):
        open_store(tmp_path / "file")


def test_a_damaged_store_is_never_an_empty_one(run: Path) -> None:
    for root in (run / "roots").iterdir():
        root.unlink()
    (run / "roots").rmdir()
    store = open_store(run)
    for look in (store.generations, store.read, store.check):
        with pytest.raises(errors.IntegrityError, match="no directory of roots"):
            look()
    report = store.verify()
    assert not report.ok
    assert [verdict.path for verdict in report.failed] == ["roots"]


def test_every_file_of_a_generation_has_a_verdict(run: Path) -> None:
    report = open_store(run).verify(20)
    files = {str(path.relative_to(run)) for path in run.rglob("*20-e*/**/*") if path.is_file()}
    assert report.ok
    assert report.level == "full"
    assert {verdict.path for verdict in report} == files | {
        "run.json",
        "epochs/00000001.json",
        f"roots/{root_name(20, 1, 'n20e1')}",
    }
    assert [one.step for one in report.generations] == [20]


def victims(run: Path) -> list[Path]:
    """Give the files of step 20, and those of the run."""
    found = [run / "run.json", run / "epochs" / "00000001.json", run / "roots" / root_name(20, 1, "n20e1")]
    return found + sorted(path for path in run.rglob("*20-e*/**/*") if path.is_file())


@pytest.mark.parametrize("harm", ["flip", "cut", "lengthen", "remove", "folder"])
@pytest.mark.parametrize("level", ["fast", "full"])
def test_damage_is_a_verdict_that_names_the_file(run: Path, harm: str, level: str) -> None:
    store = open_store(run)
    for victim in victims(run):
        data = victim.read_bytes()
        middle = len(data) // 2
        if harm in ("remove", "folder"):
            victim.unlink()
        if harm == "folder":
            victim.mkdir()
        elif harm == "flip":
            victim.write_bytes(data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :])
        elif harm == "cut":
            victim.write_bytes(data[:-1])
        elif harm == "lengthen":
            victim.write_bytes(data + b"\n")
        told = str(victim.relative_to(run))
        if harm == "remove" and victim.parent.name == "roots":
            assert store.generation().step == 10  # not listed, so not published
        elif harm == "remove" and victim.name == "run.json":
            assert store.verify(level=level).ok  # its claims and roots name the run
        else:
            report = store.verify(20 if victim.parent.name != "roots" else None, level)
            failed = {verdict.path: verdict.error for verdict in report.failed}
            if harm == "remove" and victim.parent.name == "epochs":
                assert list(failed) == [f"roots/{root_name(20, 1, 'n20e1')}"]
            else:
                assert told in failed
                error = failed[told]
                assert error is not None
                assert error.exit_code == 3
            with pytest.raises(errors.CheckpointError):
                report.raise_for_damage()
        if harm == "folder":
            victim.rmdir()
        victim.write_bytes(data)
    assert store.verify().ok


def test_a_listing_tells_damage_that_it_can_see(run: Path) -> None:
    next(run.glob("data/*10-e*/00000/*.r.safetensors")).unlink()
    root = run / "roots" / root_name(20, 1, "n20e1")
    root.write_bytes(root.read_bytes()[:-3])
    first, second = open_store(run).generations()
    assert (first.step, first.status) == (10, "damaged")
    assert (second.step, second.epoch, second.status, second.root, second.owners) == (20, 1, "damaged", None, None)


# ---------------------------------------------------------------------------- comparing


def differences(one: Path, two: Path) -> list[compare.Difference]:
    return list(compare.compare(open_store(one).open(), open_store(two).open()))


def pair(tmp_path: Path, first: list[Any], second: list[Any]) -> list[compare.Difference]:
    storekit.publish(tmp_path / "a", first, step=1)
    storekit.publish(tmp_path / "b", second, step=2)
    return differences(tmp_path / "a", tmp_path / "b")


def test_equal_states_of_other_owner_counts_are_equal_but_for_per_owner_data(tmp_path: Path) -> None:
    found = pair(tmp_path, states(2), states(3))
    assert found == [compare.Difference("seed", "content", "absent", "('owner', 2)", role=2)]


def test_the_first_element_that_differs_and_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RUN_BYTES", 50)  # a region of 160 bytes takes four runs, small ones share one
    changed = states()
    changed[1]["w"].array[2, 3] = 99  # rows 4 to 6 are owner 1's
    changed[2]["w"].array[:] = -1
    assert pair(tmp_path, states(), changed) == [
        compare.Difference("w", "content", "27.0", "99.0", (6, 3), None, 13, 40)
    ]


def test_a_run_never_holds_more_than_its_limit() -> None:
    shapes = [(3, 5, 7), (1000,), (), (0, 4), (17, 1, 9)]
    regions = [Region(f"r{at}", "float64", shape, "array") for at, shape in enumerate(shapes)]
    seen: dict[str, int] = {}
    for run in compare._runs([(at, at, region) for at, region in enumerate(regions)]):
        assert run
        assert sum(box.size for *_, box in run) * 8 <= compare.RUN_BYTES
        for _, _, region, start, box in run:
            assert start == seen.get(region.name, 0)
            seen[region.name] = start + box.size
    assert seen == {"r0": 105, "r1": 1000, "r2": 1, "r4": 153}


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (np.array([0.0]), np.array([-0.0]), ("0.0", "-0.0")),
        (np.array([1, 2], np.uint8), np.array([1, 3], np.uint8), ("2", "3")),
        (np.array([True]), np.array([False]), ("True", "False")),
        (np.array([1 + 2j]), np.array([1 - 2j]), ("(1+2j)", "(1-2j)")),
        (np.array([1.5], ml_dtypes.bfloat16), np.array([2], ml_dtypes.bfloat16), ("1.5", "2.0")),
        (
            np.array([0x7FC00001], np.uint32).view(np.float32),
            np.array([0x7FC00002], np.uint32).view(np.float32),
            ("nan (0x7fc00001)", "nan (0x7fc00002)"),
        ),
    ],
)
def test_elements_are_shown_as_python_shows_them(tmp_path: Path, first: Any, second: Any, told: Any) -> None:
    (found,) = pair(tmp_path, [{"x": first}], [{"x": second}])
    assert (found.first, found.second) == told
    assert found.count == 1


def test_equal_nans_are_equal(tmp_path: Path) -> None:
    assert pair(tmp_path, [{"x": np.array([np.nan])}], [{"x": np.array([np.nan])}]) == []


def test_what_only_one_has_and_what_is_of_another_kind(tmp_path: Path) -> None:
    first = {"gone": 1, "shape": np.ones(3), "dtype": np.ones(2), "kind": np.ones(1), "nest": [np.ones(1)], "v": 2**70}
    second = {"shape": np.ones(4), "dtype": np.ones(2, "f4"), "kind": PerOwner(1), "nest": (np.ones(1),), "v": -(2**70)}
    found = {(one.region, one.what): (one.first, one.second) for one in pair(tmp_path, [first], [second])}
    assert found == {
        ("nest", "container"): ("list", "tuple"),
        ("dtype", "dtype"): ("float64", "float32"),
        ("gone", "region"): ("value", "absent"),
        ("kind", "kind"): ("array", "per_owner"),
        ("kind", "dtype"): ("float64", "uint8"),
        ("kind", "shape"): ("(1,)", "None"),
        ("shape", "shape"): ("(3,)", "(4,)"),
        ("v", "content"): (repr(2**70), repr(-(2**70))),
    }


def test_long_values_are_cut_around_what_differs(tmp_path: Path) -> None:
    (found,) = pair(tmp_path, [{"x": "a" * 5000 + "b"}], [{"x": "a" * 5000 + "c"}])
    assert len(found.first) < 100
    assert "ab'" in found.first
    assert "ac'" in found.second


def test_values_without_a_telling_repr_are_shown_as_they_are_stored(tmp_path: Path) -> None:
    one, two = np.random.default_rng(1), np.random.default_rng(2)
    (found,) = pair(tmp_path, [{"x": PerOwner(one)}], [{"x": PerOwner(two)}])
    assert found.first != found.second
    huge = 10**5000  # Python writes no integer of more than 4300 digits
    (told,) = pair(tmp_path / "huge", [{"x": huge}], [{"x": huge + 1}])
    assert told.first != told.second


def test_a_damaged_shard_is_a_refusal(run: Path) -> None:
    shard = next(path for path in run.rglob("*20-e*/**/*.safetensors") if ".r." not in path.name)
    data = shard.read_bytes()
    shard.write_bytes(data[:4096] + bytes([data[4096] ^ 1]) + data[4097:])
    store = open_store(run)
    with pytest.raises(errors.IntegrityError) as caught:
        list(compare.compare(store.open(10), store.open(20)))
    assert caught.value.path is not None
    assert os.path.samefile(caught.value.path, shard)


def test_the_checkpointer_writes_what_open_store_reads(tmp_path: Path) -> None:
    state = {"w": np.arange(5.0), "step": 3, "rng": PerOwner(7)}
    with mpickpt.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.resume(state)
        save = ckpt.save(state, step=3, cursor=12)
    store = mpickpt.open_store(tmp_path / "run")
    assert same(store.read(), {"w": np.arange(5.0), "step": 3, "rng": {0: 7}})
    assert [one.root for one in store.generations()] == [save.wait()]
    assert store.verify().ok
