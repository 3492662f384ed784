"""Data-parallel learners: what makes two of them the same one, and how their inputs and optimizer state are cut.

A learner's identity covers program, initial state, rate, and the input sequence in owner order. It leaves out how the
samples are split, how many owners there are, and in which order their sums are combined: the last is numerics. So a
learner that was saved by four owners is the same learner on three, and its contract says so field by field.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from mpickpt import digest as digests
from mpickpt.errors import StateError
from mpickpt.state import dtypes
from mpickpt.state.layout import Split, Value
from mpickpt.state.region import shares

_ARRAY: Final = "learner array"
_PART: Final = 4 << 20


def identity(*, program: Any, initial: Any, rate: Any, inputs: Any, **more: Any) -> dict[str, Any]:
    """Describe a data-parallel learner, for ``Contract(identity=...)``.

    Parameters
    ----------
    program : JSON-able
        What is trained and how: names, versions, sizes.
    initial : nested containers of arrays, or JSON-able
        The state before the first step, whole, the same on all owners; or what it is drawn from, such as a seed. Each
        array is described by its digest.
    rate : JSON-able
        Learning rate, or the schedule and its numbers.
    inputs : numpy.ndarray, sequence of numpy.ndarray, or JSON-able
        The input sequence in owner order: an array whose first axis counts inputs, or the owners' shares of it, one
        after the other, or its name. Shares are described as the sequence that they make: how it is cut leaves no
        trace.
    **more
        Further fields; arrays in them are described by their digests.

    Returns
    -------
    dict
        JSON-able.

    Raises
    ------
    StateError
        If shares differ in dtype or in the shape of one input.

    Examples
    --------
    >>> x = np.arange(12.0).reshape(6, 2)
    >>> whole = identity(program="sgd", initial={"w": np.zeros(2)}, rate=0.1, inputs=x)
    >>> whole == identity(program="sgd", initial={"w": np.zeros(2)}, rate=0.1, inputs=[x[:4], x[4:]])
    True
    """
    described = {name: _described(value) for name, value in more.items()}
    sequence = _described(inputs) if _blocks(inputs) is None else _sequence(inputs)
    return {**described, "program": program, "initial": _described(initial), "rate": rate, "inputs": sequence}


def numerics(
    *, dtype: object, combine: str, tree: str | int = "star", versions: Iterable[str] = (), **more: Any
) -> dict[str, Any]:
    """Describe how a learner's numbers come about, for ``Contract(numerics=...)``.

    Parameters
    ----------
    dtype : dtype-like
        Of the sums.
    combine : str
        The order in which owners' sums are added, in words that hold for any owner count: ``role order``.
    tree : str or int
        Along what they are added: ``star``, or a fan-out.
    versions : iterable of str
        Installed distributions whose versions count as well, such as ``numpy``.

    Raises
    ------
    StateError
        If a distribution of `versions` is not installed, or a dtype has no exact form.
    """
    found = {**more, "dtype": dtypes.name_of(dtypes.coerce(dtype)), "combine": combine, "tree": tree}
    if named := {name: _version(name) for name in versions}:
        found["versions"] = named
    return found


def repartition(inputs: Any, owners: int) -> list[Any]:
    """Cut an input sequence into one share an owner: contiguous, sizes differing by at most one, larger first.

    Parameters
    ----------
    inputs : sequence
        The sequence in owner order: an array, a list, a range; or arrays that are the shares of other owners, one
        after the other, as an earlier `repartition` gave them.
    owners : int
        How many owners there are now, 1 or more.

    Returns
    -------
    list
        Role r's share at index r; views of an array, else slices.

    Raises
    ------
    StateError
        If `owners` is out of range, or `inputs` is no sequence.

    Examples
    --------
    >>> repartition(range(5), 3)
    [range(0, 2), range(2, 4), range(4, 5)]
    >>> [share.tolist() for share in repartition(repartition(np.arange(5), 3), 2)]
    [[0, 1, 2], [3, 4]]
    """
    blocks = _blocks(inputs)
    if blocks is not None:
        _same_rows(blocks)
        inputs = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    elif not isinstance(inputs, Sequence):
        raise StateError("inputs are no sequence", expected="an array, a list, a range", found=repr(type(inputs)))
    return [inputs[share.start : share.stop] for share in shares(len(inputs), owners)]


def coordinates(length: int, owners: int, role: int) -> slice:
    """Give the coordinates of a vector that are a role's own.

    Parameters
    ----------
    length : int
        Coordinates in all.
    owners, role : int

    Examples
    --------
    >>> np.arange(10)[coordinates(10, 4, 1)]
    array([3, 4, 5])
    """
    own = shares(length, owners)
    if not 0 <= role < owners:
        raise StateError("no such role", expected=f"0 to {owners - 1}", found=role)
    return slice(own[role].start, own[role].stop)


def partitioned(length: int, own: Mapping[str, Any], words: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Declare the state of an optimizer that is cut by coordinates.

    Parameters
    ----------
    length : int
        Coordinates in all.
    own : mapping of str to numpy.ndarray
        This owner's own coordinates of each vector (moments, master weights): `coordinates` of it.
    words : mapping, optional
        Shared words: what every owner has alike and needs to go on, such as Adam's step and its bias-correction
        powers. Arrays are replicated, everything else is a value.

    Returns
    -------
    dict
        For `Checkpointer.save` and `resume`: each vector as `Split`, each word as it is shared.
    """
    shared = {name: word if isinstance(word, np.ndarray) else Value(word) for name, word in (words or {}).items()}
    if both := sorted(own.keys() & shared.keys()):
        raise StateError("a name is that of a vector and of a word", region=both[0])
    return {**{name: Split(array, length=length) for name, array in own.items()}, **shared}


