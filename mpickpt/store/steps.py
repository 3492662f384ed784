"""File operations that follow each other, made up as a list first and then done in one go.

Between two of them nobody waits for the interpreter lock: where the caller's code holds it for long, a save waits as
often as there are lists, and not as often as there are system calls. A list is done by a thread that no interpreter
knows (`begin`), or in the caller's own (`run`): there it is cut at its failpoints, where a test waits for one.

What an error means, and what is to be done then, is for who made the list.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from mpickpt import failpoints
from mpickpt.native import _native
from mpickpt.store.progress import Cancelled, Progress
from mpickpt.store.refusal import store_error
from mpickpt.store.threads import finished

_WORD: Final = 1 << 64
_SLOW: Final = 2  # its place in a row
_SYNCS: Final = (_native.SYNC, _native.CLOSE, _native.SYNC_DIRECTORY)  # NFS writes back as it closes


class Steps:
    """A list of file operations.

    Parameters
    ----------
    progress : Progress, optional
        Is told what the time goes into, and may stop what has a `check`.
    slow : bool
        The attribute.

    Attributes
    ----------
    slow : bool
        Whether all that is added from now on is taken for syncs: it may last long, and counts as such.
    failed : int
        The row that failed; -1 where none has.
    raised : BaseException or None
        What a test has raised at a failpoint that is no row's.
    begun : bool
        Whether a thread of its own does it, or has done.
    worker : Future or None
        Of the worker that does it by `run`, and what follows, where it is not begun.
    scrap : list of str
        Files that are of no more use if it fails: `tidy` removes them.
    """

    def __init__(self, progress: Progress | None = None, slow: bool = False) -> None:
        self._progress = Progress() if progress is None else progress
        self._rows: list[tuple[Any, ...]] = []
        self._said: list[tuple[str, str, int | None]] = []
        self._marks: list[tuple[int, str, bool]] = []
        self._called: dict[str, str] = {}
        self._refusals: dict[int, Callable[[int], BaseException]] = {}
        self._chunks: dict[int, Callable[[int], tuple[Any, ...]]] = {}
        self._slots = 0
        self._work: Any = None
        self._paused = 0.0  # seconds at failpoints behind syncs
        self.slow = slow
        self.failed = -1
        self.begun = False
        self.raised: BaseException | None = None
        self.scrap: list[str] = []
        self.worker: Future[Any] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    # ------------------------------------------------------------------ making the list

    def _add(
        self,
        kind: int,
        said: tuple[str, str, int | None],
        slot: int = 0,
        number: int = 0,
        path: str | None = None,
        target: str | None = None,
        data: Any = None,
    ) -> int:
        self._rows.append((kind, slot, self.slow or kind in _SYNCS, number, path, target, data, None))
        self._said.append(said)
        return len(self._rows) - 1

    def _slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def create(self, path: str, folder: str | None = None, absent: bool = False) -> int:
        """Create a file that is not there yet, for writing; gives its slot.

        Parameters
        ----------
        folder : str, optional
            Its folder, to be made if that is found missing.
        absent : bool
            Whether the folder may be missing: the slot stays empty then.
        """
        slot = self._slot()
        self._add(_native.CREATE, ("creation of a file", path, None), slot, int(absent), path, folder)
        return slot

    def direct(self, slot: int, path: str, kinds: Any) -> int:
        """Open a file once more, past the page cache, on the file systems of some kinds; else the slot stays empty."""
        other = self._slot()
        self._add(_native.DIRECT, ("opening a file", path, None), other, slot, path, data=kinds)
        return other

    def identify(self, slot: int, path: str) -> int:
        """Look which device and inode a file has; `identity` gives them."""
        return self._add(_native.IDENTIFY, ("a look at the new file", path, None), slot)

    def reserve(self, slot: int, size: int, doing: str, path: str) -> None:
        """Reserve room for a file."""
        self._add(_native.RESERVE, (doing, path, size), slot, size)

    def write(self, slot: int, data: Any, offset: int, doing: str, path: str, size: int) -> None:
        """Write bytes; `size` is what the whole file needs."""
        self._add(_native.WRITE, (doing, path, size), slot, offset, data=data)

    def chunks(
        self,
        slot: int,
        direct: int,
        arguments: Callable[[int], tuple[Any, ...]],
        refuse: Callable[[int], BaseException],
        said: tuple[str, str, int | None],
    ) -> None:
        """Write the chunks of a payload.

        Parameters
        ----------
        arguments : callable
            Gives what the extension takes, with the most chunks of one call (0: all) in the place of their number.
        refuse : callable
            Gives the refusal of the element at a place in the payload.
        """
        row = self._add(_native.CHUNKS, said, slot, direct)
        self._chunks[row], self._refusals[row] = arguments, refuse

    def check(self) -> None:
        """Go on only if nobody has asked to stop."""
        self._add(_native.CHECK, ("", "", None))

    def sync(self, slot: int, doing: str, path: str, size: int | None, absent: bool = False) -> None:
        """Sync a file, once; `absent`: its slot may be empty."""
        self._add(_native.SYNC, (doing, path, size), slot, int(absent))

    def close(self, slot: int, doing: str, path: str, size: int | None) -> None:
        """Close a file; NFS reports lost writes here."""
        self._add(_native.CLOSE, (doing, path, size), slot)

    def let_go(self, slot: int) -> None:
        """Close a descriptor of which nothing is expected any more."""
        self._add(_native.LET_GO, ("", "", None), slot)

    def place(self, kind: int, source: str, target: str) -> int:
        """Put a file under its name: `_native.RENAME` or `_native.LINK`. Gives the row. For store/commit.py alone."""
        return self._add(kind, ("placing the file", target, None), path=source, target=target)

    def remove(self, path: str) -> None:
        """Remove what is of no more use; where that fails it stays."""
        self._add(_native.REMOVE, ("", path, None), path=path)

    def sync_directory(self, path: str, absent: bool = False) -> None:
        """Sync a directory; `absent`: it need not be there."""
        self._add(_native.SYNC_DIRECTORY, ("sync of a directory", path, None), number=int(absent), path=path)

    def names(self, path: str) -> int:
        """List a directory; `listed` gives the names."""
        return self._add(_native.LIST, ("listing a directory", path, None), path=path)

    def append(self, path: str, line: bytes, within: str | None) -> None:
        """Add a line to a file, in one write, where the directory `within` is there, if one is given.

        The file is made if need be; a line that a crash, or a full disk, has cut is ended first.
        """
        self._add(_native.APPEND, ("writing to a file", path, len(line)), path=path, target=within, data=line)

    def reach(self, name: str, raw: bool = False, doing: str | None = None) -> None:
        """Come to a failpoint. What a test raises there counts as an error of the row before; `raw`: as no row's.

        `doing` is what failed then, if it is called otherwise than that row.
        """
        self._marks.append((len(self._rows), name, raw))
        if doing is not None:
            self._called[name] = doing

    # ------------------------------------------------------------------ doing it

    def run(self) -> BaseException | None:
        """Do what is left of it in this thread; gives what it failed with."""
        work = self.close_list()
        done = max(1, work.state()[0])
        marks = [mark for mark in self._marks if mark[0] >= done] if failpoints.hook is not None else []
        with self._progress.steps(self._synced):
            for row, name, raw in marks:
                failure = self._up_to(row) or self._reached(row - 1, name, raw)
                if failure is not None:
                    return failure
            return self._up_to(len(self._rows))

    def begin(self) -> None:
        """Begin to do it in a thread of its own.

        Raises
        ------
        OSError
            If there is no such thread: nothing is begun then.
        """
        work = self.close_list()
        self._progress.begin_steps()
        self.begun = True
        try:
            work.begin()
        except OSError:
            self.begun = False
            self._progress.end_steps(None, 0.0)
            raise

    def wait(self, seconds: float) -> bool:
        """Wait for the end of what is, or will be, begun; tell whether it has come. Keeps no lock meanwhile."""
        if self.worker is not None:
            return finished(self.worker, seconds)
        return bool(self.close_list().wait(seconds))

    def outcome(self) -> BaseException | None:
        """Give what it failed with, once what was begun has ended."""
        self._progress.end_steps(self._work.ended_at(), self._synced())
        return self._failure(*self._work.state())

    def go_on(self) -> BaseException | None:
        """Do what follows the row that failed."""
        self._work.go_on()
        self.failed = -1
        return self.run()

    def tidy(self) -> None:
        """Remove what is of no more use after a failure."""
        for path in self.scrap:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def went_behind(self, row: int) -> bool:
        """Tell of a list that is not being done whether a row of it has been done."""
        return self._work is not None and bool(self._work.state()[0] > row)

    def identity(self, row: int) -> tuple[int, int]:
        """Give the device and inode that a row has found."""
        _, device, inode, _ = self._work.found(row)
        return device % _WORD, inode % _WORD

    def listed(self, row: int) -> list[str]:
        """Give the names that a row has found."""
        return [os.fsdecode(name) for name in self._work.found(row)[3].split(b"\0")[:-1]]

    def close_list(self) -> Any:
        """Add no more to it: it can be waited for from here on. Gives what the extension has made of it."""
        if self._work is None:
            most = 1 if failpoints.hook is not None else 0
            rows = list(self._rows)
            for at, arguments in self._chunks.items():
                rows[at] = (*rows[at][:-1], arguments(most))
            self._work = _native.Work(rows, self._progress.watch, self._progress.syncs)
        return self._work

    def _up_to(self, row: int) -> BaseException | None:
        while True:
            done, error = self._work.run(row)
            if error or done >= row:
                return self._failure(done, error)
            failure = self._reached(done, "writer.chunk", False)  # as many chunks as were asked for
            if failure is not None:
                return failure

    def _reached(self, row: int, name: str, raw: bool) -> BaseException | None:
        """Come to a failpoint; behind a sync its time is that of a sync in flight."""
        syncs, began = not raw and self._rows[row][_SLOW], time.monotonic()
        self._progress.syncs[0] += syncs
        try:
            failpoints.reach(name)
        except BaseException as error:
            self._work.close()
            if raw:
                self.failed, self.raised = row + 1, error
                return error
            self.failed = row
            if not isinstance(error, OSError):
                return error
            doing, path, size = self._said[row]
            return store_error(error, self._called.get(name, doing), path, size)
        finally:
            self._progress.syncs[0] -= syncs
            self._paused += (time.monotonic() - began) * syncs
        return None

    def _failure(self, row: int, error: int) -> BaseException | None:
        if error == 0:
            return None
        self.failed = row
        if error > 0:
            return self._refusals[row](self._work.found(row)[1])
        if error == -errno.ECANCELED:
            return Cancelled()
        return store_error(OSError(-error, os.strerror(-error)), *self._said[row])

    def _synced(self) -> float:
        """Say for how many seconds it has synced."""
        took = [self._work.found(at)[0] for at, row in enumerate(self._rows) if row[_SLOW]]
        return float(sum(took)) / 1e9 + self._paused


def kinds(magic: Any) -> Any:
    """Make the list of kinds of file systems that `Steps.direct` takes."""
    return np.array(sorted(magic), np.int64)
