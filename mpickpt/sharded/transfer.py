"""Saving and loading the states of many ranks from one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from mpickpt.checkpointer import Checkpointer
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CheckpointError, ContractError, FormatError, NotFoundError, PlacementError, StateError
from mpickpt.sharded.held import TOLD, Held, read_told, regions
from mpickpt.sharded.manifest import ShardManifest
from mpickpt.state import values
from mpickpt.state.capture import Restored
from mpickpt.state.contract import Contract, side_by_side
from mpickpt.state.policy import policy_of, refusing
from mpickpt.state.rebuild import build, check_containers
from mpickpt.state.region import Box, Schema
from mpickpt.store.generation import Generation, Want
from mpickpt.store.inspect import open_store
from mpickpt.store.memory import memory_for
from mpickpt.store.threads import Pool

_THREADS: Final = 4


def save_sharded(
    state_dict_per_rank: Sequence[Mapping[str, Any]],
    dir: str | os.PathLike[str],
    step: int,
    *,
    cursor: int | None = None,
    contract: Contract | None = None,
    nonfinite: str | Mapping[str, str] = "refuse",
) -> ShardManifest:
    """Publish the states of all ranks as one generation; older generations all stay.

    Parameters
    ----------
    state_dict_per_rank : list of dict
        What each rank holds; nested dicts, lists and tuples are descended into. Arrays of one name are one region, cut
        along axis 0 in the order of ranks: they agree in dtype and in all other lengths. 0-d arrays and plain values
        of one name must be equal. `Sharded`, `Split`, `Replicated`, `PerOwner`, `Value` say something else, as for
        `Checkpointer.save`. A name may be on some ranks only.
    dir : str or path-like
        The run's directory, made where it is missing.
    step : int
        Committed steps (optimizer updates), beyond that of the newest generation there.
    cursor : int, optional
        Inputs consumed by all ranks together. Default: as in the newest generation there, else 0.
    contract : Contract, optional
        What a run that resumes from it must have equal. Default: that of the newest generation there, else an empty
        one.
    nonfinite : {"refuse", "allow"} or mapping
        As for `Checkpointer`.

    Returns
    -------
    ShardManifest
        Computed from what was written.

    Raises
    ------
    StateError, DisagreementError, CoverageError, ReplicaError, NonFiniteError
        The states cannot be saved as they are; ranks are named.
    ExistsError, MomentError
        The step is published already, or step or cursor go back.
    ContractError
        The newest generation there is of another contract than the one given.
    IntegrityError, FormatError, StoreError
        The store is damaged, or the file system refused.

    Notes
    -----
    A run may resume from it as from any generation. Where the files alone would not tell who held what (an empty
    array, a value that only some ranks gave, boxes in copies), each rank's list of names is saved too, as the
    per-owner region ``mpickpt.sharded``.
    """
    states = regions(state_dict_per_rank)
    before = _newest(dir)
    if before is not None:
        contract = _contract(before, contract)
    if cursor is None:
        cursor = 0 if before is None else before.root.prefix.cursor
    ranks = [
        Checkpointer(dir, wiring, contract=contract, keep=None, nonfinite=nonfinite, events=False)
        for wiring in Wiring.local(len(states))
    ]

    def save(rank: int) -> int:
        with ranks[rank] as checkpointer:
            checkpointer._follow()
            return checkpointer.save(states[rank], step=step, cursor=cursor).step

    with ThreadPoolExecutor(len(ranks), "mpickpt-rank") as threads:
        outcomes = [threads.submit(save, rank) for rank in range(len(ranks))]
    failed = [error for error in (outcome.exception() for outcome in outcomes) if error is not None]
    # All ranks raise one refusal. Anything else arose at one of them, and the others only heard of it.
    for error in sorted(failed, key=lambda error: isinstance(error, CheckpointError)):
        raise error
    return ShardManifest.of(dir, outcomes[0].result())


def load_sharded(
    dir: str | os.PathLike[str],
    expected_world_size: int,
    *,
    step: int | None = None,
    nonfinite: str | Mapping[str, str] = "refuse",
) -> list[Any]:
    """Read what each rank held, every byte verified.

    Parameters
    ----------
    dir : str or path-like
        The run's directory; nothing is written in it.
    expected_world_size : int
        How many ranks saved it.
    step : int, optional
        Which generation; the newest by default.
    nonfinite : {"refuse", "allow"} or mapping
        As for `Checkpointer`.

    Returns
    -------
    list of dict
        By rank: what it gave to `save_sharded`, bit for bit, arrays in native byte order and wrappers without their
        wrapping; of a `Sharded` of several boxes, or of none, a list. Of a generation that a run saved: the boxes that
        the rank wrote, and whole what all ranks hold alike.

    Raises
    ------
    PlacementError
        If another number of ranks saved it.
    NotFoundError, EpochError
        If there is no such generation, or only one off the lineage.
    IntegrityError, FormatError, CoverageError, NonFiniteError, StoreError
        If it is damaged, malformed, holds a NaN or an infinity where that is refused, or cannot be read.
    """
    if type(expected_world_size) is not int or expected_world_size < 1:
        raise StateError("no world size", expected="a whole number, 1 or more", found=repr(expected_world_size)[:100])
    store = open_store(dir)
    store.check()
    generation = store.open(step)
    owners = generation.root.owners
    if owners != expected_world_size:
        raise PlacementError(
            "the checkpoint was saved by another number of ranks",
            path=generation.path,
            expected=f"{expected_world_size} ranks",
            found=f"{owners} ranks",
            advice=f"load it with expected_world_size={owners}, and cut it anew; or resume with repartition=True",
        )
    policy = refusing(policy_of(nonfinite))
    with Pool(_THREADS, "mpickpt-chunk") as pool:
        generation.pool = pool
        return [_state(generation, rank, held, policy) for rank, held in enumerate(_held(generation))]


def _newest(dir: str | os.PathLike[str]) -> Generation | None:
    """Open the newest generation; None where there is none yet."""
    try:
        store = open_store(dir)
        store.check()
        return store.open()
    except NotFoundError:
        return None


def _contract(before: Generation, contract: Contract | None) -> Contract:
    """Give the contract to save under: that of the generation before, from which a given one may not differ."""
    saved = Contract.from_json(before.root.contract, path=before.path)
    differences = [] if contract is None else contract.differences(saved)
    if differences:
        raise ContractError(
            "the newest generation is of another contract:\n" + side_by_side(differences, "given", "newest"),
            path=before.path,
            expected=str({name: mine for name, mine, _ in differences}),
            found=str({name: theirs for name, _, theirs in differences}),
            unharmed="the store",
            advice="leave the contract out, or save in another directory",
        )
    return saved if contract is None else contract


# ---------------------------------------------------------------- reading


def _held(generation: Generation) -> list[Held]:
    """Find out what each rank held: as it was told, else as the shards have it."""
    schema = generation.schema
    if TOLD not in schema:
        return _from_shards(generation)
    ordinal = schema.ordinal(TOLD)
    if schema[ordinal].kind != "per_owner":
        raise FormatError("not a list of names a rank", region=TOLD, path=generation.path, found=schema[ordinal].kind)
    found = []
    for rank in range(generation.root.owners):
        data = generation.read([], [ordinal], role=rank).get(ordinal)
        if data is None:
            raise FormatError("a rank told no list of names", role=rank, region=TOLD, path=generation.path)
        found.append(read_told(values.decode(data, TOLD), schema, generation.path))
    return found


def _from_shards(generation: Generation) -> list[Held]:
    """Take for held what stands in a rank's own shard, and whole what stands in shards of replicated bytes."""
    schema = generation.schema
    owners = generation.root.owners
    boxes: list[dict[str, list[Box]]] = [{} for _ in range(owners)]
    whole = {region.name: Box.whole(region.shape) for region in schema if region.shape is not None}
    shared = {name for name, box in whole.items() if box.empty}  # nobody wrote anything of it
    for record in generation.shards():
        for ordinal, lo, hi in record.pieces:
            region = schema[ordinal]
            if not record.shared:
                mine = boxes[record.role].setdefault(region.name, [])
                if region.shape is not None:
                    mine.append(Box(lo, hi))
            else:
                shared.add(region.name)
    for held in boxes:
        held.update({name: [whole[name]] if name in whole else [] for name in shared})
    containers = check_containers(generation.root.containers, generation.path)
    return [Held(mine, _of_names(containers, mine, schema)) for mine in boxes]


