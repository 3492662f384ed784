"""One owner makes another call than the others do. test_other_calls.py says what must come."""

from __future__ import annotations

import time
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rank
from scene import Scene, at

if TYPE_CHECKING:
    from mpi4py import MPI

#: The call of one owner, and that of the others.
PAIRS = (
    *permutations(("resume", "due", "verify", "close"), 2),
    ("generations", "pin"),
    ("save", "due"),
    ("verify", "save"),
)


def made(scene: Scene, call: str) -> dict[str, Any]:
    """Make a call; give how it ended, and the seconds that it took."""
    ckpt = scene.ckpt

    def make() -> Any:
        if call == "save":
            ckpt.save(scene.good(3), step=3, cursor=30)
        elif call == "resume":
            ckpt.resume(scene.good(0))
        elif call == "due":  # a round begins in one call and ends in the next
            ckpt.due(3)
            ckpt.due(4)
        elif call == "pin":
            ckpt.pin(2)
        else:
            getattr(ckpt, call)()

    began = time.monotonic()
    found = rank.attempt(make)
    return {"call": call, "seconds": time.monotonic() - began, **found}


def each(comm: MPI.Intracomm, directory: Path, odd: int, options: dict[str, Any]) -> list[Any]:
    """Let owner `odd` make one call, while the others make the other."""
    found = []
    for mine, theirs in PAIRS:
        with Scene(comm, directory / f"{mine}-{theirs}", deadline=1.0, **options) as scene:
            one = made(scene, mine if scene.role == odd else theirs)
            rank.meet(comm)
            if {"close", "save"} & {mine, theirs}:  # closed, or two lines of calls that are out of step for good
                scene.ckpt._end(meet=False)
                scene.opened.clear()
            else:
                one["after"] = rank.attempt(lambda: [scene.publish(4), scene.ckpt.verify().ok][1])
            found.append(one)
    return found


@rank.case
@at(2)
def owner_0_makes_another_call(comm: MPI.Intracomm, directory: Path) -> Any:
    """In a star."""
    return each(comm, directory, 0, {})


@rank.case
@at(5)
def an_inner_role_makes_another_call(comm: MPI.Intracomm, directory: Path) -> Any:
    """In a tree of fan-out 2."""
    return each(comm, directory, 1, {"topology": "tree", "fan_out": 2})


if __name__ == "__main__":
    rank.main()
