"""The caller's destination in a resume: what is asked for, how it is filled, and what the caller gets back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpickpt.cluster.restore import Resumed
from mpickpt.continuation import Continuation
from mpickpt.state import nest, values


class Filling:
    """One owner's destination.

    Parameters
    ----------
    state : nested containers or None
        As `Checkpointer.resume` takes it.
    role, owners : int
    """

    def __init__(self, state: Any, role: int, owners: int) -> None:
        self._state, self._role, self._owners = state, role, owners
        self._filled: Any = None
        self._known: dict[str, Any] = {}
        self._asked: frozenset[str] = frozenset()

    def flatten(self) -> nest.Capture | None:
        """Say what is asked for; None: whole regions."""
        if self._state is None:
            return None
        capture = nest.flatten(self._state, self._role, self._owners, destination=True)
        nest.check_destination(capture)
        self._asked = frozenset(holding.region.name for holding in capture.holdings)
        return capture

    def prepare(self, capture: nest.Capture | None, found: Resumed) -> Callable[[], None]:
        """Look whether what was read can be filled in; give what does so."""
        restored, containers = found.restored, found.containers
        # What is copied into the caller's arrays is known by these, so that the private copy can be let go of.
        arrays = restored.arrays | ({} if capture is None else nest.in_place(capture))
        self._known = {name: parts[0] if len(parts) == 1 else parts for name, parts in arrays.items()}
        self._known.update({name: values.decode(data, name) for name, data in restored.opaque.items()})
        give: Callable[[], Any]
        if found.fresh:
            give = lambda: self._state  # noqa: E731
        elif capture is None:
            built = nest.build(restored, containers)
            give = lambda: built  # noqa: E731
        else:
            give = nest.prepare(capture, restored, containers)

        def fill() -> None:
            self._filled = give()

        return fill

    def continuation(self, found: Resumed) -> Continuation:
        """Give what the caller gets, once all is filled."""
        known = self._known
        left = (self._asked | found.restored.dropped) - known.keys()
        return Continuation(found.step, found.cursor, found.epoch, found.fresh, found.root, self._filled, known, left)


__all__ = ["Filling"]
