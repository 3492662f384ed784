"""The fuzzing corpus is replayed, and, where atheris is there, coverage-guided fuzzing goes on for some seconds."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fuzz

CORPUS = Path(__file__).parent / "corpus"
SECONDS = 10


def test_the_corpus_is_taken_or_refused() -> None:
    files = sorted(CORPUS.iterdir())
    assert {file.name for file in files} >= {f"seed-{kind}" for kind in fuzz.KINDS}
    for file in files:
        fuzz.check(file.read_bytes())


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_what_is_well_formed_is_taken(kind: str) -> None:
    """So the corpus begins behind the first check of each parser."""
    fuzz.PARSERS[kind](fuzz.seeds()[kind][1:])


def test_some_seconds_of_fuzzing(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is absent")
    shutil.copytree(CORPUS, tmp_path / "corpus")
    options = [f"-max_total_time={SECONDS}", "-rss_limit_mb=1024", "-timeout=5", "-max_len=8192"]
    options.append(f"-artifact_prefix={tmp_path}/")
    done = subprocess.run(
        [sys.executable, fuzz.__file__, str(tmp_path / "corpus"), *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(r"^Done [0-9]{4,} runs", done.stderr, re.MULTILINE), done.stderr[-2000:]
    assert "no interesting inputs" not in done.stderr, "the library is not instrumented"
