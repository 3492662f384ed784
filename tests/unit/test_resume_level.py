"""`resume(level=...)`: by digest or by CRC; either finds damage, and says what it was compared by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpickpt import Checkpointer
from mpickpt.errors import IntegrityError, StateError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save({"w": np.arange(1000.0)}, step=1)
    return tmp_path / "run"


@pytest.mark.parametrize("level", ["full", "fast"])
def test_either_level_restores_what_was_saved(run: Path, level: str) -> None:
    array = np.zeros(1000)
    with Checkpointer(run) as ckpt:
        ckpt.resume({"w": array}, level=level)  # type: ignore[arg-type]
    np.testing.assert_array_equal(array, np.arange(1000.0))


@pytest.mark.parametrize(("level", "compared"), [("full", "blake3:"), ("fast", "crc32c ")])
def test_either_level_refuses_damage(run: Path, level: str, compared: str) -> None:
    (shard,) = run.glob("data/*/*/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    array = np.zeros(1000)
    with Checkpointer(run) as ckpt, pytest.raises(IntegrityError) as caught:
        ckpt.resume({"w": array}, level=level)  # type: ignore[arg-type]
    assert str(caught.value.found).startswith(compared)
    assert not array.any()


def test_another_level_is_refused(run: Path) -> None:
    with Checkpointer(run) as ckpt, pytest.raises(StateError, match="level"):
        ckpt.resume(level="none")  # type: ignore[arg-type]
