"""Whoever recomputes every digest still cannot plant what may not be: numbers, sums, lists, sizes are checked again.

`forge` repairs CRCs, chunk tables, shard digests, manifests and the root, so that only the check in question is left.
What no check can find, a state that is merely another one, `resume(root=DIGEST)` refuses.
"""

from __future__ import annotations

import copy
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import forge
import ml_dtypes
import numpy as np
import pytest
from damage import DAMAGE, Store, in_memory, whole
from forge import Record, Shard

import mpickpt
from mpickpt import digest as digests
from mpickpt.errors import CoverageError, FormatError, NonFiniteError, NotFoundError
from mpickpt.sharded import save_sharded

LIES = (*DAMAGE, CoverageError)


@pytest.fixture
def store() -> Iterator[Store]:
    with in_memory() as folder:
        yield Store.of_two(folder / "run")


def at(role: int, change: Callable[[Shard], None], shared: bool = False) -> Callable[[Shard], None]:
    """Change the one shard of a role."""
    name = f"{role:06d}{'.r' if shared else ''}.safetensors"
    return lambda shard: change(shard) if shard.path.name == name else None


def test_a_generation_forged_without_a_change_is_byte_for_byte_the_same(store: Store) -> None:
    digest = mpickpt.open_store(store.path).open().digest
    assert forge.forge(store.path, covers=True) == digest
    assert {file: file.read_bytes() for file in store.kept} == store.kept


# ---------------------------------------------------------------- numbers

NONFINITE: dict[str, list[Any]] = {
    "float16": [np.nan, np.inf, -np.inf],
    "bfloat16": [np.nan, np.inf, -np.inf],
    "float32": [np.nan, np.inf, -np.inf],
    "float64": [np.nan, np.inf, -np.inf],
    "float8_e4m3fn": [np.nan],
    "float8_e5m2": [np.nan, np.inf, -np.inf],
    "complex64": [complex(np.nan, 0), complex(0, np.inf)],
    "complex128": [complex(np.nan, 0), complex(0, -np.inf)],
}


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("dtype", NONFINITE)
def test_a_nan_or_infinity_that_is_planted_in_an_array_is_refused_with_its_index(dtype: str, role: int) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with in_memory() as folder:
        save_sharded([{"a": np.ones((rows, 2), kind)} for rows in (3, 2)], folder / "run", 1)
        store = Store(folder / "run", lambda: {"a": np.zeros((5, 2), kind)}).keep()
        for value in NONFINITE[dtype]:
            bits = np.array(value, kind).tobytes()
            forge.forge(store.path, shards=at(role, lambda shard, bits=bits: shard.poke("a", 3 * len(bits), bits)))  # type: ignore[misc]
            with pytest.raises(NonFiniteError) as info:
                store.resume()
            assert info.value.region == "a"
            assert f"({3 * role + 1}, 1)" in info.value.message
            assert mpickpt.open_store(store.path).verify().ok  # its digests are right: that is what verify tells
            store.again()


@pytest.mark.parametrize(
    "text",
    [b"{}", b"[" * 3000 + b"]" * 3000, b'{"generator":["PCG64",1]}', b'{"f64":"x"}'],
    ids=["no tag", "deep", "generator", "number"],
)
@pytest.mark.parametrize("region", ["own", "lr"])
def test_what_is_no_value_is_refused_by_verify_and_by_resume(text: bytes, region: str, store: Store) -> None:
    def change(shard: Shard) -> None:
        if any(key.startswith(f"{region}[") for key in shard.header):
            shard.resize(region, text)

    forge.forge(store.path, shards=change)
    report = mpickpt.open_store(store.path).verify()
    assert not report.ok
    bad = [verdict for verdict in report.verdicts if not verdict.ok]
    assert {(type(one.error), one.error.region) for one in bad if one.error is not None} == {(FormatError, region)}
    assert all(one.path.endswith(".safetensors") for one in bad)
    if region == "lr":  # `own` is another owner count's
        with pytest.raises(FormatError):
            store.resume()


