"""Lists of file operations, done one by one in Python while a test has put something in the place of a system call.

`mpickpt._native.Work` calls the system and not the functions of `_native` and `os` that tests replace to make it fail.
So the tests have this in its place (`install`): it makes the real one, and only as long as one of these functions is
not the real one its double here, which calls them. tests/unit/test_steps.py holds the two against each other; faults
that the real one meets come from tests/powercut/shim.c.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from typing import Any

from mpickpt import _native

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_REAL = {
    (module, name): getattr(module, name)
    for module, names in (
        (_native, ("fsync", "pwrite_all", "preallocate", "write_chunks", "rename_noreplace", "link")),
        (os, ("open", "close")),
    )
    for name in names
}
_Work: Any = _native.Work


class PythonWork:
    """The double of `_native.Work`."""

    def __init__(self, rows: list[tuple[Any, ...]], watch: Any, syncs: Any) -> None:
        self._rows, self._watch, self._syncs = rows, watch, syncs
        self._next = self._error = 0
        self._slots = dict.fromkeys(range(8), -1)
        self._found: dict[int, tuple[int, int, int, bytes]] = {}
        self._ended = threading.Event()
        self._at = 0.0

    def run(self, upto: int) -> tuple[int, int]:
        while not self._error and self._next < min(upto, len(self._rows)):
            row, began = self._rows[self._next], time.monotonic_ns()
            slow = row[2]
            self._syncs[0] += slow
            first, second, names, more = -1, -1, b"", False
            try:
                first, second, names, more = self._do(*row)
            except OSError as error:
                self._error = -(error.errno or errno.EIO)
            except _Outcome as outcome:
                self._error, first = outcome.args
            finally:
                self._syncs[0] -= slow
            took = time.monotonic_ns() - began + self._found.get(self._next, (0,))[0]
            self._found[self._next] = took, first, second, names
            if more:
                break
            self._next += not self._error
        if self._error:
            self.close()
        self._at = time.monotonic()
        return self.state()

    def begin(self) -> None:
        def work() -> None:
            try:
                self.run(len(self._rows))
            finally:
                self._ended.set()

        threading.Thread(target=work, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def go_on(self) -> None:
        self._next += self._error != 0
        self._error = 0

    def found(self, row: int) -> tuple[int, int, int, bytes]:
        return self._found.get(row, (0, -1, -1, b""))

    def close(self) -> None:
        for slot in self._slots:
            with contextlib.suppress(OSError):
                self._let_go(slot)

    def state(self) -> tuple[int, int]:
        return self._next, self._error

    def ended_at(self) -> float:
        return self._at

    def _let_go(self, slot: int) -> None:
        fd, self._slots[slot] = self._slots[slot], -1
        if fd >= 0:
            os.close(fd)

    def _do(
        self, kind: int, slot: int, _slow: bool, number: int, path: Any, target: Any, data: Any, chunks: Any
    ) -> tuple[int, int, bytes, bool]:
        """Do one row; gives first, second, names and whether it is to be done again."""
        n, fd = _native, self._slots[slot]
        if kind == n.CREATE:
            try:
                self._slots[slot] = self._create(path, target)
            except FileNotFoundError:
                if not number:
                    raise
        elif kind == n.DIRECT:
            if n.statfs_type(path) in data.tolist():
                with contextlib.suppress(OSError):
                    self._slots[slot] = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW)
            return int(self._slots[slot] >= 0), -1, b"", False
        elif kind == n.IDENTIFY:
            there = os.fstat(fd)
            return there.st_dev, there.st_ino, b"", False
        elif kind == n.RESERVE:
            n.preallocate(fd, number)
        elif kind == n.WRITE:
            n.pwrite_all(fd, data, number)
        elif kind == n.CHUNKS:
            return self._chunks(fd, self._slots[number], *chunks)
        elif kind == n.CHECK:
            self._check()
        elif kind == n.SYNC:
            if fd >= 0 or not number:
                n.fsync(fd)
        elif kind == n.CLOSE:
            self._let_go(slot)
        elif kind == n.LET_GO:
            with contextlib.suppress(OSError):
                self._let_go(slot)
        elif kind == n.RENAME:
            n.rename_noreplace(path, target)
        elif kind == n.LINK:
            n.link(path, target)
        elif kind == n.REMOVE:
            with contextlib.suppress(OSError):
                os.unlink(path)
        elif kind == n.SYNC_DIRECTORY:
            with contextlib.suppress(FileNotFoundError) if number else contextlib.nullcontext():
                self._sync_directory(path)
        elif kind == n.APPEND:
            if target is None or os.path.isdir(target):
                self._append(path, data)
        else:
            assert kind == n.LIST
            return -1, -1, b"".join(os.fsencode(name) + b"\0" for name in os.listdir(path)), False
        return -1, -1, b"", False

    def _check(self) -> None:
        if self._watch[1]:
            raise OSError(errno.ECANCELED, "")

    def _create(self, path: str, folder: str | None) -> int:
        try:
            return os.open(path, _CREATE, 0o666)
        except FileNotFoundError:
            if folder is None:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        return os.open(path, _CREATE, 0o666)

    def _sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _native.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(fd)

    def _append(self, path: str, line: bytes) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            size = os.lseek(fd, 0, os.SEEK_END)
            cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            os.pwrite(fd, b"\n" * cut + line, size)
        finally:
            os.close(fd)

    def _chunks(self, fd: int, direct: int, *given: Any) -> tuple[int, int, bytes, bool]:
        *shard, todo, pieces, _owner, _threads, most = given
        outcome, where = _native.write_chunks(fd, direct, *shard, most, todo, pieces)
        if outcome == _native.MORE:
            return where, -1, b"", True
        if outcome == _native.NONFINITE:
            raise _Outcome(outcome, where)
        self._check()
        return where, -1, b"", False


class _Outcome(Exception):
    pass


def _made(rows: list[tuple[Any, ...]], watch: Any, syncs: Any) -> Any:
    real = all(getattr(module, name) is function for (module, name), function in _REAL.items())
    return (_Work if real else PythonWork)(rows, watch, syncs)


def install() -> None:
    """Put it in the place of `_native.Work` in this process."""
    _native.Work = _made


__all__ = ["PythonWork", "install"]
