"""What the crash tests share: the named points of a save, the state that owners save, and what a store must hold.

A store is looked at without MPI: its owners are threads of the looking process (`local`), which resume and go on to
save as a next start would.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import stepkit
from scene import patched, snapshot

import mpickpt
from mpickpt import PerOwner, Sharded, Split, _native, shares
from mpickpt.cluster.topology import Topology
from mpickpt.cluster.wiring import Wiring

stepkit.install()

LENGTH: Final = 12
"""Rows of the split region."""

When = Literal["before", "after"]


@dataclass(frozen=True)
class Point:
    """Who comes to a failpoint in an undisturbed save, and what holds for the generation when an owner is lost there.

    Attributes
    ----------
    root, other : {"before", "after"} or None
        Owner 0 and every other owner: None where it never comes there; ``before`` where the generation is not
        published if this owner is lost here, ``after`` where it is.
    """

    root: When | None
    other: When | None

    def when(self, role: int) -> When | None:
        """Give it for one owner."""
        return self.other if role else self.root


POINTS: Final = {
    "save.entered": Point("before", "before"),
    "save.agreed": Point("before", "before"),
    "writer.created": Point("before", "before"),
    "writer.chunk": Point("before", "before"),
    "writer.written": Point("before", "before"),
    "writer.synced": Point("before", "before"),
    "save.shards-written": Point("before", "before"),
    "save.heard": Point("before", "before"),
    # An owner writes its manifest by the same steps as owner 0 the root; only a root is placed.
    "commit.written": Point("before", "before"),
    "commit.synced": Point("before", "before"),
    "commit.closed": Point("before", "before"),
    "save.manifest-written": Point(None, "before"),
    "save.committed": Point(None, "after"),
    "save.compared": Point("before", None),
    "commit.placed": Point("after", None),
    "commit.directory-synced": Point("after", None),
    "save.root-placed": Point("after", None),
    "save.root-published": Point("after", None),
    "save.released": Point("after", "after"),
    "rotate.roots-removed": Point("after", None),
    "rotate.directory-synced": Point("after", None),
}
DOUBT: Final = "save.doubt"
"""The one point that an undisturbed save does not come to: somebody must be lost already."""


def points_of_source() -> set[str]:
    """Find every failpoint of a save in the library's source."""
    found = set()
    for file in Path(mpickpt.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "reach":
                (name,) = node.args
                if isinstance(name, ast.Constant):
                    found.add(str(name.value))
                elif file.name not in ("failpoints.py", "steps.py"):  # which reaches what is in its list
                    raise AssertionError(f"{file}:{node.lineno}: the name of a failpoint is not a literal")
    return {name for name in found if name.startswith(("save.", "writer.", "commit.", "rotate."))}


# --- what is saved


def rows(role: int, owners: int, length: int = LENGTH) -> range:
    """Give an owner's rows of a split region."""
    return shares(length, owners)[role]


def state(role: int, owners: int, step: int) -> dict[str, Any]:
    """Give a small state of every kind, with values that tell the step: an owner's own, a split, equal ones."""
    mine = rows(role, owners)
    return {
        "w": np.arange(6.0) + step,
        "m": Split(np.array(mine, dtype="float32") + step, length=LENGTH),
        # Longer than two pages, so that a part of each shard can be written past the page cache.
        "box": Sharded(np.full((1, 1100), 10.0 * step + role), shape=(owners, 1100), at=(role, 0)),
        "lr": 0.5**step,
        "rng": PerOwner(np.random.default_rng(100 * step + role)),
    }


# --- owners that are threads of this process


def local(
    owners: int, program: Callable[[Wiring], Any], seconds: float = 60.0, topology: Topology | None = None
) -> list[Any]:
    """Run `program` on every owner, each a thread; give what they return, or raise what the first of them raised."""
    found: list[Any] = [None] * owners
    failed: list[BaseException] = []

    def run(wiring: Wiring) -> None:
        try:
            found[wiring.role] = program(wiring)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(wiring,), daemon=True) for wiring in Wiring.local(owners, topology)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), f"an owner hangs; failed so far: {failed}"
    if failed:
        raise failed[0]
    return found


def publish(path: Path, owners: int, steps: Iterable[int], **options: Any) -> None:
    """Let a run of so many owners save some steps, each with ten inputs."""
    wanted = list(steps)

    def program(wiring: Wiring) -> None:
        with mpickpt.Checkpointer(path, wiring, keep=None, **options) as ckpt:
            ckpt.resume(state(wiring.role, owners, 0))
            for step in wanted:
                ckpt.save(state(wiring.role, owners, step), step=step, cursor=10 * step)

    local(owners, program)


# --- what owners said


def say(folder: Path, role: int, step: int, root: str) -> None:
    """Tell that a save has returned, as an owner prints success: what was said survives a kill."""
    with open(folder / f"said.{role}", "a") as file:
        file.write(json.dumps({"saved": step, "root": root}) + "\n")


def said(folder: Path) -> dict[int, set[str]]:
    """Give what any owner has said: by step, the digests of the roots."""
    found: dict[int, set[str]] = {}
    for file in folder.glob("said.*"):
        for word in map(json.loads, file.read_text().splitlines()):
            if "saved" in word:  # the chaos tells more (oracle.Teller)
                found.setdefault(word["saved"], set()).add(word["root"])
    return found


