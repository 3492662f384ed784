"""Containers of every kind, and a save and resume of them in memory, for tests of nests."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpickpt.state import dtypes
from mpickpt.state.nest import Capture, Restored, commit, flatten

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Mutable:
    w: Any
    lr: Any = 0.5
    step: int = field(default=0, init=False)


@dataclass(frozen=True)
class Frozen:
    w: Any
    name: str = "n"


@dataclass(frozen=True, slots=True)
class Slotted:
    w: Any


class Stateful:
    """An object that learns its structure only when it is loaded, as torch optimizers do."""

    def __init__(self, content: Any = None) -> None:
        self.content = content
        self.loaded: list[Any] = []

    def state_dict(self) -> Any:
        return self.content

    def load_state_dict(self, content: Any) -> None:
        self.loaded.append(content)


def whole(capture: Capture) -> Restored:
    """What a store would give back for whole regions."""
    return Restored(
        {
            h.region.name: [np.array(part.array).astype(dtypes.dtype_of(h.region.dtype)) for part in h.parts]
            for h in capture.holdings
            if h.region.shape is not None
        },
        {h.region.name: h.data for h in capture.holdings if h.data is not None},
    )


def through(state: Any, target: Any) -> Any:
    """Save `state`, resume into `target`."""
    saved = flatten(state, 0, 1)
    return commit(flatten(target, 0, 1, destination=True), whole(saved), saved.containers)
