"""States that go to another number of owners or to other boxes: see test_repartition.py."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
from sameness import numbers, open_run, refused, require, same, share_of

import mpickpt
from mpickpt import Contract, PerOwner, Sharded, Spec, Split
from mpickpt.cluster import attempt

if TYPE_CHECKING:
    from mpi4py import MPI
    from sameness import Array

CONTRACTS = {name: Contract(identity={"model": "m"}, placement=name) for name in ("ask", "bound", "free")}
FREE = CONTRACTS["free"]
Among = Callable[[int, Callable[["MPI.Intracomm"], None]], None]


def staged(case: Callable[[Among, Path], Any]) -> Callable[[MPI.Intracomm, Path], Any]:
    """Give a case ``among(owners, call)``, which lets the first `owners` ranks call, and all go on together.

    A failure is kept for the end: the other ranks must not wait for one that has left.
    """

    @functools.wraps(case)
    def run(comm: MPI.Intracomm, directory: Path) -> Any:
        failures: list[Exception] = []

        def among(owners: int, call: Callable[[MPI.Intracomm], None]) -> None:
            member = comm.Get_rank() < owners
            part = comm.Split(0 if member else 1, comm.Get_rank())
            try:
                if member:
                    call(part)
            except Exception as error:
                failures.append(error)
            rank.meet(comm)
            part.Free()

        told = case(among, directory)
        if failures:
            raise failures[0]
        return told

    return run


@contextlib.contextmanager
def small_chunks(size: int) -> Iterator[None]:
    """Write shards with chunks of so many bytes, so that boxes meet many of them, and in part."""
    usual = attempt.arrange, attempt.layout
    attempt.arrange, attempt.layout = (functools.partial(one, chunk=size) for one in usual)
    try:
        yield
    finally:
        attempt.arrange, attempt.layout = usual


def columns(array: Array, comm: MPI.Intracomm) -> Sharded:
    """Hold the columns of a whole array that are this owner's share."""
    part = mpickpt.shares(array.shape[1], comm.Get_size())[comm.Get_rank()]
    return Sharded(array[:, part.start : part.stop].copy(), shape=array.shape, at=(0, part.start))


@rank.case
@staged
def a_learner_goes_from_count_to_count(among: Among, directory: Path) -> None:
    """Counts rise, fall, and return; the learner's sums are exact, so its state is known at every step."""

    def whole(steps: int) -> dict[str, Array]:
        start = {"w": np.arange(23, dtype="u8"), "m": np.arange(42, dtype="u4").reshape(6, 7), "b": np.arange(5)}
        return {name: (array * 3**steps + steps).astype(array.dtype) for name, array in start.items()}

    def hold(now: MPI.Intracomm, arrays: dict[str, Array], seen: Any) -> Any:
        return {
            "w": Split(share_of(arrays["w"], now).copy(), length=23),
            "m": columns(arrays["m"], now),
            "b": arrays["b"].copy(),
            "seen": seen,
            "kept": PerOwner([now.Get_rank(), seen], on_resize="keep"),
            "dropped": PerOwner(("own", now.Get_rank()), on_resize="drop"),
        }

    def go_on(now: MPI.Intracomm, turn: int, before: int) -> None:
        steps = 2 * turn
        with open_run(directory / "run", now, contract=FREE, write=("each", "gather")[turn % 2]) as ckpt:
            blank = {name: np.zeros_like(array) for name, array in whole(0).items()}
            run = ckpt.resume(hold(now, blank, None))
            require((run.step, run.cursor, run.fresh) == (steps, 64 * steps, turn == 0), "resumed", run)
            if before:
                expected = hold(now, whole(steps), ["seen", steps])
                if before != now.Get_size():
                    expected |= {"dropped": None, "kept": [now.Get_rank(), None]}
                same(run.state, expected, f"from {before} to {now.Get_size()}")
            steps += 2
            ckpt.save(hold(now, whole(steps), ["seen", steps]), step=steps, cursor=64 * steps)

    counts = (1, 3, 5, 2, 4, 1, 5, 5, 3)
    for turn, (before, owners) in enumerate(zip((0, *counts), counts, strict=False)):
        among(owners, functools.partial(go_on, turn=turn, before=before))


