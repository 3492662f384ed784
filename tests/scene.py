"""What the programs of the refusal tests share: a store with two generations, one refused call, and what it left.

`Scene` opens a Checkpointer and publishes two generations. `Scene.save` and `Scene.resume` make the refused call and
give what every owner saw: the refusal, how long it took, what of the store changed, whether the caller's arrays,
generators and objects did, whether the older generations still verify, and whether the next save works.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank

import mpickpt
from mpickpt import PerOwner, Replicated, Sharded, Split, Value, shares
from mpickpt.cluster.channel import Call, Kind
from mpickpt.store.commit import TEMPORARY
from mpickpt.store.directory import Directory
from mpickpt.store.events import NAME as EVENTS

if TYPE_CHECKING:
    from mpi4py import MPI

LENGTH = 12
"""Rows of the split region."""


def at(*owners: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a case at these owner counts only: a start of a job is dear, and its cases are many."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def only(comm: MPI.Intracomm, directory: Path) -> Any:
            return function(comm, directory) if comm.Get_size() in owners else None

        return only

    return mark


class Model:
    """An object with state_dict() and load_state_dict(), either of which may fail."""

    def __init__(self, fill: float, *, reading: str = "", loading: str = "") -> None:
        self.weight = np.full(4, fill)
        self.reading, self.loading = reading, loading

    def state_dict(self) -> dict[str, Any]:
        """Give the weight, or raise what was planned."""
        if self.reading:
            raise ValueError(self.reading)
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the weight, or raise what was planned."""
        if self.loading:
            raise ValueError(self.loading)
        self.weight = state["weight"]


class Scene:
    """One owner's view of a store with two generations.

    Parameters
    ----------
    comm : MPI.Intracomm
        The owners.
    directory : Path
        An empty directory, the same on all owners.
    begin : bool
        Whether to resume and publish steps 1 and 2 (cursors 10 and 20) at once.
    options : of Checkpointer
    """

    def __init__(self, comm: MPI.Intracomm, directory: Path, *, begin: bool = True, **options: Any) -> None:
        self.comm, self.path = comm, directory / "run"
        self.role, self.owners = comm.Get_rank(), comm.Get_size()
        self.last = self.owners - 1
        self.options = {"deadline": 4.0, "keep": None, **options}
        self.opened: list[mpickpt.Checkpointer] = []
        self.steps: list[int] = []
        if begin:
            self.ckpt = self.open()
            self.ckpt.resume(self.good(0))
            for step in (1, 2):
                self.publish(step)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for ckpt in self.opened:
            ckpt._end(meet=kind is None)

    def open(self, **options: Any) -> mpickpt.Checkpointer:
        """Open a Checkpointer; collective."""
        self.opened.append(mpickpt.Checkpointer(self.path, self.comm, **{**self.options, **options}))
        return self.opened[-1]

    def publish(self, step: int) -> str:
        """Publish a good state as `step`, with ten inputs a step."""
        saved = self.ckpt.save(self.good(step), step=step, cursor=10 * step)
        self.steps.append(step)
        return saved.root

    # -- states

    def rows(self, length: int = LENGTH, role: int | None = None) -> range:
        """Give an owner's rows of a split region."""
        return shares(length, self.owners)[self.role if role is None else role]

    def good(self, step: int) -> dict[str, Any]:
        """Give a state of every kind that is the same learner's at all steps, with values that tell the step."""
        rows = self.rows()
        return {
            "w": np.arange(6.0) + step,
            "m": Split(np.array(rows, dtype="float32") + step, length=LENGTH),
            "box": self.sharded(step),
            "lr": 0.5**step,
            "rng": PerOwner(np.random.default_rng(100 * step + self.role)),
            "model": Model(step),
        }

    def sharded(self, step: int) -> Sharded:
        """Give this owner's row of a region of as many rows as there are owners."""
        return Sharded(np.full((1, 4), 10.0 * step + self.role), shape=(self.owners, 4), at=(self.role, 0))

    # -- looking

    def together(self, look: Callable[[], Any]) -> Any:
        """Let owner 0 look while nobody does anything; the others get None."""
        rank.meet(self.comm)
        try:
            return look() if self.role == 0 else None
        finally:
            rank.meet(self.comm)

    def tree(self) -> dict[str, str]:
        """Digest every file under the store, by its relative path; directories have none.

        But not the log of what happened, which each save goes on with, also one that fails. A worker of a call that
        was given up may still be at something: for its temporary files to go this waits some seconds.
        """
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):  # one went while this looked
                found = self._tree()
                if not any(Path(name).name.startswith(TEMPORARY) for name in found):
                    return found
            time.sleep(0.01)
        return self._tree()

    def _tree(self) -> dict[str, str]:
        found = {}
        for path in sorted(self.path.rglob("*")):
            name = str(path.relative_to(self.path))
            if name == EVENTS:
                continue
            found[name] = "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def added(self, before: dict[str, str], after: dict[str, str]) -> list[str]:
        """List what is new: `void` for a void record, else the path."""
        store = Directory(self.path)
        names = sorted(after.keys() - before.keys())
        return ["void" if n.startswith("roots/") and store.is_root(n[6:]) is False else n for n in names]

    def verified(self) -> bool:
        """Verify every generation that was published here, each byte of it."""
        store = mpickpt.open_store(self.path)
        return all(store.verify(step=step, level="full").ok for step in self.steps)

    # -- the refused call

    def refused(
        self, call: Callable[[], Any], state: Any, *, follow: Callable[[], Any] | None = None, older: bool = True
    ) -> dict[str, Any]:
        """Make the call that is refused, and tell what every owner saw.

        Parameters
        ----------
        call : callable
            It raises at all owners.
        state : nested containers
            What the caller owns: arrays, generators and objects in it must not change.
        follow : callable, optional
            What must work afterwards, instead of the next save.
        older : bool
            Whether the generations published are whole, and must be afterwards.
        """
        before = self.together(self.tree)
        mine = snapshot(state)
        found = rank.attempt(call)
        found["arrays"] = snapshot(state) == mine
        after = self.together(self.tree)
        if self.role == 0:
            found["changed"] = sorted(name for name in before if after.get(name) != before[name])
            found["added"] = self.added(before, after)
        if older:
            found["older"] = self.together(self.verified)
        found["next"] = (follow or self.follow)()
        if self.role == 0 and older:
            found["older"] = found["older"] and self.verified()
        return found

    def follow(self) -> str:
        """Publish the next step, as a training loop that goes on would."""
        return self.publish(max(self.steps, default=0) + 1)

    def save(self, state: Any, *, step: int = 3, cursor: int = 30, **more: Any) -> dict[str, Any]:
        """Make a save that is refused."""
        return self.refused(lambda: self.ckpt.save(state, step=step, cursor=cursor).root, state, **more)

    def resume(self, state: Any, *, ckpt: mpickpt.Checkpointer | None = None, **options: Any) -> dict[str, Any]:
        """Make a resume that is refused; afterwards the store is resumed as it should be, if it can be."""
        ckpt = ckpt or self.open()
        follow, older = options.pop("follow", None), options.pop("older", True)
        return self.refused(
            lambda: str(ckpt.resume(state, **options)), state, follow=follow or self.resumes, older=older
        )

    def resumes(self) -> list[Any]:
        """Resume the newest generation properly; give its step and whether every piece came back."""
        state = self.good(0)
        found = self.open().resume(state)
        return [found.step, snapshot(state) == snapshot(self.good(found.step))]

    # -- waiting

    def until(self, path: Path, seconds: float = 20.0) -> None:
        """Wait until another owner has made a file."""
        limit = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > limit:
                raise AssertionError(f"not made within {seconds} s: {path}")
            time.sleep(0.002)


