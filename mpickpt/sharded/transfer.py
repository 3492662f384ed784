"""Saving and loading the states of many ranks from one process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mpickpt.checkpointer import Checkpointer
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import CheckpointError, ContractError, FormatError, NotFoundError, PlacementError, StateError
from mpickpt.format.manifest import Manifest
from mpickpt.sharded.held import TOLD, Held, read_told, regions
from mpickpt.sharded.manifest import ShardManifest
from mpickpt.state import values
from mpickpt.state.capture import Restored
from mpickpt.state.contract import Contract, side_by_side
from mpickpt.state.dtypes import dtype_of
from mpickpt.state.rebuild import build, check_containers
from mpickpt.state.region import Box
from mpickpt.store.generation import Generation, Want
from mpickpt.store.inspect import Store, open_store


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
    store = _store(dir)
    before = _newest(store)
    if before is not None:
        cursor = before.prefix.cursor if cursor is None else cursor
        contract = _contract(before, contract, dir)
    ranks = [
        Checkpointer(dir, wiring, contract=contract, keep=None, nonfinite=nonfinite)
        for wiring in Wiring.local(len(states))
    ]

    def save(rank: int) -> None:
        with ranks[rank] as checkpointer:
            if before is not None and store is not None:
                checkpointer._follow(store.epoch)
            checkpointer.save(states[rank], step=step, cursor=0 if cursor is None else cursor)

    with ThreadPoolExecutor(len(ranks), "mpickpt-rank") as threads:
        outcomes = [threads.submit(save, rank) for rank in range(len(ranks))]
    failed = [error for error in (outcome.exception() for outcome in outcomes) if error is not None]
    # All ranks raise one refusal. Anything else arose at one of them, and the others only heard of it.
    for error in sorted(failed, key=lambda error: isinstance(error, CheckpointError)):
        raise error
    return ShardManifest.of(dir, step)


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
