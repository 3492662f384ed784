"""Looking at stores, and damaging them as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import genkit

from mpickpt.errors import DeadlineError
from mpickpt.format.manifest import claim_name, root_name
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from mpickpt.store.lineage import RootName


def claimed(path: Path, way: Way) -> Directory:
    """Make an empty store below `path` with the claim of epoch 1."""
    made = Directory(path / "run", way=way).open(write=True)
    assert made.claim(genkit.claim_of(made))
    return made


def steps(roots: list[RootName]) -> list[tuple[int, int]]:
    return [(root.epoch, root.step) for root in roots]


def tree(path: str) -> dict[str, bytes]:
    found = {}
    for folder, _, files in os.walk(path):
        for file in files:
            place = os.path.join(folder, file)
            found[os.path.relpath(place, path)] = Path(place).read_bytes()
    return found


def damage(directory: Directory, what: str) -> None:
    name = genkit.bare_root(directory, 1)
    if what == "no roots":
        for root in directory.roots():
            os.unlink(directory.root_path(root.name))
        os.rmdir(directory.roots_path)
    elif what == "root newer than every claim":
        os.unlink(os.path.join(directory.epochs_path, claim_name(1)))
    elif what == "no root readable":
        genkit.bare_root(directory, 2)
        for root in directory.roots():
            os.truncate(directory.root_path(root.name), 100)
        directory.void(root_name(3, 1, "void"), DeadlineError("silence"))
    elif what == "origin missing":
        directory.claim(genkit.claim_of(directory, 2, (1, 2)))
    elif what == "origin void":
        directory.void(root_name(2, 1, "void"), DeadlineError("silence"))
        directory.claim(genkit.claim_of(directory, 2, (1, 2)))
    elif what == "claim of another run":
        other = Directory(directory.path + "2").open(write=True)
        other.claim(genkit.claim_of(other))
        os.replace(os.path.join(other.epochs_path, claim_name(1)), os.path.join(directory.epochs_path, claim_name(1)))
    elif what == "claim under another name":
        path = os.path.join(directory.epochs_path, claim_name(1))
        os.rename(path, os.path.join(directory.epochs_path, claim_name(2)))
    assert directory.root_path(name)