@rank.case
@staged
def another_count_must_be_asked_for(among: Among, directory: Path) -> list[str]:
    whole, told = np.arange(12.0), []

    def hold(now: MPI.Intracomm, array: Array) -> Any:
        return {"w": Split(share_of(array, now).copy(), length=12)}

    def save(now: MPI.Intracomm, name: str) -> None:
        with open_run(directory / name, now, contract=CONTRACTS[name]) as ckpt:
            ckpt.save(hold(now, whole), step=4)

    def resume(now: MPI.Intracomm, name: str, mine: str, repartition: bool, may: bool) -> None:
        with open_run(directory / name, now, contract=CONTRACTS[mine]) as ckpt:
            into = hold(now, np.full(12, -1.0))
            call = functools.partial(ckpt.resume, into, repartition=repartition, readonly=True)
            if may:
                call()
                same(into, hold(now, whole), f"{name} by {mine} at {now.Get_size()}")
            else:
                error = refused(mpickpt.PlacementError, call)
                same(into, hold(now, np.full(12, -1.0)), f"{name} by {mine} at {now.Get_size()}, refused,")
                told.append(f"{error.expected}, {error.found}: {error.advice}")
            require(len(ckpt.generations()) == 1, "the store was changed")

    for name in CONTRACTS:
        among(3, functools.partial(save, name=name))
    for name, mine, repartition, may in (
        ("ask", "ask", False, False),
        ("ask", "ask", True, True),
        ("ask", "free", False, False),  # what was saved asks, too
        ("ask", "bound", True, False),
        ("free", "free", False, True),
        ("free", "ask", False, False),
        ("free", "ask", True, True),
        ("free", "bound", True, False),
        ("bound", "bound", False, False),
        ("bound", "bound", True, False),
        ("bound", "free", True, False),
    ):
        for owners in (2, 5, 3):
            call = functools.partial(resume, name=name, mine=mine, repartition=repartition, may=may or owners == 3)
            among(owners, call)
    return told


@rank.case
@staged
def what_is_of_each_owner_says_what_becomes_of_it(among: Among, directory: Path) -> list[str | None]:
    told: list[str | None] = []

    def hold(now: MPI.Intracomm, content: str, on_resize: Any) -> Any:
        rng = np.random.default_rng(now.Get_rank() + (content != "saved") * 100)
        own = {name: PerOwner([content, now.Get_rank()], on_resize=on_resize) for name in ("a", "b")}
        return {"w": np.arange(3.0), "own": own, "rng": PerOwner(rng, on_resize=on_resize)}

    def save(now: MPI.Intracomm) -> None:
        with open_run(directory / "run", now, contract=FREE) as ckpt:
            ckpt.save(hold(now, "saved", "refuse"), step=1)

    def resume(now: MPI.Intracomm) -> None:
        same_count = now.Get_size() == 3
        with open_run(directory / "run", now, contract=FREE) as ckpt:
            found = ckpt.resume(hold(now, "mine", "keep"), readonly=True).state
            same(found, hold(now, "saved" if same_count else "mine", "keep"), "keep")
            found = ckpt.resume(hold(now, "mine", "drop"), readonly=True).state
            nothing = {"w": np.arange(3.0), "own": {"a": None, "b": None}, "rng": None}
            same(found, hold(now, "saved", "drop") if same_count else nothing, "drop")
            into = {**hold(now, "mine", "refuse"), "w": np.zeros(3)}
            if same_count:
                same(ckpt.resume(into).state, hold(now, "saved", "refuse"), "refuse")
                return
            error = refused(mpickpt.PlacementError, functools.partial(ckpt.resume, into))
            same(into, {**hold(now, "mine", "refuse"), "w": np.zeros(3)}, "what was not to be filled")
            told.append(error.region)
            whole = ckpt.resume(readonly=True)  # no state: nothing of this owner's is asked for
            require(whole.value("own/a", "nothing") == "nothing", "per-owner bytes of another count")

    among(3, save)
    for owners in (2, 5, 3):
        among(owners, resume)
    return told


Bounds = tuple[tuple[int, ...], tuple[int, ...]]


