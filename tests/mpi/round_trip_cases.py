"""States of every kind, saved and resumed: see test_round_trip.py."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rank
from sameness import numbers, open_run, refused, require, round_trip, same, share_of

import mpickpt
from mpickpt import PerOwner, Replicated, Sharded, Spec, Split, Value
from mpickpt.cluster.transport import MpiTransport
from mpickpt.state import dtypes

if TYPE_CHECKING:
    from mpi4py import MPI
    from sameness import Array

DTYPES = {name: dtypes.dtype_of(name) for name in dtypes.NAMES}


def strided(array: Array) -> Array:
    wide = np.zeros(tuple(3 * length for length in array.shape), array.dtype)
    view = wide[tuple(slice(1, None, 3) for _ in array.shape)]
    view[...] = array
    return view


def read_only(array: Array) -> Array:
    array = array.copy()
    array.setflags(write=False)
    return array


def big_endian(array: Array) -> Array:
    """Swap the bytes without a cast, which might touch a NaN."""
    return array.copy().byteswap().view(array.dtype.newbyteorder(">"))


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "as it is": np.copy,
    "Fortran": np.asfortranarray,
    "strided": strided,
    "backwards": lambda array: array[::-1].copy()[::-1],
    "turned": lambda array: np.swapaxes(np.swapaxes(array, 0, -1).copy(), 0, -1),
    "big-endian": big_endian,
    "big-endian, strided": lambda array: strided(big_endian(array)),
    "read-only": read_only,
}


@rank.case
def every_dtype_in_every_memory_layout(comm: MPI.Intracomm, directory: Path) -> None:
    me = comm.Get_rank()
    whole: dict[str, Array] = {}
    for code, (dtype, kind) in enumerate(DTYPES.items()):
        for turn, layout in enumerate(LAYOUTS):
            whole[f"same/{dtype}/{layout}".replace(",", "%2C")] = numbers((3, 5), kind, code, turn)
            whole[f"split/{dtype}/{layout}".replace(",", "%2C")] = numbers((7, 2, 3), kind, code, turn, 1)

    def state(turn: int, hold: bool) -> Any:
        """Give the same arrays; the destination has each in another layout than was saved."""
        laid = dict(zip(LAYOUTS, [*list(LAYOUTS.values())[turn:], *list(LAYOUTS.values())[:turn]], strict=True))
        found: dict[str, dict[str, Any]] = {"same": {}, "split": {}, "own": {}}
        for code, (dtype, kind) in enumerate(DTYPES.items()):
            for kept in found.values():
                kept[dtype] = {}
            for name, lay in laid.items():
                escaped = f"{dtype}/{name}".replace(",", "%2C")
                arrays = whole["same/" + escaped], share_of(whole["split/" + escaped], comm)
                if not hold:
                    arrays = np.zeros_like(arrays[0]), np.zeros_like(arrays[1])
                found["same"][dtype][name] = lay(arrays[0])
                found["split"][dtype][name] = Split(lay(arrays[1]), length=7)
            own = numbers((4, 2), kind, code, me, 2)
            found["own"][dtype] = PerOwner(big_endian(own) if hold else strided(np.zeros_like(own)))
        return found

    round_trip(comm, directory, lambda: state(0, True), lambda: state(3, False), whole, nonfinite="allow")


@rank.case
def arrays_without_axes_and_without_elements(comm: MPI.Intracomm, directory: Path) -> None:
    whole: dict[str, Array] = {}
    for code, (dtype, kind) in enumerate(DTYPES.items()):
        whole[f"{dtype}/point"] = numbers((), kind, code)
        for shape in ((0,), (0, 4), (3, 0), (2, 0, 5), (1, 1, 1)):
            whole[f"{dtype}/{'x'.join(map(str, shape))}"] = numbers(shape, kind, code)

    def state(hold: bool) -> Any:
        found: dict[str, Any] = {}
        for name, array in whole.items():
            dtype, _, key = name.partition("/")
            found.setdefault(dtype, {})[key] = array.copy() if hold else np.zeros_like(array)
        found["float64"]["0x4"] = Split(found["float64"]["0x4"], length=0)
        found["float32"]["point"] = big_endian(found["float32"]["point"])
        return found

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole, nonfinite="allow")


@rank.case
def fewer_rows_than_owners(comm: MPI.Intracomm, directory: Path) -> None:
    me, owners = comm.Get_rank(), comm.Get_size()
    lengths = sorted({0, 1, owners - 1, owners, owners + 1})
    whole = {f"split/{n}": numbers((n, 3), "<f4", n) for n in lengths}
    whole["last"] = numbers((1, 6), "<i8", 1)
    whole["first"] = numbers((2, 2), "<u2", 2)

    def state(hold: bool) -> Any:
        arrays = whole if hold else {name: np.zeros_like(array) for name, array in whole.items()}
        last, first = arrays["last"], arrays["first"]
        return {
            "split": {str(n): Split(share_of(arrays[f"split/{n}"], comm).copy(), length=n) for n in lengths},
            "last": Sharded(last if me == owners - 1 else last[:0], shape=last.shape, at=(int(me < owners - 1), 0)),
            "first": Sharded([(first, (0, 0))] if me == 0 else [], shape=first.shape, dtype="<u2"),
        }

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole, nonfinite="allow")


@rank.case
def several_boxes_of_one_region_in_one_owner(comm: MPI.Intracomm, directory: Path) -> None:
    me, owners = comm.Get_rank(), comm.Get_size()
    whole = {"rows": numbers((2 * owners, 3), "<f8", 1), "tiles": numbers((4, 2 * owners, 3), "<i2", 2)}

    def state(hold: bool) -> Any:
        rows, tiles = [array if hold else np.zeros_like(array) for array in whole.values()]
        back = 2 * owners - 1 - me
        halves = [(tiles[:1, 2 * me : 2 * me + 1], (0, 2 * me, 0)), (tiles[1:, 2 * me : 2 * me + 1], (1, 2 * me, 0))]
        return {
            "rows": Sharded([(rows[back : back + 1], (back, 0)), (rows[me : me + 1], (me, 0))], shape=rows.shape),
            "tiles": Sharded([(tiles[:, 2 * me + 1 :][:, :1], (0, 2 * me + 1, 0)), *halves], shape=tiles.shape),
        }

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole, nonfinite="allow")


@rank.case
def a_pipeline_of_three_stages(comm: MPI.Intracomm, directory: Path) -> None:
    me, owners = comm.Get_rank(), comm.Get_size()
    whole = {f"stage{s}/w": numbers((4, s + 2), "<f2", s) for s in range(3)}
    whole |= {f"stage{s}/opt/#0": numbers((s + 1,), "<f4", s, 1) for s in range(3)}
    whole["tied"] = numbers((5, 2), "<f4", 9)

    def state(hold: bool) -> Any:
        arrays = {name: array.copy() if hold else np.zeros_like(array) for name, array in whole.items()}
        found: dict[str, Any] = {}
        for s in range(me, 3, owners):
            opt = [arrays[f"stage{s}/opt/#0"], 10 * s if hold else 0]
            found[f"stage{s}"] = {"w": arrays[f"stage{s}/w"], "opt": opt}
        if me in (0, 2 % owners):  # the first stage and the last
            found["tied"] = arrays["tied"]
        return found

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole, nonfinite="allow")


@rank.case
def experts_held_by_one_owner_each(comm: MPI.Intracomm, directory: Path) -> None:
    me, owners = comm.Get_rank(), comm.Get_size()
    experts = 2 * owners - 1  # so that the last owner has one less
    whole = {f"experts/#{e}/w": numbers((e + 1, 3), "bfloat16", e) for e in range(experts)}
    whole["router"] = numbers((8, experts), "<f4", 99)

    def state(hold: bool) -> Any:
        arrays = {name: array.copy() if hold else np.zeros_like(array) for name, array in whole.items()}
        mine = range(me, experts, owners)
        return {
            "experts": {e: {"w": arrays[f"experts/#{e}/w"], "seen": e * 1000 if hold else 0} for e in mine},
            "router": arrays["router"],
        }

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole, nonfinite="allow")


def hybrid(comm: MPI.Intracomm, arrays: dict[str, Array], swapped: bool = False) -> Any:
    """Hold two copies of half as many shards as there are owners (one copy for one); an odd owner holds nothing."""
    me, owners = comm.Get_rank(), comm.Get_size()
    copies, count = (2, owners // 2) if owners > 1 else (1, 1)
    copy, part = divmod(me, count)
    found = {}
    for name, array in arrays.items():
        if copy >= copies:
            found[name] = Sharded([], shape=array.shape, dtype=array.dtype, replica=(0, copies))
            continue
        rows = mpickpt.shares(len(array), count)[part]
        mine = array[rows.start : rows.stop].copy()
        if swapped and copy == 1:  # what the other shard's holder of this copy should have
            other = mpickpt.shares(len(array), count)[(part + 1) % count]
            mine = array[other.start : other.stop].copy() if count > 1 else mine[::-1].copy()
        found[name] = Sharded(mine, shape=array.shape, at=(rows.start, *[0] * (array.ndim - 1)), replica=(copy, copies))
    return found


@rank.case
def two_copies_of_every_shard(comm: MPI.Intracomm, directory: Path) -> None:
    whole = {"w": numbers((8, 3), "<f4", 1), "odd": numbers((6, 2), "<f8", 2), "thin": numbers((2, 5), "|u1", 3)}
    blank = {name: np.zeros_like(array) for name, array in whole.items()}
    round_trip(comm, directory, lambda: hybrid(comm, whole), lambda: hybrid(comm, blank), whole, nonfinite="allow")


@rank.case
def swapped_bytes_of_one_copy_are_refused(comm: MPI.Intracomm, directory: Path) -> Any:
    owners = comm.Get_size()
    whole = {"v": np.zeros((4, 2)), "w": np.arange(24.0).reshape(8, 3)}
    told = []
    for write in ("each", "gather"):
        with open_run(directory / write, comm, write=write) as ckpt:
            good = ckpt.save(hybrid(comm, whole), step=1)
            if owners > 1:
                error = refused(mpickpt.ReplicaError, lambda c=ckpt: c.save(hybrid(comm, whole, True), step=2))  # type: ignore[misc]
                told.append([error.region, sorted(error.roles), str(error.expected), str(error.found), str(error)])
            require([g.root for g in ckpt.generations()] == [good.root], "the store was changed")
            ckpt.save(hybrid(comm, whole), step=2)
            blank = hybrid(comm, {name: np.zeros_like(array) for name, array in whole.items()})
            same(ckpt.resume(blank).state, hybrid(comm, whole))
    return told


Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Layer:
    w: Any
    bias: Any
    name: str = "dense"


@rank.case
def values_with_their_types(comm: MPI.Intracomm, directory: Path) -> None:
    values = {
        "tuple": (1, (2.5, "three"), [4, (5,)]),
        "int keys": {3: "c", 1: "a", -7: {0: None}},
        "other keys": {(1, 2): True, None: b"x", 2.5: frozenset({1, 2}), "s": {"a", "b"}},
        "big": [2**64, -(2**200), 10**40, 2**5000, 0, -1],
        "floats": [-0.0, 0.0, 5e-324, 1.7976931348623157e308, 0.1, 1 / 3],
        "infinite": [float("inf"), float("-inf"), complex(-0.0, float("inf"))],
        "nan": np.frombuffer(bytes.fromhex("010000000000f87f"), "<f8")[0].item(),
        "bytes": [b"", b"\x00\xff", bytearray(b"abc"), bytes(range(256))],
        "none": None,
        "truth": [True, False, 1, 0, 1.0],
        "text": ["", "ü\n\x00'\"\\", "日本語", "\U0001f600", "e\u0301", "\u00e9"],
        "scalars": [np.float16(1.5), np.int8(-3), np.bool_(True), np.complex64(1 - 2j)],
        "empty": {"d": {}, "l": [], "t": (), "s": set(), "ll": [[], {}]},
        "deep": [[[[[[[[1], ()]]]]]]],
    }
    hidden = {"a": np.arange(3), "s": [np.float32(2)]}

    def state(hold: bool) -> Any:
        plain = values if hold else dict.fromkeys(values, 0)
        if not hold:
            plain["empty"] = {"d": {}, "l": 0, "t": 0, "s": 0, "ll": 0}
        own = (comm.Get_rank(), [2**70, None]) if hold else None
        return {"plain": plain, "opaque": Value(hidden if hold else 7), "same": Replicated(0.5), "own": PerOwner(own)}

    allow = {"plain/infinite": "allow", "plain/nan": "allow"}
    round_trip(comm, directory, lambda: state(True), lambda: state(False), {}, nonfinite=allow)
    every = mpickpt.open_store(directory / "gather").read()["plain"]
    for name in ("int keys", "other keys"):
        require(list(every[name]) == list(values[name]), name, "in another order:", every[name])
    with open_run(directory / "each", comm) as ckpt:
        error = refused(mpickpt.NonFiniteError, lambda: ckpt.resume(state(False)))
        require(error.region in allow, "another region than one that is not finite:", error.region)


@rank.case
def a_list_that_grows_from_save_to_save(comm: MPI.Intracomm, directory: Path) -> None:
    me = comm.Get_rank()
    for write in ("each", "gather"):
        losses: list[Any] = []

        def state() -> Any:
            return {"losses": losses, "own": PerOwner([me] * len(losses)), "w": np.full(3, len(losses))}  # noqa: B023

        with open_run(directory / write, comm, write=write, keep=None) as ckpt:
            for step in range(1, 5):
                losses.extend((step, 1.0 / step) for _ in range(step * step))
                ckpt.save(state(), step=step)
            kept = list(losses)
            for step, length in ((4, 30), (1, 1), (2, 5), (3, 14)):
                losses = ["other"]
                found = ckpt.resume(state(), step=step, readonly=True)
                expected = {"losses": kept[:length], "own": [me] * length, "w": np.full(3, length)}
                same(found.state, expected, f"step {step}")
                same(found.value("losses"), kept[:length])


@rank.case
def names_of_every_kind(comm: MPI.Intracomm, directory: Path) -> None:
    escaped: dict[str, tuple[Any, ...]] = {
        "a/b": ("a", "b"),
        "a%2Fb": ("a/b",),
        "'quoted\"": ("'quoted\"",),
        "back\\slash": ("back\\slash",),
        "%5B0%3A3%2C1%5D": ("[0:3,1]",),
        "{}()<>|;&$`~^*?!@=+": ("{}()<>|;&$`~^*?!@=+",),
        " ": (" ",),
        " both ends ": (" both ends ",),
        "%0A%09%00": ("\n\t\x00",),
        "x/%": ("x", ""),
        "x/%25": ("x", "%"),
        "x/%252F": ("x", "%2F"),
        "x/%233": ("x", "#3"),
        "x/3": ("x", "3"),
        "dots/.": ("dots", "."),
        "dots/..": ("dots", ".."),
        "\u00e9": ("\u00e9",),
        "e\u0301": ("e\u0301",),
        "\u65e5\u672c\u8a9e/\U0001f600": ("\u65e5\u672c\u8a9e", "\U0001f600"),
        "\u202eright to left": ("\u202eright to left",),
        "Case": ("Case",),
        "case": ("case",),
        "__metadata__": ("__metadata__",),
        "mpickpt.digests": ("mpickpt.digests",),
        "long/" + "n" * 2000: ("long", "n" * 2000),
        "ints/#3": ("ints", 3),
        "ints/3": ("ints", "3"),
        "ints/#-1": ("ints", -1),
    }
    whole = {name: numbers((4, 2), "<i4", at) for at, name in enumerate(escaped)}

    def state(hold: bool) -> Any:
        found: dict[Any, Any] = {}
        for at, (name, path) in enumerate(escaped.items()):
            array = whole[name] if hold else np.zeros_like(whole[name])
            inner = found
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            require(path[-1] not in inner, "the test uses a path twice", path)
            split = Split(share_of(array, comm).copy(), length=4)
            inner[path[-1]] = split if at % 2 else array.copy()
        return found

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole)


@rank.case
def nests_of_every_container(comm: MPI.Intracomm, directory: Path) -> None:
    names = ["list/#0", "list/#1/#0", "tuple/#1", "pair/left", "layer/w", "layer/bias/#0", "deep/a/#0/b"]
    whole = {name: numbers((3,), "<f4", at) for at, name in enumerate(names)}

    def state(hold: bool) -> Any:
        a = {name: array.copy() if hold else np.zeros_like(array) for name, array in whole.items()}
        number = 7 if hold else 0
        return {
            "list": [a["list/#0"], (a["list/#1/#0"], number)],
            "tuple": ("t" if hold else "", a["tuple/#1"]),
            "pair": Pair(a["pair/left"], number),
            "layer": Layer(a["layer/w"], [a["layer/bias/#0"]], "dense" if hold else "none"),
            "deep": {"a": [{"b": a["deep/a/#0/b"]}]},
        }

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole, nonfinite="allow")


@rank.case
def random_generators_of_every_kind(comm: MPI.Intracomm, directory: Path) -> None:
    me = comm.Get_rank()
    kinds = [np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64]

    def state(seed: int) -> Any:
        own: dict[str, Any] = {kind.__name__: np.random.Generator(kind(seed)) for kind in kinds}
        own |= {"legacy": np.random.RandomState(seed), "python": random.Random(seed)}
        for number, generator in enumerate(own.values()):
            for _ in range(number + 1):  # leaves some of them with half a word, or a second normal deviate, kept
                generator.random() if isinstance(generator, random.Random) else generator.standard_normal()
        python = own["python"]
        python.gauss(0, 1)
        own["PCG64"].integers(0, 9, dtype=np.uint32)
        own["Philox"].integers(0, 9, dtype=np.uint8)
        return {name: PerOwner(generator) for name, generator in own.items()} | {
            "shared": np.random.default_rng(seed - me)
        }

    round_trip(comm, directory, lambda: state(100 + me), lambda: state(200 + me), {})
    with open_run(directory / "each", comm) as ckpt:
        found, expected = ckpt.resume(state(300 + me)).state, state(100 + me)
        for name, mine in found.items():
            theirs = expected[name].content if name != "shared" else expected[name]
            draws = [g.random() if isinstance(g, random.Random) else g.standard_normal(5) for g in (mine, theirs)]
            same(draws[0], draws[1], name)


class Optimizer:
    """Learns the structure of its state in its first step, as torch's optimizers do."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.state: dict[int, Any] = {}
        self.loads = 0

    def step(self, parameters: list[Array]) -> None:
        for at, p in enumerate(parameters):
            empty = {"step": 0, "moments": (np.zeros_like(p), np.zeros_like(p)), "amsgrad": None}
            kept = self.state.setdefault(at, empty)
            kept["step"] += 1
            kept["moments"][0][...] += 0.25 * p
            kept["moments"][1][...] += p * p
        self.rate *= 0.5

    def state_dict(self) -> Any:
        groups = [{"lr": self.rate, "betas": (0.9, 0.999), "params": list(self.state)}]
        return {"state": self.state, "param_groups": groups}

    def load_state_dict(self, found: Any) -> None:
        self.loads += 1
        self.state, self.rate = found["state"], found["param_groups"][0]["lr"]


