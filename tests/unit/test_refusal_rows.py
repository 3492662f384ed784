"""Every row of docs/refusals.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import mpilaunch
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/refusals.md").read_text()
ROW = re.compile(r"^\| ([^|`-][^|]*|`save`[^|]*) \| ([^|]*`\w+Error`[^|]*|no error[^|]*) \| ([^|]*) \|$", re.MULTILINE)


def section(name: str) -> str:
    return PAGE.split(f"## {name}\n")[1].split("\n## ")[0]


def cases(name: str) -> list[str]:
    programs = {"Saving": ("declaring", "saving"), "Resuming": ("resuming",), "At each step": ()}[name]
    files = [f"refusals_{one}_cases.py" for one in programs] + ["epochs_cases.py", "due_cases.py", "memory_cases.py"]
    return [case for file in files for case in mpilaunch.cases(ROOT / "tests/mpi" / file)]


@pytest.mark.parametrize(("name", "least"), [("Saving", 16), ("Resuming", 15), ("At each step", 4)])
def test_every_row_names_tests_that_there_are(name: str, least: int) -> None:
    rows = ROW.findall(section(name))
    lines = [line for line in section(name).splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == len(lines) - 1 >= least, "a row without class or tests, or the head is missing"
    for situation, _, tests in rows:
        named = tests.split(", ")
        assert named, situation
        files = {test for test in named if test.startswith("`") and (ROOT / test.strip("`")).is_file()}
        assert set(named) <= {*cases(name), *files}, situation


@pytest.mark.parametrize("name", ["Saving", "Resuming"])
def test_names_in_the_text_are_those_of_cases(name: str) -> None:
    text = "".join(line for line in section(name).splitlines(True) if not line.startswith("|"))
    words = set(re.findall(r"\b\w+_\w+_\w+\b", text)) - {f"test_refusals_{name.lower()}", "test_tree_refusals"}
    assert words <= set(cases(name))
