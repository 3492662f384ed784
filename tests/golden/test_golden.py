"""Literal bytes of format 1: built from fixed inputs they are these, and parsed they give the inputs back.

A change that makes this test fail changes the format: then the format version changes, and these bytes stay.
"""

from __future__ import annotations

import struct

import pytest

from mpickpt.format.commitment import Commitment, SharedShard
from mpickpt.format.manifest import ChildRecord, Claim, Manifest, RunInfo, ShardRecord, Void, decode_root
from mpickpt.format.prefix import Prefix
from mpickpt.format.shard import (
    Layout,
    PieceSpec,
    chunk_digest,
    head_size,
    layout,
    locate_tables,
    parse,
    shard_digest,
    verify_tables,
)
from mpickpt.state.contract import Contract
from mpickpt.state.region import Box, Region, Rule, Schema

SCHEMA = Schema(
    [
        Region("model/w", "float32", (4, 2), "array", Rule("balanced", 0)),
        Region("model/µ", "complex64", (), "array"),
        Region("opt/#0", "bfloat16", (3,), "array"),
        Region("rng", "uint8", None, "per_owner"),
    ]
)
CONTRACT = Contract(identity={"lr": 0.1, "model": "mlp"})
PIECES = (
    PieceSpec(0, "model/w", Box((2, 0), (4, 2)), "float32", 16),
    PieceSpec(1, "model/µ", Box((), ()), "complex64", 8),
    PieceSpec(2, "opt/#0", Box((0,), (3,)), "bfloat16", 6),
    PieceSpec(3, "rng", Box((), ()), "uint8", 11),
)
PAYLOAD = bytes(range(41))


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def build_layout(algorithm: str) -> Layout:
    return layout(
        PIECES[::-1], role=1, schema=SCHEMA.digest(algorithm), step=1200, cursor=76800, epoch=7, attempt="5f0c",
        algorithm=algorithm, chunk=32,
    )  # fmt: skip


def build_shard(algorithm: str) -> bytes:
    chunks = [PAYLOAD[:32], PAYLOAD[32:]]
    digests = b"".join(chunk_digest(algorithm, chunk) for chunk in chunks)
    return build_layout(algorithm).head + PAYLOAD + digests + struct.pack("<2I", *map(crc32c, chunks))


def prefix(algorithm: str) -> Prefix:
    return Prefix("run-1", SCHEMA.digest(algorithm), CONTRACT.digest(algorithm), 1200, 76800, 7, 31, "5f0c")


def record(algorithm: str) -> ShardRecord:
    data = build_shard(algorithm)
    digest = shard_digest(algorithm, data[:4096], data[4137:4201], data[4201:])
    pieces = tuple((spec.ordinal, spec.box.lo, spec.box.hi) for spec in PIECES)
    return ShardRecord(1, "00000/000001.safetensors", len(data), digest, pieces)


def group(algorithm: str) -> Manifest:
    return Manifest("group", 1, 1, prefix(algorithm), {"kind": "cpu"}, (record(algorithm),), (), 0xC0FFEE)


def root(algorithm: str) -> Manifest:
    child = group(algorithm).encode(algorithm)[1]
    shared = ShardRecord(0, "00000/000000.r.safetensors", 8192, "blake3:" + "ab" * 32, ((1, (), ()),))
    return Manifest(
        "root", 0, 2, prefix(algorithm), {}, (shared,), (ChildRecord(1, 1, child, 2**256 - 1, ((2, (0,), (3,)),)),),
        5, schema=SCHEMA, containers={"opt": "list"}, contract=CONTRACT.to_json(), owners=2,
        topology={"kind": "star", "fan_out": 1}, lineage=((1, None, None), (7, 1, 1100)),
        parent={"digest": "blake3:" + "cd" * 32, "step": 1100, "cursor": 70400, "epoch": 1},
        written={"host": "n5", "mpickpt": "1.0"},
    )  # fmt: skip


RUN = RunInfo(1, "run-1", "2030-01-02T03:04:05Z")
CLAIM = Claim(
    7, "run-1", 1, 1100, "blake3:" + "cd" * 32, 2, None, "n5", "2030-01-02T03:04:05Z", "77aa",
    ((1, None, None), (7, 1, 1100)),
)  # fmt: skip
VOID = Void("000000001200-e00000007-5f0c", {"class": "DeadlineError", "message": "owner 1 is silent", "role": 1})


def commitment() -> Commitment:
    shared = SharedShard("00000/000001.r.safetensors", 8192, "blake3:" + "ab" * 32)
    return Commitment(prefix("blake3"), 1, 1, bytes(range(32)), 5, 2**256 - 1, 0, ((2, (0,), (3,)),), shared)