@rank.case
def an_optimizer_that_is_empty_before_its_first_step(comm: MPI.Intracomm, directory: Path) -> None:
    parameters = [numbers((3, 2), "<i4", 1).astype("<f4"), numbers((5,), "<i4", 2).astype("<f4")]
    for write in ("each", "gather"):
        trained = Optimizer(1.0)
        with open_run(directory / write, comm, write=write) as ckpt:
            empty = Optimizer(1.0)
            run = ckpt.resume({"opt": empty})
            require(run.fresh and run.state["opt"] is empty and empty.loads == 0, "a fresh start loads nothing")
            ckpt.save({"opt": trained}, step=1)  # before the first step of the optimizer: an empty state
            for _ in range(3):
                trained.step(parameters)
            ckpt.save({"opt": trained}, step=2)
        with open_run(directory / write, comm, write=write) as ckpt:
            for target in (Optimizer(1.0), trained):
                run = ckpt.resume({"opt": target}, readonly=True)
                require(run.state["opt"] is target and target.loads == 1, "load_state_dict is called once")
                same(target.state_dict(), Optimizer.state_dict(trained))
            fresh = Optimizer(9.0)
            ckpt.resume({"opt": fresh})
            again = Optimizer(1.0)
            for _ in range(3):
                again.step(parameters)
            same(fresh.state_dict(), again.state_dict())
            ckpt.resume({"opt": fresh}, step=1, readonly=True)
            same(fresh.state_dict(), Optimizer(1.0).state_dict())