# --- what a store must hold


def listed(path: Path) -> dict[int, str]:
    """List what is published, by step: every one of it is live, and every byte of it verifies."""
    if not path.exists():
        return {}
    store = mpickpt.open_store(path)
    found = {}
    for generation in store.generations():
        assert generation.status == "live", generation
        assert generation.root is not None
        report = store.verify(step=generation.step, level="full")
        assert report.ok, [verdict for verdict in report.verdicts if not verdict.ok]
        found[generation.step] = generation.root
    return found


def check_crashed(
    path: Path,
    folder: Path,
    owners: int,
    before: Iterable[int],
    keep: int | None = None,
    topology: Topology | None = None,
) -> int:
    """Check a store whose owners were killed, then start a next run on it.

    What is listed is whole; what was complete before is there, as far as `keep` lets it; what any owner reported is
    there; the next run gets exactly what was saved at the newest step, and its saves work.

    Parameters
    ----------
    path : Path
        The store; it need not be there.
    folder : Path
        Where owners have said what they reported.
    before : iterable of int
        Steps that were published before.
    keep : int, optional
        How many generations stay at least.
    topology : Topology, optional
        That of the next run; by default a star.

    Returns
    -------
    int
        The step that the next run went on from, 0 for a fresh start.
    """
    there = listed(path) if (path / "run.json").exists() else {}
    heard = said(folder)
    for step, roots in heard.items():
        assert len(roots) == 1, f"owners reported different roots of step {step}: {roots}"
    expected = sorted({*before, *heard, *there})
    newest = expected[-keep:] if keep is not None else expected
    assert set(newest) <= there.keys(), f"listed: {sorted(there)}; reported: {sorted(heard)}; before: {sorted(before)}"
    assert all(there[step] in heard[step] for step in heard.keys() & there.keys())
    last = max(there, default=0)

    def start(wiring: Wiring) -> str:
        with mpickpt.Checkpointer(path, wiring, keep=None) as ckpt:
            mine = state(wiring.role, owners, 0)
            run = ckpt.resume(mine)
            assert (run.step, run.cursor, run.fresh) == (last, 10 * last, not there)
            assert run.root == there.get(last)
            assert run.value("lr", 1.0) == 0.5**last
            saved = state(wiring.role, owners, last)
            assert snapshot(mine) == snapshot(saved), f"owner {wiring.role} did not get the state of step {last}"
            return ckpt.save(state(wiring.role, owners, last + 1), step=last + 1, cursor=10 * last + 10).root

    roots = set(local(owners, start, topology=topology))
    assert len(roots) == 1
    assert listed(path) == there | {last + 1: roots.pop()}
    return last


def leftovers(path: Path) -> list[str]:
    """List what a store holds beside published generations, claims, run.json and void records: it should be nothing."""
    if not path.exists():
        return []
    store = mpickpt.open_store(path)
    names = {generation.name.removesuffix(".json") for generation in store.generations()}
    found = [f"data/{name}" for name in os.listdir(path / "data") if name not in names]
    for place in ("", "roots", "epochs", "data"):
        found += [os.path.join(place, name) for name in os.listdir(path / place) if name.startswith(".")]
    return sorted(found)


# --- the calls of the operating system that a store is written by

OPERATIONS: Final[dict[str, tuple[Any, str]]] = {
    "open": (os, "open"),
    "mkdir": (os, "mkdir"),
    "close": (os, "close"),
    "unlink": (os, "unlink"),
    "preallocate": (_native, "preallocate"),
    "write": (_native, "pwrite_all"),
    "chunks": (_native, "write_chunks"),
    "fsync": (_native, "fsync"),
    "rename": (_native, "rename_noreplace"),
    "link": (_native, "link"),
}


def where(arguments: Sequence[Any]) -> str:
    """Give the path that a call is about: its last path, or that of its descriptor."""
    paths = [argument for argument in arguments[:2] if isinstance(argument, str)]
    if paths:
        return paths[-1]
    try:
        return os.readlink(f"/proc/self/fd/{arguments[0]}")
    except OSError:
        return ""


@contextlib.contextmanager
def operations(
    store: Path, before: Callable[[str, str], None], after: Callable[[str, str], None] = lambda name, path: None
) -> Iterator[None]:
    """Call `before` and `after` around every operation on a file of a store, with its name and the path.

    What `before` raises stands for a call that failed; what `after` raises for one that was done, but reported failed.
    """
    inside = str(store)

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **more: Any) -> Any:
            path = where(arguments)
            if not path.startswith(inside):
                return real(*arguments, **more)
            try:
                before(name, path)
            except OSError:
                if name == "close":
                    real(*arguments)  # also after an error of close the descriptor is gone
                raise
            found = real(*arguments, **more)
            after(name, path)
            return found

        return operation

    with contextlib.ExitStack() as stack:
        for name, (module, attribute) in OPERATIONS.items():
            stack.enter_context(patched(module, attribute, wrap(name, getattr(module, attribute))))
        yield
