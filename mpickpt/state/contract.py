"""The contract: what must be equal for a resume to mean the same training.

Fields are compared one by one. Nested mappings are flattened with "."; "%" and "." in a key are percent-encoded,
so that no two fields differ only by joining.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from mpickpt import canonical, digest
from mpickpt.errors import FormatError, StateError

Placement: TypeAlias = Literal["bound", "ask", "free"]
Device: TypeAlias = Literal["free", "product", "uuid"]
Difference: TypeAlias = tuple[str, object, object]

FLOAT: Final = "f64"
MAX_DEPTH: Final = 32


class _Absent:
    """Stands for a field that one side has not."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Final = _Absent()


def _float_out(value: float) -> dict[str, str]:
    if math.isnan(value):  # its bits, since hex() drops sign and payload
        return {FLOAT: f"nan:{struct.pack('>d', value).hex()}"}
    return {FLOAT: value.hex()}


def _float_in(text: object) -> float:
    """Read what `_float_out` wrote; ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError("not a string")
    value: float
    if text.startswith("nan:"):
        value = struct.unpack(">d", bytes.fromhex(text[4:]))[0] if len(text) == 20 else 0.0
    else:
        value = float.fromhex(text)
    if _float_out(value) != {FLOAT: text}:
        raise ValueError("not in its one form")
    return value


def _refuse(where: str, message: str, found: object, expected: str) -> StateError:
    return StateError(f"contract field {where}: {message}", expected=expected, found=repr(found)[:100])


def plain(value: object, where: str, depth: int = 0) -> Any:
    """Turn a JSON-able value into canonical JSON data; floats by bits, tuples as lists.

    Parameters
    ----------
    value : object
        What the caller gave.
    where : str
        Its field, for messages.
    depth : int
        How deep it is nested.

    Raises
    ------
    StateError
        If it is not JSON-able.
    """
    if depth > MAX_DEPTH:
        raise _refuse(where, "nested too deeply, or in itself", type(value), f"at most {MAX_DEPTH} levels")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        if abs(number) >= 10**19:  # what canonical JSON reads back, the sign included
            raise _refuse(where, "an integer of too many digits", type(value), "below 10**19; larger ones as a string")
        return number
    if isinstance(value, float):
        return _float_out(float(value))
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _refuse(where, "a key that is no string", key, "string keys")
            found[_text(key, where)] = plain(item, f"{where}.{key}", depth + 1)
        if set(found) == {FLOAT}:
            raise _refuse(where, f"a mapping whose only key is {FLOAT!r}", value, "another key: this one marks a float")
        return found
    raise _refuse(where, "not JSON-able", value, "None, bool, int, float, str, and lists and mappings of them")


def _text(value: str, where: str) -> str:
    text = str.__str__(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _refuse(where, "a string that is not Unicode text", value, "no lone surrogates") from None
    return text


def readable(value: object) -> object:
    """Turn canonical JSON data back into what messages show: floats as numbers."""
    if isinstance(value, dict):
        if set(value) == {FLOAT}:
            return _float_in(value[FLOAT])
        return {key: readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return value


def checked(data: object, where: str, path: str | None = None) -> dict[str, Any]:
    """Check that `data` is a mapping as `plain` writes it, and give it back.

    Raises
    ------
    FormatError
        If it is not; `where` says what it is.
    """
    try:
        if isinstance(data, dict) and canonical.dumps(plain(readable(data), where)) == canonical.dumps(data):
            return data
        found: object = repr(data)[:100]
    except StateError as error:
        raise FormatError(
            f"malformed {where}: {error.message}", path=path, expected=error.expected, found=error.found
        ) from None
    except (ValueError, TypeError, OverflowError, RecursionError, struct.error) as error:
        found = str(error)[:200]
    raise FormatError(f"malformed {where}", path=path, expected="an object in the form it is written in", found=found)


def flatten(mapping: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Flatten nested mappings of canonical JSON data: field name -> leaf. An empty mapping is a leaf.

    Examples
    --------
    >>> flatten({"lr": {"f64": "0x1.0p+0"}, "net": {"depth": 3}}, "identity")
    {'identity.lr': {'f64': '0x1.0p+0'}, 'identity.net.depth': 3}
    """
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        escaped = key.replace("%", "%25").replace(".", "%2E")
        name = f"{prefix}.{escaped}" if prefix else escaped
        if isinstance(value, dict) and value and set(value) != {FLOAT}:
            found.update(flatten(value, name))
        else:
            found[name] = value
    return found


