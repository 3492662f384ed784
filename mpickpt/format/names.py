"""The names of a run's files: what stands where in a store (docs/format.md, "Names")."""

from __future__ import annotations

import re
from typing import Final

from mpickpt.errors import FormatError
from mpickpt.format.fields import shown

FOLDER: Final = 512  # owners a folder of an attempt's directory
MAX_NAME: Final = 255  # bytes of a relative file name in a record
SHARD_SUFFIX: Final = ".safetensors"
SHARED_SUFFIX: Final = ".r.safetensors"

_ROOT: Final = re.compile(r"([0-9]{12,19})-e([0-9]{8,19})-([0-9A-Za-z]{1,64})\.json")
_CLAIM: Final = re.compile(r"([0-9]{8,19})\.json")
_PART: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]*")


def attempt_name(step: int, epoch: int, nonce: str) -> str:
    """Name an attempt: the directory below ``data/``.

    Examples
    --------
    >>> attempt_name(1200, 7, "3f9a")
    '000000001200-e00000007-3f9a'
    """
    return f"{step:012d}-e{epoch:08d}-{nonce}"


def root_name(step: int, epoch: int, nonce: str) -> str:
    """Name a root manifest, or the void record in its place, below ``roots/``."""
    return attempt_name(step, epoch, nonce) + ".json"


def parse_root_name(name: str) -> tuple[int, int, str] | None:
    """Give (step, epoch, nonce) of a name in ``roots/``; None where it is not such a name, so that lists skip it."""
    match = _ROOT.fullmatch(name)
    if match is None:
        return None
    step, epoch, nonce = int(match[1]), int(match[2]), match[3]
    return (step, epoch, nonce) if root_name(step, epoch, nonce) == name else None


def claim_name(epoch: int) -> str:
    """Name the claim of an epoch, below ``epochs/``."""
    return f"{epoch:08d}.json"


def ended_name(epoch: int) -> str:
    """Name what the job that had an epoch says of its end, below ``epochs/``; lists of claims skip such names."""
    return f"{epoch:08d}.ended"


def parse_ended_name(name: str) -> int | None:
    """Give the epoch of a name that `ended_name` makes; None where it is not such a name."""
    return parse_claim_name(name.removesuffix(".ended") + ".json") if name.endswith(".ended") else None


def parse_claim_name(name: str) -> int | None:
    """Give the epoch of a name in ``epochs/``; None where it is not such a name."""
    match = _CLAIM.fullmatch(name)
    if match is None:
        return None
    epoch = int(match[1])
    return epoch if epoch and claim_name(epoch) == name else None


def _stem(role: int) -> str:
    return f"{role // FOLDER:05d}/{role:06d}"


def shard_file(role: int, shared: bool = False) -> str:
    """Name an owner's shard below its attempt's directory; `shared` is the one of replicated bytes.

    Examples
    --------
    >>> shard_file(1025), shard_file(12, shared=True)
    ('00002/001025.safetensors', '00000/000012.r.safetensors')
    """
    return _stem(role) + (SHARED_SUFFIX if shared else SHARD_SUFFIX)


def manifest_file(role: int) -> str:
    """Name an owner's group manifest below its attempt's directory."""
    return _stem(role) + ".json"


def check_shard_name(name: object, path: str | None) -> str:
    """Check the name of a shard as a record gives it.

    Returns
    -------
    str
        `name`: relative, ``/`` between parts of ASCII letters, digits, ``_ - .``, none of which begins with a dot.

    Raises
    ------
    FormatError
        If it is another, so that no record can lead out of the store.
    """
    good = (
        type(name) is str
        and len(name) <= MAX_NAME
        and name.endswith(SHARD_SUFFIX)
        and all(_PART.fullmatch(part) for part in name.split("/"))
    )
    if not good:
        raise FormatError(
            "a record's file name is not one of a shard in its store",
            path=path,
            expected="a relative name of ASCII letters, digits, _ - . that ends in .safetensors",
            found=shown(name),
        )
    return name  # type: ignore[return-value]
