"""Every system call of a save and of a resume fails, on real owners under mpirun, and the next one works.

A library preloaded into the ranks (`powercut/shim.c`) disturbs the first, second, ... call of a kind on the store's
files, in owner 0 and in another: it fails, or is done though its reply is lost, or is cut short, or a byte that is
read is not what is on disk. `faults_program.py` says what must hold after each.

`test_operations.py` does the same for owners in simulated time, where calls also hang.
"""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import crashkit
import mpilaunch
import pytest
from powercut import tally

PROGRAM: Final = Path(__file__).with_name("faults_program.py")
SHIM: Final = Path(__file__).resolve().parents[1] / "powercut" / "shim.c"
KILLED: Final = Path(__file__).with_name("chaos_program.py")
OWNERS: Final = 3
MOST: Final = 200
"""No job makes so many calls of one kind."""
#: What may come instead of success, by the kind of call.
ERRORS: Final = {
    "open": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE),
    "mkdir": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMLINK),
    "fallocate": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "fsync": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "close": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "rename": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    "link": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMLINK),
    "unlink": (errno.EIO, errno.EROFS),
    "read": (errno.EIO, errno.EINTR),
}
#: And in the long run each of these from each.
EVERY: Final = tuple(getattr(errno, name) for name in ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR", "EMLINK"))
#: What a network file system may answer to a request that it repeats after having done it.
REPLIES: Final = (errno.EEXIST, errno.ENOENT, errno.EIO)

#: Calls of a save that only owner 0 makes.
ROOT_ALONE: Final = ("mkdir", "rename", "link", "unlink", "read")

Sweep = tuple[str, str, int, str, int]


def plan(way: str, more: tuple[int, ...] = (), **options: Any) -> dict[str, Any]:
    """List what is disturbed in a job that places files in this way; `more` comes from every call."""
    gathered = options.get("write") == "gather"
    kinds = [kind for kind in ERRORS if kind != ("link" if way == "rename" else "rename")]
    sweeps: list[Sweep] = []
    for owner in (0,) if gathered else (0, 1):
        for kind in kinds:
            for number in sorted({*ERRORS[kind], *more}):
                if owner == 0 or kind not in ROOT_ALONE:
                    sweeps.append(("save", kind, number, "fail", owner))
        sweeps += [("save", "write", 0, "short", owner), ("resume", "read", 0, "short", owner)]
        sweeps += [("resume", "read", errno.EIO, "fail", owner), ("resume", "read", 0, "flip", owner)]
        sweeps += [("resume", "open", errno.EIO, "fail", owner)]
    sweeps += [("save", way, number, "lost", 0) for number in REPLIES]
    return {"options": options, "way": way, "sweeps": sweeps}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library, compiled."""
    if shutil.which("cc") is None:
        pytest.skip("cc is absent")
    path = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, SHIM, "-ldl"], check=True
    )
    return str(path)


def swept(folder: Path, shim: str, mpi: str, wanted: dict[str, Any], timeout: float) -> int:
    """Run a plan; give how many faults there were."""
    env = {"FAULTS": json.dumps(wanted), "LD_PRELOAD": shim}
    if wanted["way"] == "link":
        env["NO_RENAMEAT2"] = "1"
    result = mpilaunch.run(PROGRAM, OWNERS, mpi, [str(folder / "run")], env, timeout=timeout, folder=folder / "ranks")
    reports = result.ok()
    found = dict(zip(map(tuple, wanted["sweeps"]), reports[0]["results"], strict=True))
    for sweep, told in found.items():
        assert told["faults"], f"{sweep}: there is no such call"
        if sweep[3] == "lost":
            assert told["unharmed"] == told["faults"], f"{sweep}: a reply that is lost is found out; {told}"
        if sweep[1] in ("write", "fsync") and sweep[3] == "fail" and sweep[2] != errno.EINTR:
            rotation = sweep[1] == "fsync" and sweep[4] == 0  # which syncs once, after the save
            assert told["unharmed"] <= rotation, f"{sweep}: somebody was told of success; {told}"
    faults = sum(told["faults"] for told in found.values())
    tally.add("faults", faults)
    assert crashkit.listed(folder / "run")
    return faults


@pytest.mark.parametrize("way", ["rename", "link"])
def test_every_call_fails_and_the_next_save_works(ram: Path, shim: str, way: str) -> None:
    assert swept(ram, shim, "openmpi", plan(way), 250.0) > 300


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("write", ["each", "gather"])
@pytest.mark.parametrize("way", ["rename", "link"])
def test_every_call_fails_on_every_mpi(ram: Path, shim: str, mpi: str, way: str, write: str) -> None:
    assert swept(ram, shim, mpi, plan(way, EVERY, write=write), 3000.0) > 200


def kills() -> list[Any]:
    """List at which calls of whom a process is killed."""
    quick = {("rename", 0), ("write", 1)}
    every = [(kind, owner) for kind in ERRORS for owner in (0, 1) if owner == 0 or kind not in ROOT_ALONE]
    return [pytest.param(*one, marks=[] if one in quick else [pytest.mark.long]) for one in every]


@pytest.mark.parametrize(("kind", "owner"), kills())
def test_a_process_is_killed_at_every_call(ram: Path, shim: str, kind: str, owner: int) -> None:
    """Job after job is killed at the first, second, ... call of its resume and saves, until one comes to its end."""
    store, before = ram / "run", (1, 2)
    crashkit.publish(store, OWNERS, before)
    plan = {"options": {"keep": 2}, "way": "link" if kind == "link" else "rename", "fence": False, "fan_out": None}
    for number in range(1, MOST):
        folder = ram / str(number)
        event = {"what": "fault", "role": owner, "kind": kind, "at": number, "errno": 0, "mode": "kill"}
        env = {"CHAOS": json.dumps(plan | {"event": event, "job": 0, "saves": 1, "refused": False}), "LD_PRELOAD": shim}
        copy = shutil.copytree(store, folder / "run")
        result = mpilaunch.run(KILLED, OWNERS, "openmpi", [str(copy)], env, timeout=60.0, folder=folder)
        crashkit.check_crashed(copy, folder, OWNERS, before, keep=2)
        shutil.rmtree(folder)
        if all((report or {}).get("end") == "done" for report in result.reports):
            break
        assert result.returncode != 0
        tally.add("faults", 1)
    assert number > 1, f"owner {owner} makes no such calls"
