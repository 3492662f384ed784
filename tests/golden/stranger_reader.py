"""A reader of format 1 written from docs/format.md alone. It uses nothing of mpickpt.

``python stranger_reader.py RUN`` verifies the newest root of a store with all below it, and prints its regions.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

NUMPY = {"BOOL": "?", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4",
         "U64": "<u8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8", "F8_E4M3": "u1",
         "F8_E5M2": "u1"}  # fmt: skip
SCHEMA = {"bfloat16": "<u2", "float8_e4m3fn": "u1", "float8_e5m2": "u1"}  # NumPy has none: their bits
ROOT = re.compile(r"(\d{12,})-e(\d{8,})-([0-9A-Za-z]{1,64})\.json")


class Refused(Exception):
    """The bytes are not those that a digest names, or contradict each other."""


def need(truth: object, what: object) -> None:
    if not truth:
        raise Refused(what)


def digest(algorithm: str, tag: str, *parts: bytes) -> str:
    data, context = b"".join(parts), f"mpickpt 1 {tag}"
    if algorithm == "blake3":
        return "blake3:" + blake3(data, derive_key_context=context).hexdigest()
    need(algorithm == "sha256", f"unknown algorithm {algorithm}")
    return "sha256:" + hashlib.sha256(context.encode() + b"\n" + data).hexdigest()


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def record(path: Path, expected: str | None = None) -> tuple[dict[str, Any], str]:
    lines = path.read_bytes().split(b"\n")
    need(len(lines) == 3 and lines[2] == b"", f"{path}: not two lines")
    name = json.loads(lines[1])["digest"]
    need(digest(name.partition(":")[0], "record", lines[0]) == name, f"{path}: damaged")
    need(expected in (None, name), f"{path}: another record than its parent names")
    value = json.loads(lines[0])
    need(canonical(value) == lines[0] and value["format"] == 1, f"{path}: not canonical JSON of format 1")
    return value, name


def shard(path: Path, told: dict[str, Any], prefix: dict[str, Any]) -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
    """Verify a shard by its digests, which makes its CRCs needless; give entry name -> (region, array of the piece)."""
    data = path.read_bytes()
    need(len(data) == told["bytes"], f"{path}: another size than its record")
    (length,) = struct.unpack_from("<Q", data)
    need((8 + length) % 4096 == 0 and 8 + length <= len(data), f"{path}: impossible header length")
    head, body = data[: 8 + length], data[8 + length :]
    header = json.loads(head[8:])
    need(canonical(header) == head[8:].rstrip(b" "), f"{path}: header is not canonical")
    meta = header.pop("__metadata__")
    tables = [header.pop(f"mpickpt.{name}")["data_offsets"] for name in ("digests", "crc32c")]
    digests, crcs = (body[begin:end] for begin, end in tables)
    algorithm, size, pieces = meta["algorithm"], int(meta["chunk"]), body[: tables[0][0]]
    need(digest(told["digest"].partition(":")[0], "shard", head, digests, crcs) == told["digest"], f"{path}: damaged")
    need(tables[0][1] == tables[1][0] and tables[1][1] == len(body), f"{path}: tables are not at its end")
    chunks = [pieces[at : at + size] for at in range(0, len(pieces), size)]
    need(len(digests) == 32 * len(chunks) and len(crcs) == 4 * len(chunks), f"{path}: tables of another length")
    for index, chunk in enumerate(chunks):
        hexed = digests[32 * index : 32 * index + 32].hex()
        need(digest(algorithm, "chunk", chunk) == f"{algorithm}:{hexed}", f"{path}: chunk {index} is damaged")
    need(meta["format"] == "1" and int(meta["role"]) == told["role"], f"{path}: format or role")
    same = all(meta[key] == str(prefix[key]) for key in ("schema", "step", "cursor", "epoch", "attempt"))
    need(same and (meta["shared"] == "1") == path.name.endswith(".r.safetensors"), f"{path}: another capture's")
    wide, found, end = json.loads(meta["dtypes"]), {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        need(begin == end, f"{path}: gap before {name}")
        region, dtype, end = name[: name.rindex("[")], NUMPY[entry["dtype"]], stop
        if region in wide:
            entry["shape"], dtype = entry["shape"][:-1], "<c8" if wide[region] == "complex64" else "<c16"
        found[name] = region, np.frombuffer(body[begin:stop], dtype).reshape(entry["shape"])
    need(end == len(pieces), f"{path}: bytes behind the last piece")
    return found


def read(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Verify the newest root; give it, and region -> array, bytes of a value, or role -> bytes (per owner)."""
    names = [match for path in (run / "roots").iterdir() if (match := ROOT.fullmatch(path.name))]
    names.sort(key=lambda match: (int(match[2]), int(match[1])), reverse=True)
    here = [(match, record(run / "roots" / match[0])[0]) for match in names]
    match, root = next(((match, root) for match, root in here if root["kind"] == "root"), (None, {}))
    need(match, f"{run}: nothing is published")
    data = run / "data" / match[0][:-5]
    prefix, schema, ordered = root["prefix"], root["schema"], sorted(root["schema"])
    plain = {name: {key: schema[name][key] for key in ("dtype", "kind", "shape")} for name in schema}
    for key, value in (("schema", plain), ("contract", root["contract"])):
        need(digest(prefix[key].partition(":")[0], key, canonical(value)) == prefix[key], f"digest of the {key}")
    shards, manifests = [], [root]
    while manifests:
        manifest = manifests.pop()
        shards += manifest["shards"]
        for child in manifest["children"]:
            path = data / f"{child['role'] // 512:05d}/{child['role']:06d}.json"
            below, _ = record(path, child["digest"])
            need(all(below[key] == child[key] for key in ("role", "size", "cover")), f"{path}: not its parent's record")
            need(below["prefix"] == prefix, f"{path}: of another capture")
            manifests.append(below)
    arrays = {name: region for name, region in schema.items() if region["kind"] == "array"}
    found: dict[str, Any] = {n: np.zeros(r["shape"], SCHEMA.get(r["dtype"], r["dtype"])) for n, r in arrays.items()}
    filled = {name: np.zeros(region["shape"], bool) for name, region in arrays.items()}
    for told in shards:
        pieces = shard(data / told["file"], told, prefix)
        expected = {f"{ordered[o]}[{','.join(f'{a}:{b}' for a, b in zip(lo, hi, strict=True))}]"
                    for o, lo, hi in told["pieces"]}  # fmt: skip
        need(expected == set(pieces), f"{told['file']}: other pieces than its record")
        for name, (region, array) in pieces.items():
            if region in arrays:
                axes = [axis.split(":") for axis in name[len(region) + 1 : -1].split(",") if axis]
                box = tuple(slice(int(lo), int(hi)) for lo, hi in axes)
                need(array.dtype == found[region].dtype and not filled[region][box].any(), f"{name}: twice, or dtype")
                found[region][box], filled[region][box] = array, True
            elif schema[region]["kind"] == "value":
                need(region not in found, f"{name}: twice")
                found[region] = array.tobytes()
            else:
                need(told["role"] not in found.setdefault(region, {}), f"{name}: twice")
                found[region][told["role"]] = array.tobytes()
    need(all(mask.all() for mask in filled.values()) and found.keys() == schema.keys(), "a region has a gap")
    return root, found


if __name__ == "__main__":
    for region_name, content in sorted(read(Path(sys.argv[1]))[1].items()):
        print(region_name, f"{content.dtype}{content.shape}" if isinstance(content, np.ndarray) else content)
