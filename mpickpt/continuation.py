"""What `Checkpointer.save` and `Checkpointer.resume` return."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from mpickpt.errors import DeadlineError, SchemaError


class Save:
    """One save of this process.

    Attributes
    ----------
    step : int
        The committed step that is saved.
    """

    __slots__ = ("_root", "step")

    def __init__(self, step: int, root: Future[str]) -> None:
        self.step = step
        self._root = root

    @classmethod
    def of(cls, step: int, root: str) -> Save:
        """Make the one of a save that is durable."""
        done: Future[str] = Future()
        done.set_result(root)
        return cls(step, done)

    @property
    def root(self) -> str:
        """Digest of the root manifest, ``blake3:HEX``: the generation's name. Waits for a save in flight."""
        return self.wait()

    @property
    def staged(self) -> bool:
        """Whether the state has been captured, so that the caller may change it."""
        return True

    @property
    def durable(self) -> bool:
        """Whether the generation is published and durable; False while it is in flight, and for good if it failed."""
        return self._root.done() and self._root.exception() is None

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it is durable, and give the root's digest.

        Parameters
        ----------
        timeout : float, optional
            Seconds; without it, for as long as the save takes, which has the deadlines of any save.

        Raises
        ------
        DeadlineError
            If it is still in flight after `timeout`.
        CheckpointError
            How it failed. The next call of the Checkpointer raises this too, for all owners.
        """
        try:
            return self._root.result(timeout)
        except futures.TimeoutError:
            if self._root.done():
                raise
            raise DeadlineError(
                f"the save of step {self.step} is still in flight",
                expected=f"an end within {timeout} s",
                unharmed="the save: it goes on",
                advice="wait longer, or look again later",
            ) from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Save):
            return NotImplemented
        return self is other or (self.durable and other.durable and (self.step, self.root) == (other.step, other.root))

    def __hash__(self) -> int:
        return hash(self.step)

    def __repr__(self) -> str:
        state = self.root if self.durable else "failed" if self._root.done() else "in flight"
        return f"Save(step={self.step}, {state})"


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
