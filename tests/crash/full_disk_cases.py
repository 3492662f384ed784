"""Owners of test_full_disk.py: at one stage the disk is filled up; then it is freed, and all go on.

Arguments: a mounted file system of limited size, and one of a limited number of files.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rank
from outcomes import check_listed, leftovers, roots, state

import mpickpt
from mpickpt import _native

SMALL, LARGE = 24, 9 << 20
"""Elements of the sharded array: one chunk an owner, and three."""
FAILING = ("pwrite_all", "fsync", "preallocate", "sync_range", "mkdir", "open")


class Disk:
    """A file system that can be filled up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filled: list[Path] = []

    def fill(self) -> None:
        """Leave no byte free."""
        self._filled.append(self.path / f"filler-{rank.number()}")
        fd = os.open(self._filled[-1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while os.write(fd, bytes(size)) == size:
                    pass
        os.close(fd)

    def fill_names(self) -> None:
        """Leave no file free."""
        with contextlib.suppress(OSError):
            for number in itertools.count():
                name = self.path / f"filler-{rank.number()}-{number}"
                name.touch(exist_ok=False)
                self._filled.append(name)

    def free(self) -> None:
        """Make room again."""
        while self._filled:
            self._filled.pop().unlink()


class Case:
    """One owner's part in one case."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.disk, self.comm = disk, rank.world()
        self.role, self.owners = self.comm.Get_rank(), self.comm.Get_size()
        self.path = disk.path / name
        self.length = SMALL
        self.found: dict[str, Any] = {}

    def together(self, look: Callable[[], Any]) -> Any:
        """Let owner 0 look while nobody does anything."""
        rank.meet(self.comm)
        found = look() if self.role == 0 else None
        rank.meet(self.comm)
        return found

    def refused(self, call: Callable[[], Any]) -> None:
        """Make the call that meets the full disk; then make room."""
        self.found["refused"] = rank.attempt(call)
        rank.clear()
        there = self.together(lambda: self.path.joinpath("data").exists())
        self.found["left"] = self.together(lambda: leftovers(self.path) if there else [])
        self.disk.free()
        rank.meet(self.comm)

    def state(self, call: int) -> dict[str, Any]:
        return state(self.role, self.owners, call, self.length)

    @contextlib.contextmanager
    def run(self, **options: Any) -> Iterator[mpickpt.Checkpointer]:
        """Begin a run; at the end all save, and all that is listed is whole."""
        with mpickpt.Checkpointer(self.path, self.comm, deadline=10, keep=None, **options) as ckpt:
            yield ckpt
            self.found["saved"] = rank.attempt(lambda: ckpt.save(self.state(9), step=9).root)
        self.together(lambda: check_listed(self.path))
        self.found["roots"] = self.together(lambda: roots(self.path))

    def save(
        self,
        at: str,
        role: int,
        fill: Callable[[], None] | None = None,
        *,
        length: int = SMALL,
        reserve: bool = True,
        **options: Any,
    ) -> None:
        """Fill the disk up when an owner comes to a failpoint of the second save."""
        self.length = length
        with self.run(**options) as ckpt:
            ckpt.resume(self.state(0))
            ckpt.save(self.state(1), step=1)
            rank.meet(self.comm)
            real = _native.preallocate
            if not reserve:  # a file system that cannot reserve space finds out as it writes
                _native.preallocate = lambda fd, size: None
            rank.failpoint(at, fill or self.disk.fill, role=role)
            self.refused(lambda: ckpt.save(self.state(2), step=2))
            _native.preallocate = real

    def resume(self, at: str | None) -> None:
        """Fill the disk up before the first resume of all, or when owner 0 comes to a failpoint of it."""
        if at is None:
            if self.role == 0:
                self.disk.fill()
            rank.meet(self.comm)
        else:
            rank.failpoint(at, self.disk.fill, role=0)
        with self.run() as ckpt:
            self.refused(lambda: ckpt.resume(self.state(0)))
            ckpt.resume(self.state(0))


def within(case: Case, number: int, name: str, role: int) -> None:
    """Let the first call of an operation fail in the second save of an owner."""
    module: Any = _native if hasattr(_native, name) else os
    real = getattr(module, name)
    armed: list[int] = []

    def operation(*args: Any, **more: Any) -> Any:
        if armed:
            armed.clear()
            if name == "close":
                real(*args, **more)
            raise OSError(number, os.strerror(number))
        return real(*args, **more)

    setattr(module, name, operation)
    try:
        case.save("save.agreed", role, lambda: armed.append(1))
    finally:
        setattr(module, name, real)


def cases(bytes_: Disk, names: Disk) -> Iterator[tuple[str, Disk, Callable[[Case], None]]]:
    """List the cases."""
    yield "run-json", bytes_, lambda case: case.resume(None)
    yield "claim", bytes_, lambda case: case.resume("commit.placed")
    for role in (0, 1):
        yield f"shard-{role}", bytes_, lambda case, r=role: case.save("writer.created", r)  # type: ignore[misc]
        yield (
            f"head-{role}",
            bytes_,
            lambda case, r=role: case.save("writer.created", r, reserve=False),  # type: ignore[misc]
        )
        yield (
            f"chunk-{role}",
            bytes_,
            lambda case, r=role: case.save("writer.chunk", r, length=LARGE, reserve=False),  # type: ignore[misc]
        )
        yield (
            f"tables-{role}",
            bytes_,
            lambda case, r=role: case.save("writer.chunk", r, reserve=False),  # type: ignore[misc]
        )
    yield "all-shards", bytes_, lambda case: case.save("save.entered", 0, length=LARGE)
    yield "manifest-1", bytes_, lambda case: case.save("save.shards-written", 1)
    yield "root-and-void", bytes_, lambda case: case.save("save.compared", 0)
    yield "gather", bytes_, lambda case: case.save("save.agreed", 1, write="gather")
    yield "names", names, lambda case: case.save("save.entered", 0, case.disk.fill_names)
    # Every operation of every kind fails in test_operations.py, in simulated time; here some do on real owners.
    failing = [(errno.EIO, name, role) for name in FAILING for role in (0, 1)]
    failing += [(errno.EIO, "rename_noreplace", 0), (errno.ENOSPC, "mkdir", 0), (errno.ENOSPC, "open", 1)]
    failing += [(errno.EDQUOT, "preallocate", 0), (errno.EDQUOT, "pwrite_all", 1)]
    for number, name, role in failing:
        title = f"{errno.errorcode[number]}-{name}-{role}"
        yield title, bytes_, lambda case, e=number, n=name, r=role: within(case, e, n, r)  # type: ignore[misc]


def main() -> None:
    found: dict[str, Any] = {}
    for name, disk, play in cases(Disk(Path(sys.argv[1])), Disk(Path(sys.argv[2]))):
        case = Case(disk, name)
        outcome = rank.attempt(lambda p=play, c=case: p(c))  # type: ignore[misc]
        found[name] = {**case.found, **{key: outcome[key] for key in outcome if key == "raised"}}
        rank.report(cases=found)
        case.together(lambda c=case: shutil.rmtree(c.path))  # type: ignore[misc]


if __name__ == "__main__":
    main()
