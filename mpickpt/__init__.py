"""mpickpt: checkpoints of MPI training runs, each one consistent state of one learner, or none."""

from __future__ import annotations

from mpickpt import errors, learning, sharded
from mpickpt._version import __version__
from mpickpt.checkpointer import Checkpointer
from mpickpt.continuation import Continuation, Save
from mpickpt.errors import (
    CheckpointError,
    ContractError,
    CoverageError,
    DeadlineError,
    DisagreementError,
    EpochError,
    ExistsError,
    FormatError,
    InDoubtError,
    IntegrityError,
    MomentError,
    NonFiniteError,
    NotFoundError,
    OvertakenError,
    PlacementError,
    ReplicaError,
    SchemaError,
    StateError,
    StoreError,
    TopologyError,
)
from mpickpt.state.contract import Contract
from mpickpt.state.layout import PerOwner, Replicated, Sharded, Spec, Split, Value
from mpickpt.state.region import shares
from mpickpt.store.inspect import open_store
from mpickpt.store.report import Generation, Report

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "Continuation",
    "Contract",
    "ContractError",
    "CoverageError",
    "DeadlineError",
    "DisagreementError",
    "EpochError",
    "ExistsError",
    "FormatError",
    "Generation",
    "InDoubtError",
    "IntegrityError",
    "MomentError",
    "NonFiniteError",
    "NotFoundError",
    "OvertakenError",
    "PerOwner",
    "PlacementError",
    "ReplicaError",
    "Replicated",
    "Report",
    "Save",
    "SchemaError",
    "Sharded",
    "Spec",
    "Split",
    "StateError",
    "StoreError",
    "TopologyError",
    "Value",
    "__version__",
    "errors",
    "learning",
    "open_store",
    "sharded",
    "shares",
]