def build_all() -> dict[str, bytes]:
    """Give all goldens by name; the headers of shards without their padding."""
    shards = {f"SHARD_{a.upper()}": build_shard(a) for a in ("blake3", "sha256")}
    return {
        **{name: data[:4096].rstrip(b" ") for name, data in shards.items()},
        **{f"{name}_TABLES": data[4096 + 41 :] for name, data in shards.items()},
        "GROUP": group("blake3").encode("blake3")[0],
        "ROOT": root("blake3").encode("blake3")[0],
        "ROOT_SHA256": root("sha256").encode("sha256")[0],
        "RUN_JSON": RUN.encode("blake3")[0],
        "CLAIM_JSON": CLAIM.encode("blake3")[0],
        "VOID_JSON": VOID.encode("blake3")[0],
        "COMMITMENT": commitment().pack(),
    }


SHARD_BLAKE3 = (
    b'\xf8\x0f\x00\x00\x00\x00\x00\x00{"__metadata__":{"algorithm":"blake3","attempt":"5f0c","chunk":"32","cursor":'
    b'"76800","dtypes":"{\\"model/\xc2\xb5\\":\\"complex64\\"}","epoch":"7","format":"1","role":"1","schema":"b'
    b'lake3:f4c4227b1b608e90d919fec0a20759228919d7bda7174fc83ccdc5f92af40e3c","shared":"0","step":"1200"},'
    b'"model/w[2:4,0:2]":{"data_offsets":[8,24],"dtype":"F32","shape":[2,2]},"model/\xc2\xb5[]":{"data_offsets":'
    b'[0,8],"dtype":"U8","shape":[8]},"mpickpt.crc32c":{"data_offsets":[105,113],"dtype":"U8","shape":[2,4'
    b']},"mpickpt.digests":{"data_offsets":[41,105],"dtype":"U8","shape":[2,32]},"opt/#0[0:3]":{"data_offs'
    b'ets":[24,30],"dtype":"BF16","shape":[3]},"rng[]":{"data_offsets":[30,41],"dtype":"U8","shape":[11]}}'
)

SHARD_SHA256 = (
    b'\xf8\x0f\x00\x00\x00\x00\x00\x00{"__metadata__":{"algorithm":"sha256","attempt":"5f0c","chunk":"32","cursor":'
    b'"76800","dtypes":"{\\"model/\xc2\xb5\\":\\"complex64\\"}","epoch":"7","format":"1","role":"1","schema":"s'
    b'ha256:91d6f70bc80c1aed4ab1b22f61f597823e7b7641955db9f49903984123ce7e03","shared":"0","step":"1200"},'
    b'"model/w[2:4,0:2]":{"data_offsets":[8,24],"dtype":"F32","shape":[2,2]},"model/\xc2\xb5[]":{"data_offsets":'
    b'[0,8],"dtype":"U8","shape":[8]},"mpickpt.crc32c":{"data_offsets":[105,113],"dtype":"U8","shape":[2,4'
    b']},"mpickpt.digests":{"data_offsets":[41,105],"dtype":"U8","shape":[2,32]},"opt/#0[0:3]":{"data_offs'
    b'ets":[24,30],"dtype":"BF16","shape":[3]},"rng[]":{"data_offsets":[30,41],"dtype":"U8","shape":[11]}}'
)

SHARD_BLAKE3_TABLES = (
    b"7]o<\x1d\xeb<H\xc2\x97A\xf2\xe7\xf1K~\xb3\x95\xc9\x99\x80\x04.\xafC\xa0\xcfl\xb4\x8a\x92W\x16}\xa8~xSrS"
    b'\\\x94c\xbb\xf5b"$\xe9\x02\x88=\x8c\x98\xbf\xf9/\xbf\x89\xebK\xb2\x15nNy\xddF\xab%\x03\\'
)

SHARD_SHA256_TABLES = (
    b"\xc2S\xbbb\xc3u\xa9\xc4\x99X\xe3h\xec\xfcA\xd7IM\xcc\x13\x9du4\xee7x\xd9('\xa4\x15\xf5]\r\x11\xbdY\xf1\xf2J"
    b"\x9e\xed\x8f\x9d\xc9\x8aA\xdch\x9d\xa7\x15\x14F\xd4\xffhUC\\R\xcc\x92\xc9Ny\xddF\xab%\x03\\"
)

