"""`ShardManifest`: which file of a generation holds what, for tools that know nothing of mpickpt.

It is no file of the store: it is computed from the root and the shards, each of which is verified as it is listed.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mpickpt import canonical
from mpickpt.errors import FormatError
from mpickpt.format.fields import FORMAT, Fields, newer
from mpickpt.format.layout import CHUNK
from mpickpt.format.manifest import ShardRecord
from mpickpt.format.names import SHARED_SUFFIX, check_shard_name
from mpickpt.state.region import Box
from mpickpt.store.files import open_regular
from mpickpt.store.generation import Generation
from mpickpt.store.inspect import open_store
from mpickpt.store.threads import Buffers
from mpickpt.store.verifying import check_shard

_WHAT: Final = "a shard manifest"
_KEYS: Final = ("world_size", "step", "wall_clock_seconds", "schema_version", "shards")
_FILE_KEYS: Final = ("rank", "path", "sha256", "param_shard_offset", "param_shard_numel")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One shard file.

    Attributes
    ----------
    rank : int
        Whose it is.
    path : str
        The file, relative to the run's directory; ``.r.safetensors`` marks replicated bytes.
    sha256 : str
        Of the whole file, 64 hexadecimal digits, as ``sha256sum`` prints it.
    param_shard_offset : int
        Elements of the ranks before, where the arrays of all ranks are laid end to end in the order of ranks.
    param_shard_numel : int
        Elements of this rank's own arrays in the file; 0 in a file of replicated bytes.
    """

    rank: int
    path: str
    sha256: str
    param_shard_offset: int
    param_shard_numel: int


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """The shard files of one generation.

    Attributes
    ----------
    world_size : int
        How many ranks saved it.
    step : int
        Committed steps (optimizer updates).
    wall_clock_seconds : int or None
        When its save ended, in whole seconds since 1970 (UTC), as the saving host's clock said; None where it is not
        told.
    schema_version : int
        The format's version.
    shards : tuple of ShardFile
        By rank, a rank's own file before that of replicated bytes. A rank that wrote nothing has none.
    """

    world_size: int
    step: int
    wall_clock_seconds: int | None
    schema_version: int
    shards: tuple[ShardFile, ...]

    @classmethod
    def of(cls, dir: str | os.PathLike[str], step: int | None = None) -> ShardManifest:
        """Compute it from a store; every byte of every shard is verified.

        Parameters
        ----------
        dir : str or path-like
            The run's directory.
        step : int, optional
            Which generation; the newest by default.

        Raises
        ------
        NotFoundError, EpochError
            If there is no such generation, or only one off the lineage.
        IntegrityError, FormatError, StoreError
            If a file is damaged, malformed, or cannot be read.
        """
        store = open_store(dir)
        store.check()
        generation = store.open(step)
        generation.check_root()
        buffers = Buffers(CHUNK)
        shards: list[ShardFile] = []
        offset = 0
        for record in sorted(generation.shards(), key=lambda record: (record.role, record.shared)):
            path = generation.path_of(record.file)
            with generation.open_shard(record) as shard:
                check_shard(generation, shard, "full", buffers)
            numel = 0 if record.shared else _numel(generation, record)
            shown = os.path.relpath(path, generation.base)
            shards.append(ShardFile(record.role, shown, _sha256(path), offset, numel))
            offset += numel
        root = generation.root
        return cls(root.owners, root.prefix.step, _seconds(root.written.get("end")), FORMAT, tuple(shards))

    def to_json(self) -> str:
        """Write it as JSON text."""
        shards = [{key: getattr(shard, key) for key in _FILE_KEYS} for shard in self.shards]
        value = {key: getattr(self, key) for key in _KEYS} | {"shards": shards}
        return canonical.dumps(value).decode("utf-8")

    @classmethod
    def from_json(cls, text: str | bytes) -> ShardManifest:
        """Read `to_json` back, in whatever layout of spaces and keys.

        Raises
        ------
        FormatError
            For anything that is no such manifest: other keys or types, another version, a rank beyond the world's
            size, a path that leaves the store, a file named twice, offsets that do not add up.
        """
        try:
            data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        except (TypeError, UnicodeError) as error:
            raise FormatError(f"{_WHAT} is no text", found=str(error)[:100]) from None
        fields = Fields(canonical.loads(data, what=_WHAT, exact=False), _WHAT, None)
        version = fields.value.get("schema_version")
        if type(version) is not int or version != FORMAT:
            newer(version, _WHAT, None)
        fields.keys(*_KEYS)
        world = fields.integer("world_size", 1)
        step = fields.integer("step")
        seconds = fields.integer_or_null("wall_clock_seconds")
        return cls(world, step, seconds, FORMAT, tuple(_shards(fields, world)))


def _shards(fields: Fields, world: int) -> list[ShardFile]:
    """Read the files: ascending by rank and ``.r``, no path twice, offsets that add up."""
    found: list[ShardFile] = []
    paths: set[str] = set()
    last = (-1, False)
    offset = 0
    for item in fields.items("shards"):
        entry = Fields(item, f"{_WHAT}: a shard", None)
        entry.keys(*_FILE_KEYS)
        rank = entry.integer("rank", 0, world - 1)
        path = check_shard_name(entry.value["path"], None)
        sha256 = entry.value["sha256"]
        if type(sha256) is not str or not _SHA256.fullmatch(sha256):
            entry.refuse("sha256", "64 hexadecimal digits", sha256)
        begin = entry.integer("param_shard_offset", offset, offset)
        numel = entry.integer("param_shard_numel")
        shared = path.endswith(SHARED_SUFFIX)
        if (rank, shared) <= last:
            entry.refuse("rank", f"a rank's file once, ascending (after that of rank {last[0]})", rank)
        if path in paths:
            entry.refuse("path", "a file that no other entry names", path)
        if shared and numel:
            entry.refuse("param_shard_numel", "0 in a file of replicated bytes", numel)
        last = (rank, shared)
        paths.add(path)
        offset += numel
        found.append(ShardFile(rank, path, sha256, begin, numel))
    return found


def _numel(generation: Generation, record: ShardRecord) -> int:
    schema = generation.schema
    return sum(Box(lo, hi).size for ordinal, lo, hi in record.pieces if schema[ordinal].kind == "array")


def _seconds(told: Any) -> int | None:
    """Read a time that a writer told; it is free text, and anything else than a time tells nothing."""
    try:
        return max(0, int(datetime.fromisoformat(told).timestamp()))
    except (TypeError, ValueError, OverflowError):
        return None


def _sha256(path: str) -> str:
    fd, _ = open_regular(path, "a shard")
    with open(fd, "rb") as file:
        hasher = hashlib.sha256()
        while data := file.read(CHUNK):
            hasher.update(data)
        return hasher.hexdigest()
