"""What must hold for a store after a power cut: looked at, swept, resumed, saved in again, in this process.

`judge` depends on the files alone; what owners had told of is compared afterwards (`promises`), so that one look at
a tree serves all moments at which it may be found. Two things are not done twice, because they could not come out
otherwise: a generation whose very bytes have verified is not verified again (`look`), and a tree that differs from a
judged one only in bytes that nobody has read gets the verdict of that one (`_Known`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import crashkit
from scene import snapshot

import mpickpt
from mpickpt.cluster.wiring import Wiring
from mpickpt.format.names import parse_root_name
from mpickpt.store.directory import Directory, RootName
from mpickpt.store.verdicts import verdicts_of_root, verdicts_of_store
from powercut.disk import State, lay
from powercut.trace import Told


@dataclass(frozen=True)
class Verdict:
    """What a look at one tree found: what is listed (step -> root), the newest claim, what is wrong."""

    there: dict[int, str]
    epoch: int = 0
    problem: str | None = None


def judge(store: Path, owners: int) -> Verdict:
    """Look, sweep, resume and save.

    What is listed verifies, every byte; a sweep takes none of it; a next run gets exactly what was saved at the newest
    step; its save works; nothing but what was listed and that save is listed then.
    """
    there: dict[int, str] = {}
    epoch = 0
    try:
        begun = any((store / name).exists() for name in ("run.json", "roots", "epochs"))
        there = look(store) if begun else {}
        if begun:
            claim = Directory(store).newest_claim()
            epoch = 0 if claim is None else claim.epoch
            Directory(store).sweep()
            assert look(store) == there, "the sweep has changed what is listed"
        last = max(there, default=0)
        roots = set(crashkit.local(owners, functools.partial(_go_on, store, there)))
        assert len(roots) == 1, f"owners were told different roots: {roots}"
        assert look(store) == there | {last + 1: roots.pop()}
    except Exception:
        return Verdict(there, epoch, traceback.format_exc())
    return Verdict(there, epoch)


#: Digests of all that the verification of a generation reads, of those that have verified.
_verified: Final[set[bytes]] = set()


def look(store: Path) -> dict[int, str]:
    """List what is published, by step, as `crashkit.listed` does: all live, every byte verified, now or before."""
    directory, found = Directory(store), {}
    verdicts = verdicts_of_store(directory)
    for generation in mpickpt.open_store(store).generations():
        assert generation.status == "live", generation
        assert generation.root is not None
        found[generation.step] = generation.root
        mark = _bytes_of(store, generation.name)
        if mark not in _verified:
            step, epoch, nonce = parse_root_name(generation.name) or (0, 0, "")
            files = verdicts_of_root(directory, RootName(epoch, step, nonce, generation.name), "full")
            assert files, f"{generation.name} is listed and gone"
            verdicts += files
            if all(verdict.ok for verdict in files):
                _verified.add(mark)
    assert all(verdict.ok for verdict in verdicts), [verdict for verdict in verdicts if not verdict.ok]
    return found


def _bytes_of(store: Path, name: str) -> bytes:
    """Give the digest of run.json and of all files of a generation, with their paths."""
    files = [f"{store}/run.json", f"{store}/roots/{name}"]
    for place, _, names in os.walk(f"{store}/data/{name.removesuffix('.json')}"):
        files += [f"{place}/{each}" for each in names]
    found = hashlib.sha256()
    for file in sorted(files):
        try:
            with open(file, "rb") as opened:
                data = opened.read()
        except FileNotFoundError:
            data = b"absent"
        found.update(f"{os.path.relpath(file, store)} {len(data)} ".encode() + data)
    return found.digest()


def _go_on(store: Path, there: dict[int, str], wiring: Wiring) -> str:
    last, role, owners = max(there, default=0), wiring.role, wiring.owners
    with mpickpt.Checkpointer(store, wiring, keep=None, events=False) as ckpt:
        mine = crashkit.state(role, owners, 0)
        run = ckpt.resume(mine)
        assert (run.step, run.cursor, run.fresh, run.root) == (last, 10 * last, not there, there.get(last))
        assert run.value("lr", 1.0) == 0.5**last
        assert snapshot(mine) == snapshot(crashkit.state(role, owners, last)), f"owner {role} got another state"
        return ckpt.save(crashkit.state(role, owners, last + 1), step=last + 1, cursor=10 * last + 10).root


def promises(verdict: Verdict, words: Told, keep: int, known: Iterable[str]) -> str | None:
    """Say which promise a store breaks: what was told of is listed as far as `keep` lets it, and nothing is strange."""
    there, told = verdict.there, words.saves
    if verdict.problem:
        return verdict.problem
    if verdict.epoch < words.epoch:
        return f"lost: the claim of epoch {words.epoch}; the newest is {verdict.epoch}"
    strange = sorted(set(there.values()) - set(known))
    if strange:
        return f"listed, but never saved: {strange}"
    other = {step for step in there.keys() & told.keys() if there[step] != told[step]}
    if other:
        return f"listed under another root than was told: {sorted(other)}"
    lost = set(sorted({*there, *told})[-keep:]) - there.keys()
    if lost:
        return f"lost: {sorted(lost)}; told: {sorted(told)}; listed: {sorted(there)}"
    return None


# --- in worker processes


class _Known:
    """Verdicts of one worker: of trees of the same names, lengths and links, by the bytes that judging them has read.

    Files are opened in Python alone, so its audit events tell which. Nothing else of their bytes can have had a say.
    """

    def __init__(self) -> None:
        self._of: dict[bytes, list[tuple[dict[str, bytes], Verdict]]] = defaultdict(list)
        self._opened: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            self._opened.append(os.fspath(arguments[0]))

    def find(self, shape: bytes, state: State) -> Verdict | None:
        """Give the verdict of a tree that was judged, if that of this one can be no other."""
        there = {path: digest for path, _, digest in state.files}
        for read, verdict in self._of[shape]:
            if all(there[path] == digest for path, digest in read.items()):
                return verdict
        return None

    def watch(self) -> None:
        """Begin to take down what is opened."""
        self._opened.clear()

    def add(self, shape: bytes, state: State, place: Path, verdict: Verdict) -> None:
        """Remember a verdict on the tree at `place`, with what was read of it since `watch`.

        A path that is relative, to a directory that is open, counts for each file that it may name.
        """
        begin = f"{place}/"
        whole = {path.removeprefix(begin) for path in self._opened if path.startswith(begin)}
        ends = tuple(f"/{path}" for path in set(self._opened) if not path.startswith("/"))
        read = {
            path: digest for path, _, digest in state.files if path in whole or (ends and f"/{path}".endswith(ends))
        }
        self._of[shape].append((read, verdict))


_contents: Final[dict[bytes, bytes]] = {}
_known: _Known


def _begin() -> None:
    """Begin as a worker: what is logged of stores that are not whole is of no interest."""
    global _known
    logging.disable(logging.CRITICAL)
    _known = _Known()


def _work(folder: str, inner: str, state: State, shape: bytes, pool: str, owners: int) -> Verdict:
    """Lay a state out and judge it; contents that this worker has not seen come from the pool's folder."""
    found = _known.find(shape, state)
    if found is not None:
        return found
    for _, _, digest in state.files:
        if digest not in _contents:
            _contents[digest] = (Path(pool) / digest.hex()).read_bytes()
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        lay(state, _contents, place)
        _known.watch()
        found = judge(place / inner, owners)
        _known.add(shape, state, place, found)
        return found
    finally:
        shutil.rmtree(place)