GROUP = (
    b'{"children":[],"cover":"0000000000000000000000000000000000000000000000000000000000c0ffee","device":{'
    b'"kind":"cpu"},"format":1,"kind":"group","prefix":{"attempt":"5f0c","call":31,"contract":"blake3:3b11'
    b'db0ed8619e0d0373509906b76a771929b38471f0764ec01279583e6c11f5","cursor":76800,"epoch":7,"run":"run-1"'
    b',"schema":"blake3:f4c4227b1b608e90d919fec0a20759228919d7bda7174fc83ccdc5f92af40e3c","step":1200},"ro'
    b'le":1,"shards":[{"bytes":4209,"digest":"blake3:3d9d819ae9cfc4cdeed7dcafc28cceed988c6ef8d37756844e478'
    b'13888031890","file":"00000/000001.safetensors","pieces":[[0,[2,0],[4,2]],[1,[],[]],[2,[0],[3]],[3,[]'
    b',[]]],"role":1}],"size":1}\n{"digest":"blake3:db8342b3681bc29ae8a25435046f01c5118f8bea5560e6024311ac4'
    b'1a4c72ccf"}\n'
)

ROOT = (
    b'{"children":[{"bounds":[[2,[0],[3]]],"cover":"ffffffffffffffffffffffffffffffffffffffffffffffffffffff'
    b'ffffffffff","digest":"blake3:db8342b3681bc29ae8a25435046f01c5118f8bea5560e6024311ac41a4c72ccf","role'
    b'":1,"size":1}],"containers":{"opt":"list"},"contract":{"device":"free","identity":{"lr":{"f64":"0x1.'
    b'999999999999ap-4"},"model":"mlp"},"numerics":{},"placement":"ask"},"cover":"000000000000000000000000'
    b'0000000000000000000000000000000000000005","device":{},"format":1,"kind":"root","lineage":[[1,null,nu'
    b'll],[7,1,1100]],"owners":2,"parent":{"cursor":70400,"digest":"blake3:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdc'
    b'dcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd","epoch":1,"step":1100},"prefix":{"attempt":"5f0c","call":31,"cont'
    b'ract":"blake3:3b11db0ed8619e0d0373509906b76a771929b38471f0764ec01279583e6c11f5","cursor":76800,"epoc'
    b'h":7,"run":"run-1","schema":"blake3:f4c4227b1b608e90d919fec0a20759228919d7bda7174fc83ccdc5f92af40e3c'
    b'","step":1200},"role":0,"schema":{"model/w":{"dtype":"float32","kind":"array","rule":["balanced",0],'
    b'"shape":[4,2]},"model/\xc2\xb5":{"dtype":"complex64","kind":"array","shape":[]},"opt/#0":{"dtype":"bfloat1'
    b'6","kind":"array","shape":[3]},"rng":{"dtype":"uint8","kind":"per_owner","shape":null}},"shards":[{"'
    b'bytes":8192,"digest":"blake3:abababababababababababababababababababababababababababababababab","file'
    b'":"00000/000000.r.safetensors","pieces":[[1,[],[]]],"role":0}],"size":2,"topology":{"fan_out":1,"kin'
    b'd":"star"},"written":{"host":"n5","mpickpt":"1.0"}}\n{"digest":"blake3:ed1767229c65a613cd9c0086b887df'
    b'46d151f81656781cb918bf371f71df060f"}\n'
)

ROOT_SHA256 = (
    b'{"children":[{"bounds":[[2,[0],[3]]],"cover":"ffffffffffffffffffffffffffffffffffffffffffffffffffffff'
    b'ffffffffff","digest":"sha256:ad8f7c8699cfaf2d8cdbac1b5e7d10fb6af66deb9357fd06aabec2a82d4e33a6","role'
    b'":1,"size":1}],"containers":{"opt":"list"},"contract":{"device":"free","identity":{"lr":{"f64":"0x1.'
    b'999999999999ap-4"},"model":"mlp"},"numerics":{},"placement":"ask"},"cover":"000000000000000000000000'
    b'0000000000000000000000000000000000000005","device":{},"format":1,"kind":"root","lineage":[[1,null,nu'
    b'll],[7,1,1100]],"owners":2,"parent":{"cursor":70400,"digest":"blake3:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdc'
    b'dcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd","epoch":1,"step":1100},"prefix":{"attempt":"5f0c","call":31,"cont'
    b'ract":"sha256:64256846cf13bba12c70996d9e9b5376b346ae177cdfe8577ac996efe0e3f3cd","cursor":76800,"epoc'
    b'h":7,"run":"run-1","schema":"sha256:91d6f70bc80c1aed4ab1b22f61f597823e7b7641955db9f49903984123ce7e03'
    b'","step":1200},"role":0,"schema":{"model/w":{"dtype":"float32","kind":"array","rule":["balanced",0],'
    b'"shape":[4,2]},"model/\xc2\xb5":{"dtype":"complex64","kind":"array","shape":[]},"opt/#0":{"dtype":"bfloat1'
    b'6","kind":"array","shape":[3]},"rng":{"dtype":"uint8","kind":"per_owner","shape":null}},"shards":[{"'
    b'bytes":8192,"digest":"blake3:abababababababababababababababababababababababababababababababab","file'
    b'":"00000/000000.r.safetensors","pieces":[[1,[],[]]],"role":0}],"size":2,"topology":{"fan_out":1,"kin'
    b'd":"star"},"written":{"host":"n5","mpickpt":"1.0"}}\n{"digest":"sha256:335a73934dea69ea80497d7a6b895b'
    b'e4ab8721468e43a743d15f546f88bb965d"}\n'
)

