"""Fewer passes of the garbage collector while a call makes many objects that live on.

Thirty thousand regions are a few hundred thousand objects. With the interpreter's usual threshold the collector walks
through all of them again and again, and finds nothing: that takes longer than the call's own work.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Final

_THRESHOLD: Final = 1_000_000
"""A restore of 30,000 arrays makes half a million objects; at 200,000 three passes took 38 ms."""
_lock = threading.Lock()
_inside = 0
_usual: tuple[int, int, int] = (0, 0, 0)


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """Let the collector run, but seldom, for the length of a with-block; blocks may overlap in several threads.

    Where the caller has switched it off, or set a higher threshold, nothing changes.
    """
    global _inside, _usual
    with _lock:
        if _inside == 0:
            _usual = gc.get_threshold()
            if 0 < _usual[0] < _THRESHOLD:
                gc.set_threshold(_THRESHOLD, *_usual[1:])
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            # Whoever has set another threshold meanwhile keeps it.
            if _inside == 0 and gc.get_threshold()[0] == _THRESHOLD:
                gc.set_threshold(*_usual)