def snapshot(state: Any, depth: int = 8) -> list[bytes]:
    """Copy the bytes of all arrays, generators and objects in a state, at most so deep (a state may hold itself)."""
    if depth == 0:
        return []
    if isinstance(state, np.ndarray):
        return [np.ascontiguousarray(state).tobytes()] if state.dtype != object else []
    if isinstance(state, np.random.Generator):
        return [repr(state.bit_generator.state).encode()]
    if isinstance(state, Model):
        return [state.weight.tobytes()]
    inner: list[Any] = []
    if isinstance(state, Sharded):
        inner = [array for array, _ in state.parts]
    elif isinstance(state, Split):
        inner = [state.array]
    elif isinstance(state, Replicated | PerOwner | Value):
        inner = [state.content]
    elif isinstance(state, dict):
        inner = [dict.__getitem__(state, key) for key in sorted(dict.keys(state), key=str)]
    elif isinstance(state, list | tuple):
        inner = list(state)
    return [part for item in inner for part in snapshot(item, depth - 1)]


def opened(comm: MPI.Intracomm, directory: Path, **options: Any) -> Any:
    """Save through a second Checkpointer, whose options are this owner's own."""
    with Scene(comm, directory) as scene:
        ckpt = scene.open(**options)
        state = scene.good(3)
        return scene.refused(lambda: ckpt.save(state, step=3, cursor=30).root, state)


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in the place of an attribute for the length of a with-block."""
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextlib.contextmanager
def failing(owner: Any, name: str, number: int, when: Callable[..., bool] = lambda *_: True) -> Iterator[list[str]]:
    """Let a function fail with an errno, as the operating system would; gives the calls that failed."""
    real, failed = getattr(owner, name), []

    def fails(*args: Any, **more: Any) -> Any:
        if when(*args):
            failed.append(name)
            raise OSError(number, os.strerror(number))
        return real(*args, **more)

    with patched(owner, name, fails):
        yield failed


@contextlib.contextmanager
def counted(kind: Kind) -> Iterator[list[int]]:
    """List the sizes of the messages of a kind that this owner sends."""
    real, sizes = Call.send, []

    def send(self: Call, role: int, sent: Kind, body: bytes = b"") -> None:
        if sent is kind:
            sizes.append(len(body))
        real(self, role, sent, body)

    with patched(Call, "send", send):
        yield sizes