RUN_JSON = (
    b'{"created":"2030-01-02T03:04:05Z","format":1,"kind":"run","run":"run-1"}\n{"digest":"blake3:b35fd585e'
    b'72b39f0bdb686f1966a9856981e078c3cf027ff65647142bd7d9e6b"}\n'
)

CLAIM_JSON = (
    b'{"epoch":7,"format":1,"from_epoch":1,"from_root":"blake3:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdc'
    b'dcdcdcdcdcdcdcdcdcdcd","from_step":1100,"host":"n5","job":null,"kind":"claim","lineage":[[1,null,nul'
    b'l],[7,1,1100]],"nonce":"77aa","owners":2,"run":"run-1","time":"2030-01-02T03:04:05Z"}\n{"digest":"bla'
    b'ke3:34cf224a103d6f8c48e474c911fae2abb9ab2ae5686dbd69656e9afea00e9e28"}\n'
)

VOID_JSON = (
    b'{"attempt":"000000001200-e00000007-5f0c","error":{"class":"DeadlineError","message":"owner 1 is sile'
    b'nt","role":1},"format":1,"kind":"void"}\n{"digest":"blake3:e051dc92bbc8ea16b9e30cb7620f03b2f87b65237b'
    b'c2736b1f4654f1999885d4"}\n'
)

COMMITMENT = (
    b"mpickptC\x01\x00\x00\x00\x18\x02\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00run-1\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x005f0c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b'\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf4\xc4"{\x1b`\x8e\x90\xd9\x19\xfe\xc0\xa2\x07Y"\x89\x19'
    b"\xd7\xbd\xa7\x17O\xc8<\xcd\xc5\xf9*\xf4\x0e<;\x11\xdb\x0e\xd8a\x9e\r\x03sP\x99\x06\xb7jw\x19)\xb3\x84q"
    b"\xf0vN\xc0\x12yX>l\x11\xf5\xb0\x04\x00\x00\x00\x00\x00\x00\x00,\x01\x00\x00\x00\x00\x00\x07\x00\x00"
    b"\x00\x00\x00\x00\x00\x1f\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\t\n\x0b\x0c\r\x0e\x0f\x10\x11\x12\x13\x14"
    b"\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff"
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x0000000/000001.r.safetensors\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x00\x00 \x00\x00\x00\x00\x00\x00\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab"
    b"\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\xab\x01\x00\x00\x00\x00\x00\x00\x00\x02"
    b"\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00"
    b"\x00\x00\x00\x00\x00\x00"
)


@pytest.mark.parametrize("name", sorted(build_all()))
def test_built_bytes_are_the_literal_ones(name: str) -> None:
    assert build_all()[name] == globals()[name]


@pytest.mark.parametrize(
    ("algorithm", "head", "tables"),
    [("blake3", SHARD_BLAKE3, SHARD_BLAKE3_TABLES), ("sha256", SHARD_SHA256, SHARD_SHA256_TABLES)],
)
def test_literal_shard_parses(algorithm: str, head: bytes, tables: bytes) -> None:
    data = head.ljust(4096) + PAYLOAD + tables
    assert head_size(data[:8], len(data)) == 4096
    assert locate_tables(data[:4096], len(data)) == (4096 + 41, 2)
    verify_tables(data[:4096], tables[:64], tables[64:], record(algorithm).digest)
    found = parse(data[:4096], len(data), None, SCHEMA)
    assert found == build_layout(algorithm)
    assert [(entry.spec.name, entry.offset) for entry in found.entries] == [
        ("model/µ[]", 0),
        ("model/w[2:4,0:2]", 8),
        ("opt/#0[0:3]", 24),
        ("rng[]", 30),
    ]


def test_literal_records_parse() -> None:
    assert Manifest.decode(GROUP, schema=SCHEMA) == group("blake3")
    assert decode_root(ROOT) == root("blake3")
    assert decode_root(ROOT_SHA256) == root("sha256")
    assert decode_root(VOID_JSON) == VOID
    assert RunInfo.decode(RUN_JSON) == RUN
    assert Claim.decode(CLAIM_JSON) == CLAIM
    assert Commitment.unpack(COMMITMENT) == commitment()