@rank.case
def destinations_that_do_not_exist_yet(comm: MPI.Intracomm, directory: Path) -> None:
    me, owners = comm.Get_rank(), comm.Get_size()
    whole = {"a": numbers((3, 4), "bfloat16", 1), "s": numbers((7, 2), "<f4", 2), "b": numbers((owners, 2), "<c8", 3)}
    whole["p"] = numbers((), "float8_e5m2", 4)

    def state(hold: bool) -> Any:
        rows = share_of(whole["s"], comm)
        parts = [whole["a"].copy(), rows.copy(), whole["b"][me : me + 1].copy(), whole["p"].copy()]
        a, s, b, p = parts if hold else [Spec(part.shape, part.dtype.name) for part in parts]
        return {"a": a, "s": Split(s, length=7), "b": Sharded([(b, (me, 0))], shape=(owners, 2), dtype="c8"), "p": p}

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole, nonfinite="allow")


@rank.case
def nothing_but_the_root_names_what_is_restored(comm: MPI.Intracomm, directory: Path) -> Any:
    """``root=`` takes exactly that generation, whatever is newer, and ``resume()`` without a state takes all of it."""
    me = comm.Get_rank()
    with open_run(directory / "run", comm, keep=None) as ckpt:
        saves = []
        for step in (1, 2, 3):
            rows = share_of(np.arange(8.0) * step, comm)
            saves.append(ckpt.save({"x": Split(rows, length=8), "n": [step, (step,)], "o": PerOwner(me)}, step=step))
        for save in saves:
            run = ckpt.resume(root=save.root, readonly=True)
            require((run.step, run.root) == (save.step, save.root), "another generation:", run)
            same(run.state, {"n": [save.step, (save.step,)], "o": me, "x": np.arange(8.0) * save.step})
        run = ckpt.resume()
        require(run.step == 3, "not the newest:", run)
        absent = saves[0].root[:-4] + ("0000" if not saves[0].root.endswith("0000") else "1111")
        error = refused(mpickpt.NotFoundError, lambda: ckpt.resume(root=absent, readonly=True))
        refused(mpickpt.NotFoundError, lambda: ckpt.resume(root=saves[0].root, step=2, readonly=True))
    return str(error.expected)


