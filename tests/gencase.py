"""A generation of seven owners with a region of every kind, and what a reader looks at in it."""

from __future__ import annotations

import os
from typing import Any

import genkit
import numpy as np
import pytest

from mpickpt.state.plan import Piece
from mpickpt.state.region import Box, Region, Rule, Schema, shares
from mpickpt.store import generation as generation_module
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Want

ROWS, COLUMNS, OWNERS = 29, 6, 7
POINT = Box((), ())


class State:
    """A split region with and without a rule, a replicated one, values, per-owner bytes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.arrays = {
            "boxes": rng.standard_normal((ROWS, COLUMNS)),
            "common": rng.standard_normal((ROWS, 2)).astype(np.float32),
            "ruled": rng.standard_normal((ROWS, COLUMNS)),
        }
        self.schema = Schema(
            [
                Region("boxes", "float64", (ROWS, COLUMNS), "array"),
                Region("common", "float32", (ROWS, 2), "array"),
                Region("rng", "uint8", None, "per_owner"),
                Region("ruled", "float64", (ROWS, COLUMNS), "array", Rule("balanced", 0)),
                Region("text", "uint8", None, "value"),
            ]
        )
        self.own: dict[int, list[Piece]] = {}
        self.shared: dict[int, list[Piece]] = {}
        for role, rows in enumerate(shares(ROWS, OWNERS)):
            box = Box((rows.start, 0), (rows.stop, COLUMNS))
            self.own[role] = [self.piece("boxes", box), self.piece("ruled", box), self.opaque("rng", b'"rng%d"' % role)]
        half = Box((0, 0), (ROWS // 2, 2)), Box((ROWS // 2, 0), (ROWS, 2))
        self.shared[0] = [self.piece("common", half[0])]
        self.shared[1] = [self.piece("common", half[1]), self.opaque("text", b'"hello"')]

    def piece(self, name: str, box: Box) -> Piece:
        ordinal = self.schema.ordinal(name)
        array = self.arrays[name]
        return Piece(ordinal, self.schema[ordinal], box, array[box.relative(Box.whole(array.shape))])

    def opaque(self, name: str, data: bytes) -> Piece:
        ordinal = self.schema.ordinal(name)
        return Piece(ordinal, self.schema[ordinal], POINT, data)

    def want(self, name: str, box: Box | None = None) -> Want:
        array = self.arrays[name]
        box = box or Box.whole(array.shape)
        return Want(self.schema.ordinal(name), box, np.zeros(box.shape, array.dtype))

    def check(self, wants: list[Want]) -> None:
        for want in wants:
            array = self.arrays[self.schema[want.ordinal].name]
            np.testing.assert_array_equal(want.out, array[want.box.relative(Box.whole(array.shape))])

    def build(self, directory: Directory, **more: Any) -> str:
        return genkit.build(directory, self.schema, self.own, self.shared, owners=OWNERS, **more)


def visits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the roles whose manifests are read."""
    roles: list[int] = []
    real = generation_module.read_record

    def read(path: str, what: str) -> bytes:
        roles.append(int(os.path.basename(path).split(".")[0]))
        return real(path, what)

    monkeypatch.setattr(generation_module, "read_record", read)
    return roles
