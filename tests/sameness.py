"""Whether two states are the same bit for bit, and what the safetensors library finds in a generation's shards.

Used by programs that run as ranks; nothing here trusts a comparison, a cast or a reader of mpickpt.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import deserialize, safe_open

import mpickpt

if TYPE_CHECKING:
    from mpi4py import MPI

Array = np.ndarray[Any, Any]
PATIENCE = 30.0
_WRAPPERS = (mpickpt.Replicated, mpickpt.PerOwner, mpickpt.Value)
_STORED = {  # what the safetensors format calls a dtype; complex has no name there
    "bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "U8", "complex128": "U8",
    **{f"{long}int{bits}": f"{short}{bits}" for long, short in (("", "I"), ("u", "U")) for bits in (8, 16, 32, 64)},
}  # fmt: skip


def require(holds: object, *told: object) -> None:
    """Assert with a message: pytest rewrites no assert in a rank's program."""
    if not holds:
        raise AssertionError(" ".join(map(str, told)))


def bits(array: Array) -> bytes:
    """Give an array's elements in C order, little-endian, without ever casting a float."""
    flat = np.ascontiguousarray(array)
    if array.dtype.byteorder == ">":
        flat = flat.byteswap()
    return flat.tobytes()


def _content(x: Any) -> Any:
    if isinstance(x, _WRAPPERS):
        return x.content
    if isinstance(x, mpickpt.Split):
        return x.array
    if isinstance(x, mpickpt.Sharded):
        arrays = [array for array, _ in x.parts]
        return arrays[0] if x.single else arrays
    return x


def same(found: Any, expected: Any, where: str = "state") -> None:
    """Refuse any difference in type, shape, dtype or bit; wrappers stand for what is in them."""
    found, expected = _content(found), _content(expected)
    require(type(found) is type(expected), where, type(found), "instead of", type(expected))
    if isinstance(expected, np.ndarray | np.generic):
        kinds = [x.dtype.newbyteorder("<") for x in (found, expected)]
        require(kinds[0] == kinds[1], where, found.dtype, "instead of", expected.dtype)
        require(found.shape == expected.shape, where, found.shape, "instead of", expected.shape)
        require(bits(np.asarray(found)) == bits(np.asarray(expected)), where, found, "instead of", expected)
    elif isinstance(expected, dict):
        require(set(map(repr, found)) == set(map(repr, expected)), where, list(found), "instead of", list(expected))
        for key in expected:
            same(found[key], expected[key], f"{where}/{key!r}")
    elif isinstance(expected, list | tuple):
        require(len(found) == len(expected), where, found, "instead of", expected)
        for index, item in enumerate(expected):
            same(found[index], item, f"{where}/#{index}")
    elif isinstance(expected, float):
        require(struct.pack("<d", found) == struct.pack("<d", expected), where, found, "instead of", expected)
    elif isinstance(expected, complex):
        same([found.real, found.imag], [expected.real, expected.imag], where)
    elif isinstance(expected, np.random.Generator):
        same(found.bit_generator.state, expected.bit_generator.state, where)
    elif isinstance(expected, np.random.RandomState):
        same(found.get_state(legacy=False), expected.get_state(legacy=False), where)
    elif isinstance(expected, random.Random):
        same(found.getstate(), expected.getstate(), where)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            same(getattr(found, field.name), getattr(expected, field.name), f"{where}/{field.name}")
    elif hasattr(expected, "state_dict"):
        same(found.state_dict(), expected.state_dict(), where)
    else:
        require(found == expected, where, found, "instead of", expected)


def _arrays(state: Any) -> Iterator[Array]:
    if isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, _WRAPPERS):
        yield from _arrays(state.content)
    elif isinstance(state, mpickpt.Split):
        yield from _arrays(state.array)
    elif isinstance(state, mpickpt.Sharded):
        for array, _ in state.parts:
            yield from _arrays(array)
    elif isinstance(state, dict | list | tuple):
        for item in state.values() if isinstance(state, dict) else state:
            yield from _arrays(item)


def filled_in_place(into: Any, found: Any) -> None:
    """Refuse a new array where the destination's own could have been filled."""
    given = {id(array) for array in _arrays(into) if array.flags.writeable}
    got = {id(array) for array in _arrays(found)}
    require(given <= got, len(given - got), "arrays of the destination were replaced instead of filled")


def open_run(path: Path, comm: MPI.Intracomm, **options: Any) -> mpickpt.Checkpointer:
    """Open a run with a deadline that a test can wait for."""
    options.setdefault("deadline", PATIENCE)
    return mpickpt.Checkpointer(path, comm, **options)