def compare(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Difference]:
    """Compare two mappings of flattened fields; type and bits count: 1, True and 1.0 are three values."""
    found: list[Difference] = []
    for name in sorted(mine.keys() | theirs.keys()):
        left, right = mine.get(name, ABSENT), theirs.get(name, ABSENT)
        if left is ABSENT or right is ABSENT or canonical.dumps(left) != canonical.dumps(right):
            found.append((name, readable(left), readable(right)))
    return found


def side_by_side(differences: Iterable[Difference], mine: str, theirs: str) -> str:
    """List differences for a message, one a line: ``identity.lr: 0.001 here, 0.01 in the checkpoint``."""
    return "\n".join(f"    {name}: {left!r} {mine}, {right!r} {theirs}" for name, left, right in differences)


@dataclass(frozen=True)
class Contract:
    """What must be equal for a resume to mean the same training.

    Parameters
    ----------
    identity : mapping, optional
        The learner: program, initial state, rate, inputs. JSON-able; compared field by field.
    numerics : mapping, optional
        How numbers come about: dtypes, combine order or tree. JSON-able; compared field by field.
    placement : {"ask", "bound", "free"}
        Another owner count needs ``repartition=True``, or is refused always, or is free.
    device : {"free", "product", "uuid"}
        Whether the same kind of device, or the very same one, is needed.

    Raises
    ------
    StateError
        If a field is not JSON-able, or `placement` or `device` is none of these words.

    Examples
    --------
    >>> a = Contract(identity={"lr": 1e-3, "net": {"depth": 3}})
    >>> a.differences(Contract(identity={"lr": 1e-2, "net": {"depth": 3}}))
    [('identity.lr', 0.001, 0.01)]
    """

    identity: Mapping[str, Any] = field(default_factory=dict)
    numerics: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement = "ask"
    device: Device = "free"

    def __post_init__(self) -> None:
        for name in ("identity", "numerics"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                raise _refuse(name, "not a mapping", value, "a mapping with string keys")
            # a copy: what the caller changes afterwards is no part of the contract
            object.__setattr__(self, name, readable({"": plain(value, name)})[""])  # type: ignore[index]
        for name, words in (("placement", get_args(Placement)), ("device", get_args(Device))):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in words:
                raise _refuse(name, "no such word", value, " or ".join(words))

    def to_json(self) -> dict[str, Any]:
        """Give the contract as canonical JSON data; floats by bits, as ``{"f64": hex}``."""
        return {
            "identity": plain(self.identity, "identity"),
            "numerics": plain(self.numerics, "numerics"),
            "placement": self.placement,
            "device": self.device,
        }

    @classmethod
    def from_json(cls, data: object, path: str | None = None) -> Contract:
        """Read what `to_json` wrote.

        Raises
        ------
        FormatError
            If `data` is anything else.
        """
        if not isinstance(data, dict) or set(data) != {"identity", "numerics", "placement", "device"}:
            raise FormatError(
                "malformed contract",
                path=path,
                expected="an object with identity, numerics, placement, device",
                found=repr(data)[:100],
            )
        identity, numerics = (
            readable(checked(data[name], f"contract {name}", path)) for name in ("identity", "numerics")
        )
        try:
            return cls(identity, numerics, data["placement"], data["device"])  # type: ignore[arg-type]
        except StateError as error:
            raise FormatError(
                f"malformed contract: {error.message}", path=path, expected=error.expected, found=error.found
            ) from None

    def digest(self, algorithm: str = "blake3") -> str:
        """Give the digest of the canonical JSON, as ``ALGORITHM:HEX``."""
        return digest.name(algorithm, digest.digest(algorithm, "contract", canonical.dumps(self.to_json())))

    def fields(self) -> dict[str, Any]:
        """Give identity and numerics as flattened fields of canonical JSON data."""
        found = flatten(plain(self.identity, "identity"), "identity")
        return {**found, **flatten(plain(self.numerics, "numerics"), "numerics")}

    def differences(self, other: Contract) -> list[Difference]:
        """List ``(field, mine, theirs)`` over identity and numerics, ordered by field; `ABSENT` where one has none."""
        return compare(self.fields(), other.fields())
