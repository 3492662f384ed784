"""A disk that is full at every stage of a save, and every call of the operating system that fails, on real owners.

On a small tmpfs, filled up (or used up of names) at each stage in turn, at owner 0 and at another: every owner raises
the same StoreError, which says what is needed and what is free; earlier generations are whole; nothing of the attempt
is left, so that the disk does not stay full; and once space is freed the next save works.

The sweeps let one call fail in each save: the first call on the store's files in the first, the second in the second,
and so on to the last, with EIO and EDQUOT, on both ways of placing a file without replacing, and also done but
reported failed (a lost reply). A failure is always a refusal by all, but where it harms nothing; and whatever is said,
the store holds exactly that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpilaunch
import pytest

PROGRAM = Path(__file__).with_name("disk_full_cases.py")
OWNERS = 3
FULL = "No space left on device"
STAGES = {
    # What failed, of which file, and what is needed.
    "creation_of_a_shard": ("creation of a file", "00000/00000{who}.safetensors", "1 file free"),
    "space_of_a_shard": ("write of a shard", "00000/00000{who}.safetensors", r"69668 bytes and 1 file free"),
    "chunk": ("write of a shard", "00000/00000{who}.safetensors", "69668 bytes and 1 file free"),
    "tables": ("write of a shard", "00000/00000{who}.safetensors", "69668 bytes and 1 file free"),
    "creation_of_a_manifest": ("creation of a file", "00000/00000{who}.json", "1 file free"),
    "manifest": ("write", "00000/00000{who}.json", "bytes and 1 file free"),
    "creation_of_the_root": ("creation of a file", "epochs/", "1 file free"),  # of the look at the claims before it
    "root": ("write", "roots/", "bytes and 1 file free"),
}
ONLY = {"creation_of_a_manifest": 1, "manifest": 1, "creation_of_the_root": 0, "root": 0}
AT = [(stage, who) for stage in STAGES for who in (0, 1) if ONLY.get(stage, who) == who]
OTHERS = {
    # At whom (None: whoever is first), and the same.
    "all_shards_at_once": (None, "write of a shard", ".safetensors", "bytes and 1 file free"),
    "another_owners_shard_under_gather": (0, "write of a shard", "00000/00000", "bytes and 1 file free"),
    "attempt_directory": (0, "creation of a file", "/", "1 file free"),
}
FIRST = {"trial_write": "trial_write", "run_json": "run.json", "claim": "epochs/00000001.json"}
SWEEPS = [
    f"{way}_{number}_at_{who}{lost}"
    for who in (0, 1)
    for way, number, lost in (
        ("rename", "EIO", ""),
        ("link", "EDQUOT", ""),
        ("rename", "EIO", "_lost"),
        ("link", "EIO", "_lost"),
        ("rename", "EEXIST", "_lost"),
        ("link", "EEXIST", "_lost"),
    )
]
MPICH = [sweep for sweep in SWEEPS if not sweep.endswith("_lost")]
Batches = dict[str, mpilaunch.Batch]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a file system of 8 MiB and 500 files for each MPI."""
    for tool in ("mount", "umount"):
        if shutil.which(tool) is None:
            pytest.skip(f"absent: {tool}, which mounts a small file system")
    if os.geteuid() != 0:
        pytest.skip("absent: the right to mount a small file system (root)")
    folder = tmp_path_factory.mktemp("disks")
    mounted: list[Path] = []
    try:
        for mpi in mpilaunch.MPIS:
            path = folder / mpi
            path.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=500", "mpickpt-test", str(path)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"absent: the right to mount a small file system ({done.stderr.strip()})")
            mounted.append(path)
        yield folder
    finally:
        for path in mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def run(disk: Path | None, cases: dict[str, list[str]]) -> Batches:
    """Run cases of the program, both MPIs side by side."""
    found = {}
    with contextlib.ExitStack() as stack:
        for mpi in mpilaunch.MPIS:
            with contextlib.suppress(mpilaunch.Unavailable):  # the tests of this MPI are skipped and say so
                env = {"DISK": str(disk and disk / mpi)}
                job = mpilaunch.start(PROGRAM, OWNERS, mpi, ["--only", *cases[mpi]], env, timeout=150)
                found[mpi] = stack.enter_context(job)
        return {mpi: mpilaunch.Batch(job.wait()) for mpi, job in found.items()}


@pytest.fixture(scope="module")
def full(disks: Path) -> Batches:
    cases = [*(f"{stage}_at_{who}" for stage, who in AT), *OTHERS, *FIRST, "void"]
    return run(disks, dict.fromkeys(mpilaunch.MPIS, cases))


@pytest.fixture(scope="module")
def swept() -> Batches:
    return run(None, {"openmpi": SWEEPS, "mpich": MPICH})


# --- a full disk


def check_full(
    found: list[dict[str, Any]], who: int | None, doing: str, path: str, needed: str, before: list[int]
) -> None:
    """Check one refusal of a full disk, and what it left."""
    assert all("raised" in one for one in found), found
    records = [one["raised"].get("record") or {} for one in found]
    assert records == [records[0]] * OWNERS
    record = records[0]
    assert record["class"] == "StoreError", found[0]["raised"]["traceback"]
    assert record["message"] == f"no space left: {doing} failed ({FULL})"
    assert record["errno"] == errno.ENOSPC
    assert who in (None, record["role"])
    assert record["host"]
    assert path in record["path"]
    assert record["expected"].endswith(needed)
    assert record["found"].endswith("files free")
    assert record["found"][0].isdigit()
    assert "earlier generations" in record["unharmed"]
    assert "free space on this file system" in record["advice"]
    assert all(one["seconds"] < 3 for one in found)
    check_freed(found, before)


