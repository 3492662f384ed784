"""The README's own program, interrupted: arrays, random state, step, cursor, learning rate come back bit for bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
(PROGRAM,) = (block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "Checkpointer" in block)
END = """
import rank as harness
harness.report(
    began=run.step, fresh=run.fresh, cursor=cursor, lr=lr.hex(), rng=str(rng.bit_generator.state),
    w=w.tobytes().hex(), b=b.tobytes().hex(), m=m.tobytes().hex(),
)
"""


def train(mpi: str, owners: int, folder: Path, steps: int) -> list[dict[str, Any]]:
    text = f"import os\nos.makedirs({str(folder)!r}, exist_ok=True)\nos.chdir({str(folder)!r})\n"
    text += PROGRAM.replace("steps, rows, total = 25, ", f"steps, rows, total = {steps}, ") + END
    return mpilaunch.run(text, owners, mpi).ok()


@pytest.mark.parametrize("owners", [1, 4])
def test_interrupted_equals_uninterrupted(mpi: str, owners: int, tmp_path: Path) -> None:
    whole = train(mpi, owners, tmp_path / "whole", 25)
    first = train(mpi, owners, tmp_path / "parts", 13)
    second = train(mpi, owners, tmp_path / "parts", 25)
    assert [report["began"] for report in whole + first] == [0] * (2 * owners)
    assert all(report["fresh"] for report in whole + first)
    for role in range(owners):
        assert second[role]["began"] == 13
        assert not second[role]["fresh"]
        assert second[role]["cursor"] == 25 * 32
        for field in ("cursor", "lr", "rng", "w", "b", "m"):
            assert second[role][field] == whole[role][field], (role, field)
            assert first[role][field] != whole[role][field], (role, field)


def test_crash_between_saves_resumes_from_the_last_one(mpi: str, tmp_path: Path) -> None:
    whole = train(mpi, 3, tmp_path / "whole", 25)
    crash = PROGRAM.replace("        cursor += train(step)\n", "        cursor += train(step)\n        die(step)\n")
    assert crash != PROGRAM
    text = f"""import os, signal
os.makedirs({str(tmp_path / "parts")!r}, exist_ok=True)
os.chdir({str(tmp_path / "parts")!r})
def die(step):
    if step == 17 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
{crash}"""
    assert mpilaunch.run(text, 3, mpi).returncode != 0
    second = train(mpi, 3, tmp_path / "parts", 25)
    for role in range(3):
        assert second[role]["began"] == 10
        for field in ("cursor", "lr", "rng", "w", "b", "m"):
            assert second[role][field] == whole[role][field], (role, field)