@rank.case
def another_digest(comm: MPI.Intracomm, directory: Path) -> Any:
    whole = {"w": numbers((9, 3), "<f4", 1), "r": numbers((4,), "<i8", 2)}

    def state(hold: bool) -> Any:
        w, r = [array.copy() if hold else np.zeros_like(array) for array in whole.values()]
        return {"w": Split(share_of(w, comm), length=9), "r": r}

    round_trip(comm, directory, lambda: state(True), lambda: state(False), whole, digest="sha256", nonfinite="allow")
    with open_run(directory / "each", comm, digest="sha256", nonfinite="allow") as ckpt:
        latest = ckpt.latest()
        require(latest is not None and latest.root.startswith("sha256:"), "another digest:", latest)
        require(ckpt.verify().ok and ckpt.verify(level="fast").ok, "does not verify")


@rank.case
def a_role_is_a_rank_of_the_communicator_that_was_given(comm: MPI.Intracomm, directory: Path) -> Any:
    backwards = comm.Split(0, -comm.Get_rank())
    whole = {"w": numbers((11, 2), "<f8", 1)}

    def state(hold: bool) -> Any:
        array = whole["w"] if hold else np.zeros_like(whole["w"])
        own = backwards.Get_rank() if hold else None
        return {"w": Split(share_of(array, backwards).copy(), length=11), "own": PerOwner(own)}

    round_trip(backwards, directory, lambda: state(True), lambda: state(False), whole, nonfinite="allow")
    every = mpickpt.open_store(directory / "each").read()
    require(every["own"] == {role: role for role in range(comm.Get_size())}, "roles:", every["own"])
    backwards.Free()


