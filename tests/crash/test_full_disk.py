"""A disk that is full at every stage of a resume and a save, and operations that fail, on real owners.

The stages: run.json, the claim, the reservation of a shard, its head, a chunk, its tables, a group manifest, the root
with the void that should make its failure final, names instead of bytes; at owner 0 and at another. Checked each time:
one and the same StoreError at all owners, which says what is needed and what is free; what the attempt had written is
gone though the disk is still full; the generation before is whole; once there is room the next save works.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

PROGRAM = Path(__file__).with_name("full_disk_cases.py")
OWNERS = 3
_program = runpy.run_path(str(PROGRAM))
CASES = [name for name, _, _ in _program["cases"](*map(_program["Disk"], "ab"))]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Two file systems in memory: of 160 MiB, and of 150 files."""
    if shutil.which("mount") is None:
        pytest.skip("absent: mount")
    if os.geteuid() != 0:
        pytest.skip("mount -t tmpfs: only root may")
    mounted: list[Path] = []
    try:
        for option in ("size=160m", "nr_inodes=150"):
            path = tmp_path_factory.mktemp("disk")
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(path)], stderr=subprocess.PIPE)
            if done.returncode:
                pytest.skip(f"mount -t tmpfs: {done.stderr.decode().strip()}")
            mounted.append(path)
        yield mounted[0], mounted[1]
    finally:
        for path in mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


_found: dict[str, list[dict[str, Any]]] = {}


@pytest.fixture
def found(mpi: str, disks: tuple[Path, Path], request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each owner saw in this case: all cases are of one job."""
    if mpi not in _found:
        for disk in disks:
            for old in disk.iterdir():
                shutil.rmtree(old)
        reports = mpilaunch.run(PROGRAM, OWNERS, mpi, [str(disk) for disk in disks], timeout=120).ok()
        _found[mpi] = [report["cases"] for report in reports]
    return [cases[request.getfixturevalue("case")] for cases in _found[mpi]]


@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_is_told_by_all_and_the_next_save_works_once_there_is_room(
    found: list[dict[str, Any]], case: str
) -> None:
    for one in found:
        assert "raised" not in one, one["raised"]["traceback"]
    records = [one["refused"]["raised"]["record"] for one in found]
    assert all(record == records[0] for record in records), records
    check_record(case, records[0])
    assert found[0]["left"] == [], "the disk stays full"
    assert all("value" in one["saved"] for one in found), [one["saved"] for one in found]
    expected = {"9"} if case in ("run-json", "claim") else {"1", "9"}
    assert {step for step, there in found[0]["roots"].items() if there != ["void"]} == expected


def check_record(case: str, record: dict[str, Any]) -> None:
    """Check that the refusal says what a person needs."""
    name, _, rest = case.partition("-")
    numbers = {"EIO": 5, "ENOSPC": 28, "EDQUOT": 122}
    assert record["class"] == "StoreError"
    assert record["errno"] == numbers.get(name, 28), record
    assert record["host"]
    assert case in record["path"], record
    assert record["unharmed"]
    assert record["advice"]
    if rest[-1:].isdigit():
        assert record["role"] == int(rest[-1:]), record
    if name in ("shard", "head", "chunk", "tables", "all", "manifest", "root", "gather"):
        assert "no space left" in record["message"]
        assert "bytes and 1 file free" in record["expected"], record
        assert "files free" in record["found"], record
        assert "save again" in record["advice"]
