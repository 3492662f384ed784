"""Commitments: fixed layout, fixed width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mpickpt.errors import StateError
from mpickpt.format.commitment import Commitment, SharedShard
from mpickpt.format.names import shard_file
from mpickpt.format.prefix import Prefix

D = "blake3:" + "1f" * 32
S = "sha256:" + "1f" * 32
PREFIX = Prefix("run-1", D, "blake3:" + "2e" * 32, 3, 4, 2, 5, "5f0c")
BOUNDS = ((0, (0, 0), (2, 4)), (7, (), ()), (9, (5,), (2**63 - 1,)))
SHARED = SharedShard(shard_file(1, shared=True), 9000, D)
BASE = Commitment(PREFIX, 1, 3, bytes(range(32)), 2**256 - 1, 6, 0, BOUNDS, SHARED)


@pytest.mark.parametrize("bounds", [None, (), BOUNDS, tuple((n, (0,), (1,)) for n in range(64))])
@pytest.mark.parametrize("shared", [None, SHARED])
def test_it_comes_back(bounds: Any, shared: SharedShard | None) -> None:
    commitment = replace(BASE, bounds=bounds, shared=shared)
    data = commitment.pack()
    assert Commitment.unpack(data) == commitment
    assert Commitment.unpack(memoryview(bytearray(data))) == commitment


def test_sha256_comes_back() -> None:
    commitment = replace(
        BASE, prefix=replace(PREFIX, schema=S, contract=S), shared=SharedShard(shard_file(1, shared=True), 1, S)
    )
    assert Commitment.unpack(commitment.pack()) == commitment


def test_its_length_does_not_tell_the_owner_count() -> None:
    sizes = {
        len(replace(BASE, role=role, size=size, cover=cover, shared=shared).pack())
        for role, size, cover, shared in [(1, 1, 0, None), (1, 199_999, 2**256 - 1, SHARED), (2**40, 2**40, 1, SHARED)]
    }
    assert sizes == {504 + 3 * 16 + 6 * 8}


@pytest.mark.parametrize(
    "changed",
    [
        {"prefix": replace(PREFIX, contract=S)},
        {"prefix": replace(PREFIX, run="x" * 65)},
        {"prefix": replace(PREFIX, step=-1)},
        {"shared": SharedShard("x" * 65, 1, D)},
        {"shared": SharedShard("x", 1, S)},
        {"digest": bytes(31)},
        {"cover": 2**256},
        {"held": -1},
        {"role": 2**64},
        {"bounds": tuple((n, (0,), (1,)) for n in range(65))},
        {"bounds": ((0, (-1,), (1,)),)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_does_not_fit(changed: dict[str, Any]) -> None:
    with pytest.raises(StateError):
        replace(BASE, **changed).pack()
