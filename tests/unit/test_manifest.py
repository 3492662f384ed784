"""Manifests: encode, decode, and what they say of themselves."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from mpickpt.errors import FormatError, IntegrityError
from mpickpt.format.manifest import (
    ChildRecord,
    Manifest,
    Prefix,
    ShardRecord,
    Void,
    decode_root,
    shard_file,
)
from mpickpt.state.contract import Contract
from mpickpt.state.region import Region, Rule, Schema

D = "blake3:" + "1f" * 32
SCHEMA = Schema([Region("a", "float32", (8, 4), "array", Rule("ceil", 1)), Region("b", "uint8", None, "value")])
CONTRACT = Contract(identity={"lr": 1e-3})


def prefix(algorithm: str = "blake3", schema: Schema = SCHEMA) -> Prefix:
    return Prefix("run-1", schema.digest(algorithm), CONTRACT.digest(algorithm), 3, 4, 2, 5, "5f0c")


def shard(role: int, shared: bool = False, pieces: Any = ((0, (0, 0), (2, 4)),)) -> ShardRecord:
    return ShardRecord(role, shard_file(role, shared), 9000, D, pieces)


def root(**changed: Any) -> Manifest:
    fields: dict[str, Any] = {
        "kind": "root", "role": 0, "size": 3, "prefix": prefix(), "device": {"product": "cpu"},
        "shards": (shard(0), shard(0, shared=True)), "cover": 2**256 - 1,
        "children": (ChildRecord(1, 1, D, 7, ()), ChildRecord(2, 1, D, 8, None)),
        "schema": SCHEMA, "contract": CONTRACT.to_json(), "owners": 3, "topology": {"kind": "star", "fan_out": 2},
    }  # fmt: skip
    return Manifest(**{**fields, **changed})


@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
def test_a_root_comes_back(algorithm: str) -> None:
    manifest = root(
        prefix=prefix(algorithm), containers={"opt": "list"}, parent={"digest": D, "step": 1, "cursor": 2, "epoch": 1},
        written={"hosts": 2, "mpi": {"name": "Open MPI"}}, lineage=((1, None, None), (2, 1, 1)),
    )  # fmt: skip
    data, digest = manifest.encode(algorithm)
    found = decode_root(data, "f", digest=digest)
    assert found == manifest
    assert isinstance(found, Manifest)
    assert found.digest == digest
    assert found.schema is not None
    assert found.schema[0].rule == Rule("ceil", 1)
    assert found.encode(algorithm) == (data, digest)


def test_gather_has_all_shards_in_the_root() -> None:
    manifest = root(shards=tuple(shard(role) for role in range(3)), children=())
    assert Manifest.decode(manifest.encode()[0]) == manifest


def test_one_owner_alone() -> None:
    manifest = root(size=1, owners=1, children=(), shards=(), topology={"kind": "star", "fan_out": 0})
    assert Manifest.decode(manifest.encode()[0]) == manifest


def test_a_group_without_a_shard() -> None:
    group = Manifest("group", 4, 1, prefix(), {}, (), (), 0)
    data, digest = group.encode()
    assert Manifest.decode(data, digest=digest, schema=SCHEMA) == group
    assert json.loads(data.split(b"\n")[0]).keys() == {
        "format", "kind", "role", "size", "prefix", "device", "shards", "children", "cover",
    }  # fmt: skip


def test_what_is_written_out_of_order_stands_in_order() -> None:
    pieces = ((1, (), ()), (0, (4, 0), (8, 4)), (0, (0, 0), (4, 4)))
    manifest = root(shards=(shard(0, True), shard(0, False, pieces)))
    found = Manifest.decode(manifest.encode()[0])
    assert [record.shared for record in found.shards] == [False, True]
    assert found.shards[0].pieces == pieces[::-1]


def test_a_void_in_the_place_of_a_root() -> None:
    void = Void("000000000003-e00000002-5f0c", {"class": "StateError", "message": "no"})
    assert decode_root(void.encode()[0]) == void
    with pytest.raises(FormatError, match="bad 'kind'"):
        Manifest.decode(void.encode()[0])
    with pytest.raises(FormatError, match="bad 'kind'"):
        decode_root(Manifest("group", 4, 1, prefix(), {}, (), (), 0).encode()[0])


def test_another_schema_or_contract_than_the_prefix_names() -> None:
    for changed in ({"schema": Schema([SCHEMA[0]])}, {"contract": Contract().to_json()}):
        with pytest.raises(FormatError, match="is not its prefix's"):
            Manifest.decode(root(**changed).encode()[0])


def test_a_digest_that_is_not_the_recorded_one() -> None:
    with pytest.raises(IntegrityError) as info:
        Manifest.decode(root().encode()[0], "some/file", digest=D)
    assert (info.value.expected, info.value.path) == (D, "some/file")


def test_records_below_the_root_are_of_its_owners_only() -> None:
    for changed in (
        {"shards": (shard(3),)},
        {"children": (ChildRecord(1, 1, D, 7, None),)},
        {"children": (ChildRecord(2, 1, D, 7, None), ChildRecord(1, 1, D, 7, None), ChildRecord(1, 1, D, 7, None))},
        {"size": 4},
    ):
        with pytest.raises(FormatError):
            Manifest.decode(root(**changed).encode()[0])


def test_thirty_thousand_pieces_are_quick_and_linear() -> None:
    def spend(count: int) -> float:
        schema = Schema([Region(f"layers/#{n}/w", "float32", (2,), "array") for n in range(count)])
        pieces = tuple((n, (0,), (2,)) for n in range(count))
        manifest = root(prefix=prefix(schema=schema), schema=schema, shards=(shard(0, False, pieces),))
        spent = []
        for _ in range(3):
            start = time.process_time()
            data, _ = manifest.encode()
            assert Manifest.decode(data) == replace(manifest)
            spent.append(time.process_time() - start)
        return min(spent)

    few, many = spend(3_000), spend(30_000)
    assert many < 2.0
    assert many < 30 * few + 0.1
