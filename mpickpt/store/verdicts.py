"""A verdict for every file of a store: as `Store.verify` and ``mpickpt verify`` report; damage is told, not raised."""

from __future__ import annotations

import os
from collections.abc import Callable

from mpickpt.errors import CheckpointError, IntegrityError, NotFoundError
from mpickpt.format.ended import Ended
from mpickpt.format.names import parse_claim_name, parse_ended_name
from mpickpt.format.records import Claim, RunInfo, Void
from mpickpt.store.directory import Directory, RootName
from mpickpt.store.files import names_in, read_record
from mpickpt.store.generation import Generation
from mpickpt.store.presence import there
from mpickpt.store.report import Verdict


def verdicts_of_store(directory: Directory) -> list[Verdict]:
    """Check what belongs to the run as a whole: run.json, the claims, ends, and how they and the roots go together.

    A run.json that is missing while something else names the run is no damage, nor is a missing older claim.
    """
    found = []
    run = os.path.join(directory.path, "run.json")
    if there(run):
        found.append(_judge(directory, run, lambda: RunInfo.decode(read_record(run, "run.json"), run)))
    try:
        names = sorted(names_in(directory.epochs_path))
    except FileNotFoundError:
        names = []
    except CheckpointError as error:
        names = []
        found.append(Verdict("epochs", False, error))
    for name in names:
        path = os.path.join(directory.epochs_path, name)
        if parse_claim_name(name) is not None:
            found.append(_judge(directory, path, lambda path=path: _claim(path)))  # type: ignore[misc]
        elif parse_ended_name(name) is not None:
            found.append(_judge(directory, path, lambda path=path: _ended(path)))  # type: ignore[misc]
    try:
        directory.check()
    except CheckpointError as error:
        told = relative(directory, error.path)
        if not any(verdict.path == told and not verdict.ok for verdict in found):  # else the file's own says it
            found = [verdict for verdict in found if verdict.path != told]
            found.append(Verdict(told, False, error))
    return found


def verdicts_of_root(directory: Directory, root: RootName, level: str) -> list[Verdict] | None:
    """Check what stands under a root's name and every file that hangs from it; None where it is gone by now."""
    path = directory.root_path(root.name)
    told = relative(directory, path)
    try:
        if isinstance(directory.read_root(root.name), Void):
            return [Verdict(told, True)]
        generation = Generation(directory, root.name)
    except NotFoundError:
        return None
    except CheckpointError as error:
        return [Verdict(told, False, error)]
    found = [Verdict(relative(directory, one.path), one.ok, one.error) for one in generation.verify(level)]
    if not there(path):
        return None  # rotated while it was read: what was missing of it is no damage
    return found if any(one.path == told for one in found) else [Verdict(told, True), *found]


def relative(directory: Directory, path: str | None) -> str:
    """Give a path as reports do: relative to the run's directory, where it lies in it."""
    if path is None:
        return "."
    found = os.path.relpath(os.path.join(directory.path, path), directory.path)
    return path if found.startswith("..") else found


def _claim(path: str) -> None:
    epoch = parse_claim_name(os.path.basename(path))
    found = Claim.decode(read_record(path, "a claim"), path).epoch
    if found != epoch:
        raise IntegrityError("a claim is of another epoch than its name says", path=path, expected=epoch, found=found)


def _ended(path: str) -> None:
    epoch = parse_ended_name(os.path.basename(path))
    found = Ended.decode(read_record(path, "an end"), path).epoch
    if found != epoch:
        raise IntegrityError("an end is of another epoch than its name says", path=path, expected=epoch, found=found)


def _judge(directory: Directory, path: str, read: Callable[[], object]) -> Verdict:
    told = relative(directory, path)
    try:
        read()
    except CheckpointError as error:
        return Verdict(told, False, error)
    except FileNotFoundError:
        return Verdict(told, False, IntegrityError("the file was listed and is gone", path=path))
    return Verdict(told, True)


__all__ = ["relative", "verdicts_of_root", "verdicts_of_store"]
