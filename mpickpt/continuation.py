"""What `Checkpointer.save` and `Checkpointer.resume` return."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpickpt.errors import SchemaError


@dataclass(frozen=True, slots=True)
class Save:
    """One save of this process.

    Attributes
    ----------
    step : int
        The committed step that was saved.
    root : str
        Digest of the root manifest, ``blake3:HEX``: the generation's name.
    """

    step: int
    root: str

    @property
    def staged(self) -> bool:
        """Whether the state has been captured, so that the caller may change it."""
        return True

    @property
    def durable(self) -> bool:
        """Whether the generation is published and durable."""
        return True

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it is durable, at most `timeout` seconds, and give the root's digest."""
        return self.root


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where a run goes on from.

    Attributes
    ----------
    step : int
        Committed steps so far; 0 at a fresh start.
    cursor : int
        Inputs consumed so far by all owners together.
    epoch : int
        The membership epoch: it counts continuations, not passes over the data.
    fresh : bool
        Whether there was nothing to resume.
    root : str or None
        Digest of the generation that was restored.
    state : nested containers
        The restored nest; at a fresh start the one that was given.
    """

    step: int
    cursor: int
    epoch: int
    fresh: bool
    root: str | None
    state: Any
    _values: Mapping[str, Any] = field(repr=False, default_factory=dict)
    _left: frozenset[str] = field(repr=False, default=frozenset())

    def value(self, name: str, default: Any = None) -> Any:
        """Give a restored value or array by its name, and `default` at a fresh start.

        Parameters
        ----------
        name : str
            The path, joined by ``/``: ``opt/lr``. A per-owner region that was kept or dropped at another owner count
            gives `default` too.

        Raises
        ------
        SchemaError
            If something was restored, and nothing of that name was in it: a default would hide a slip of the pen.
        """
        if name in self._values:
            return self._values[name]
        if self.fresh or name in self._left:
            return default
        near = difflib.get_close_matches(name, self._values, 3)
        raise SchemaError(
            "no value or array of this name was restored",
            region=name,
            expected=f"one of {', '.join(sorted(self._values)[:20])}",
            found=repr(name),
            unharmed="what was restored",
            advice=f"did you mean {' or '.join(near)}?" if near else "names are paths joined by '/'",
        )