class Judges:
    """Judges trees side by side, each tree once.

    Parameters
    ----------
    folder : Path
        Where trees are laid out; best in memory.
    processes : int
    """

    def __init__(self, folder: Path, processes: int) -> None:
        self._folder = folder
        self._pool = folder / "contents"
        self._pool.mkdir(parents=True)
        self._workers = [ProcessPoolExecutor(1, get_context("spawn"), _begin) for _ in range(processes)]
        self._verdicts: dict[tuple[bytes, int], Future[Verdict]] = {}

    def judge(self, state: State, contents: Mapping[bytes, bytes], inner: str, owners: int) -> Future[Verdict]:
        """Judge the store at the path `inner` of a tree."""
        key = state.key, owners
        if key not in self._verdicts:
            for _, _, digest in state.files:
                path = self._pool / digest.hex()
                if not path.exists():
                    path.write_bytes(contents[digest])
            names = [(path, ino, len(contents[digest])) for path, ino, digest in state.files]
            shape = hashlib.sha256(repr((names, state.folders, inner, owners)).encode()).digest()
            worker = self._workers[shape[0] % len(self._workers)]  # which knows all trees of this shape
            job = str(self._folder), inner, state, shape, str(self._pool), owners
            self._verdicts[key] = worker.submit(_work, *job)
        return self._verdicts[key]

    def drop(self, futures: Iterable[Future[Verdict]]) -> None:
        """Give up what nobody waits for any more and nobody has begun."""
        given_up = {future for future in futures if future.cancel()}
        self._verdicts = {key: future for key, future in self._verdicts.items() if future not in given_up}

    @property
    def distinct(self) -> int:
        """How many trees that differ were judged."""
        return len(self._verdicts)

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)
