"""What every record of one capture shares: its prefix, and the form in which boxes are recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mpickpt.format.fields import Fields

MAX_BOUNDS: Final = 64  # regions in a child's bounds; with more the field is left out

PieceBox = tuple[int, tuple[int, ...], tuple[int, ...]]
"""(ordinal, lo, hi) of a piece or a bound."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Which capture a record belongs to.

    Parameters
    ----------
    run : str
        The run's id.
    schema, contract : str
        Digests of schema and contract, ``blake3:HEX``.
    step, cursor, epoch : int
        The moment.
    call : int
        Number of the collective call.
    attempt : str
        The attempt's nonce.
    """

    run: str
    schema: str
    contract: str
    step: int
    cursor: int
    epoch: int
    call: int
    attempt: str

    def __str__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name)}" for name in _KEYS)

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {name: getattr(self, name) for name in _KEYS}

    @classmethod
    def from_json(cls, value: object, what: str, path: str | None = None) -> Prefix:
        """Read `to_json` back; `what` says where it stands. FormatError for anything else."""
        fields = Fields(value, f"{what}: 'prefix'", path)
        fields.keys(*_KEYS)
        return cls(
            fields.run("run"),
            fields.digest("schema"),
            fields.digest("contract"),
            fields.integer("step"),
            fields.integer("cursor"),
            fields.integer("epoch"),
            fields.integer("call"),
            fields.nonce("attempt"),
        )


_KEYS: Final = ("run", "schema", "contract", "step", "cursor", "epoch", "call", "attempt")