def check_freed(found: list[dict[str, Any]], before: list[int]) -> None:
    """Check what the failed save left, and that the next one worked."""
    assert found[0]["listed"] == before
    assert found[0]["left"] == []
    (root,) = {one["next"] for one in found}
    assert [step for step, _ in found[0]["end"]] == [*before, 4 if before else 2]
    assert found[0]["end"][-1][1] == root


@pytest.mark.parametrize(("stage", "who"), AT)
def test_full_disk_at_every_stage(mpi: str, full: Batches, stage: str, who: int) -> None:
    doing, path, needed = STAGES[stage]
    found = full[mpi].passed(f"{stage}_at_{who}", OWNERS)
    check_full(found, who, doing, path.format(who=who), needed, [1, 2])


@pytest.mark.parametrize("case", OTHERS)
def test_full_disk_for_all_or_under_gather_or_without_names(mpi: str, full: Batches, case: str) -> None:
    check_full(full[mpi].passed(case, OWNERS), *OTHERS[case], before=[1, 2])


@pytest.mark.parametrize("stage", FIRST)
def test_full_disk_at_the_first_save_of_a_run(mpi: str, full: Batches, stage: str) -> None:
    check_full(full[mpi].passed(stage, OWNERS), 0, "write", FIRST[stage], "bytes and 1 file free", [])


def test_no_space_for_the_void_of_those_who_doubt(mpi: str, full: Batches) -> None:
    found = full[mpi].passed("void", OWNERS)
    for one in found[1:]:
        assert one["raised"]["record"]["class"] == "InDoubtError", one["raised"]["traceback"]
        assert FULL in one["raised"]["message"]
        assert one["seconds"] < 0.8 + 2.0
    # Owner 0, when it goes on: it hears of the others first, or finds the disk full itself.
    record = found[0]["raised"]["record"]
    assert record["class"] == "DeadlineError" or record["errno"] == errno.ENOSPC, found[0]["raised"]["traceback"]
    check_freed(found, [1, 2])


# --- calls that fail


def harmless(call: str, path: str, lost: bool, number: str) -> bool:
    """Tell whether the save must work although this call failed."""
    if call == "unlink":  # a temporary file stays
        return True
    if call == "close" and path.startswith("epochs/0"):  # it was read
        return True
    if path.startswith("afterwards: epochs"):  # the claims can be read all the same
        return True
    path = path.removeprefix("afterwards: ")
    if lost and call in ("rename", "link"):  # what is there decides, not the reply
        return True
    # A folder is made by whoever needs it first.
    return number == "EEXIST" and call == "mkdir" and path.endswith("/00000")


def unknown(call: str, path: str) -> bool:
    """Tell whether the generation is published, its durability unknown: the sync of the roots' directory failed."""
    return path == "afterwards: roots" and call in ("open", "fsync", "close")


@pytest.mark.parametrize(
    ("mpi", "sweep"),
    [*(("openmpi", sweep) for sweep in SWEEPS), *(("mpich", sweep) for sweep in MPICH)],
    indirect=["mpi"],
)
def test_a_call_that_fails_is_refused_by_all_or_harms_nothing(mpi: str, swept: Batches, sweep: str) -> None:
    way, number, _, who, *lost = sweep.split("_")
    saves = list(zip(*swept[mpi].passed(sweep, OWNERS), strict=True))
    assert len(saves) > (30 if who == "0" else 15)
    for owners in saves:
        reached, first = owners[0]
        outcomes = [outcome for _, outcome in owners]
        call, path = reached or ("", "")
        told = f"{call} {path}: {[one.get('raised', {}).get('traceback', one.get('value')) for one in outcomes]}"
        if reached is None or harmless(call, path, bool(lost), number):
            assert first["roots"] == [first.get("value")], told
            assert [one.get("value") for one in outcomes] == first["roots"] * OWNERS, told
            assert first["left"] == [] or call == "unlink", told
            continue
        records = [one.get("raised", {}).get("record") for one in outcomes]
        assert records == [records[0]] * OWNERS, told
        assert records[0]["class"] == "StoreError", told
        assert records[0]["role"] == int(who), told
        assert records[0]["errno"] == getattr(errno, number), told
        assert path.removeprefix("afterwards: ").split("/")[0] in records[0]["path"], told
        if number == "EEXIST" and call == "mkdir":  # nobody can tell whose a directory is that was there already
            assert first["left"] == [path], told
        elif way == "link" and unknown(call, path):  # the other name may be the only durable one
            assert [name.startswith("roots/.tmp-") for name in first["left"]] == [True], told
        else:
            assert first["left"] == [], told
        if unknown(call, path):
            assert records[0]["message"].startswith("published, durability unknown"), told
            assert len(first["roots"]) == 1, told
        else:
            assert first["roots"] == [], told
        if number == "EDQUOT" and not unknown(call, path):
            assert "quota" in records[0]["message"], told
            assert "1 file free" in records[0]["expected"], told
    calls = {reached[0] for ((reached, _), *_) in saves if reached is not None}
    assert {"open", "preallocate", "fsync", "close"} <= calls
    assert who != "0" or {"mkdir", way} <= calls
