"""A stranger's reader, written from docs/format.md alone, verifies what mpickpt writes and reads the same bytes."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mpickpt
from mpickpt.state import dtypes, values

SOURCE = Path(__file__).parent / "stranger_reader.py"
ALL = {name: dtypes.dtype_of(name) for name in dtypes.NAMES}


@pytest.fixture(scope="module")
def stranger() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stranger_reader", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def state() -> dict[str, Any]:
    draw = np.random.default_rng(11)
    found: dict[str, Any] = {
        name: draw.integers(0, 2 if name == "bool" else 100, (3, 5)).astype(dtype) for name, dtype in ALL.items()
    }
    found["scalars"] = [np.array(7).astype(dtype) for dtype in ALL.values()]
    found["big"] = draw.standard_normal((700, 1000))  # more than one chunk
    found["empty"] = np.zeros((0, 4), np.float32)
    found['odd "name"/[µ]: #%'] = np.arange(6, dtype=">i4").reshape(2, 3).T
    found["plain"] = (1, "two", None, {3: 4.5, "big": 10**40})
    found["rng"] = mpickpt.PerOwner(np.random.default_rng(3))
    return found


@pytest.fixture(params=["blake3", "sha256"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with mpickpt.Checkpointer(path, digest=request.param) as ckpt:
        ckpt.resume(state())
        ckpt.save(state(), step=3, cursor=96)
        ckpt.save(state(), step=4, cursor=128)
    return path


def test_it_is_short_and_uses_nothing_of_mpickpt() -> None:
    text = SOURCE.read_text()
    assert len(text.splitlines()) < 150
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"__future__", "blake3", "hashlib", "json", "numpy", "pathlib", "re", "struct", "sys", "typing"}


def test_it_reads_every_region(stranger: ModuleType, run: Path) -> None:
    root, found = stranger.read(run)
    saved = state()
    assert (root["prefix"]["step"], root["prefix"]["cursor"]) == (4, 128)
    for name in ALL:
        assert found[name].shape == (3, 5)
        assert found[name].tobytes() == saved[name].tobytes()
    for index, scalar in enumerate(saved["scalars"]):
        assert found[f"scalars/#{index}"].shape == ()
        assert found[f"scalars/#{index}"].tobytes() == scalar.tobytes()
    assert np.array_equal(found["big"], saved["big"])
    assert found["empty"].shape == (0, 4)
    assert np.array_equal(found['odd "name"%2F%5Bµ%5D%3A %23%25'], saved['odd "name"/[µ]: #%'])
    assert values.decode(found["plain"]) == saved["plain"]
    assert list(found["rng"]) == [0]
    assert found["rng"][0] == values.encode(np.random.default_rng(3))
    assert found["bfloat16"].view(ml_dtypes.bfloat16).dtype == saved["bfloat16"].dtype


def test_it_refuses_a_flipped_byte_of_any_file(stranger: ModuleType, run: Path) -> None:
    newest = next(path for path in (run / "roots").iterdir() if path.name.startswith("000000000004"))
    files = [newest, *(path for path in (run / "data" / newest.stem).rglob("*") if path.is_file())]
    assert len(files) >= 2
    for path in files:
        whole = path.read_bytes()
        for at in {0, 8, 300, len(whole) // 2, len(whole) - 200, len(whole) - 2}:
            changed = bytearray(whole)
            changed[at] ^= 1
            path.write_bytes(changed)
            with pytest.raises((stranger.Refused, ValueError, KeyError)):
                stranger.read(run)
        path.write_bytes(whole)
    stranger.read(run)
