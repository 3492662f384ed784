"""One hostile file a refusal: records and manifests, each with its right digest, so that the parser refuses."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from mpickpt import canonical
from mpickpt import digest as digests
from mpickpt.errors import CheckpointError, FormatError, IntegrityError
from mpickpt.format.ended import Ended
from mpickpt.format.manifest import (
    ChildRecord,
    Claim,
    Manifest,
    Prefix,
    RunInfo,
    ShardRecord,
    Void,
    decode_root,
    record,
    shard_file,
    unrecord,
)
from mpickpt.state.contract import Contract
from mpickpt.state.region import Region, Schema

D = "blake3:" + "1f" * 32
SCHEMA = Schema([Region("a", "float32", (8, 4), "array"), Region("b", "uint8", None, "value")])
PREFIX = Prefix("run-1", SCHEMA.digest("blake3"), Contract().digest("blake3"), 3, 4, 2, 5, "5f0c")
OWN = ShardRecord(0, shard_file(0), 9000, D, ((0, (0, 0), (2, 4)), (1, (), ())))
SHARED = ShardRecord(0, shard_file(0, shared=True), 9000, D, ((1, (), ()),))
ROOT = Manifest(
    "root", 0, 4, PREFIX, {}, (OWN, SHARED),
    (ChildRecord(1, 1, D, 7, ((0, (2, 0), (4, 4)),)), ChildRecord(2, 1, D, 8, None), ChildRecord(3, 1, D, 9, ())),
    11, schema=SCHEMA, contract=Contract().to_json(), owners=4, topology={"kind": "star", "fan_out": 3},
    parent={"digest": D, "step": 1, "cursor": 1, "epoch": 1}, lineage=((1, None, None), (2, 1, 1)),
)  # fmt: skip
GROUP = Manifest(
    "group", 1, 3, PREFIX, {}, (ShardRecord(1, shard_file(1), 9000, D, ((0, (2, 0), (4, 4)),)),),
    (ChildRecord(2, 2, D, 7, None),), 11,
)  # fmt: skip
CLAIM = Claim(2, "run-1", 1, 10, D, 4, None, "n5", "now", "77aa", ((1, None, None), (2, 1, 10)))
RUN = RunInfo(1, "run-1", "now")
VOID = Void("000000000003-e00000002-5f0c", {"class": "StateError", "message": "no", "role": 1, "roles": [1]})
VALID: dict[str, tuple[Any, Callable[..., Any]]] = {
    "root": (ROOT, decode_root),
    "group": (GROUP, lambda data, path: Manifest.decode(data, path, schema=SCHEMA)),
    "claim": (CLAIM, Claim.decode),
    "run": (RUN, RunInfo.decode),
    "void": (VOID, Void.decode),
    "ended": (Ended(2, "SIGTERM", "now"), Ended.decode),
}


def sealed(first: bytes, algorithm: str = "blake3") -> bytes:
    """Two lines around any bytes, with their right digest."""
    name = digests.name(algorithm, digests.digest(algorithm, "record", first))
    return first + b'\n{"digest":"' + name.encode() + b'"}\n'


def first_line(kind: str) -> bytes:
    data: bytes = VALID[kind][0].encode()[0]
    return data.split(b"\n")[0]


def refused(kind: str, data: bytes, error: type[CheckpointError] = FormatError) -> CheckpointError:
    with pytest.raises(error) as info:
        VALID[kind][1](data, "some/file.json")
    assert type(info.value) is error
    assert info.value.path == "some/file.json"
    assert len(str(info.value)) < 4000
    return info.value


@pytest.mark.parametrize("kind", VALID)
def test_the_unchanged_records_are_taken(kind: str) -> None:
    record_, decode = VALID[kind]
    assert decode(record_.encode()[0], None) == record_
    assert decode(record_.encode("sha256")[0], None) == record_


@pytest.mark.parametrize("kind", VALID)
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: b"", IntegrityError),
        (lambda data: data[:-1], IntegrityError),
        (lambda data: data[: len(data) // 2], IntegrityError),
        (lambda data: data + b"x", IntegrityError),
        (lambda data: data + b"\n", IntegrityError),
        (lambda data: data + data, IntegrityError),
        (lambda data: b"X" + data[1:], IntegrityError),
        (lambda data: data[:-5] + b"g" + data[-4:], IntegrityError),
        (lambda data: data.split(b"\n")[0] + b"\n", FormatError),
        (lambda data: data.split(b"\n")[0] + b"\n{}\n", FormatError),
        (lambda data: data.split(b"\n")[0] + b'\n{"digest":null}\n', FormatError),
        (lambda data: data.split(b"\n")[0] + b'\n{"digest":""}\n', FormatError),
        (lambda data: data.split(b"\n")[0] + b'\n{"digest":"md5:' + b"0" * 32 + b'"}\n', FormatError),
    ],
    ids=["empty", "cut", "half", "longer", "line", "twice", "flipped", "digit", "none", "{}", "null", "text", "md5"],
)
def test_damaged_lines(kind: str, change: Callable[[bytes], bytes], error: type[CheckpointError]) -> None:
    refused(kind, change(VALID[kind][0].encode()[0]), error)


@pytest.mark.parametrize("kind", VALID)
def test_every_flipped_byte_is_refused(kind: str) -> None:
    data = VALID[kind][0].encode()[0]
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises((IntegrityError, FormatError)):
            VALID[kind][1](bytes(changed), None)


@pytest.mark.parametrize("kind", VALID)
@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"text"',
        b"{",
        b"\xff\xfe",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"a":1.0}',
        b'{"a":1,"a":2}',
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\u0041"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"9" * 21 + b"}",
        b'{"a":-0}',
        b'{"a":01}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda first: repr(first[:24]),
)
def test_what_is_no_canonical_object(kind: str, first: bytes) -> None:
    refused(kind, sealed(first))


@pytest.mark.parametrize("kind", VALID)
def test_a_newer_format_names_its_reader(kind: str) -> None:
    value = {**json.loads(first_line(kind)), "format": 2, "new": "key"}
    error = refused(kind, sealed(canonical.dumps(value)))
    assert "mpickpt 2.0 or newer" in str(error)
    assert error.found == "format 2"


@pytest.mark.parametrize("kind", VALID)
@pytest.mark.parametrize("version", [0, -1, None, "1", True, [1]])
def test_no_known_format(kind: str, version: object) -> None:
    refused(kind, sealed(canonical.dumps({**json.loads(first_line(kind)), "format": version})))


@pytest.mark.parametrize("kind", VALID)
def test_another_kind_or_none(kind: str) -> None:
    for other in (None, "", "other", 1, "claim" if kind != "claim" else "run"):
        refused(kind, sealed(canonical.dumps({**json.loads(first_line(kind)), "kind": other})))


@pytest.mark.parametrize("kind", VALID)
def test_missing_unknown_and_null_keys(kind: str) -> None:
    value = json.loads(first_line(kind))
    refused(kind, sealed(canonical.dumps({**value, "unknown": 1})))
    for key in value.keys() - {"job", "parent", "from_epoch", "from_step", "from_root"}:
        refused(kind, sealed(canonical.dumps({k: v for k, v in value.items() if k != key})))
        refused(kind, sealed(canonical.dumps({**value, key: None})))


def test_a_recorded_digest_that_is_another(tmp_path: object) -> None:
    with pytest.raises(IntegrityError, match="another one than was recorded"):
        Manifest.decode(GROUP.encode()[0], "f", digest=D)
    with pytest.raises(IntegrityError, match="another one than was recorded"):
        unrecord(GROUP.encode()[0], "f", digest=GROUP.encode("sha256")[1])


def nested(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize("kind", VALID)
@pytest.mark.parametrize("depth", [10, 300, *range(800, 1000, 5)])
def test_a_value_nested_nearly_as_deep_as_the_interpreter_goes(kind: str, depth: int) -> None:
    value = json.loads(first_line(kind))
    for key in value.keys() - {"format"}:
        try:
            first = canonical.dumps({**value, key: nested(depth)})
        except RecursionError:
            continue
        refused(kind, sealed(first))


HUGE = 10**19
BAD_FILES = ["../x.safetensors", "/x.safetensors", "a//b.safetensors", "a\\b.safetensors", "a\0.safetensors", "", "x",
             "./a.safetensors", "a/../../b.safetensors", ".hidden.safetensors", "é.safetensors", 7, None,
             "a" * 250 + ".safetensors", "a/\n.safetensors", "C:/a.safetensors", "00000/000000.json"]  # fmt: skip
BAD_DIGESTS = [None, "", "blake3:", D.upper(), D[:-1], D + "0", "md5:" + "1f" * 32, 5, D.replace("1f", "zz")]
BAD_COUNTS = [-1, True, "1", None, HUGE, [1], 2**63]
BAD_BOXES = [
    None, {}, [1], [[0]], [[0, [0, 0]]], [[0, [0, 0], [2, 4], 1]], [["0", [0, 0], [2, 4]]], [[True, [], []]],
    [[-1, [], []]], [[2, [], []]], [[0, [0, 0], [2]]], [[0, [0], [2]]], [[0, [0, 0], [9, 4]]], [[0, [2, 0], [2, 4]]],
    [[0, [3, 0], [2, 4]]], [[0, [-1, 0], [2, 4]]], [[0, [False, 0], [2, 4]]], [[0, [0, 0], [True, 4]]],
    [[0, [0, 0], [HUGE, 4]]], [[0, "ab", "cd"]], [[1, [0], [1]]], [[0, [0, 0], [2, 4]], [0, [0, 0], [2, 4]]],
    [[1, [], []], [0, [0, 0], [2, 4]]], [[HUGE, [], []]], [[0, [0] * 65, [1] * 65]],
]  # fmt: skip

CASES: list[tuple[str, tuple[Any, ...], list[Any]]] = [
    ("root", ("role",), [1, *BAD_COUNTS]),
    ("root", ("size",), [0, 3, 5, *BAD_COUNTS]),
    ("root", ("owners",), [0, 3, 5, *BAD_COUNTS]),
    ("root", ("prefix", "schema"), [D, *BAD_DIGESTS]),
    ("root", ("prefix", "contract"), [D, *BAD_DIGESTS]),
    ("root", ("prefix", "run"), ["", "../x", "a/b", "a" * 65, 1]),
    ("root", ("prefix", "attempt"), ["", "../x", "a-b", "a" * 65, 1]),
    *[("root", ("prefix", key), BAD_COUNTS) for key in ("step", "cursor", "epoch", "call")],
    ("root", ("prefix",), [None, [], {}, "x"]),
    ("root", ("device",), [[], "x"]),
    ("root", ("schema",), [{}, [], {"a": {}}, {"a": {"dtype": "float32", "kind": "array", "shape": [8, 5]}}]),
    ("root", ("containers",), [[], {"a": 1}, {"a": None}]),
    ("root", ("contract",), [{}, [], {**Contract().to_json(), "placement": "free"}]),
    ("root", ("topology",), [{}, {"kind": "ring", "fan_out": 1}, {"kind": "star"}, {"kind": "star", "fan_out": -1}]),
    ("root", ("topology", "kind"), [["star"], None, {}]),
    ("root", ("parent",), [{}, [], "x"]),
    ("root", ("parent", "digest"), BAD_DIGESTS),
    ("root", ("parent", "step"), BAD_COUNTS),
    ("root", ("lineage",), [{}, [1], [[1, None]], [[0, None, None]], [[3, None, None]], [[2, 2, 1]], [[2, 1, None]],
                            [[2, None, 1]], [[2, 1, 1], [2, 1, 1]], [[2, 1, 1], [1, None, None]],
                            [[True, None, None]]]),
    ("root", ("written",), [[], "x"]),
    ("root", ("cover",), ["", "0" * 63, "0" * 65, "F" * 64, "g" * 64, 5, None, "-" + "0" * 63, "0x" + "0" * 62]),
    ("root", ("shards",), [{}, "x", [1], [{}]]),
    ("root", ("shards", 0, "role"), [4, *BAD_COUNTS]),
    ("root", ("shards", 1, "role"), [4, *BAD_COUNTS]),
    ("root", ("shards", 1, "file"), [shard_file(0), *BAD_FILES]),
    ("root", ("shards", 0, "bytes"), [0, *BAD_COUNTS]),
    ("root", ("shards", 0, "digest"), BAD_DIGESTS),
    ("root", ("shards", 0, "pieces"), [[], *BAD_BOXES]),
    ("root", ("children",), [{}, "x", [1], [{}]]),
    ("root", ("children", 0, "role"), [0, 2, *BAD_COUNTS]),
    ("root", ("children", 0, "size"), [0, 2, 4, *BAD_COUNTS]),
    ("root", ("children", 2, "size"), [2]),
    ("root", ("children", 0, "digest"), BAD_DIGESTS),
    ("root", ("children", 0, "cover"), ["0", None, 7, "x" * 64]),
    ("root", ("children", 0, "bounds"), [[[1, [], []]] * 65, *BAD_BOXES,
                                         [[0, [0, 0], [1, 4]], [0, [1, 0], [2, 4]]]]),
    ("group", ("role",), [0, 2, *BAD_COUNTS]),
    ("group", ("size",), [0, 1, 2, 4, *BAD_COUNTS]),
    ("group", ("shards", 0, "role"), [2, 0]),
    ("group", ("shards", 0, "file"), [shard_file(1, shared=True)]),
    ("group", ("shards", 0, "pieces"), BAD_BOXES),
    ("group", ("children",), [[]]),
    ("claim", ("epoch",), [0, 1, 3, *BAD_COUNTS]),
    ("claim", ("owners",), [0, *BAD_COUNTS]),
    ("claim", ("from_epoch",), [None, 0, 2, -1, True, "1"]),
    ("claim", ("from_step",), [None, -1, True, "1", HUGE]),
    ("claim", ("from_root",), BAD_DIGESTS),
    ("claim", ("job",), [5, [], "x" * 5000]),
    ("claim", ("host",), [5, "x" * 5000]),
    ("claim", ("nonce",), ["", "../..", "a b", 5]),
    ("claim", ("run",), ["", "../..", ".a", 5]),
    ("claim", ("lineage",), [[], [[1, None, None]], [[2, None, None]]]),
    ("run", ("run",), ["", "..", "a/b", 5, "é"]),
    ("run", ("created",), [5, "x" * 5000]),
    ("void", ("attempt",), ["", "../x", "1-e1-a", "000000000003-e00000002-a/b", "0000000000003-e00000002-a", 5]),
    ("void", ("error",), [{}, [], {"class": "A"}, {"class": "A", "message": "b", "other": 1}]),
    ("void", ("error", "class"), [5, None]),
    ("void", ("error", "role"), [-1, True, "1"]),
    ("void", ("error", "roles"), [1, [True], [-1], ["1"]]),
    ("void", ("error", "found"), [None, [], {}, True]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "where", "bad"),
    [
        pytest.param(kind, where, bad, id=f"{kind}-{'.'.join(map(str, where))}-{n}")
        for kind, where, values in CASES
        for n, bad in enumerate(values)
    ],
)
def test_bad_values(kind: str, where: tuple[Any, ...], bad: object) -> None:
    value = json.loads(first_line(kind))
    spot: Any = value
    for key in where[:-1]:
        spot = spot[key]
    spot[where[-1]] = copy.deepcopy(bad)
    assert canonical.dumps(value) != first_line(kind), "the case changes nothing"
    refused(kind, sealed(canonical.dumps(value)))


def test_two_records_that_name_one_file() -> None:
    value = json.loads(first_line("root"))
    value["shards"].append({**value["shards"][0], "role": 1})
    assert "no other record names" in str(refused("root", sealed(canonical.dumps(value))))


def test_one_role_twice_and_out_of_order() -> None:
    value = json.loads(first_line("root"))
    value["shards"].append({**value["shards"][0], "file": "other.safetensors"})
    assert "once, ascending" in str(refused("root", sealed(canonical.dumps(value))))


def test_a_group_with_two_shards() -> None:
    value = json.loads(first_line("group"))
    value["shards"].append({**value["shards"][0], "file": "other.safetensors"})
    refused("group", sealed(canonical.dumps(value)))


def test_a_star_with_a_subtree() -> None:
    value = json.loads(first_line("root"))
    value["children"] = [{**value["children"][0], "size": 3}]
    assert "in a star" in str(refused("root", sealed(canonical.dumps(value))))
    value["topology"]["kind"] = "tree"
    assert decode_root(sealed(canonical.dumps(value))).children[0].size == 3  # type: ignore[union-attr]


def test_bounds_without_a_schema_are_still_bounded() -> None:
    for bad in ([[0, [0] * 65, [1] * 65]], [[HUGE, [], []]], [[0, [1], [1]]]):
        value = json.loads(first_line("group"))
        value["children"][0]["bounds"] = bad
        with pytest.raises(FormatError):
            Manifest.decode(sealed(canonical.dumps(value)))


def test_huge_counts_take_no_memory() -> None:
    value = json.loads(first_line("group"))
    value["size"] = 2**62
    value["children"][0]["size"] = 2**62 - 1
    data = sealed(canonical.dumps(value))
    tracemalloc.start()
    try:
        assert Manifest.decode(data, schema=SCHEMA).size == 2**62
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bad", [{"a": 1.5}, {"a": float("nan")}, {"a": "\ud800"}, {1: 2}, {"a": {2: 3}}, {"a": b"x"}])
def test_what_a_record_cannot_hold_is_no_traceback(bad: Any) -> None:
    with pytest.raises(CheckpointError, match="canonical JSON"):
        record(bad)
