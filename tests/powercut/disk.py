"""Which states of a disk a crash may leave, of the operations that came before it.

At every instant each operation is sure (a sync has made it durable), or it may or may not be on disk. Three models:

weak
    Only what was synced is sure: a file's sync makes its data durable, a directory's sync its entries. All else may
    have reached the disk or not, in any combination and any order. A rename may have made its new name, and not yet
    removed the old one.
ordered
    One journal for all metadata, as ext4 and xfs have: entries reach the disk in their order, and any sync takes along
    all before it. Data that was not synced may be there or not.
fence
    The weak one on a file system where a directory's sync does nothing (Lustre from 2.16, BeeGFS): entries are sure
    once a file that was made after them in the same directory has been synced.

A write that is not sure may also be half there, or there as zeros. What a failed sync was to write is lost for good,
as ext4, xfs and btrfs have it: a later sync says "ok" and makes nothing of it durable.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from powercut.trace import ROOT, Op, Told


class Model(enum.Enum):
    """What is sure after a crash."""

    WEAK = "weak"
    ORDERED = "ordered"
    FENCE = "fence"


Torn = Literal["half", "zeros"]
_ENTRY: Final = ("name", "gone")
#: Up to so many operations that may or may not be there, all combinations are built.
_ALL: Final = 6


@dataclass(frozen=True, slots=True)
class State:
    """What a crash may leave: a tree, and what owners had told of by then.

    Attributes
    ----------
    files : tuple of (str, int, bytes)
        Path below the recorded folder, number of the file, digest of its content (see `Contents`).
    folders : tuple of str
        Paths of the directories, outermost first.
    told : Told
        What owners had told of.
    """

    files: tuple[tuple[str, int, bytes], ...]
    folders: tuple[str, ...]
    told: Told
    key: bytes
    story: str = ""


class Contents:
    """The contents of files, by digest."""

    def __init__(self) -> None:
        self.of: dict[bytes, bytes] = {}
        self._known: dict[tuple[int, tuple[int, ...], tuple[int, Torn] | None], bytes] = {}

    def digest(self, ops: Sequence[Op], ino: int, applied: tuple[int, ...], torn: tuple[int, Torn] | None) -> bytes:
        """Give the digest of what a file holds when these operations on it have reached the disk."""
        if torn is not None and torn[0] not in applied:
            torn = None
        key = ino, applied, torn
        if key not in self._known:
            data = bytearray()
            for index in applied:
                op = ops[index]
                if op.kind == "size":
                    if op.exact:
                        del data[op.offset :]
                    data.extend(bytes(max(0, op.offset - len(data))))
                    continue
                part = op.data
                if torn is not None and torn[0] == index:
                    part = bytes(len(part)) if torn[1] == "zeros" else part[: len(part) // 2]
                data.extend(bytes(max(0, op.offset - len(data))))
                data[op.offset : op.offset + len(part)] = part
            found = hashlib.sha256(data).digest()
            self.of[found] = bytes(data)
            self._known[key] = found
        return self._known[key]


@dataclass
class _Sure:
    """What has reached the disk: entries of each directory, and the operations on each file."""

    entries: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    applied: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def add(self, ops: Sequence[Op], indices: Iterable[int]) -> None:
        for index in sorted(indices):
            _apply(self.entries, self.applied, ops[index], index)


def _apply(entries: dict[int, dict[str, int]], applied: dict[int, tuple[int, ...]], op: Op, index: int) -> None:
    if op.kind == "name":
        entries.setdefault(op.place, {})[op.name] = op.ino
    elif op.kind == "gone":
        if entries.get(op.place, {}).get(op.name) == op.ino:
            del entries[op.place][op.name]
    else:
        applied[op.ino] = (*applied.get(op.ino, ()), index)


class Crashes:
    """All states that a crash may leave at any instant of a recording.

    Parameters
    ----------
    ops : sequence of Op
        From `trace.Recorder`.
    directories : set of int
    model : Model
    breadth : int
        How many combinations are drawn by chance at an instant where there are too many to build them all.
    seed : int
    """

    def __init__(
        self, ops: Sequence[Op], directories: set[int], model: Model, breadth: int = 12, seed: int = 1
    ) -> None:
        self.ops, self.directories, self.model = ops, directories, model
        self.breadth = breadth
        self.contents = Contents()
        self.total = 0
        self._random = random.Random(seed)
        self._made = {op.ino: op for op in reversed(ops) if op.kind == "name"}
        renames = {op.group: index for index, op in enumerate(ops) if op.kind == "name"}
        #: Where a rename removes its old name -> where it makes the new one, in the same directory.
        self._renames = {i: renames[op.group] for i, op in enumerate(ops) if op.kind == "gone" and op.group in renames}

    def covers(self, sync: Op, op: Op) -> bool:
        """Tell whether a sync makes an operation before it durable."""
        if op.end >= sync.start:
            return False
        if op.kind not in _ENTRY:
            return op.ino == sync.ino
        if self.model is Model.ORDERED:
            return True
        if self.model is Model.WEAK:
            return op.place == sync.ino
        made = self._made.get(sync.ino)
        return sync.ino not in self.directories and made is not None and made.place == op.place and op.end < made.start

    def states(self) -> Iterator[State]:
        """Build the states, crash by crash; those that do not differ from one before come once only."""
        seen: set[tuple[bytes, tuple[int, ...]]] = set()
        for sure, old, fresh, told, story in self._instants():
            for chosen, torn in self._choices(old, fresh):
                state = self._state(sure, chosen, torn, told, story)
                self.total += 1
                mark = state.key, told.mark
                if mark not in seen:
                    seen.add(mark)
                    yield state

    def without(self, dropped: int) -> Iterator[State]:
        """Build states that are legal only if the sync `ops[dropped]` had never been made.

        At every later instant: all is there that may be, but for what that sync alone made durable: one thing, or all.
        """
        ops = self.ops
        spared = [i for i in range(dropped) if self._durable_by(i) == dropped]
        told, sure, there = Told(), _Sure(), []
        for index, op in enumerate(ops):
            if op.kind == "told":
                told = told.also(op.data)
            elif op.kind not in ("sync", "lost"):
                there.append(index)
            last = index == len(ops) - 1
            if index < dropped or not (last or op.kind in ("told", "sync")):
                continue
            spared = [i for i in spared if not (op.kind == "sync" and index != dropped and self.covers(op, ops[i]))]
            if not spared:
                return
            for lost in [{i} for i in spared] + [set(spared)] * (len(spared) > 1):
                yield self._state(sure, [i for i in there if i not in lost], None, told, f"without {op.path}")

    def _durable_by(self, index: int) -> int | None:
        """Give the first sync that makes an operation durable."""
        op = self.ops[index]
        if op.kind in ("sync", "lost", "told"):
            return None
        later = range(index + 1, len(self.ops))
        return next((i for i in later if self.ops[i].kind == "sync" and self.covers(self.ops[i], op)), None)

    def _instants(self) -> Iterator[tuple[_Sure, list[int], list[int], Told, str]]:
        """Go through the operations, and stop before each sync: a crash before it may leave all that one before could.

        Gives what is sure; what may be there, from before the last stop and since; what was told; where this is.
        """
        sure, old, fresh, told = _Sure(), [], [], Told()
        for index, op in enumerate(self.ops):
            if op.kind == "told":
                told = told.also(op.data)
            elif op.kind == "sync":
                yield sure, old, fresh, told, f"before the sync of {op.path}"
                waiting = old + fresh
                durable = {i for i in waiting if self.covers(op, self.ops[i])}
                sure.add(self.ops, durable)
                old, fresh = [i for i in waiting if i not in durable], []
            elif op.kind == "lost":
                gone = {i for i in old + fresh if self.ops[i].kind == "data" and self.covers(op, self.ops[i])}
                old, fresh = [i for i in old if i not in gone], [i for i in fresh if i not in gone]
            else:
                fresh.append(index)
        yield sure, old, fresh, told, "at the end"

    def _choices(self, old: list[int], fresh: list[int]) -> Iterator[tuple[list[int], tuple[int, Torn] | None]]:
        subsets = self._journal(old + fresh) if self.model is Model.ORDERED else self._any(old, fresh)
        for subset in subsets:
            chosen = sorted(subset)
            yield chosen, None
            for index in chosen:
                if self.ops[index].kind == "data" and index in fresh:
                    yield chosen, (index, "half")
                    yield chosen, (index, "zeros")

    def _any(self, old: list[int], fresh: list[int]) -> Iterator[set[int]]:
        draw = self._random
        if len(old) + len(fresh) <= _ALL:
            yield from self._combinations(old + fresh)
            return
        some = {i for i in old if draw.random() < 0.5}
        for mine in self._combinations(fresh):
            yield from (mine, mine | set(old), mine | some)
        for index in old:
            yield from ({index}, {*old, *fresh} - {index})
        for _ in range(self.breadth):
            share = draw.random()
            yield {i for i in old + fresh if draw.random() < share}

    def _combinations(self, items: list[int]) -> Iterator[set[int]]:
        """All of them, if they are few; otherwise what differs from all or nothing by one, and beginnings."""
        if len(items) <= _ALL:
            for count in range(len(items) + 1):
                yield from map(set, itertools.combinations(items, count))
            return
        for count in range(len(items) + 1):
            yield set(items[:count])
        for index in items:
            yield from ({index}, set(items) - {index})

    def _journal(self, items: list[int]) -> Iterator[set[int]]:
        entries = [i for i in items if self.ops[i].kind in _ENTRY]
        data = [i for i in items if self.ops[i].kind not in _ENTRY]
        ends = [0] + [
            k
            for k in range(1, len(entries) + 1)
            if k == len(entries) or self._group(entries[k]) != self._group(entries[k - 1])
        ]
        for end in ends:
            for mine in self._combinations(data):
                yield set(entries[:end]) | mine

    def _group(self, index: int) -> int:
        return self.ops[index].group

    def _state(
        self, sure: _Sure, chosen: Iterable[int], torn: tuple[int, Torn] | None, told: Told, story: str
    ) -> State:
        """Put sure and chosen operations together to a tree."""
        entries = {place: dict(names) for place, names in sure.entries.items()}
        applied = dict(sure.applied)
        there = set(chosen)
        for index in sorted(there):
            if self._renames.get(index, index) in there:  # no rename loses both names
                _apply(entries, applied, self.ops[index], index)
        files: list[tuple[str, int, bytes]] = []
        folders: list[str] = []
        waiting = [(ROOT, "")]
        while waiting:
            place, path = waiting.pop()
            for name, ino in entries.get(place, {}).items():
                inner = path + name
                if ino in self.directories:
                    folders.append(inner)
                    waiting.append((ino, inner + "/"))
                else:
                    files.append((inner, ino, self.contents.digest(self.ops, ino, applied.get(ino, ()), torn)))
        files.sort()
        folders.sort()
        key = hashlib.sha256(repr((files, folders)).encode()).digest()
        return State(tuple(files), tuple(folders), told, key, story)


def lay(state: State, contents: dict[bytes, bytes], folder: Path) -> None:
    """Make the files of a state below an empty folder; two names of one file are links."""
    for path in state.folders:
        os.mkdir(folder / path)
    first: dict[int, str] = {}
    for path, ino, digest in state.files:
        if ino in first:
            os.link(folder / first[ino], folder / path)
            continue
        first[ino] = path
        with open(folder / path, "wb") as file:
            file.write(contents[digest])
