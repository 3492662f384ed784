"""What `mpickpt bench` makes of its figures, and what it refuses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from mpickpt.bench import limits, plan, start, told
from mpickpt.bench.plan import Plan
from mpickpt.cli import main as cli
from mpickpt.errors import StateError, StoreError

FIGURES: dict[str, Any] = {
    "file system": "ext4",
    "owners": 4,
    "bytes": 1 << 30,
    "pieces": 100,
    "runs": 3,
    "cores": 2,
    "limit": "fio",
    "cache": "dropped",
    "mpi": "Open MPI v5",
    "figures": {
        "cores": [7e9] * 3,
        "disk write": [2e9, 1e9, 2e9],
        "disk read": [4e9] * 3,
        "save": [1e9, 1e9, 1.5e9],
        "restore": [1e9, 2e9, 3e9],
        "small save": [0.5, 0.25, 0.75],
        "small restore": [1.0, 2.0, 3.0],
        "memory copy": [0.1] * 3,
        "stall": [0.12, 0.11, 0.2],
    },
    "phases": [{"copy": 0.25, "write": 0.75}, {"copy": 0.75, "write": 0.25}],
}


def test_the_table_gives_medians_and_the_median_of_the_ratios() -> None:
    assert told.rows(FIGURES) == [
        ("save", "1.00 GB/s", "1.00 GB/s", "1.50 GB/s", "2.00 GB/s", "fio write", "0.75"),
        ("cold verified restore", "2.00 GB/s", "1.00 GB/s", "3.00 GB/s", "4.00 GB/s", "fio read", "0.50"),
        ("save 100 x 1 KiB", "500 ms", "250 ms", "750 ms", "", "", ""),
        ("restore 100 x 1 KiB", "2 s", "1 s", "3 s", "", "", ""),
        ("async save returns", "120 ms", "110 ms", "200 ms", "100 ms", "memory copy", "1.20"),
    ]
    assert told.phases(FIGURES) == "a save's time: copy 50 %, write 50 %"
    assert told.head(FIGURES) == "ext4, 4 owner(s), 1.0 GiB, 3 run(s), 2 core(s), Open MPI v5; page cache dropped"


def test_in_memory_the_limit_is_copy_and_digest() -> None:
    known = {name: values for name, values in FIGURES["figures"].items() if not name.startswith("disk")}
    rows = told.rows(FIGURES | {"figures": known})
    assert rows[0][4:] == ("7.00 GB/s", "copy + digest", "0.14")


def test_a_plot_is_made_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    told.plot(FIGURES, str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_plot_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # any import of it raises ImportError
    monkeypatch.setattr(start, "run", lambda plan: pytest.fail("it was measured"))
    result = CliRunner().invoke(cli.app, ["bench", str(tmp_path), "--plot", str(tmp_path / "plot.png")])
    assert result.exit_code == 6
    assert "there is no matplotlib" in result.stderr


def test_options_are_passed_on_and_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Plan] = []

    def run(plan: Plan) -> dict[str, Any]:
        seen.append(plan)
        return FIGURES

    monkeypatch.setattr(start, "run", run)
    for name in start._SIZES:
        monkeypatch.delenv(name, raising=False)
    args = [
        "--owners",
        "2",
        "--size",
        "96MiB",
        "--runs",
        "5",
        "--pieces",
        "7",
        "--no-fio",
        "--json",
        str(tmp_path / "j"),
    ]
    result = CliRunner().invoke(cli.app, ["bench", str(tmp_path), *args])
    assert result.exit_code == 0, result.stderr
    assert seen == [Plan(str(tmp_path), 2, 96 << 20, 5, 7, False)]
    assert json.loads((tmp_path / "j").read_text()) == FIGURES
    unwritable = CliRunner().invoke(cli.app, ["bench", str(tmp_path), "--json", str(tmp_path / "absent" / "j")])
    assert unwritable.exit_code == 6
    assert "async save returns" in unwritable.stdout, "what was measured is not lost"


@pytest.mark.parametrize("size", ["", "0", "-1", "G", "1.5G", "1X", "one", "9" * 30])
def test_a_size_that_is_none_is_a_fault_of_usage(tmp_path: Path, size: str) -> None:
    result = CliRunner().invoke(cli.app, ["bench", str(tmp_path), "--size", size])
    assert result.exit_code == 2
    assert "no size" in result.stderr


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2K", 2048), ("3mb", 3 << 20), ("4GiB", 4 << 30), ("1T", 1 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    from mpickpt.cli.bench import _size

    assert _size(None, None, text) == size  # type: ignore[arg-type]


def test_room_on_disk_and_in_memory_is_looked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Plan(str(tmp_path), 4, 1 << 20, 1, 10, True)
    one.check()
    assert one.nbytes <= one.size
    with pytest.raises(StateError, match="too small"):
        Plan(str(tmp_path), 4, (1 << 18) - 1, 1, 10, True).check()
    monkeypatch.setattr(plan, "_available", lambda: 4 << 20)
    with pytest.raises(StateError, match="not enough memory"):
        one.check()
    monkeypatch.setattr(plan, "_available", lambda: None)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=2, f_frsize=1 << 20))
    with pytest.raises(StoreError, match="not enough room") as refused:
        one.check()
    assert refused.value.exit_code == 6
    assert os.listdir(tmp_path) == []


def test_the_memory_that_there_is_is_known_here() -> None:
    found = plan._available()
    assert found is not None
    assert found > 1 << 20


def test_plain_writes_and_reads(tmp_path: Path) -> None:
    size = (9 << 20) + 5
    assert limits.write_plainly(tmp_path / "file", size) > 0
    assert (tmp_path / "file").stat().st_size == size
    assert limits.read_plainly(tmp_path / "file") > 0
    limits.forget(tmp_path / "absent")


def test_the_page_cache_forgets_what_is_below_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file"
    path.parent.mkdir()
    path.write_bytes(bytes(1 << 20))
    with open(path, "rb", buffering=0) as file:

        def cached() -> bool:
            try:
                return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                return False
            except OSError as error:
                pytest.skip(f"this file system cannot tell what is in its cache: {error}")

        assert cached()
        limits.forget(tmp_path)
        assert not cached()


def test_whether_a_launcher_has_started_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in start._SIZES:
        monkeypatch.delenv(name, raising=False)
    assert not start.in_ranks()
    monkeypatch.setenv("PMI_SIZE", "1")
    assert not start.in_ranks()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert start.in_ranks()
