"""How much memory one owner holds: everything that is reached from its Checkpointer, its wires and its frames.

What all owners of this process share, but a process of its own would have once as well (modules, classes, functions),
is left out, and so are the other owners. Caches of the library are bounded by their size and belong to modules.
An integer counts wherever it is referred to: the interpreter shares those below 257, so that low roles would seem to
cost less than high ones.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import greenlet
import numpy as np
from world import Owner, Wire, World

_LEFT_OUT = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    greenlet.greenlet,
    Owner,
    World,
)


def held_by(owner: Owner) -> int:
    """Give the bytes that an owner holds at this moment; to be called in its turn."""
    seen: set[int] = set()
    waiting: list[Any] = [owner.things, owner.wires, list(_locals())]
    total = 0
    while waiting:
        one = waiting.pop()
        if type(one) is int:
            total += sys.getsizeof(one)
            continue
        if id(one) in seen or isinstance(one, _LEFT_OUT):
            continue
        seen.add(id(one))
        if isinstance(one, Wire):
            waiting.append(one._arrived)
            continue
        if isinstance(one, types.FunctionType):
            waiting.append(one.__closure__)
            continue
        total += sys.getsizeof(one)
        if isinstance(one, np.ndarray):
            waiting.append(one.base)
        else:
            waiting.extend(gc.get_referents(one))
    return total


def _locals() -> Iterator[Any]:
    """Give what the frames of this turn hold, but for those of this file and of the world."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") not in (__name__, Owner.__module__):
            yield from frame.f_locals.values()
        frame = frame.f_back
