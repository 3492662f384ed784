"""Many owners from one process: every rank gets back what it gave, a run resumes from it, and all else is refused."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sameness import numbers, same

import mpickpt
from mpickpt import PerOwner, Replicated, Sharded, Split, Value
from mpickpt.errors import (
    CheckpointError,
    ContractError,
    CoverageError,
    DisagreementError,
    ExistsError,
    FormatError,
    IntegrityError,
    MomentError,
    NonFiniteError,
    NotFoundError,
    PlacementError,
    ReplicaError,
    StateError,
)
from mpickpt.sharded import ShardManifest, load_sharded, save_sharded
from mpickpt.sharded.held import TOLD, read_told
from mpickpt.state.region import Region, Schema

F = np.float32


def files(path: Path) -> dict[str, bytes]:
    """Every file of a store, by its name."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def names(path: Path) -> list[str]:
    with_schema = mpickpt.open_store(path).open()
    return [region.name for region in with_schema.schema]


def rows(*lengths: int) -> list[dict[str, Any]]:
    return [{"w": numbers((n, 3), F, rank)} for rank, n in enumerate(lengths)]


STATES: dict[str, list[dict[str, Any]]] = {
    "rows as uneven as they come": rows(4, 1, 7),
    "a rank without rows": rows(4, 0, 1),
    "no rank with rows": rows(0, 0),
    "one rank": [{"w": numbers((2, 3), F), "lr": 0.1, "n": np.array(4)}],
    "32 ranks": rows(*range(1, 33)),
    "a rank that holds nothing": [{}, {"w": numbers((3,), F)}, {}],
    "no rank that holds anything": [{}, {}],
    "a name on some ranks only": [{"a": numbers((2,), F)}, {"a": numbers((1,), F), "b": numbers((5,), "i8")}, {"c": 1}],
    "values on all ranks": [{"w": numbers((2,), F), "step": 5, "z": np.array(2.5), "t": (1, [None, b"x"])}] * 3,
    "values on some ranks": [{"lr": -0.0}, {}, {"lr": -0.0, "z": np.array(1, "u1")}],
    "nested": [
        {"model": {"w": numbers((2, 2), F), "deep": [numbers((1,), F), {"x": numbers((2,), F)}]}, "e": {}, "l": []},
        {"model": {"w": numbers((1, 2), F), "deep": [numbers((3,), F), {"x": numbers((2,), F)}]}, "e": {}, "l": []},
    ],
    "containers that differ": [{"m": {}, "l": [numbers((1,), F)]}, {"l": [numbers((1,), F), numbers((2,), F)]}, {}],
    "tuples and integer keys": [{"t": (numbers((2,), F), 3), "d": {0: numbers((1,), F), -7: numbers((2,), F)}}] * 2,
    "odd names": [{"a/b": numbers((1,), F), "a": {"b": numbers((2,), F)}, "": numbers((1,), F), "é [0:1] %": 4}] * 2,
    "axes of one array": [{"x": numbers((n, 2, 0, 3), F), "y": numbers((n, 2, 5), F)} for n in (2, 3)],
    "Split and Replicated": [
        {"s": Split(numbers((n, 2), F, rank), length=5), "r": Replicated(numbers((7, 2), F))}
        for rank, n in enumerate((3, 2))
    ],
    "several boxes, one, and none": [
        {"b": Sharded([(numbers((2,), F, 1), (0,)), (numbers((1,), F, 2), (5,))], shape=(6,))},
        {"b": Sharded(numbers((3,), F, 3), shape=(6,), at=(2,))},
        {"b": Sharded([], shape=(6,), dtype="float32")},
    ],
    "copies": [
        {"c": Sharded(numbers((4, 2), F, k % 2), shape=(8, 2), at=(4 * (k % 2), 0), replica=(k // 2, 2))}
        for k in range(4)
    ],
    "what a rank has for itself": [
        {"g": PerOwner(np.random.default_rng(1)), "r": PerOwner(random.Random(3)), "v": Value({"a": [1]})},
        {"g": PerOwner(np.random.default_rng(2)), "r": PerOwner([1, 2]), "v": Value({"a": [1]})},
    ],
    "a rank's own on some ranks": [{"g": PerOwner(1)}, {"w": numbers((2,), F)}],
}  # fmt: skip
DTYPES = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", ">f4", ">i8",
          ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_every_rank_gets_back_what_it_gave(case: str, tmp_path: Path) -> None:
    states = STATES[case]
    manifest = save_sharded(states, tmp_path / "run", 3, nonfinite="allow")
    assert (manifest.world_size, manifest.step) == (len(states), 3)
    same(load_sharded(tmp_path / "run", len(states), nonfinite="allow"), list(states))
    assert mpickpt.open_store(tmp_path / "run").verify().ok


def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path) -> None:
    states = [
        {str(n): numbers((rows, 3), dtype, rank, n) for n, dtype in enumerate(DTYPES)}
        for rank, rows in enumerate((3, 1))
    ]
    states[0]["0"].flags.writeable = False
    states[1]["1"] = states[1]["1"].repeat(2, axis=0)[::-2]
    save_sharded(states, tmp_path, 1, nonfinite="allow")
    same(load_sharded(tmp_path, 2, nonfinite="allow"), states)


def test_a_subclass_of_dict_comes_back_as_an_equal_dict(tmp_path: Path) -> None:
    save_sharded([OrderedDict(b=1, a=OrderedDict(c=2))], tmp_path, 1)
    assert load_sharded(tmp_path, 1) == [{"b": 1, "a": {"c": 2}}]


_leaf = st.one_of(
    st.tuples(st.integers(0, 4), st.sampled_from(["i4", "f8", "c8"])).map(lambda d: ("array", *d)), st.just(("value",))
)
_nest = st.recursive(_leaf, lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6)


def _fill(shape: Any, rank: int, salt: int) -> Any:
    if isinstance(shape, dict):
        return {key: _fill(inner, rank, salt + n) for n, (key, inner) in enumerate(shape.items(), 1)}
    if shape[0] == "array":
        return numbers(((shape[1] + rank) % 5, 2), shape[2], rank, salt)
    return salt


def _some(nest: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Leave out some of a nest, as a rank that holds only some names does; a dict stays a dict."""
    return {
        key: _some(item, draw) if isinstance(item, dict) else item for key, item in nest.items() if draw.random() < 0.8
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nest=st.dictionaries(st.text(max_size=3), _nest, max_size=4), ranks=st.integers(1, 4), seed=st.integers(0, 99))
def test_any_nests_come_back(
    nest: dict[str, Any], ranks: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run")
    draw = random.Random(seed)
    states = [_some(_fill(nest, rank, 1), draw) for rank in range(ranks)]
    save_sharded(states, path, 1, nonfinite="allow")
    same(load_sharded(path, ranks, nonfinite="allow"), states)


# ---------------------------------------------------------------- with the rest of the house


def test_a_run_resumes_from_what_was_converted_and_its_regions_are_whole(tmp_path: Path) -> None:
    save_sharded(
        [{"w": np.arange(6.0).reshape(3, 2), "lr": 0.5}, {"w": np.ones((1, 2)), "lr": 0.5}], tmp_path, 4, cursor=9
    )
    assert names(tmp_path) == ["lr", "w"]
    with mpickpt.Checkpointer(tmp_path, alone=True) as ckpt:
        run = ckpt.resume({"w": np.zeros((4, 2)), "lr": 0.0}, repartition=True)
    assert (run.step, run.cursor, run.fresh) == (4, 9, False)
    same(run.state, {"w": np.array([[0.0, 1], [2, 3], [4, 5], [1, 1]]), "lr": 0.5})


def test_a_list_of_names_is_saved_only_where_the_files_do_not_tell(tmp_path: Path) -> None:
    for number, (case, states) in enumerate(STATES.items()):
        save_sharded(states, tmp_path / str(number), 1, nonfinite="allow")
        plain = case in (
            "rows as uneven as they come", "one rank", "32 ranks", "no rank that holds anything", "values on all ranks",
            "nested", "tuples and integer keys", "odd names", "Split and Replicated", "what a rank has for itself",
            "a rank's own on some ranks",
        )  # fmt: skip
        assert (TOLD in names(tmp_path / str(number))) is not plain, case


def test_a_run_s_own_generation_is_given_by_rank(tmp_path: Path) -> None:
    with mpickpt.Checkpointer(tmp_path, alone=True) as ckpt:
        ckpt.resume()
        ckpt.save(
            {"w": np.arange(3.0), "p": PerOwner(7), "s": Split(np.ones((2, 2)), length=2), "e": np.zeros(0)}, step=1
        )
    expected = {"w": np.arange(3.0), "p": 7, "s": np.ones((2, 2)), "e": np.zeros(0)}
    same(load_sharded(tmp_path, 1), [expected])


def test_a_second_save_follows_and_the_first_one_stays(tmp_path: Path) -> None:
    first, second = rows(2, 1), [{"v": numbers((1,), "i4")}, {"v": numbers((3,), "i4")}, {"x": 1}]
    contract = mpickpt.Contract(identity={"model": "m"})
    save_sharded(first, tmp_path, 5, cursor=40, contract=contract, nonfinite="allow")
    save_sharded(second, tmp_path, 6)
    same(load_sharded(tmp_path, 3), second)
    same(load_sharded(tmp_path, 2, step=5, nonfinite="allow"), first)
    newest = mpickpt.open_store(tmp_path).open().root
    assert (newest.prefix.cursor, newest.contract) == (40, contract.to_json())
    assert newest.parent is not None
    assert newest.parent["step"] == 5
    for state in range(7, 12):
        save_sharded(first, tmp_path, state, nonfinite="allow")
    assert [found.step for found in mpickpt.open_store(tmp_path).generations()] == [5, 6, 7, 8, 9, 10, 11]


def test_nothing_of_mpi_is_imported() -> None:
    program = "import sys, mpickpt.sharded; assert not [m for m in sys.modules if m.split('.')[0] == 'mpi4py']"
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------- the manifest


def test_the_manifest_tells_every_file_its_sha256_and_its_place_in_the_flat_concatenation(tmp_path: Path) -> None:
    states = [{"a": np.zeros((n, 3), F), "b": {"c": np.ones((2, n), F)}, "lr": 0.5} for n in (2, 2, 2)]
    manifest = save_sharded(states, tmp_path, 11)
    assert (manifest.world_size, manifest.step, manifest.schema_version) == (3, 11, 1)
    on_disk = {name for name in files(tmp_path) if name.endswith(".safetensors")}
    assert {shard.path for shard in manifest.shards} == on_disk
    for shard in manifest.shards:
        assert shard.sha256 == hashlib.sha256((tmp_path / shard.path).read_bytes()).hexdigest()
    own = [shard for shard in manifest.shards if not shard.path.endswith(".r.safetensors")]
    assert [(s.rank, s.param_shard_offset, s.param_shard_numel) for s in own] == [(0, 0, 10), (1, 10, 10), (2, 20, 10)]
    assert [s.param_shard_numel for s in manifest.shards if s not in own] == [0] * (len(manifest.shards) - 3)
    told = mpickpt.open_store(tmp_path).generations()[0].created
    assert told is not None
    assert manifest.wall_clock_seconds == int(np.datetime64(told.removesuffix("+00:00"), "s").astype(int))
    assert ShardManifest.of(tmp_path) == manifest


def test_the_manifest_of_an_older_step_and_of_none(tmp_path: Path) -> None:
    first = save_sharded([{"a": np.zeros(2)}], tmp_path, 1)
    save_sharded([{"a": np.zeros(3)}], tmp_path, 2)
    assert ShardManifest.of(tmp_path, 1) == first
    with pytest.raises(NotFoundError):
        ShardManifest.of(tmp_path, 3)


def test_json_of_any_layout_gives_the_manifest_back(tmp_path: Path) -> None:
    manifest = save_sharded(rows(2, 0, 1), tmp_path, 1, nonfinite="allow")
    text = manifest.to_json()
    assert ShardManifest.from_json(text) == manifest
    shuffled = json.dumps(dict(reversed(json.loads(text).items())), indent=2)
    assert ShardManifest.from_json(shuffled.encode()) == manifest


def entry(rank: int, path: str, begin: int, count: int) -> dict[str, Any]:
    return {
        "rank": rank, "path": path, "sha256": "0f" * 32, "param_shard_offset": begin, "param_shard_numel": count,
    }  # fmt: skip


GOOD = {
    "world_size": 2, "step": 3, "wall_clock_seconds": None, "schema_version": 1,
    "shards": [
        entry(0, "data/a/0.safetensors", 0, 4), entry(0, "data/a/0.r.safetensors", 4, 0),
        entry(1, "data/a/1.safetensors", 4, 2),
    ],
}  # fmt: skip
BAD: list[tuple[str | None, Any]] = [
    *[("world_size", bad) for bad in (0, 1, -1, True, "2", None, 2**63, 1.5)],
    *[("step", bad) for bad in (-1, True, "2", None, 2**63)],
    *[("wall_clock_seconds", bad) for bad in (-1, True, "2", 2**63, 1.5)],
    *[("schema_version", bad) for bad in (0, 2, True, "1", None)],
    *[("shards", bad) for bad in (None, {}, [1], [{}], "x")],
    *[("rank", bad) for bad in (2, -1, True, None, "0")],
    *[("path", bad) for bad in ("", "/a.safetensors", "../a.safetensors", "a/../b.safetensors", "a", None,
                                "a\\.safetensors", "data/a/0.r.safetensors", "data/a/1.safetensors")],
    *[("sha256", bad) for bad in ("", None, "0" * 63, "A" * 64, "sha256:" + "0" * 64, 0)],
    *[("param_shard_offset", bad) for bad in (1, -1, None, True, 2**63)],
    *[("param_shard_numel", bad) for bad in (3, 5, -1, None, True, 2**63)],
    ("unknown", 1),
]  # fmt: skip


@pytest.mark.parametrize(("key", "bad"), BAD, ids=repr)
def test_a_manifest_that_contradicts_itself_is_refused(key: str, bad: Any) -> None:
    ShardManifest.from_json(json.dumps(GOOD))
    value = json.loads(json.dumps(GOOD))
    (value if key in GOOD or key == "unknown" else value["shards"][0])[key] = bad
    with pytest.raises(FormatError):
        ShardManifest.from_json(json.dumps(value))


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", '"x"', '{"a":NaN}', '{"a":1e400}', '{"step":1,"step":1}', "[" * 100_000, "9" * 5000,
     b"\xff", 5, None, "\ud800"],
    ids=lambda text: repr(text)[:20],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(text: Any) -> None:
    with pytest.raises(FormatError):
        ShardManifest.from_json(text)


def test_a_manifest_without_a_key_and_one_with_a_shard_out_of_order_are_refused() -> None:
    for key in GOOD:
        with pytest.raises(FormatError):
            ShardManifest.from_json(json.dumps({k: v for k, v in GOOD.items() if k != key}))
    value = json.loads(json.dumps(GOOD))
    value["shards"].reverse()
    with pytest.raises(FormatError):
        ShardManifest.from_json(json.dumps(value))


# ---------------------------------------------------------------- refusals of a save


@dataclass
class Point:
    x: int = 0


Pair = namedtuple("Pair", ["a"])


class Stateful:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


def cyclic() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["again"] = state
    return state


W = np.ones((2, 3), F)
REFUSED: dict[str, tuple[type[CheckpointError], Any, str | None, set[int]]] = {
    "no list": (StateError, {"w": W}, None, set()),
    "no ranks": (StateError, [], None, set()),
    "a rank that is no dict": (StateError, [{"w": W}, [W]], None, {1}),
    "an object": (StateError, [{}, {"p": {"o": Stateful()}}], "p/o", {1}),
    "a dataclass": (StateError, [{"p": Point()}], "p", {0}),
    "a namedtuple": (StateError, [{"p": Pair(1)}], "p", {0}),
    "an object array": (StateError, [{"w": W}, {"o": np.array([None])}], "o", {1}),
    "a longdouble": (StateError, [{"o": np.zeros(2, np.longdouble)}], "o", {0}),
    "a masked array": (StateError, [{"o": np.ma.zeros(2)}], "o", {0}),
    "a set with a lambda": (StateError, [{}, {"o": {lambda: 1}}], "o", {1}),
    "an odd key above an array": (StateError, [{"o": {(1, 2): W}}], None, {0}),
    "a cycle": (StateError, [{}, cyclic()], None, {1}),
    "the reserved name": (StateError, [{TOLD: 1}], TOLD, {0}),
    "another dtype": (DisagreementError, [{"a": {"w": W}}, {}, {"a": {"w": W.astype("f8")}}], "a/w", {0, 2}),
    "another trailing shape": (DisagreementError, [{"w": W}, {"w": W[:, :2]}], "w", {0, 1}),
    "another number of axes": (DisagreementError, [{"w": W}, {"w": W[0]}], "w", {0, 1}),
    "an array and a value": (DisagreementError, [{"w": W}, {"w": 1}], "w", {0, 1}),
    "a 0-d array and one of an axis": (DisagreementError, [{"w": np.array(1.0)}, {"w": np.ones(1)}], "w", {0, 1}),
    "values that differ": (ReplicaError, [{"v": 1}, {"v": 1}, {"v": 2}], "v", {0, 2}),
    "values that differ in type": (ReplicaError, [{"v": 1}, {"v": True}], "v", {0, 1}),
    "0-d arrays that differ": (ReplicaError, [{"v": np.array(1.0)}, {"v": np.array(-1.0)}], "v", {0, 1}),
    "copies that differ": (ReplicaError, [{"v": Replicated(W)}, {"v": Replicated(W + 1)}], "v", {0, 1}),
    "boxes with a gap": (CoverageError, [{"w": Sharded(W, shape=(6, 3), at=(4 * r, 0))} for r in (0, 1)], "w", set()),
    "a NaN": (NonFiniteError, [{"w": W}, {"w": W * np.nan}], "w", {1}),
    "a value that is infinite": (NonFiniteError, [{"lr": float("inf")}] * 2, "lr", {0}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_saved_is_refused_with_region_and_ranks_and_nothing_is_published(
    case: str, tmp_path: Path
) -> None:
    kind, states, region, ranks = REFUSED[case]
    save_sharded([{"w": W}], tmp_path, 1)
    before = files(tmp_path)
    with pytest.raises(kind) as info:
        save_sharded(states, tmp_path, 2)
    error = info.value
    assert type(error) is kind
    if region is not None:
        assert error.region == region
    assert ranks <= {error.role, *error.roles}
    after = files(tmp_path)
    assert {name: after.get(name) for name in before} == before
    new = after.keys() - before.keys()
    assert all(name.startswith(("roots/", "epochs/")) for name in new), new  # a void record, a claim
    assert [found.step for found in mpickpt.open_store(tmp_path).generations()] == [1]
    save_sharded([{"w": W}], tmp_path, 2)


def test_a_step_again_and_a_lower_step_or_cursor_are_refused(tmp_path: Path) -> None:
    save_sharded([{"w": W}] * 2, tmp_path, 5, cursor=7)
    before = files(tmp_path)
    for kind, step, cursor in ((ExistsError, 5, 7), (ExistsError, 5, None), (MomentError, 4, 7), (MomentError, 6, 6)):
        with pytest.raises(kind):
            save_sharded([{"w": W}] * 2, tmp_path, step, cursor=cursor)
    for step in (-1, True, 1.5, "6", None):
        with pytest.raises(StateError):
            save_sharded([{"w": W}], tmp_path, step)  # type: ignore[arg-type]
    assert files(tmp_path) == before


def test_another_contract_than_that_of_the_newest_generation_is_refused(tmp_path: Path) -> None:
    save_sharded([{"w": W}], tmp_path, 1, contract=mpickpt.Contract(identity={"lr": 1}))
    before = files(tmp_path)
    with pytest.raises(ContractError, match=r"identity\.lr"):
        save_sharded([{"w": W}], tmp_path, 2, contract=mpickpt.Contract(identity={"lr": 2}))
    assert files(tmp_path) == before


@pytest.mark.parametrize("bad", [{"nonfinite": "never"}, {"contract": {}}])
def test_options_that_are_none_are_refused(bad: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StateError):
        save_sharded([{"w": W}] * 2, tmp_path / "run", 1, **bad)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- refusals of a load


def test_another_world_size_is_refused_whatever_the_contract_says(tmp_path: Path) -> None:
    save_sharded([{"w": W}] * 2, tmp_path, 1, contract=mpickpt.Contract(placement="free"))
    for size in (1, 3):
        with pytest.raises(PlacementError) as info:
            load_sharded(tmp_path, size)
        assert (info.value.expected, info.value.found) == (f"{size} ranks", "2 ranks")
    for bad in (0, -1, None, "2", True, 2.0):
        with pytest.raises(StateError):
            load_sharded(tmp_path, bad)  # type: ignore[arg-type]


def test_nothing_there_or_another_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        load_sharded(tmp_path, 1)
    with pytest.raises(NotFoundError):
        load_sharded(tmp_path / "none", 1)
    save_sharded([{"w": W}], tmp_path, 1)
    with pytest.raises(NotFoundError):
        load_sharded(tmp_path, 1, step=2)


@pytest.mark.parametrize("told", [False, True], ids=["told by files", "told by a list of names"])
def test_one_byte_of_any_file_or_a_file_less_and_every_reader_refuses(told: bool, tmp_path: Path) -> None:
    save_sharded([{"w": W, "v": 1}, {"w": W, **({} if told else {"v": 1})}], tmp_path, 1)
    readers = {"load": lambda: load_sharded(tmp_path, 2), "manifest": lambda: ShardManifest.of(tmp_path)}
    for name, data in files(tmp_path).items():
        if name.endswith(".ended"):
            continue  # told, and nothing rests on it: tests/unit/test_ended.py
        path = tmp_path / name
        middle = len(data) // 3
        for change in (data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], data[:-1], data + b"\n", None):
            if change is None:
                path.unlink()
            else:
                path.write_bytes(change)
            for reader, read in readers.items():
                # run.json is a warning where it is missing; what a generation says is then known from elsewhere.
                if change is None and name == "run.json":
                    read()
                    continue
                with pytest.raises((IntegrityError, NotFoundError, FormatError)) as info:
                    read()
                assert change is None or Path(str(info.value.path)) == path, (reader, name)
        path.write_bytes(data)
    same(load_sharded(tmp_path, 2)[0], {"w": W, "v": 1})


def test_a_nan_that_was_allowed_at_the_save_is_refused_by_default(tmp_path: Path) -> None:
    save_sharded([{"w": W}, {"w": W * np.nan}], tmp_path, 1, nonfinite={"w": "allow"})
    with pytest.raises(NonFiniteError) as info:
        load_sharded(tmp_path, 2)
    assert info.value.region == "w"
    same(load_sharded(tmp_path, 2, nonfinite={"w": "allow"})[1], {"w": W * np.nan})


SCHEMA = Schema([Region("v", "uint8", None, "value"), Region("w", "float32", (4, 2), "array")])


@pytest.mark.parametrize(
    "told",
    [None, [], {}, {"regions": {}}, {"regions": [], "containers": {}}, {"regions": {}, "containers": 1},
     {"regions": {"x": []}, "containers": {}}, {"regions": {"v": [[[], []]]}, "containers": {}},
     {"regions": {"w": 1}, "containers": {}}, {"regions": {"w": [1]}, "containers": {}},
     {"regions": {"w": [[[0, 0]]]}, "containers": {}}, {"regions": {"w": [[[0, 0], [5, 2]]]}, "containers": {}},
     {"regions": {"w": [[[0], [4]]]}, "containers": {}}, {"regions": {"w": [[[2, 0], [1, 2]]]}, "containers": {}},
     {"regions": {"w": [[[False, 0], [1, 2]]]}, "containers": {}}, {"regions": {"w": [["ab", "cd"]]}, "containers": {}},
     {"regions": {"w": [[[0, 0], [2**70, 2]]]}, "containers": {}}],
    ids=lambda told: repr(told)[:60],
)  # fmt: skip
def test_a_list_of_names_that_lies_is_refused(told: Any) -> None:
    with pytest.raises(FormatError) as info:
        read_told(told, SCHEMA, "some/root.json")
    assert info.value.path == "some/root.json"
