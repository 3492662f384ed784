"""Self-checking records: two lines, canonical JSON and the digest of it (docs/format.md, "Records").

`unrecord` checks in this order: the two lines, the digest, canonical JSON, an object, the format version, the kind.
Each record class then checks its keys and its values in the order of its fields.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mpickpt import canonical
from mpickpt import digest as digests
from mpickpt.errors import CheckpointError, FormatError, IntegrityError, StateError, from_record
from mpickpt.format.fields import FORMAT, Fields, newer, shortened
from mpickpt.format.names import parse_root_name
from mpickpt.format.pieces import lift, put_back

MAX_BYTES: Final = 1 << 30  # no record is longer; a reader need not read beyond
TAG: Final = "record"

Lineage = tuple[tuple[int, int | None, int | None], ...]
"""The epochs that a run descends from: (epoch, from_epoch, from_step), ascending; nulls are a fresh start."""

_SECOND: Final = 'a second line {"digest":"blake3:HEX"} with 64 hexadecimal digits'
_DIGEST_LINE: Final = re.compile(rb'\{"digest":"(blake3|sha256):([0-9a-f]{64})"\}')
_DIGEST_LINE_BYTES: Final = len(b'{"digest":"blake3:"}') + 2 * digests.SIZE  # both names have six letters


def record(value: Mapping[str, Any], algorithm: str = "blake3") -> tuple[bytes, str]:
    """Write plain data as a self-checking record.

    Parameters
    ----------
    value : mapping
        Strings, integers, bools, None, lists and dicts with string keys.
    algorithm : {"blake3", "sha256"}

    Returns
    -------
    (bytes, str)
        The two lines, and the record's digest, which is its name in other records.

    Raises
    ------
    StateError
        If `value` holds anything else (a float, a lone surrogate).
    """
    try:
        first = canonical.dumps(value)
        _whole_numbers(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError("a record holds what canonical JSON cannot write", found=str(error)[:200]) from None
    name = digests.name(algorithm, digests.digest(algorithm, TAG, first))
    return first + b"\n" + canonical.dumps({"digest": name}) + b"\n", name


def _whole_numbers(value: object) -> None:
    """Refuse floats, which json would write; a look at each container suffices, lists of integers go quickly."""
    if isinstance(value, float):
        raise TypeError(f"the float {value!r}")
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise TypeError("a key that is no string")
        value = list(value.values())
    if isinstance(value, (list, tuple)) and not set(map(type, value)) <= {int, str, bool, type(None)}:
        for item in value:
            _whole_numbers(item)


def _text(line: bytes) -> str:
    return repr(line[:100].decode("ascii", "replace"))


def unrecord(
    data: bytes,
    path: str | None = None,
    *,
    what: str = "the record",
    digest: str | None = None,
    known: tuple[str, bytes, object] | None = None,
) -> tuple[dict[str, Any], str]:
    """Check a self-checking record and give its content.

    Parameters
    ----------
    data : bytes
        The whole file.
    path : str, optional
        The file it came from, for messages.
    what : str
        What it is, for messages.
    digest : str, optional
        The digest under which another record knows this one.
    known : (str, bytes, object), optional
        A key, the text that its value may have, and what then stands for it: see `canonical.loads_around`.

    Returns
    -------
    (dict, str)
        The object of the first line, and its digest.

    Raises
    ------
    IntegrityError
        If the bytes are cut, lengthened or not those that the digest names.
    FormatError
        If there is no digest, the first line is not canonical JSON, or its format is newer.
    """
    if not data.endswith(b"\n") or len(data) > MAX_BYTES:
        raise IntegrityError(f"{what} is truncated or too long", path=path, expected="two lines", found=_size(data))
    first, _, rest = data.partition(b"\n")
    second, _, surplus = rest.partition(b"\n")
    if surplus:
        raise IntegrityError(f"{what} goes on behind its digest", path=path, expected="two lines", found=_size(data))
    match = _DIGEST_LINE.fullmatch(second)
    if match is None:
        if len(second) == _DIGEST_LINE_BYTES:
            raise IntegrityError(f"{what} has a damaged digest", path=path, expected=_SECOND, found=_text(second))
        raise FormatError(
            f"{what} has no digest",
            path=path,
            expected=_SECOND,
            found=_text(second),
        )
    algorithm = match[1].decode()
    name = digests.name(algorithm, digests.digest(algorithm, TAG, first))
    if name != f"{algorithm}:{match[2].decode()}":
        raise IntegrityError(
            f"{what} is not what its digest names", path=path, expected=f"{algorithm}:{match[2].decode()}", found=name
        )
    if digest is not None and name != digest:
        raise IntegrityError(f"{what} is another one than was recorded", path=path, expected=digest, found=name)

    def parse(text: bytes) -> Any:
        if known is None:
            return canonical.loads(text, what=what, path=path)
        return canonical.loads_around(text, *known, what=what, path=path)

    text, lists = lift(first)
    value = None
    if lists:
        with contextlib.suppress(FormatError):  # what is wrong is told of the whole text
            value = parse(text)
    if value is None or not put_back(value, lists):
        value = parse(first)
    fields = Fields(value, what, path)
    version = fields.value.get("format")
    if type(version) is not int or version != FORMAT:
        newer(version, what, path)
    return fields.value, name


def _size(data: bytes) -> str:
    return f"{len(data)} bytes, {data.count(bytes([10]))} line ends"


def open_record(
    data: bytes,
    kind: str,
    path: str | None,
    digest: str | None,
    keys: tuple[str, ...],
    optional: tuple[str, ...] = (),
) -> tuple[Fields, str]:
    """Check a record of one kind with exactly these keys beside format and kind; give its fields and digest.

    Keys that are `optional` may be left out.
    """
    value, name = unrecord(data, path, what=f"the {kind} record", digest=digest)
    fields = Fields(value, f"the {kind} record", path)
    check_kind(fields, kind)
    fields.keys("format", "kind", *keys, *(key for key in optional if key in value))
    return fields, name


def check_kind(fields: Fields, *kinds: str) -> str:
    """Check the kind of a record and give it."""
    found = fields.value.get("kind")
    if type(found) is not str or found not in kinds:
        fields.refuse("kind", " or ".join(kinds), found)
    return found


def lineage_of(fields: Fields, key: str, epoch: int) -> Lineage:
    """Read a lineage whose last epoch is at most `epoch`; each epoch descends from a lower one or from none."""
    found: list[tuple[int, int | None, int | None]] = []
    last = 0
    for item in fields.items(key):
        if type(item) is not list or len(item) != 3:
            fields.refuse(key, "[epoch, from_epoch, from_step]", item)
        entry = Fields(
            dict(zip(("epoch", "from_epoch", "from_step"), item, strict=True)), f"{fields.what}: {key!r}", fields.path
        )
        mine = entry.integer("epoch", last + 1, epoch)
        origin = _origin(entry, mine)
        found.append((mine, *origin))
        last = mine
    return tuple(found)


def _origin(fields: Fields, epoch: int) -> tuple[int | None, int | None]:
    """Read ``from_epoch`` and ``from_step``: both null, or an epoch before `epoch` and a step."""
    from_epoch = fields.integer_or_null("from_epoch", 1)
    from_step = fields.integer_or_null("from_step")
    if (from_epoch is None) != (from_step is None) or (from_epoch is not None and from_epoch >= epoch):
        fields.refuse("from_epoch", f"null with a null from_step, or an epoch below {epoch}", from_epoch)
    return from_epoch, from_step


@dataclass(frozen=True)
class RunInfo:
    """``run.json``: the identity of a run.

    Parameters
    ----------
    format : int
        The format version.
    run : str
        The run's id.
    created : str
        When, as the creator's clock said; told, never compared.
    """

    format: int
    run: str
    created: str

    def encode(self, algorithm: str = "blake3") -> tuple[bytes, str]:
        """Write it; see `record`."""
        return record({"format": self.format, "kind": "run", "run": self.run, "created": self.created}, algorithm)

    @classmethod
    def decode(cls, data: bytes, path: str | None = None, *, digest: str | None = None) -> RunInfo:
        """Read it; see `unrecord`."""
        fields, _ = open_record(data, "run", path, digest, ("run", "created"))
        return cls(FORMAT, fields.run("run"), fields.text("created"))


@dataclass(frozen=True)
class Claim:
    """``epochs/N.json``: one continuation has taken epoch N.

    Parameters
    ----------
    epoch : int
        The epoch, >= 1.
    run : str
        The run's id.
    from_epoch, from_step : int or None
        The generation that it goes on from; None for a fresh start.
    from_root : str or None
        That generation's root digest.
    owners : int
        Owner count.
    job, host : str
        Who claimed; `job` may be None. Told, never compared.
    time : str
        When, as the claimant's clock said; told, never compared.
    nonce : str
        Tells one's own claim from a rival's; of claims with one nonce only the last counts.
    lineage : tuple of (epoch, from_epoch, from_step)
        All epochs that this one descends from, itself included, ascending; nulls for a fresh start.
        Left out, it is this claim's own entry alone.
    nodes, reason : str or None
        The job's nodes as the scheduler lists them; why this generation was gone on from. Told, never compared.
        Texts that are longer than a reader takes are cut.
    accepted : tuple of (field, then, now, reason)
        Differences of the contract that the claimant accepted, as text.
    void : dict or None
        The refusal that ended the continuation before it began, as `CheckpointError.to_record` writes it: nobody has
        this epoch, and the claim does not count.
    restarts : int
        How often the scheduler has started the job again; told.
    stopped : str or None
        How the job before this one ended, as it had said by then; told. None where it said nothing.
    """

    epoch: int
    run: str
    from_epoch: int | None
    from_step: int | None
    from_root: str | None
    owners: int
    job: str | None
    host: str
    time: str
    nonce: str
    lineage: Lineage = ()
    nodes: str | None = None
    reason: str | None = None
    accepted: tuple[tuple[str, str, str, str], ...] = ()
    void: dict[str, Any] | None = None
    restarts: int = 0
    stopped: str | None = None

    def __post_init__(self) -> None:
        for name in ("job", "host", "nodes", "reason", "stopped"):
            text = getattr(self, name)
            object.__setattr__(self, name, text and shortened(text))
        if self.void is not None:
            object.__setattr__(self, "void", _shortened_error(self.void))
        if not self.lineage:
            object.__setattr__(self, "lineage", ((self.epoch, self.from_epoch, self.from_step),))

    def encode(self, algorithm: str = "blake3") -> tuple[bytes, str]:
        """Write it; see `record`."""
        value = {name: getattr(self, name) for name in _CLAIM_KEYS}
        value |= {name: getattr(self, name) for name in _CLAIM_OPTIONAL if getattr(self, name)}
        return record({"format": FORMAT, "kind": "claim", **value}, algorithm)

    @classmethod
    def decode(cls, data: bytes, path: str | None = None, *, digest: str | None = None) -> Claim:
        """Read it; see `unrecord`."""
        fields, _ = open_record(data, "claim", path, digest, _CLAIM_KEYS, _CLAIM_OPTIONAL)
        epoch = fields.integer("epoch", 1)
        run = fields.run("run")
        from_epoch, from_step = _origin(fields, epoch)
        from_root = fields.digest_or_null("from_root")
        if (from_root is None) != (from_epoch is None):
            fields.refuse("from_root", "null if and only if from_epoch is", from_root)
        owners = fields.integer("owners", 1)
        job, host, time = fields.text_or_null("job"), fields.text("host"), fields.text("time")
        nonce = fields.nonce("nonce")
        lineage = lineage_of(fields, "lineage", epoch)
        if lineage[-1:] != ((epoch, from_epoch, from_step),):
            fields.refuse("lineage", "the claim's own entry last", lineage[-1:])
        nodes, reason = (fields.text(key) if key in fields.value else None for key in ("nodes", "reason"))
        accepted = _accepted(fields) if "accepted" in fields.value else ()
        void = _error(fields, "void") if "void" in fields.value else None
        restarts = fields.integer("restarts", 1) if "restarts" in fields.value else 0
        stopped = fields.text("stopped") if "stopped" in fields.value else None
        return cls(
            epoch, run, from_epoch, from_step, from_root, owners, job, host, time, nonce, lineage,
            nodes, reason, accepted, void, restarts, stopped,
        )  # fmt: skip


_CLAIM_KEYS: Final = (
    "epoch", "run", "from_epoch", "from_step", "from_root", "owners", "job", "host", "time", "nonce", "lineage",
)  # fmt: skip
# Left out where there is nothing to say.
_CLAIM_OPTIONAL: Final = ("nodes", "reason", "accepted", "void", "restarts", "stopped")


def _accepted(fields: Fields) -> tuple[tuple[str, str, str, str], ...]:
    """Read the accepted differences: lists of four texts."""
    found: list[tuple[str, str, str, str]] = []
    for item in fields.items("accepted"):
        if type(item) is not list or len(item) != 4 or not all(type(text) is str for text in item):
            fields.refuse("accepted", "[field, then, now, reason], all texts", item)
        found.append((item[0], item[1], item[2], item[3]))
    return tuple(found)


_ERROR_TEXTS: Final = ("class", "message", "host", "region", "path", "unharmed", "advice")
_ERROR_KEYS: Final = {*_ERROR_TEXTS, "role", "roles", "expected", "found", "errno"}


@dataclass(frozen=True)
class Void:
    """A void record under a root's name: the attempt is not published, for good.

    Parameters
    ----------
    attempt : str
        The attempt's name: the root's name without ``.json``.
    error_record : dict
        The refusal that ends the attempt, as `CheckpointError.to_record` writes it.
    """

    attempt: str
    error_record: dict[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "error_record", _shortened_error(self.error_record))

    @property
    def error(self) -> CheckpointError:
        """The refusal that every owner of the attempt raises."""
        return from_record(self.error_record)

    def encode(self, algorithm: str = "blake3") -> tuple[bytes, str]:
        """Write it; see `record`."""
        value = {"format": FORMAT, "kind": "void", "attempt": self.attempt, "error": self.error_record}
        return record(value, algorithm)

    @classmethod
    def decode(cls, data: bytes, path: str | None = None, *, digest: str | None = None) -> Void:
        """Read it; see `unrecord`."""
        fields, _ = open_record(data, "void", path, digest, ("attempt", "error"))
        attempt = fields.text("attempt")
        if parse_root_name(attempt + ".json") is None:
            fields.refuse("attempt", "STEP-eEPOCH-NONCE", attempt)
        return cls(attempt, _error(fields))


def _shortened_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """Cut a refusal's texts to what a reader takes."""
    return {key: shortened(value) if key in _ERROR_TEXTS else value for key, value in error.items()}


def _error(fields: Fields, key: str = "error") -> dict[str, Any]:
    """Read a refusal as plain data: its texts, roles and errno, and nothing else."""
    error = Fields(fields.mapping(key), f"{fields.what}: {key!r}", fields.path)
    if not {"class", "message"} <= error.value.keys() <= _ERROR_KEYS:
        error.keys("class", "message")
    for key in _ERROR_TEXTS:
        if key in error.value:
            error.text(key)
    for key in ("role", "errno"):
        if key in error.value:
            error.integer(key)
    for key in ("expected", "found"):
        if type(error.value.get(key, "")) not in (str, int):
            error.refuse(key, "a string or an integer", error.value[key])
    if "roles" in error.value and not all(type(role) is int and role >= 0 for role in error.items("roles")):
        error.refuse("roles", "a list of roles", error.value["roles"])
    return error.value


__all__ = ["MAX_BYTES", "Claim", "Lineage", "RunInfo", "Void", "record", "unrecord"]
