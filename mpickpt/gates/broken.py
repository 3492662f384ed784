"""Deliberately broken builds: each control of a gate runs one, and the gate must catch it.

A build is a step of mpickpt, or of a learner, that does what such steps have been seen to do in the field. They exist
in the owner processes of a gate only, for the length of one task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mpickpt.cluster import eligible, restore, root
from mpickpt.gates.learners import Learner
from mpickpt.store import fencing, reader

Build = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, real)


def _copies_not_compared() -> contextlib.AbstractContextManager[None]:
    """The root publishes whatever its owners hold."""
    return _instead(root, "compare", lambda *_: None)


@contextlib.contextmanager
def _nothing_judged() -> Iterator[None]:
    """A resume takes the newest checkpoint, whoever saved it and at whatever cursor."""
    with (
        _instead(eligible.Applicant, "check", lambda *_: []),
        _instead(restore, "check_moment", lambda *_: None),
    ):
        yield


@contextlib.contextmanager
def _not_fenced() -> Iterator[None]:
    """A job does not look whether another one has continued its run."""
    with _instead(fencing, "check", lambda *_: None), _instead(fencing, "orphaned", lambda *_: None):
        yield


def _pieces_moved() -> contextlib.AbstractContextManager[None]:
    """A box that lies in several pieces is put together one element off."""
    real = reader._Part.put

    def put(self: Any, lo: int, hi: int, data: np.ndarray[Any, Any]) -> None:
        moved = self.flat is None and len(data) > 8
        real(self, lo, hi, np.roll(data, 8) if moved else data)

    return _instead(reader._Part, "put", put)


def forget(build: str | None, learner: Learner, cursor: int) -> int:
    """Let a learner lose, after it was resumed, what a broken build loses; gives the cursor that it goes on from."""
    if build == "powers-forgotten" and learner.adaptive:
        learner.p1[...] = learner.p2[...] = 1
    if build == "momentum-forgotten" and learner.name != "sgd":
        learner.m[...] = 0
    return 0 if build == "cursor-reset" else cursor


BUILDS: dict[str, Build] = {
    "copies-not-compared": _copies_not_compared,
    "not-fenced": _not_fenced,
    "nothing-judged": _nothing_judged,
    "pieces-moved": _pieces_moved,
}
"""Builds that are steps of mpickpt; those of `forget`, and ``early-word`` and ``no-exclusion``, are in their tasks."""


def build(name: str | None) -> contextlib.AbstractContextManager[None]:
    """Give the broken build of a name for the length of a with-block; a sound one where there is none."""
    return BUILDS[name]() if name in BUILDS else contextlib.nullcontext()
