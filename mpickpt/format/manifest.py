"""Manifests: the records of shards and of child manifests, for star and tree alike (docs/format.md, "Manifests").

Checks, in this order: the record (`mpickpt.format.records`), its keys, then its values in the order of the class's
fields; of the root also the schema and the contract against the prefix, before shards, children and bounds are
checked against the schema. All of it is linear in the manifest's length.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mpickpt import canonical
from mpickpt import digest as digests
from mpickpt.errors import FormatError
from mpickpt.format.commitment import Commitment
from mpickpt.format.fields import FORMAT, MAX, MAX_AXES, Fields, hex_cover
from mpickpt.format.names import (
    SHARED_SUFFIX,
    attempt_name,
    check_shard_name,
    claim_name,
    manifest_file,
    parse_claim_name,
    parse_root_name,
    root_name,
    shard_file,
)
from mpickpt.format.pieces import fit
from mpickpt.format.prefix import MAX_BOUNDS, PieceBox, Prefix
from mpickpt.format.records import Claim, Lineage, RunInfo, Void, check_kind, lineage_of, record, unrecord
from mpickpt.state.region import Schema

_GROUP_KEYS: Final = ("format", "kind", "role", "size", "prefix", "device", "shards", "children", "cover")
_ROOT_KEYS: Final = (
    *_GROUP_KEYS, "schema", "containers", "contract", "owners", "topology", "parent", "lineage", "written",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What a manifest says of one shard.

    Parameters
    ----------
    role : int
        Whose shard it is.
    file : str
        Its name below the attempt's directory; ``.r.safetensors`` marks the shard of replicated bytes.
    bytes : int
        Size of the file.
    digest : str
        The shard's digest, ``blake3:HEX``.
    pieces : tuple of (ordinal, lo, hi)
        Its pieces, ascending; ``(ordinal, (), ())`` for opaque bytes and 0-d arrays.
    """

    role: int
    file: str
    bytes: int
    digest: str
    pieces: tuple[PieceBox, ...]

    @property
    def shared(self) -> bool:
        """Whether it is a ``.r`` shard, of bytes that are replicated."""
        return self.file.endswith(SHARED_SUFFIX)


@dataclass(frozen=True, slots=True)
class ChildRecord:
    """What a manifest says of one child's manifest.

    Parameters
    ----------
    role, size : int
        The subtree: roles ``[role, role + size)``.
    digest : str
        The child manifest's digest.
    cover : int
        Its coverage sum.
    bounds : tuple of (ordinal, lo, hi) or None
        For at most 64 regions that follow no rule, what encloses the subtree's pieces; None: it must be visited.
    """

    role: int
    size: int
    digest: str
    cover: int
    bounds: tuple[PieceBox, ...] | None


@dataclass(frozen=True)
class Manifest:
    """A group manifest, or the root.

    Parameters
    ----------
    kind : {"group", "root"}
    role, size : int
        The subtree: roles ``[role, role + size)``; of the root 0 and the owner count.
    prefix : Prefix
        Which capture.
    device : dict
        What the writer computed on; plain data.
    shards : tuple of ShardRecord
        Ascending by role, an owner's own before its ``.r`` shard. A group lists at most its own.
    children : tuple of ChildRecord
        Ascending by role; empty where the root has all shards itself (``write="gather"``).
    cover : int
        The coverage sum of the shards recorded here and below.
    schema : Schema
        Root only, as all that follow: every region.
    containers : dict of str to str
        Escaped path to type tag, of containers other than dict.
    contract : dict
        As `Contract.to_json` gives it.
    owners : int
        Owner count.
    topology : dict
        ``{"kind": "star" or "tree", "fan_out": k}``.
    parent : dict or None
        ``{"digest", "step", "cursor", "epoch"}`` of the generation before.
    written : dict
        Who wrote it, where and when; told, never compared.
    lineage : tuple of (epoch, from_epoch, from_step)
        The epochs that the run descends from, ascending, so that lost claims can be done without.
    digest : str
        The digest that it was read under; empty where it was not read. Not compared.
    """

    kind: Literal["group", "root"]
    role: int
    size: int
    prefix: Prefix
    device: dict[str, Any]
    shards: tuple[ShardRecord, ...]
    children: tuple[ChildRecord, ...]
    cover: int
    schema: Schema | None = None
    containers: dict[str, str] = field(default_factory=dict)
    contract: dict[str, Any] = field(default_factory=dict)
    owners: int = 0
    topology: dict[str, Any] = field(default_factory=dict)
    parent: dict[str, Any] | None = None
    written: dict[str, Any] = field(default_factory=dict)
    lineage: Lineage = ()
    digest: str = field(default="", compare=False)

    def encode(self, algorithm: str = "blake3") -> tuple[bytes, str]:
        """Write it as a self-checking record.

        Returns
        -------
        (bytes, str)
            The file's bytes, and the manifest's digest.
        """
        value: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "role": self.role,
            "size": self.size,
            "prefix": self.prefix.to_json(),
            "device": self.device,
            "shards": [
                {"role": s.role, "file": s.file, "bytes": s.bytes, "digest": s.digest, "pieces": sorted(s.pieces)}
                for s in sorted(self.shards, key=_shard_order)
            ],
            "children": [_child_json(child) for child in sorted(self.children, key=operator.attrgetter("role"))],
            "cover": hex_cover(self.cover),
        }
        if self.kind == "root":
            value |= {
                "schema": {} if self.schema is None else self.schema.to_json(),
                "containers": self.containers,
                "contract": self.contract,
                "owners": self.owners,
                "topology": self.topology,
                "parent": self.parent,
                "lineage": self.lineage,
                "written": self.written,
            }
        return record(value, algorithm)

    @classmethod
    def decode(
        cls, data: bytes, path: str | None = None, *, digest: str | None = None, schema: Schema | None = None
    ) -> Manifest:
        """Read a manifest.

        Parameters
        ----------
        data : bytes
            The whole file.
        path : str, optional
            The file, for messages.
        digest : str, optional
            The digest under which its parent, or the caller, knows it.
        schema : Schema, optional
            Of a group: the root's, so that pieces and bounds are checked to lie within their regions.

        Raises
        ------
        IntegrityError
            If the bytes are not those that the digest names.
        FormatError
            If they are malformed, of a newer format, or contradict themselves.
        """
        value, name = unrecord(data, path, what="the manifest", digest=digest)
        return _manifest(Fields(value, "the manifest", path), name, schema)