def _blocks(inputs: Any) -> list[np.ndarray[Any, Any]] | None:
    """Give an input sequence of arrays as its shares; None where it is something else."""
    if isinstance(inputs, np.ndarray):
        inputs = [inputs]
    if isinstance(inputs, list | tuple) and inputs and all(isinstance(x, np.ndarray) and x.ndim for x in inputs):
        return list(inputs)
    return None


def _same_rows(blocks: Sequence[np.ndarray[Any, Any]]) -> None:
    first = blocks[0]
    for role, block in enumerate(blocks):
        if (block.dtype, block.shape[1:]) != (first.dtype, first.shape[1:]):
            raise StateError(
                "shares of one input sequence are of different inputs",
                expected=f"{first.dtype} {first.shape[1:]}, as in share 0",
                found=f"{block.dtype} {block.shape[1:]} in share {role}",
            )


def _sequence(inputs: Any) -> dict[str, Any]:
    blocks = _blocks(inputs)
    assert blocks is not None
    _same_rows(blocks)
    count = sum(len(block) for block in blocks)
    return {"count": count, "digest": _digest((count, *blocks[0].shape[1:]), blocks)}


def _described(value: Any) -> Any:
    """Give a nest with a digest in the place of each array."""
    if isinstance(value, np.ndarray):
        return _digest(value.shape, [value])
    if isinstance(value, Mapping):
        return {name: _described(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    return value


def _digest(shape: Sequence[int], blocks: Sequence[np.ndarray[Any, Any]]) -> str:
    """Hash dtype, shape and the bytes of arrays that follow each other, little-endian, in C order."""
    dtype = blocks[0].dtype
    hasher = digests.hasher(_ARRAY).copy()
    hasher.update(f"{dtypes.name_of(dtype)} {list(shape)}\n".encode())
    for block in blocks:
        rows = max(1, _PART // max(1, block[:1].nbytes)) if block.ndim else 1
        for start in range(0, len(block), rows) if block.ndim else (0,):
            part = np.ascontiguousarray(block[start : start + rows] if block.ndim else block, dtype.newbyteorder("<"))
            hasher.update(part.reshape(-1).view(np.uint8).data)
    return digests.name("blake3", hasher.digest())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise StateError(
            "a version that the numerics ask for is of nothing that is installed", expected="a distribution", found=name
        ) from None


__all__ = ["coordinates", "identity", "numerics", "partitioned", "repartition"]
