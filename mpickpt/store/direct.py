"""Writes past the page cache (O_DIRECT), on the file systems where that was measured to be faster."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from mpickpt.native import _native
from mpickpt.store.commit import close_quietly
from mpickpt.store.steps import Steps, kinds

FASTER: Final = frozenset({0xEF53})
"""ext4: docs/benchmarks.md. Elsewhere nothing was measured."""
LEAST: Final = 1 << 20
"""Bytes of a payload below which a second descriptor is not worth its opening."""


def add_again(steps: Steps, slot: int, path: str, payload: int) -> int:
    """Add to a list what `open_again` does; gives the slot, which stays empty where that gives -1."""
    return steps.direct(slot, path, kinds(FASTER if payload >= LEAST else ()))


def open_again(path: str, fd: int, payload: int) -> int:
    """Give a second descriptor of a file that is being written, past the page cache.

    Returns
    -------
    int
        -1 where all had better go through the cache, or the file system has no such way.
    """
    if payload < LEAST:
        return -1
    try:
        if _native.statfs_type(path) not in FASTER:
            return -1
        again = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1
    same = False
    with contextlib.suppress(OSError):
        same = os.path.samestat(os.fstat(again), os.fstat(fd))
    if not same:
        close_quietly(again)
        return -1
    return again
