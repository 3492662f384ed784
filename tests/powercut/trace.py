"""What jobs do to the files below a folder, from the system calls that strace saw: one list of operations, in order.

strace follows mpirun and all ranks into one log, so the calls of all owners stand in one order. A call has a beginning
and an end there; what ended before another began really came first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

ROOT: Final = 0
"""The number of the folder that is recorded; it is durable."""

_CALLS: Final = (
    "openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,copy_file_range,sendfile,mmap,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,sync,"
    "syncfs"
)
#: Calls that would change a file in a way that is not modelled here: none may come.
_UNKNOWN: Final = {"writev", "pwritev", "pwritev2", "truncate", "copy_file_range", "sendfile", "symlink", "symlinkat"}

_TEXT: Final = r'"((?:\\x[0-9a-f]{2})*)"'
_PLACE: Final = r"<((?:\\x[0-9a-f]{2})*)>"
_FIRST: Final = re.compile(rf"(?:\d+|AT_FDCWD){_PLACE}(\(deleted\))?")
_PATH: Final = re.compile(rf"(?:(?:\d+|AT_FDCWD){_PLACE}(?:\(deleted\))?, )?{_TEXT}")
_LINE: Final = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|\?)(.*)$", re.DOTALL)

Kind = Literal["name", "gone", "data", "size", "sync", "lost", "told"]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on the recorded folder.

    Attributes
    ----------
    kind : str
        ``name``: an entry of a directory is made; ``gone``: it is removed; ``data``: bytes are written; ``size``: the
        file gets at least or, `exact`, just that long; ``sync``: a sync that succeeded; ``lost``: one that failed;
        ``told``: an owner has told of a success.
    start, end : int
        When the call began and ended.
    group : int
        Operations of one system call have the same.
    ino : int
        The file or directory that it is about; for an entry, what the entry names.
    place : int
        The directory of an entry.
    """

    kind: Kind
    start: int
    end: int
    group: int = 0
    ino: int = -1
    place: int = -1
    name: str = ""
    offset: int = 0
    data: bytes = b""
    exact: bool = False
    path: str = ""


def strace(log: Path, *more: str) -> list[str]:
    """Give the command that another one is put behind, so that its calls are recorded in `log`."""
    return [
        *("strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", str(1 << 22), "-e", "signal=none"),
        *("-e", "trace=" + _CALLS, *more, "-o", str(log)),
    ]


@dataclass(frozen=True, slots=True)
class _Call:
    start: int
    end: int
    name: str
    args: str
    result: int
    tail: str


def _calls(log: Path) -> Iterator[_Call]:
    """Read the calls that came to an end, by their ends; the two halves of interrupted lines are put together."""
    begun: dict[str, tuple[int, str]] = {}
    with open(log) as lines:
        for number, line in enumerate(lines):
            pid, text = line.rstrip("\n").split(None, 1)
            start = number
            if text.endswith("<unfinished ...>"):
                begun[pid] = number, text.removesuffix("<unfinished ...>")
                continue
            if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", text):
                start, first = begun.pop(pid)
                text = first + resumed[1]
            found = _LINE.match(text)
            if found and found[3] != "?":
                yield _Call(start, number, found[1], found[2], int(found[3]), found[4])


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _name(text: str) -> str:
    return os.fsdecode(_bytes(text))


