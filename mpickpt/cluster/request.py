"""What is asked of a `resume`, and who decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mpickpt import digest as digests
from mpickpt.errors import (
    CheckpointError,
    CoverageError,
    FormatError,
    IntegrityError,
    MomentError,
    NonFiniteError,
    StateError,
)
from mpickpt.format.manifest import Manifest
from mpickpt.state.moment import Moment
from mpickpt.store.shard import check_level

#: What is damage of a generation: `on_damage="previous"` goes past it; otherwise an older one that is good is named.
DAMAGE: Final = (IntegrityError, FormatError, CoverageError, MomentError, NonFiniteError)


Decision = dict[str, Any]
"""What all owners are told of a choice: `fresh`, `name`, `digest`, `epoch`, and `claim`, as `claims.to_json` gives it,
or None where nothing is claimed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked `resume` for."""

    step: int | None = None
    root: str | None = None
    repartition: bool = False
    readonly: bool = False
    level: str = "full"
    low_memory: bool = False
    on_damage: str = "refuse"
    accept: Mapping[str, str] = field(default_factory=dict)
    #: What else all owners must have asked for alike.
    alike: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse arguments that are out of range: StateError."""
        if self.step is not None:
            Moment(self.step)
        if self.root is not None:
            _check_digest(self.root)
        check_level(self.level)
        if self.on_damage not in ("refuse", "previous"):
            raise StateError(
                "on_damage is none of its values", expected="'refuse' or 'previous'", found=repr(self.on_damage)[:100]
            )
        accept: object = self.accept
        if not isinstance(accept, Mapping) or not all(
            type(name) is str and type(why) is str and why.strip() for name, why in accept.items()
        ):
            raise StateError(
                "accept says not why", expected="a mapping: field of the contract -> reason", found=repr(accept)[:100]
            )


def _check_digest(root: object) -> None:
    try:
        digests.parse(root, "root=")
    except FormatError as error:
        raise StateError(
            "root= is no digest of a generation",
            expected=error.expected,
            found=error.found,
            advice="give it as `mpickpt ls` and `Save.root` do",
        ) from None


class Decider(Protocol):
    """What decides at owner 0, in workers; `mpickpt.cluster.lineage.Lineage` is one."""

    chosen: Manifest | None
    """The root that was chosen, where this owner has read it."""

    def choose(self, request: Request) -> Decision:
        """Choose the generation."""

    def instead(self, request: Request, decision: Decision, error: CheckpointError) -> Decision | None:
        """Choose another one, where the chosen one is damaged and that is wanted."""

    def advise(self, error: CheckpointError, name: str) -> None:
        """Say in a refusal of damage which older generation is good."""

    def conclude(self, decision: Decision, accepted: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
        """Take the epoch, once all owners have verified theirs."""