@pytest.mark.parametrize(
    "text", [b'{"f64":"nan:7ff8000000000000"}', b'{"f64":"inf"}', b'[null,{"complex":["0x0.0p+0","-inf"]}]']
)
@pytest.mark.parametrize("region", ["lr", "own"])
def test_a_nan_or_infinity_that_is_planted_in_a_value_is_refused(text: bytes, region: str, store: Store) -> None:
    def plant(shard: Shard) -> None:
        if any(key.startswith(f"{region}[") for key in shard.header):
            shard.resize(region, text)

    forge.forge(store.path, shards=plant)
    with pytest.raises(NonFiniteError) as info:
        mpickpt.sharded.load_sharded(store.path, 2)
    assert info.value.region == region
    if region == "lr":
        with pytest.raises(NonFiniteError):
            store.resume()


# ---------------------------------------------------------------- what only a pinned digest finds


def test_a_state_that_is_merely_another_one_is_refused_by_the_pinned_root_alone(store: Store) -> None:
    true = mpickpt.open_store(store.path).open().digest
    assert store.resume(root=true, readonly=True).step == 1
    forged = forge.forge(store.path, shards=at(1, lambda shard: shard.poke("w", 0, np.float32(9).tobytes())))
    with pytest.raises(NotFoundError) as info:
        store.resume(root=true)
    assert info.value.expected == true
    assert forged != true
    assert store.resume(readonly=True).state["w"][2, 0] == 9


# ---------------------------------------------------------------- sums and lists that lie


def shift(record: Record) -> None:
    record["cover"] = f"{int(record['cover'], 16) ^ 1:064x}"


def child(change: Callable[[Record], None]) -> Callable[[Record], None]:
    return lambda root: change(root["children"][0])


def pieces(change: Callable[[list[Any]], Any]) -> Callable[[Record], None]:
    """Change the list of pieces of a manifest's first shard."""

    def apply(record: Record) -> None:
        before = copy.deepcopy(record["shards"][0]["pieces"])
        change(record["shards"][0]["pieces"])
        assert record["shards"][0]["pieces"] != before, "the case changes nothing"

    return apply


def move(lo: int, hi: int) -> Callable[[list[Any]], None]:
    """Say that the piece of `w` of the second owner lies in other rows."""

    def apply(listed: list[Any]) -> None:
        for piece in listed:
            if len(piece[1]) == 2:
                piece[1][0], piece[2][0] = lo, hi

    return apply


def drop(listed: list[Any]) -> None:
    del listed[0]


def renamed(lo: int, hi: int) -> Callable[[Shard], None]:
    """Say the same in the header of its shard."""

    def apply(shard: Shard) -> None:
        key, _ = shard.entry("w")
        shard.header[f"w[{lo}:{hi},0:4]"] = shard.header.pop(key)

    return at(1, apply)


