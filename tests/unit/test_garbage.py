"""The garbage collector runs less often within a call, and as before after it, whatever else happens."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpickpt import Checkpointer
from mpickpt.cluster.garbage import fewer_collections
from mpickpt.cluster.publish import Publisher


@pytest.fixture(autouse=True)
def _threshold() -> Iterator[None]:
    usual = gc.get_threshold()
    yield
    gc.set_threshold(*usual)


def test_collector_runs_less_often_within_and_as_before_after_a_refusal() -> None:
    def refused() -> None:
        with fewer_collections():
            assert gc.isenabled()
            assert gc.get_threshold()[0] > 100_000
            raise ValueError("planned")

    gc.set_threshold(700, 10, 10)
    with pytest.raises(ValueError, match="planned"):
        refused()
    assert gc.get_threshold()[0] == 700


def test_blocks_that_overlap_end_with_the_last() -> None:
    gc.set_threshold(700, 10, 10)
    one, other = fewer_collections(), fewer_collections()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold()[0] > 100_000
    other.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 700


@pytest.mark.parametrize("mine", [0, 1_000_000])
def test_callers_own_setting_is_left_alone(mine: int) -> None:
    gc.set_threshold(mine, 10, 10)
    with fewer_collections():
        assert gc.get_threshold()[0] == mine
    assert gc.get_threshold()[0] == mine


def test_setting_that_was_made_meanwhile_stays() -> None:
    gc.set_threshold(700, 10, 10)
    with fewer_collections():
        gc.set_threshold(55, 10, 10)
    assert gc.get_threshold()[0] == 55


@pytest.mark.parametrize("background", [False, True])
def test_a_save_beside_the_training_leaves_its_garbage_to_the_collector(
    background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    save = Publisher.save

    def saved(self: Publisher, *args: Any) -> Any:
        seen.append(gc.get_threshold()[0])
        return save(self, *args)

    monkeypatch.setattr(Publisher, "save", saved)
    gc.set_threshold(700, 10, 10)
    with Checkpointer(tmp_path / "run", async_=background) as ckpt:
        ckpt.save({"a": np.arange(4)}, step=1).wait(60)
    assert (seen[0] == 700) == background