def _of_names(containers: Mapping[str, str], mine: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    """Keep the containers that a rank has something below of, and those that are empty for all."""
    here = {path for name in mine for path in _paths(name)}
    anywhere = {path for region in schema for path in _paths(region.name)}
    return {path: kind for path, kind in containers.items() if path in here or path not in anywhere}


def _paths(name: str) -> list[str]:
    """Give a name and all paths above it."""
    parts = name.split("/") if name else []
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]


def _state(generation: Generation, rank: int, held: Held, refuses: Callable[[str], bool]) -> Any:
    """Read one rank's regions, and build its nest."""
    schema = generation.schema
    wants: list[Want] = []
    opaque: list[int] = []
    arrays: dict[str, list[Any]] = {}
    for name, boxes in held.boxes.items():
        ordinal = schema.ordinal(name)
        region = schema[ordinal]
        if region.shape is None:
            opaque.append(ordinal)
            continue
        arrays[name] = [memory_for(region, box) for box in boxes]
        wants += [Want(ordinal, box, out) for box, out in zip(boxes, arrays[name], strict=True) if not box.empty]
    found = generation.read(wants, opaque, role=rank, refuses=refuses)
    missing = sorted(set(opaque) - found.keys())
    if missing:
        raise FormatError(
            "a rank's own value is in no shard of it", role=rank, region=schema[missing[0]].name, path=generation.path
        )
    data = {schema[ordinal].name: value for ordinal, value in found.items()}
    leaves: dict[str, list[Any]] = {name: parts if len(parts) == 1 else [parts] for name, parts in arrays.items()}
    return build(Restored(leaves, data), check_containers(held.containers, generation.path))
