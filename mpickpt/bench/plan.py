"""What a benchmark is to measure, and whether there is room for it."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict, dataclass
from typing import Any, Final

from mpickpt import units
from mpickpt.errors import StateError, StoreError

#: Bytes of a small piece.
PIECE: Final = 1024
#: A row of the arrays: float32.
ROW: Final = 1024
ARRAYS: Final = 16
_CHUNK: Final = 4 << 20
#: What is on the disk at once at most, and in memory: the state, its copies, and some room.
_ON_DISK, _IN_MEMORY = 2.2, 5.5


@dataclass(frozen=True, slots=True)
class Plan:
    """One benchmark.

    Parameters
    ----------
    folder : str
        Where files go, in a folder of the benchmark's own; it is removed at the end.
    owners : int
    size : int
        Bytes of all owners together; it is rounded down to whole rows.
    runs : int
    pieces : int
        Small arrays, of all owners together.
    fio : bool
        Whether to ask fio for the limit, where it is there.
    """

    folder: str
    owners: int
    size: int
    runs: int
    pieces: int
    fio: bool

    @property
    def rows(self) -> int:
        """Rows of each array at each owner."""
        return self.size // self.owners // (ARRAYS * ROW * 4)

    @property
    def per_owner(self) -> int:
        """Bytes of an owner."""
        return self.rows * ARRAYS * ROW * 4

    @property
    def nbytes(self) -> int:
        """Bytes of all owners."""
        return self.owners * self.per_owner

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return asdict(self)

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is written.

        Raises
        ------
        StateError
            If the size is too small for so many owners, or too great for the memory there is.
        StoreError
            If the file system has no room for it.
        """
        least = self.owners * ARRAYS * ROW * 4
        if self.size < least:
            raise StateError(
                "the size is too small",
                expected=f"{units.human(least)} or more, for {self.owners} owners",
                found=units.human(self.size),
                advice="name a greater --size",
            )
        needed, memory = int(_IN_MEMORY * self.size), _available()
        if memory is not None and needed > memory:
            raise StateError(
                "there is not enough memory",
                expected=f"{units.human(needed)} free for states of {units.human(self.size)} and their copies",
                found=units.human(memory),
                advice="name a smaller --size",
            )
        needed = int(_ON_DISK * self.size) + self.owners * _CHUNK + 16 * PIECE * self.pieces
        there = os.statvfs(self.folder)
        free = there.f_bavail * there.f_frsize
        if free < needed:
            raise StoreError(
                "there is not enough room for the benchmark",
                errno=errno.ENOSPC,
                path=self.folder,
                expected=f"{units.human(needed)} free",
                found=units.human(free),
                unharmed="all files: nothing has been written",
                advice="name a smaller --size, or free space",
            )


def _available() -> int | None:
    """Give the bytes of memory that this machine has left; None where that is not told."""
    try:
        with open("/proc/meminfo") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