@rank.case
def what_one_owner_cannot_take_nobody_takes(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner's generator is of another kind than was saved: no owner's array is touched."""
    me, last = comm.Get_rank(), comm.Get_size() - 1

    def state(kind: Any, hold: bool) -> Any:
        return {
            "w": np.full(4, hold, float),
            "rng": PerOwner(np.random.Generator(kind(me))),
            "o": Optimizer(hold + 1.0),
        }

    with open_run(directory / "run", comm) as ckpt:
        ckpt.save(state(np.random.PCG64, True), step=1)
        kind = np.random.Philox if me == last else np.random.PCG64
        into = state(kind, False)
        into["rng"].content.random()
        before = into["rng"].content.bit_generator.state
        error = refused(mpickpt.SchemaError, lambda: ckpt.resume(into))
        same(into["w"], np.zeros(4))
        same(into["rng"].content.bit_generator.state, before)
        require(into["o"].loads == 0, "load_state_dict was called")
        same(ckpt.resume(state(np.random.PCG64, False)).state, state(np.random.PCG64, True))
    return [error.role, error.region]


@rank.case
def the_next_checkpointer_hears_nothing_of_one_left_in_a_refusal(comm: MPI.Intracomm, directory: Path) -> None:
    """Aborts and beats that nobody received must not reach whoever gets the freed communicator's context."""
    me, last = comm.Get_rank(), comm.Get_size() - 1
    for turn in range(2):
        try:
            with open_run(directory / "run", comm) as ckpt:
                ckpt.resume({"w": Spec((3,), "f4")} if turn else None)
                ckpt.save({"w": np.zeros(3, "f4"), "bad": {1: me} if me != last else object()}, step=turn + 1)
        except mpickpt.StateError as error:
            require(error.region == "bad", "another refusal:", error)
        else:
            raise AssertionError("not refused")
        with open_run(directory / "run", comm) as ckpt:
            ckpt.resume()
            ckpt.save({"w": np.full(3, turn, "f4")}, step=turn + 1)
            same(ckpt.resume({"w": Spec((3,), "f4")}).state["w"], np.full(3, turn, "f4"))


@rank.case
def a_new_wire_hears_nothing_of_a_freed_one(comm: MPI.Intracomm, directory: Path) -> None:
    """What is sent when the receiver has freed its end already waits there for the next communicator."""
    me = comm.Get_rank()
    neighbours = (0,) if me else tuple(range(1, comm.Get_size()))
    for turn in range(2):
        first = (me == 0) == (turn % 2 == 0)  # once the root frees before its children send, once they do
        wire = MpiTransport(comm, neighbours)
        if first:
            wire.close(0.05)
        rank.meet(comm)
        if not first:
            for role in neighbours:
                wire.send(role, b"stale")
            wire.close(0.05)
        rank.meet(comm)
        wire = MpiTransport(comm, neighbours)
        for role in neighbours:
            wire.send(role, b"fresh")
        heard: list[tuple[int, bytes]] = []
        limit = time.monotonic() + 10
        while len(heard) < len(neighbours) and time.monotonic() < limit:
            heard += wire.poll()
            time.sleep(0.001)
        require(sorted(heard) == sorted((role, b"fresh") for role in neighbours), "turn", turn, "heard", heard)
        rank.meet(comm)
        wire.close(0.05)


if __name__ == "__main__":
    rank.main()