def decode_root(
    data: bytes, path: str | None = None, *, digest: str | None = None, like: Schema | None = None
) -> Manifest | Void:
    """Read what stands under a name in ``roots/``: a root manifest or a void record; raises as `Manifest.decode`.

    A root that has the schema `like` gets that one, and its own is not parsed.
    """
    known = None if like is None else ("schema", like.text(), like)
    value, name = unrecord(data, path, what="the root", digest=digest, known=known)
    fields = Fields(value, "the root", path)
    if check_kind(fields, "root", "void") == "void":
        return Void.decode(data, path)
    return _manifest(fields, name, None)


def _shard_order(shard: ShardRecord) -> tuple[int, bool]:
    return shard.role, shard.shared


def _child_json(child: ChildRecord) -> dict[str, Any]:
    value: dict[str, Any] = {
        "role": child.role, "size": child.size, "digest": child.digest, "cover": hex_cover(child.cover),
    }  # fmt: skip
    if child.bounds is not None:
        value["bounds"] = sorted(child.bounds)
    return value


def _manifest(fields: Fields, digest: str, schema: Schema | None) -> Manifest:
    kind = check_kind(fields, "group", "root")
    root = kind == "root"
    fields.keys(*(_ROOT_KEYS if root else _GROUP_KEYS))
    role = fields.integer("role", 0 if root else 1, 0 if root else MAX)
    size = fields.integer("size", 1, MAX - role)
    prefix = Prefix.from_json(fields.value["prefix"], fields.what, fields.path)
    device = fields.mapping("device")
    extra: dict[str, Any] = {}
    if root:
        extra = _root_fields(fields, prefix, size)
        schema = extra["schema"]
    shards = tuple(_shards(fields, schema, root, role, size))
    children = tuple(_children(fields, schema, root, role, size))
    cover = fields.cover("cover")
    if root and extra["topology"]["kind"] == "star" and any(child.size != 1 for child in children):
        fields.refuse("children", "subtrees of one owner each, in a star", [child.size for child in children])
    return Manifest(
        "root" if root else "group", role, size, prefix, device, shards, children, cover, digest=digest, **extra
    )


def _root_fields(fields: Fields, prefix: Prefix, size: int) -> dict[str, Any]:
    """Read what only the root has, and check schema and contract against the prefix."""
    path = fields.path
    given = fields.value["schema"]
    schema = given if isinstance(given, Schema) else Schema.from_json(fields.mapping("schema"), path)
    found = schema.digest(digests.parse(prefix.schema, "the prefix")[0])
    if found != prefix.schema:
        raise FormatError("the root's schema is not its prefix's", path=path, expected=prefix.schema, found=found)
    containers = fields.mapping("containers")
    if not all(type(tag) is str for tag in containers.values()):
        fields.refuse("containers", "a string for each path", containers)
    contract = fields.mapping("contract")
    algorithm, raw = digests.parse(prefix.contract, "the prefix")
    if digests.digest(algorithm, "contract", canonical.dumps(contract)) != raw:
        raise FormatError("the root's contract is not its prefix's", path=path, expected=prefix.contract)
    owners = fields.integer("owners", 1)
    if owners != size:
        fields.refuse("size", f"the owner count, {owners}", size)
    topology = Fields(fields.value["topology"], f"{fields.what}: 'topology'", path)
    topology.keys("kind", "fan_out")
    if topology.value["kind"] not in ("star", "tree"):
        topology.refuse("kind", "star or tree", topology.value["kind"])
    topology.integer("fan_out")
    parent = fields.value["parent"]
    if parent is not None:
        moment = Fields(parent, f"{fields.what}: 'parent'", path)
        moment.keys("digest", "step", "cursor", "epoch")
        moment.digest("digest")
        for key in ("step", "cursor", "epoch"):
            moment.integer(key)
    return {
        "schema": schema,
        "containers": containers,
        "contract": contract,
        "owners": owners,
        "topology": topology.value,
        "parent": parent,
        "lineage": lineage_of(fields, "lineage", prefix.epoch),
        "written": fields.mapping("written"),
    }


