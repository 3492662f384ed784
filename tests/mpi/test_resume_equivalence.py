"""A run that is cut into fresh processes ends bit for bit where an uninterrupted one ends, whoever wrote and with what.

That 5 steps equal 3 and 2 at every owner count, on each MPI and with each way of writing, is in test_train_digits.py.
Here the same run is cut after every step, and each part is of another MPI and another way of writing than the last.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpilaunch
import pytest
import sameness

import mpickpt

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train_digits.py"
STEPS = 5


@pytest.fixture
def mpis() -> tuple[str, ...]:
    """Both MPIs; skips, naming what is absent."""
    for name in mpilaunch.MPIS:
        try:
            mpilaunch.python_of(name)
        except mpilaunch.Unavailable as missing:
            pytest.skip(str(missing))
    return mpilaunch.MPIS


def train(mpi: str, owners: int, store: Path, steps: int, write: str) -> dict[str, Any]:
    report = store.with_suffix(".json")
    args = [str(store), "--steps", str(steps), "--write", write, "--keep", "9", "--every", "1", "--report", str(report)]
    result = mpilaunch.run(EXAMPLE, owners, mpi, args)
    assert result.returncode == 0, result.output
    return dict(json.loads(report.read_bytes()))


@pytest.mark.parametrize("owners", [2, 3])
def test_cut_after_every_step_equals_uninterrupted(mpis: tuple[str, ...], owners: int, tmp_path: Path) -> None:
    whole = train(mpis[0], owners, tmp_path / "whole", STEPS, "each")
    for step in range(STEPS):
        part = train(mpis[(step + owners) % 2], owners, tmp_path / "parts", step + 1, ("gather", "each")[step // 2 % 2])
        assert part["began"] == step
        assert (part["digest"] == whole["digest"]) == (step + 1 == STEPS)
    stores = [mpickpt.open_store(tmp_path / name) for name in ("whole", "parts")]
    assert [len(store.generations()) for store in stores] == [STEPS, STEPS]
    for step in range(1, STEPS + 1):
        one, other = (store.generation(step) for store in stores)
        assert (one.cursor, one.owners, one.nbytes) == (other.cursor, other.owners, other.nbytes)
        sameness.same(stores[1].read(step), stores[0].read(step), f"step {step}")
    with pytest.raises(AssertionError):
        sameness.same(stores[1].read(4), stores[0].read(5))