def round_trip(
    comm: MPI.Intracomm,
    directory: Path,
    hold: Callable[[], Any],
    blank: Callable[[], Any],
    whole: Mapping[str, Array],
    **options: Any,
) -> None:
    """Save, and resume by another Checkpointer, with every owner writing and with one; all must be the same bits.

    Parameters
    ----------
    hold : callable
        Builds what this owner holds.
    blank : callable
        Builds a destination with other contents.
    whole : mapping of str to array
        Every array region, whole, by its escaped name.
    """
    for write in ("each", "gather"):
        path = directory / write
        with open_run(path, comm, write=write, **options) as ckpt:
            fresh = ckpt.resume(blank())
            require(fresh.fresh and fresh.step == 0 and fresh.root is None, "not a fresh start:", fresh)
            saved = ckpt.save(hold(), step=3, cursor=70)
        with open_run(path, comm, write=write, **options) as ckpt:
            into = blank()
            run = ckpt.resume(into)
            require((run.step, run.cursor, run.fresh, run.root) == (3, 70, False, saved.root), "another moment:", run)
            same(run.state, hold(), write)
            filled_in_place(into, run.state)
            every = ckpt.resume(None, root=saved.root, readonly=True)
            for name, array in whole.items():
                same(every.value(name), array, f"{write} whole {name}")
        in_shards(comm, path, whole)


def in_shards(comm: MPI.Intracomm, path: Path, whole: Mapping[str, Array]) -> None:
    """Let owner 0 put the regions together from the shards, by the safetensors library alone."""
    if comm.Get_rank() == 0:
        _in_shards(path, whole)


def _in_shards(path: Path, whole: Mapping[str, Array]) -> None:
    made = {name: np.zeros(array.shape, array.dtype.newbyteorder("<")) for name, array in whole.items()}
    times = {name: np.zeros(array.shape, np.uint8) for name, array in whole.items()}
    for shard in sorted(path.glob("data/*/*/*.safetensors")):
        with safe_open(shard, "numpy") as opened:
            names = set(opened.keys())
            wide = json.loads(opened.metadata()["dtypes"])
        pieces = dict(deserialize(shard.read_bytes()))
        require(names == set(pieces), "the library lists other entries than it reads")
        for entry, piece in pieces.items():
            if entry in ("mpickpt.digests", "mpickpt.crc32c"):
                continue
            name, _, box = entry.removesuffix("]").rpartition("[")
            if name not in whole:
                require(piece["dtype"] == "U8" and not box, "an array that is none of the state:", entry)
                continue
            array = made[name]
            require(piece["dtype"] == _STORED[array.dtype.name], entry, "is stored as", piece["dtype"])
            require(wide.get(name, array.dtype.name) == array.dtype.name, entry, "is told to be", wide.get(name))
            at = tuple(slice(*map(int, axis.split(":"))) for axis in box.split(",")) if box else ()
            array[at] = np.frombuffer(piece["data"], array.dtype).reshape(array[at].shape)
            times[name][at] += 1
    for name, array in whole.items():
        require((times[name] == 1).all(), name, "is not stored exactly once everywhere")
        same(made[name], array, name)


def refused(kind: type[BaseException], call: Callable[[], object]) -> mpickpt.CheckpointError:
    """Give the refusal that a call raises, which must be of exactly this class."""
    outcome: Any = None
    try:
        outcome = call()
    except mpickpt.CheckpointError as error:
        require(type(error) is kind, "refused as", repr(error), "instead of", kind.__name__)
        return error
    raise AssertionError(f"not refused as {kind.__name__}: {outcome}")


def share_of(array: Array, comm: MPI.Intracomm) -> Array:
    """Give this owner's rows of a whole array."""
    part = mpickpt.shares(len(array), comm.Get_size())[comm.Get_rank()]
    return array[part.start : part.stop]


def numbers(shape: tuple[int, ...], dtype: object, *seed: int) -> Array:
    """Draw any bits: for floats also NaNs with payloads and infinities."""
    kind: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    draw = np.random.default_rng([1, *seed])
    if kind == np.bool_:
        return draw.integers(0, 2, shape).astype(bool)
    data = draw.bytes(kind.itemsize * int(np.prod(shape)))
    return np.frombuffer(bytearray(data), kind).reshape(shape)


__all__ = [
    "bits", "filled_in_place", "in_shards", "numbers", "open_run", "refused", "require", "round_trip", "same",
    "share_of",
]  # fmt: skip