def _shards(fields: Fields, schema: Schema | None, root: bool, role: int, size: int) -> Iterable[ShardRecord]:
    """Read the shard records: ascending by role and ``.r``, no file twice; a group has at most its own."""
    last = (-1, False)
    files: set[str] = set()
    for item in fields.items("shards"):
        shard = Fields(item, f"{fields.what}: a shard record", fields.path)
        shard.keys("role", "file", "bytes", "digest", "pieces")
        owner = shard.integer("role", role, role + size - 1 if root else role)
        file = check_shard_name(shard.value["file"], fields.path)
        nbytes = shard.integer("bytes", 1)
        digest = shard.digest("digest")
        pieces = _boxes(shard, "pieces", schema)
        found = ShardRecord(owner, file, nbytes, digest, pieces)
        if found.shared and not root:
            shard.refuse("file", "the shard of replicated bytes in the root only", file)
        if (owner, found.shared) <= last:
            shard.refuse("role", f"an owner's shard once, ascending (after that of role {last[0]})", owner)
        if file in files:
            shard.refuse("file", "a file that no other record names", file)
        if not pieces:
            shard.refuse("pieces", "at least one piece", [])
        last = (owner, found.shared)
        files.add(file)
        yield found


def _children(fields: Fields, schema: Schema | None, root: bool, role: int, size: int) -> Iterable[ChildRecord]:
    """Read the child records: their subtrees follow each other and fill this one."""
    items = fields.items("children")
    expected = role + 1
    for item in items:
        child = Fields(item, f"{fields.what}: a child record", fields.path)
        bounded = "bounds" in child.value
        child.keys("role", "size", "digest", "cover", *(("bounds",) if bounded else ()))
        first = child.integer("role", expected, expected)
        count = child.integer("size", 1, role + size - expected)
        digest, cover = child.digest("digest"), child.cover("cover")
        bounds = _boxes(child, "bounds", schema, MAX_BOUNDS) if bounded else None
        expected = first + count
        yield ChildRecord(first, count, digest, cover, bounds)
    if expected != role + size and (items or not root):
        fields.refuse("children", f"subtrees of the roles {role + 1} to {role + size - 1}", f"up to {expected - 1}")


def _boxes(fields: Fields, key: str, schema: Schema | None, limit: int | None = None) -> tuple[PieceBox, ...]:
    """Read ``[[ordinal, lo, hi], ...]``, strictly ascending; with a `limit`, one for each of that many regions."""
    known = fields.value[key]
    if type(known) is tuple:  # it was read apart, and needs only be compared with the schema
        if fit(known, schema):
            return known
        fields.value[key] = [[ordinal, list(lo), list(hi)] for ordinal, lo, hi in known]  # to say what is wrong
    items = fields.items(key)
    if limit is not None and len(items) > limit:
        fields.refuse(key, f"at most {limit} regions", items)
    found: list[PieceBox] = []
    last: PieceBox = (-1, (), ())
    regions = None if schema is None else schema.regions
    count = MAX if regions is None else len(regions)
    for item in items:
        if type(item) is not list or len(item) != 3:
            fields.refuse(key, "[ordinal, lo, hi]", item)
        ordinal, lo, hi = item
        if type(ordinal) is not int or not 0 <= ordinal < count:
            fields.refuse(key, f"an ordinal of 0 to {count - 1}", ordinal)
        if type(lo) is not list or type(hi) is not list or len(lo) != len(hi) or len(lo) > MAX_AXES:
            fields.refuse(key, f"lo and hi of at most {MAX_AXES} axes", item)
        for low, high in zip(lo, hi, strict=True):
            if type(low) is not int or type(high) is not int or not 0 <= low < high <= MAX:
                fields.refuse(key, f"integers 0 <= lo < hi <= {MAX}", [low, high])
        if regions is not None:
            shape = regions[ordinal].shape or ()
            if len(shape) != len(hi) or any(map(operator.gt, hi, shape)):
                fields.refuse(key, f"boxes within region {regions[ordinal].name!r} of shape {shape}"[:200], repr(hi))
        box = (ordinal, tuple(lo), tuple(hi))
        if box <= last or (limit is not None and ordinal == last[0]):
            fields.refuse(key, "ascending boxes, none twice", repr(box))
        found.append(box)
        last = box
    return tuple(found)


__all__ = [
    "ChildRecord",
    "Claim",
    "Commitment",
    "Lineage",
    "Manifest",
    "Prefix",
    "RunInfo",
    "ShardRecord",
    "Void",
    "attempt_name",
    "claim_name",
    "decode_root",
    "manifest_file",
    "parse_claim_name",
    "parse_root_name",
    "record",
    "root_name",
    "shard_file",
    "unrecord",
]