def tiling(draw: np.random.Generator, shape: tuple[int, ...], pieces: int) -> list[Bounds]:
    """Cut a box at random into at most so many boxes, (lo, hi) each."""
    boxes: list[Bounds] = [((0,) * len(shape), shape)]
    for _ in range(pieces - 1):
        lo, hi = boxes.pop(int(draw.integers(len(boxes))))
        axes = [axis for axis in range(len(shape)) if hi[axis] - lo[axis] > 1]
        if not axes:
            boxes.append((lo, hi))
            continue
        axis = int(draw.choice(axes))
        at = int(draw.integers(lo[axis] + 1, hi[axis]))
        boxes.append((lo, (*hi[:axis], at, *hi[axis + 1 :])))
        boxes.append(((*lo[:axis], at, *lo[axis + 1 :]), hi))
    return boxes


def tiles(now: MPI.Intracomm, seed: int, name: str, array: Array, hold: Callable[[Array], Any]) -> Sharded:
    """Hold this owner's tiles of an array: all owners draw the same tiling, and who holds which."""
    draw = np.random.default_rng([seed, *name.encode()])
    boxes = tiling(draw, array.shape, int(draw.integers(1, 16)))
    owner = draw.integers(now.Get_size(), size=len(boxes))
    mine = [box for box, role in zip(boxes, owner, strict=True) if role == now.Get_rank()]
    parts = [(hold(array[tuple(map(slice, lo, hi))]), lo) for lo, hi in mine]
    return Sharded(parts, shape=array.shape, dtype=array.dtype)


SHAPES = {
    "1": (97,),
    "2": (13, 11),
    "3": (5, 6, 7),
    "4": (3, 4, 2, 5),
    "6": (2, 3, 2, 2, 3, 2),
    "thin": (1, 40),
    "tall": (64, 1),
    "0": (),
}
TILED = ("<f4", "<f8", "bfloat16", "<i2", "|u1", "<c16", "float8_e5m2", "?")


@rank.case
@staged
def boxes_of_any_kind_go_to_boxes_of_any_kind(among: Among, directory: Path) -> None:
    """Random N-D tilings at save and at resume, at other counts; chunks are small, so that boxes meet them in part."""
    whole = {
        f"{name} {kind}": numbers(shape, kind, seed)
        for seed, (name, shape) in enumerate(SHAPES.items())
        for kind in TILED
    }

    def hold(now: MPI.Intracomm, seed: int, lay: Callable[[Array], Any]) -> Any:
        return {name: tiles(now, seed, name, array, lay) for name, array in whole.items()}

    def save(now: MPI.Intracomm, turn: int) -> None:
        write = ("each", "gather")[turn % 2]
        run = open_run(directory / str(turn), now, contract=FREE, nonfinite="allow", write=write)
        with small_chunks(256), run as ckpt:
            ckpt.save(hold(now, turn, np.copy), step=1)

    def resume(now: MPI.Intracomm, turn: int) -> None:
        with open_run(directory / str(turn), now, contract=FREE, nonfinite="allow") as ckpt:
            for seed, blank in ((turn + 100, np.zeros_like), (turn + 200, lambda a: np.zeros(a.shape, a.dtype, "F"))):
                same(ckpt.resume(hold(now, seed, blank)).state, hold(now, seed, np.copy))
            new = ckpt.resume({name: Spec(array.shape, array.dtype) for name, array in whole.items()})
            same(new.state, whole, "whole regions as new arrays")

    for turn, (then, later) in enumerate(((3, 5), (5, 2), (1, 4), (4, 1), (2, 3), (3, 3))):
        among(then, functools.partial(save, turn=turn))
        among(later, functools.partial(resume, turn=turn))


