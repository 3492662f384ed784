"""README and docs are true: their Python blocks run, their links lead somewhere, their tables match the code.

The blocks of one page are one program, run in a folder of its own: in this process, or, where a page uses MPI, on four
real owners.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import mpilaunch
import pytest

import mpickpt
from mpickpt import errors

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "slurm" / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "notes" not in p.parts),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def program(page: Path) -> str:
    """Join the Python blocks of a page into one program, at the lines where they stand in the page."""
    text, found, line = page.read_text(), "", 1
    for match in BLOCK.finditer(text):
        begins = text.count("\n", 0, match.start(1)) + 1
        found += "\n" * (begins - line) + match[1]
        line = begins + match[1].count("\n")
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_CODE = [page for page in PAGES if program(page)]


def test_pages_with_code_are_found() -> None:
    assert {"README.md", "docs/api.md"} <= {name(page) for page in WITH_CODE}


@pytest.mark.parametrize("page", [p for p in WITH_CODE if "mpi4py" not in program(p)], ids=name)
def test_python_blocks_run_in_one_process(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(program(page), str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", [p for p in WITH_CODE if "mpi4py" in program(p)], ids=name)
def test_python_blocks_run_on_four_owners(page: Path, mpi: str, tmp_path: Path) -> None:
    text = f"import os\nos.chdir({str(tmp_path)!r})\n" + program(page) + "\nimport rank\nrank.report(done=True)\n"
    assert mpilaunch.run(text, 4, mpi).ok() == [{"done": True}] * 4


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_of_shell_blocks_exist(page: Path) -> None:
    from mpickpt.cli.main import app

    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
    for command in re.findall(r"^mpickpt (\w+)", shell, re.MULTILINE):
        found = app.get_command(click.Context(app), command)
        assert found is not None, command


def test_readme_names_the_make_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)\b(?=[`  #])", (ROOT / "README.md").read_text())) <= targets


def test_every_refusal_stands_in_the_table_with_its_builtin_and_exit_code() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (?:`(\w+)`)? ?\| (\d+) \|$", (ROOT / "docs/refusals.md").read_text(), re.MULTILINE
    )
    documented = {cls: (builtin, int(code)) for cls, builtin, code in rows}
    found = {}
    for each in errors.__all__:
        cls = getattr(errors, each)
        if isinstance(cls, type) and issubclass(cls, errors.CheckpointError):
            builtins = [base.__name__ for base in cls.__mro__ if base.__module__ == "builtins"]
            first = builtins[0] if builtins[0] != "Exception" or cls is errors.CheckpointError else ""
            found[each] = (first, cls.exit_code)
    assert documented == found


def test_every_refusal_stands_in_a_row_of_situations() -> None:
    situations = (ROOT / "docs/refusals.md").read_text().split("## Saving")[1]
    named = set(re.findall(r"`(\w+Error)`", situations))
    assert named == {n for n in errors.__all__ if n.endswith("Error")} - {"CheckpointError"}


def signatures() -> list[tuple[str, str]]:
    """List the documented signatures of docs/api.md: (dotted name, text between its brackets)."""
    heads = re.findall(r"^### (.*)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    return [found for head in heads for found in re.findall(r"`(\w[\w.]*)\(([^`]*)\)`", head)]


@pytest.mark.parametrize(("dotted", "text"), signatures(), ids=[dotted for dotted, _ in signatures()])
def test_documented_signature_is_the_real_one(dotted: str, text: str) -> None:
    real: object = mpickpt
    for part in dotted.split("."):
        real = getattr(real, part)
    shown = [parameter for parameter in re.split(r",\s*(?![^(]*\))", text) if parameter]
    parts = []
    starred = False
    for parameter in inspect.signature(real).parameters.values():  # type: ignore[arg-type]
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        default = "" if parameter.default is parameter.empty else f"={_shown(parameter.default)}"
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        parts.append(stars + parameter.name + default)
    assert shown == parts


def _shown(value: object) -> str:
    if repr(value) == "<factory>":  # a dataclass's field that begins as an empty mapping
        return "{}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def test_every_public_name_is_documented() -> None:
    text = (ROOT / "docs/api.md").read_text() + (ROOT / "docs/refusals.md").read_text()
    missing = [n for n in mpickpt.__all__ if not n.startswith("__") and not re.search(rf"\b{n}\b", text)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_name_no_machine(page: Path) -> None:
    assert not re.search(r"/root/|/home/\w", page.read_text())