LYING: dict[str, dict[str, Any]] = {
    "the root's cover": {"root": shift},
    "a child's cover, as the root has it": {"root": child(shift)},
    "a child's cover, as both have it": {"groups": shift, "root": child(shift)},
    "a child's cover, in all sums": {"groups": shift, "root": lambda root: (child(shift)(root), shift(root))},
    "a group's own cover": {"groups": shift},
    "a piece less in a group": {"groups": pieces(drop)},
    "a piece less in a group, and its sums": {"groups": pieces(drop), "covers": True},
    "a piece less in the root, and its sums": {"root": pieces(drop), "covers": True},
    "other rows in a group": {"groups": pieces(move(1, 5))},
    "other rows in a group, and its sums": {"groups": pieces(move(1, 5)), "covers": True},
    "other rows in group and header": {"groups": pieces(move(1, 5)), "shards": renamed(1, 5)},
    "rows that overlap, in group, header and sums": {
        "groups": pieces(move(1, 5)), "shards": renamed(1, 5), "covers": True,
    },
    "rows beyond the region": {"groups": pieces(move(3, 7)), "shards": renamed(3, 7)},
    "a child that holds no shard": {"groups": lambda group: group["shards"].clear()},
    "a child that holds no shard, and its sums": {"groups": lambda group: group["shards"].clear(), "covers": True},
    "the first owner's shard left out, and the sums": {"root": lambda root: root["shards"].pop(0), "covers": True},
    "a shard of replicated bytes left out, and the sums": {"root": lambda root: root["shards"].pop(1), "covers": True},
    "no children, and the sums": {"root": lambda root: root["children"].clear(), "covers": True},
    "one owner less": {"root": lambda root: (root.update(size=1, owners=1), root["children"].clear())},
    "one owner more": {"root": lambda root: root.update(size=3, owners=3)},
    "a file named twice": {"root": lambda root: root["shards"][1].update(file=root["shards"][0]["file"])},
    "the other owner's file in its place": {
        "groups": lambda group: group["shards"][0].update(file="00000/000000.safetensors"),
    },
    "a file of another directory": {"groups": lambda group: group["shards"][0].update(file="../x.safetensors")},
    "an absolute file": {"groups": lambda group: group["shards"][0].update(file="/etc/x.safetensors")},
    "the role of another owner": {"groups": lambda group: group["shards"][0].update(role=0)},
    "a role beyond the owners": {"root": lambda root: root["shards"][0].update(role=7)},
    "a doubled child": {"root": lambda root: root["children"].append(root["children"][0])},
    "another step in a group": {"groups": lambda group: group["prefix"].update(step=2)},
    "another run in a group": {"groups": lambda group: group["prefix"].update(run="another")},
    "another attempt in the root": {"root": lambda root: root["prefix"].update(attempt="another")},
    "another step in the root": {"root": lambda root: root["prefix"].update(step=2)},
    "an epoch beyond every claim": {"root": lambda root: root["prefix"].update(epoch=9)},
    "bytes of a shard": {"groups": lambda group: group["shards"][0].update(bytes=group["shards"][0]["bytes"] + 1)},
    "another format": {"groups": lambda group: group.update(format=2)},
    "a shard of another format": {"shards": lambda shard: shard.header["__metadata__"].update(format="2")},
    "a shard of another moment": {"shards": lambda shard: shard.header["__metadata__"].update(step="2")},
    "a shard of another attempt": {"shards": lambda shard: shard.header["__metadata__"].update(attempt="another")},
    "a shard of another role": {"shards": lambda shard: shard.header["__metadata__"].update(role="5")},
    "a shard of another schema": {
        "shards": lambda shard: shard.header["__metadata__"].update(schema="blake3:" + 64 * "0"),
    },
    "a shard of replicated bytes that says it is none": {
        "shards": lambda shard: shard.header["__metadata__"].update(shared="0" if ".r." in shard.path.name else "1"),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", LYING)
def test_sums_lists_and_names_that_lie_are_refused(case: str, store: Store) -> None:
    forge.forge(store.path, **LYING[case])
    store.refused(None, LIES, readonly=False, told=case)


def relabel(root: Record, change: Callable[[Record], None]) -> None:
    """Change the schema, and the prefix's digest of it."""
    change(root["schema"])
    plain = {name: {key: region[key] for key in ("dtype", "kind", "shape")} for name, region in root["schema"].items()}
    root["prefix"]["schema"] = "blake3:" + digests.digest("blake3", "schema", forge.canonical(plain)).hex()


@pytest.mark.parametrize(
    "change",
    [
        lambda schema: schema["w"].update(dtype="int32"),
        lambda schema: schema["w"].update(shape=[7, 4]),
        lambda schema: schema["w"].update(shape=[24]),
        lambda schema: schema["w"].update(shape=[6, 4, 1]),
        lambda schema: schema["half"].update(dtype="bfloat16"),
        lambda schema: schema["lr"].update(kind="per_owner"),
        lambda schema: schema["own"].update(kind="value"),
        lambda schema: schema.update(another=dict(schema["w"])),
        lambda schema: schema.pop("half"),
        lambda schema: schema.update({"renamed": schema.pop("half")}),
    ],
)
@pytest.mark.parametrize("everywhere", [False, True], ids=["in the root", "in the root, groups and shards"])
def test_a_schema_that_lies_is_refused(change: Callable[[Record], None], everywhere: bool, store: Store) -> None:
    top = forge.read(store.file("roots/*.json"))
    relabel(top, change)
    told = top["prefix"]["schema"]

    def root(record: Record) -> None:
        record["schema"] = top["schema"]
        record["prefix"]["schema"] = told

    def group(record: Record) -> None:
        if everywhere:
            record["prefix"]["schema"] = told

    def shard(opened: Shard) -> None:
        if everywhere:
            opened.header["__metadata__"]["schema"] = told

    forge.forge(store.path, shards=shard, groups=group, root=root)
    for reader in (store.read, lambda: mpickpt.sharded.load_sharded(store.path, 2)):
        with pytest.raises(LIES):
            reader()
    with pytest.raises((*LIES, mpickpt.SchemaError)):
        store.resume()
    assert not mpickpt.open_store(store.path).verify().ok


# ---------------------------------------------------------------- digests that are none

NO_DIGEST = [None, "", 0, [], "blake3:", "blake3:" + "0" * 63, "md5:" + "0" * 32, "blake3:" + "A" * 64, "sha256"]


@pytest.mark.parametrize("bad", NO_DIGEST, ids=repr)
@pytest.mark.parametrize("where", ["shard in root", "shard in group", "child", "schema", "contract"])
def test_a_null_or_malformed_digest_is_never_taken_for_verified(where: str, bad: object, store: Store) -> None:
    change: dict[str, dict[str, Any]] = {
        "shard in root": {"root": lambda root: root["shards"][0].update(digest=bad)},
        "shard in group": {"groups": lambda group: group["shards"][0].update(digest=bad)},
        "child": {"root": lambda root: root["children"][0].update(digest=bad)},
        "schema": {"root": lambda root: root["prefix"].update(schema=bad)},
        "contract": {"groups": lambda group: group["prefix"].update(contract=bad)},
    }
    forge.forge(store.path, **change[where])
    store.refused(None, (FormatError,), told=where)


@pytest.mark.parametrize("where", ["shard in root", "shard in group", "child", "prefix"])
def test_a_missing_digest_is_never_taken_for_verified(where: str, store: Store) -> None:
    change: dict[str, dict[str, Any]] = {
        "shard in root": {"root": lambda root: root["shards"][0].pop("digest")},
        "shard in group": {"groups": lambda group: group["shards"][0].pop("digest")},
        "child": {"root": lambda root: root["children"][0].pop("digest")},
        "prefix": {"groups": lambda group: group["prefix"].pop("schema")},
    }
    forge.forge(store.path, **change[where])
    store.refused(None, (FormatError,), told=where)


@pytest.mark.parametrize("line", [b"", b"{}\n", b'{"digest":null}\n', b'{"digest":""}\n', b'{"digest":"md5:00"}\n'])
@pytest.mark.parametrize("pattern", ["run.json", "epochs/*.json", "roots/*.json", "data/*/*/*.json"])
def test_a_record_without_its_digest_is_refused(pattern: str, line: bytes, store: Store) -> None:
    file = store.file(pattern)
    file.write_bytes(store.kept[file].split(b"\n")[0] + b"\n" + line)
    assert type(store.refused(file)) is FormatError


# ---------------------------------------------------------------- counts without measure

HUGE = 2**62


def grow(shard: Shard, **fields: Any) -> None:
    shard.entry("w")[1].update(fields)


COUNTS: dict[str, dict[str, Any]] = {
    "owners": {"root": lambda root: root.update(owners=HUGE, size=HUGE)},
    "a subtree's size": {"root": lambda root: root["children"][0].update(size=HUGE)},
    "bytes of a shard": {"root": lambda root: root["shards"][0].update(bytes=HUGE)},
    "a piece's end": {"groups": pieces(move(2, HUGE))},
    "a shape in a header": {"shards": at(1, lambda shard: grow(shard, shape=[HUGE, 4]))},
    "offsets in a header": {"shards": at(1, lambda shard: grow(shard, data_offsets=[0, HUGE]))},
    "axes in a header": {"shards": at(1, lambda shard: grow(shard, shape=[1] * 100_000))},
    "a chunk's size": {"shards": lambda shard: shard.header["__metadata__"].update(chunk=str(HUGE))},
    "digits": {"shards": lambda shard: shard.header["__metadata__"].update(cursor="9" * 100_000)},
    "deep nesting": {"root": lambda root: root.update(written={"a": deep(500)})},
    "children": {"root": lambda root: root.update(children=root["children"] * 3_000)},
    "the fan-out": {"root": lambda root: root["topology"].update(kind="tree", fan_out=HUGE, more=1)},
}


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("case", [case for case in COUNTS if case != "deep nesting"])
def test_huge_counts_are_refused_quickly_and_without_memory(case: str, store: Store) -> None:
    forge.forge(store.path, **COUNTS[case])
    largest = max(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
    tracemalloc.start()
    try:
        begun = time.monotonic()
        store.refused(None, LIES, told=case)
        assert time.monotonic() - begun < 5
        assert tracemalloc.get_traced_memory()[1] < (8 << 20) + 40 * largest
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("nested", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
@pytest.mark.parametrize("pattern", ["run.json", "epochs/*.json", "roots/*.json", "data/*/*/*.json"])
def test_nesting_without_end_is_refused(pattern: str, nested: bytes, store: Store) -> None:
    file = store.file(pattern)
    if pattern == "data/*/*/*.json":
        file.write_bytes(forge.seal(nested)[0])
        digest = forge.seal(nested)[1]
        path = store.file("roots/*.json")
        top = forge.read(path)
        top["children"][0]["digest"] = digest
        path.write_bytes(forge.seal(top)[0])
    else:
        file.write_bytes(forge.seal(nested)[0])
    assert type(store.refused(file)) is FormatError


@pytest.mark.parametrize("shape", [[2**40, 4], [2**59], [2**30, 2**28], [0, 2**58]], ids=repr)
def test_a_region_greater_than_any_memory_is_refused_and_not_allocated(shape: list[int], store: Store) -> None:
    """Root, groups, shards and sums all say so; only the bytes are not there."""
    top = forge.read(store.file("roots/*.json"))
    relabel(top, lambda schema: schema["w"].update(shape=shape))
    told = top["prefix"]["schema"]

    def everywhere(record: Record) -> None:
        record["prefix"]["schema"] = told
        for listed in record["shards"]:
            listed["pieces"] = [piece for piece in listed["pieces"] if len(piece[1]) != 2]

    def root(record: Record) -> None:
        everywhere(record)
        record["schema"] = top["schema"]
        if 0 not in shape:
            ordinal = sorted(record["schema"]).index("w")
            record["shards"][0]["pieces"] = sorted([*record["shards"][0]["pieces"], [ordinal, [0] * len(shape), shape]])

    def shard(opened: Shard) -> None:
        opened.header["__metadata__"]["schema"] = told

    forge.forge(store.path, shards=shard, groups=everywhere, root=root, covers=True)
    big = Store(store.path, lambda: {**whole(0.0), "w": mpickpt.Spec(shape, "float32")})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for reader in (
        big.read,
        big.resume,
        lambda: big.resume(readonly=True),
        lambda: mpickpt.sharded.load_sharded(store.path, 2),
    ):
        with pytest.raises(mpickpt.CheckpointError):
            reader()
    with pytest.raises(mpickpt.CheckpointError), mpickpt.Checkpointer(store.path, alone=True) as ckpt:
        ckpt.resume(repartition=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # in KiB: it was never touched
    assert not mpickpt.open_store(store.path).verify().ok