def in_copies(now: MPI.Intracomm, array: Array) -> Sharded:
    """Hold two copies of half as many shards as there are owners; one copy where there is one owner."""
    copies, count = (2, now.Get_size() // 2) if now.Get_size() > 1 else (1, 1)
    copy, part = divmod(now.Get_rank(), count)
    if copy >= copies:
        return Sharded([], shape=array.shape, dtype=array.dtype, replica=(0, copies))
    rows = mpickpt.shares(len(array), count)[part]
    mine = array[rows.start : rows.stop].copy()
    return Sharded(mine, shape=array.shape, at=(rows.start, 0), replica=(copy, copies))


def at_the_last(now: MPI.Intracomm, array: Array) -> Sharded:
    last = now.Get_rank() == now.Get_size() - 1
    return Sharded([(array.copy(), (0, 0))] if last else [], shape=array.shape, dtype=array.dtype)


def in_part(now: MPI.Intracomm, array: Array) -> Sharded:
    """Hold less than the whole, and what others hold too: only a destination may."""
    at = now.Get_rank()
    return Sharded(array[at : at + 3, 1:4].copy(), shape=array.shape, at=(at, 1))


WAYS: dict[str, Callable[[MPI.Intracomm, Array], Any]] = {
    "split": lambda now, array: Split(share_of(array, now).copy(), length=len(array)),
    "columns": lambda now, array: columns(array, now),
    "copies": in_copies,
    "equal": lambda now, array: array.copy(),
    "last": at_the_last,
}


@rank.case
@staged
def how_a_region_is_held_may_change(among: Among, directory: Path) -> None:
    whole = {name: numbers((12, 5), "<i4", at) for at, name in enumerate(WAYS)}

    def save(now: MPI.Intracomm, write: str) -> None:
        with open_run(directory / write, now, contract=FREE, write=write) as ckpt:
            ckpt.save({name: way(now, whole[name]) for name, way in WAYS.items()}, step=1)

    def resume(now: MPI.Intracomm, write: str) -> None:
        with open_run(directory / write, now, contract=FREE) as ckpt:
            for way in (*WAYS.values(), in_part):
                into = {name: way(now, np.zeros_like(array)) for name, array in whole.items()}
                expected = {name: way(now, array) for name, array in whole.items()}
                same(ckpt.resume(into, readonly=True).state, expected, f"{write} at {now.Get_size()}")

    for write in ("each", "gather"):
        among(4, functools.partial(save, write=write))
        for owners in (4, 3, 1, 5):
            among(owners, functools.partial(resume, write=write))


@rank.case
@staged
def stages_of_a_pipeline_are_dealt_out_anew(among: Among, directory: Path) -> None:
    def hold(now: MPI.Intracomm, factor: int) -> Any:
        mine = range(now.Get_rank(), 3, now.Get_size())
        return {f"stage{s}": {"w": np.arange(4.0) * factor * s, "n": factor * s, "l": [factor, (s,)]} for s in mine}

    def save(now: MPI.Intracomm, turn: int) -> None:
        with open_run(directory / str(turn), now) as ckpt:
            ckpt.save(hold(now, 2), step=1)

    def resume(now: MPI.Intracomm, turn: int) -> None:
        with open_run(directory / str(turn), now) as ckpt:
            same(ckpt.resume(hold(now, 0), repartition=True).state, hold(now, 2), f"turn {turn}")

    for turn, (then, later) in enumerate(((3, 1), (1, 5), (5, 2), (2, 3))):
        among(then, functools.partial(save, turn=turn))
        among(later, functools.partial(resume, turn=turn))


class Loaded:
    """An object that has no structure before it is loaded."""

    def __init__(self, content: Any = None) -> None:
        self.content = content

    def state_dict(self) -> Any:
        return self.content

    def load_state_dict(self, content: Any) -> None:
        self.content = content


@rank.case
@staged
def an_object_gets_its_whole_state_at_any_count(among: Among, directory: Path) -> None:
    plain = {"state": {0: {"m": numbers((7, 3), "<i4", 1), "step": 5}}, "groups": [{"lr": 0.125, "params": [0]}]}
    spread = numbers((7, 3), "<i4", 2)

    def save(now: MPI.Intracomm) -> None:
        with open_run(directory / "run", now, contract=FREE) as ckpt:
            part = {"m": Split(share_of(spread, now).copy(), length=7)}
            ckpt.save({"opt": Loaded(plain), "zero": Loaded(part)}, step=1)

    def resume(now: MPI.Intracomm) -> None:
        with open_run(directory / "run", now, contract=FREE) as ckpt:
            found = ckpt.resume({"opt": Loaded(), "zero": Loaded({"other": 1})}).state
        same(found["opt"].content, plain)
        same(found["zero"].content, {"m": spread})

    among(3, save)
    for owners in (1, 2, 5):
        among(owners, resume)


if __name__ == "__main__":
    rank.main()
