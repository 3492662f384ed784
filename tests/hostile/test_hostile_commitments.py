"""Hostile commitments: bytes of a peer that runs something else."""

from __future__ import annotations

import pytest

from mpickpt.errors import FormatError
from mpickpt.format.commitment import Commitment, SharedShard
from mpickpt.format.names import shard_file
from mpickpt.format.prefix import Prefix

D = "blake3:" + "1f" * 32
PREFIX = Prefix("run-1", D, "blake3:" + "2e" * 32, 3, 4, 2, 5, "5f0c")
COMMITMENT = Commitment(
    PREFIX, 1, 3, bytes(range(32)), 5, 6, 7, ((0, (0, 0), (2, 4)), (1, (), ())),
    SharedShard(shard_file(1, shared=True), 9000, D),
)  # fmt: skip


def test_a_commitment_of_every_shorter_and_of_a_greater_length() -> None:
    data = COMMITMENT.pack()
    assert Commitment.unpack(data) == COMMITMENT
    for length in range(len(data)):
        with pytest.raises(FormatError):
            Commitment.unpack(data[:length])
    with pytest.raises(FormatError):
        Commitment.unpack(data + b"\0")


@pytest.mark.parametrize(
    ("at", "new"),
    [
        (0, b"x"),  # magic
        (8, b"\2"),  # version
        (12, b"\0\0\0\0"),  # length
        (12, b"\xff\xff\xff\xff"),
        (16, b"\2"),  # algorithm
        (17, b"\0"),  # says no .r shard, though one is named
        (17, b"\2"),
        (18, b"\1"),  # padding
        (24, b"../.."),  # run
        (24, b"\0" * 64),
        (24, b"a\0b"),
        (24, b"\xff"),
        (88, b"../.."),  # attempt
        (88, b"a\0b"),
        (216, b"\xff" * 8),  # step
        (224, b"\xff" * 8),  # cursor
        (232, b"\xff" * 8),  # epoch
        (240, b"\xff" * 8),  # call
        (248, b"\xff" * 8),  # role
        (256, b"\0" * 8),  # size
        (256, b"\xff" * 8),
        (392, b"../a"),  # file
        (392, b"/etc"),
        (392, b"a.safetensors".ljust(64, b"\0")),
        (456, b"\0" * 8),  # its bytes
        (456, b"\xff" * 8),
        (496, b"\3\0\0\0"),  # number of bounds
        (496, b"\1\0\0\0"),
        (496, b"\xfe\xff\xff\xff"),
        (496, b"\xff\xff\xff\xff"),
        (500, b"\1"),  # padding
        (504, b"\1"),  # first ordinal: not below the second
        (504, b"\xff" * 8),
        (512, b"\xff" * 8),  # axes
        (512, b"\x41"),
        (536, b"\0" * 8),  # hi = lo
        (536, b"\xff" * 8),
    ],
)
def test_bad_bytes_of_a_commitment(at: int, new: bytes) -> None:
    data = bytearray(COMMITMENT.pack())
    assert data[at : at + len(new)] != new
    data[at : at + len(new)] = new
    with pytest.raises(FormatError):
        Commitment.unpack(bytes(data))


@pytest.mark.parametrize("at", range(64))
def test_random_bytes_of_a_commitment_are_taken_or_refused(at: int) -> None:
    data = bytearray(COMMITMENT.pack())
    for place in range(at, len(data), 64):
        data[place] ^= 1 << at % 8
        try:
            assert Commitment.unpack(bytes(data)).pack() == bytes(data)
        except FormatError:
            continue