class Recorder:
    """Follows what happens below a folder, over the logs of several jobs one after the other.

    Parameters
    ----------
    folder : Path
        What is recorded; empty at the beginning.
    told : Path
        Where owners tell of successes, in files ``said.*``: outside `folder`.

    Attributes
    ----------
    ops : list of Op
    directories : set of int
        Which of the numbers are directories.
    """

    def __init__(self, folder: Path, told: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.told = os.path.realpath(told)
        self._inside = "".join(f"\\x{byte:02x}" for byte in os.fsencode(self.folder))
        self.ops: list[Op] = []
        self.directories = {ROOT}
        self._live: dict[int, dict[str, int]] = {ROOT: {}}
        self._count = ROOT
        self._base = 0
        self._group = 0

    def read(self, log: Path) -> None:
        """Add what one log tells."""
        late: list[_Call] = []  # whose directory is not there yet, because the call that makes it is told later
        last = 0
        for call in _calls(log):
            last = call.end
            again, late = [*late, call], []
            for one in again:
                try:
                    self._take(one)
                except KeyError:
                    if call.end - one.end > 1000:
                        raise
                    late.append(one)
        assert not late, late
        self._base += last + 1

    # -- paths

    def _find(self, path: str) -> tuple[int, str] | None:
        """Give (directory, name) of a path below the folder, None elsewhere; KeyError: its directory is not there."""
        path = os.path.normpath(path)
        if not path.startswith(self.folder + "/"):
            return None
        place = ROOT
        *folders, name = path[len(self.folder) + 1 :].split("/")
        for folder in folders:
            place = self._live[place][folder]
        return place, name

    def _number(self, path: str) -> int | None:
        if os.path.normpath(path) == self.folder:
            return ROOT
        found = self._find(path)
        return None if found is None else self._live[found[0]][found[1]]

    def _paths(self, args: str) -> list[str]:
        found = []
        for base, text in _PATH.findall(args):
            path = _name(text)
            found.append(path if path.startswith("/") else os.path.join(_name(base) or "/", path))
        return found

    # -- calls

    def _add(self, call: _Call, kind: Kind, **more: object) -> None:
        op = Op(kind, self._base + call.start, self._base + call.end, self._group)
        self.ops.append(replace(op, **more))  # type: ignore[arg-type]

    def _take(self, call: _Call) -> None:
        self._group += 1
        name = call.name
        if name in ("fsync", "fdatasync"):
            self._sync(call)
        elif call.result < 0:
            return
        elif name in ("openat", "open", "creat"):
            self._open(call)
        elif name in ("write", "pwrite64", "fallocate", "ftruncate"):
            self._change(call)
        elif name in ("sync", "syncfs"):
            raise AssertionError(f"{name} hides which syncs are needed")
        elif name in _UNKNOWN:
            assert self._inside not in call.args, f"not modelled: {call.name} {call.args[:300]}"
        elif name == "mmap":
            file = _FIRST.search(call.args)
            inside = file is not None and _name(file[1]).startswith(self.folder)
            assert not (inside and "MAP_SHARED" in call.args and "PROT_WRITE" in call.args), call
        else:
            self._entries(call)

    def _file(self, call: _Call) -> tuple[str, int] | None:
        """Give path and number of the file that a descriptor is open at; None for one elsewhere, or removed."""
        file = _FIRST.match(call.args)
        if file is None or file[2]:
            return None
        path = _name(file[1])
        if not (path + "/").startswith(self.folder + "/"):
            return None
        number = self._number(path)
        return None if number is None else (path, number)

    def _sync(self, call: _Call) -> None:
        if found := self._file(call):
            self._add(call, "lost" if call.result < 0 else "sync", ino=found[1], path=found[0])

    def _open(self, call: _Call) -> None:
        file = re.search(_PLACE, call.tail)
        found = self._find(_name(file[1])) if file else None
        if found is None:
            return
        place, name = found
        if "O_CREAT" in call.args and name not in self._live[place]:
            self._made(call, place, name)
        assert "O_TRUNC" not in call.args, f"a file of the store is emptied: {call}"

    def _made(self, call: _Call, place: int, name: str) -> int:
        self._count += 1
        self._live[place][name] = self._count
        self._add(call, "name", ino=self._count, place=place, name=name)
        return self._count

    def _change(self, call: _Call) -> None:
        file = _FIRST.match(call.args)
        if call.name == "write":
            if file and _name(file[1]).startswith(self.told + "/said."):
                (text,) = re.findall(_TEXT, call.args)
                self._add(call, "told", data=_bytes(text))
                return
            assert self._file(call) is None, f"a write without an offset is not modelled: {call.args[:200]}"
            return
        found = self._file(call)
        if found is None:
            return
        path, ino = found
        if call.name == "pwrite64":
            (text,) = re.findall(_TEXT, call.args)
            offset = int(call.args.rsplit(", ", 1)[1])
            self._add(call, "data", ino=ino, offset=offset, data=_bytes(text)[: call.result], path=path)
        elif call.name == "fallocate":
            mode, start, length = call.args.split(", ")[1:]
            assert mode == "0", call
            self._add(call, "size", ino=ino, offset=int(start) + int(length), path=path)
        else:
            self._add(call, "size", ino=ino, offset=int(call.args.rsplit(", ", 1)[1]), exact=True, path=path)

    def _entries(self, call: _Call) -> None:
        paths = self._paths(call.args)
        places = [place for path in paths if (place := self._find(path)) is not None]
        if not places:
            return
        assert len(places) == len(paths), f"a name comes from elsewhere: {call}"
        live, (place, name) = self._live, places[0]
        if call.name.startswith("mkdir"):
            number = self._made(call, place, name)
            self.directories.add(number)
            live[number] = {}
        elif call.name.startswith("rename"):
            to, new = places[1]
            ino = live[place].pop(name)
            assert new not in live[to], f"a file is replaced: {call}"
            live[to][new] = ino
            self._add(call, "name", ino=ino, place=to, name=new)
            self._add(call, "gone", ino=ino, place=place, name=name)
        elif call.name.startswith("link"):
            to, new = places[1]
            ino = live[place][name]
            live[to][new] = ino
            self._add(call, "name", ino=ino, place=to, name=new)
        else:
            assert call.name in ("unlink", "unlinkat", "rmdir"), call
            self._add(call, "gone", ino=live[place].pop(name), place=place, name=name)


@dataclass(frozen=True, slots=True)
class Told:
    """What owners have told of: each is sure from then on.

    Attributes
    ----------
    saves : mapping
        Step -> digest of the root.
    epoch : int
        The epoch under which a resume has returned; 0 before.
    """

    saves: Mapping[int, str] = field(default_factory=dict)
    epoch: int = 0

    def also(self, word: bytes) -> Told:
        """Add a line that an owner has written: ``{"saved": step, "root": digest}`` or ``{"epoch": n}``."""
        found = json.loads(word)
        if "saved" in found:
            return Told({**self.saves, found["saved"]: found["root"]}, self.epoch)
        return Told(self.saves, max(self.epoch, found["epoch"]))

    @property
    def mark(self) -> tuple[int, ...]:
        """Give what tells it from what was told before and after in the same recording."""
        return self.epoch, *sorted(self.saves)


def syncs(ops: Sequence[Op]) -> list[int]:
    """Give where in a list the syncs are that succeeded."""
    return [index for index, op in enumerate(ops) if op.kind == "sync"]
