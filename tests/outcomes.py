"""What owners were told of their saves, and what the store says: both must agree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

import mpickpt
from mpickpt.format.manifest import Manifest
from mpickpt.store.commit import TEMPORARY
from mpickpt.store.directory import Directory

#: How an outcome begins that leaves open whether the generation is published (docs/protocol.md, P10).
OPEN = ("InDoubtError", "StoreError(0) published, ", "KeyboardInterrupt")
VOID = "void"

Outcomes = Mapping[int, Mapping[int, str]]
"""By call and owner: ``saved DIGEST``, or ``CLASS(ROLE) MESSAGE``; call k saved step k."""


def state(role: int, owners: int, call: int, length: int = 24) -> dict[str, Any]:
    """Give what an owner saves in a call: pieces, what all hold alike, values, and something of its own."""
    whole = np.arange(length, dtype=np.float32) * (call + 1)
    mine = mpickpt.shares(length, owners)[role]
    return {
        "w": mpickpt.Sharded(whole[mine.start : mine.stop].copy(), shape=(length,), at=(mine.start,)),
        "b": np.full(5, call, np.float64),
        "many": np.full((300, 7), call, np.int32),
        "step": call,
        "own": mpickpt.PerOwner({"role": role, "call": call}),
    }


def told(error: BaseException) -> str:
    """Tell a refusal in one line, as `Outcomes` has it."""
    role, message = getattr(error, "role", None), getattr(error, "message", str(error))
    return f"{type(error).__name__}({role}) {message}".splitlines()[0]


def roots(path: str | os.PathLike[str]) -> dict[int, list[str]]:
    """Read ``roots/``: by step, the digest of each root, and `VOID` for each void."""
    directory, found = Directory(path), dict[int, list[str]]()
    for root in directory.roots():
        there = directory.read_root(root.name)
        found.setdefault(root.step, []).append(there.digest if isinstance(there, Manifest) else VOID)
    return found


def contradictions(outcomes: Outcomes, path: str | os.PathLike[str]) -> list[str]:
    """Compare what owners were told with each other and with ``roots/``.

    A root is listed if and only if all that have finished say saved, with its digest. Whoever could not tell says so.
    """
    there, wrong = roots(path), []
    for call, by_owner in sorted(outcomes.items()):
        saved = {text.partition(" ")[2] for text in by_owner.values() if text.startswith("saved ")}
        published = {text for text in there.get(call, []) if text != VOID}
        refused = {owner: text for owner, text in by_owner.items() if not text.startswith(("saved ", *OPEN))}
        if saved and (published != saved or refused):
            wrong.append(f"call {call}: saved {sorted(saved)}, in roots/ {sorted(published)}, refused by {refused}")
        if not saved and published and refused:
            wrong.append(f"call {call}: in roots/ stands {sorted(published)}, but {refused}")
    return wrong


def leftovers(path: str | os.PathLike[str]) -> list[str]:
    """List attempts' directories without a published root, and temporary files."""
    directory = Directory(path)
    known = {root.name.removesuffix(".json") for root in directory.roots() if directory.is_root(root.name)}
    found = sorted(f"data/{name}" for name in set(os.listdir(directory.data_path)) - known)
    for place in (directory.path, directory.roots_path, directory.epochs_path):
        found += [f"{place}/{name}" for name in os.listdir(place) if name.startswith(TEMPORARY)]
    return found


def check_listed(path: str | os.PathLike[str]) -> None:
    """Check every byte of everything that is listed: nothing partial ever is."""
    if os.path.isdir(os.path.join(path, "roots")):
        mpickpt.open_store(path).verify_all().raise_for_damage()
