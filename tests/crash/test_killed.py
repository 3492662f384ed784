"""SIGKILL of owner 0, of another owner, and of all, at every named failpoint of a save.

Proven each time: the job ends; what is listed afterwards is whole, every byte of it; whatever any owner had reported
as saved is there under the same root; the generations before are there; the next start gets exactly what was saved at
the newest step, and its saves work. Stores are checked by owners in this process, and for a sample by a second job.

`test_all_owners_killed_at_every_step_of_a_first_save` does more: owners that are threads of one process are killed at
each event of a save, the claim and run.json included, without the price of a job.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import crashkit
import mpilaunch
import pytest

PROGRAM = Path(__file__).with_name("killed_program.py")
ALL_AT_ONCE = Path(__file__).with_name("killed_at_once_program.py")
KEEP = 2


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Stores with two generations, by owner count: what a run that is killed in its third save had before."""
    found = {}
    for owners in (1, 2, 3, 5):
        found[owners] = tmp_path_factory.mktemp("before") / str(owners)
        crashkit.publish(found[owners], owners, (1, 2))
    return found


def job(folder: Path, store: Path, owners: int, mpi: str, plan: dict[str, Any] | None) -> mpilaunch.Result:
    env = {} if plan is None else {"CRASH": json.dumps(plan)}
    return mpilaunch.run(PROGRAM, owners, mpi, [str(store)], env, timeout=40.0, folder=folder)


def killed(folder: Path, before: Path, owners: int, mpi: str, plan: dict[str, Any], again: bool = False) -> int:
    """Run one job that is killed; check the store it leaves; give the step from which the next run went on."""
    store = folder / "run"
    shutil.copytree(before, store)
    result = job(folder, store, owners, mpi, plan)
    assert result.returncode != 0, f"nobody was killed: {plan} is not reached\n{result.output}"
    assert not any("last" in (report or {}) for report in result.reports), "the job came to its end"
    if not again:
        return crashkit.check_crashed(store, folder, owners, (1, 2), KEEP)
    there, said = crashkit.listed(store), crashkit.said(folder)
    assert said.keys() <= there.keys()
    second = job(folder, store, owners, mpi, None).ok()
    last = max(there)
    assert [(one["step"], one["root"], one["same"]) for one in second] == [(last, there[last], True)] * owners
    assert sorted(crashkit.listed(store)) == [last + 1, last + 2]
    return last


def several(tmp_path: Path, plans: dict[str, dict[str, Any]], *args: Any, **more: Any) -> dict[str, int]:
    """Run jobs side by side."""
    with ThreadPoolExecutor(3) as pool:
        futures = {name: pool.submit(killed, tmp_path / name, *args, plan, **more) for name, plan in plans.items()}
        return {name: future.result() for name, future in futures.items()}


def check_went_on(steps: dict[str, int], point: str) -> None:
    """Check from where the next run went on, where that is no matter of luck."""
    comes = crashkit.POINTS[point]
    for name, step in steps.items():
        if comes.other is None:  # whoever is killed, owner 0 is, and it alone has come there
            allowed = {"before": (2,), "after": (3,)}[comes.root or "before"]
        elif name == "all" or (name == "another" and comes.other == "after"):
            allowed = (2, 3)  # the others may get as far as to publish what this one has committed
        else:
            allowed = {"before": (2,), "after": (3,)}[comes.when(0 if name == "owner 0" else 1) or "before"]
        assert step in allowed, (point, name, step)


def plans_of(point: str, other: int, **more: Any) -> dict[str, dict[str, Any]]:
    comes = crashkit.POINTS[point]
    found: dict[str, dict[str, Any]] = {"all": {"at": point, "who": None, **more}}
    if comes.root:
        found["owner 0"] = {"at": point, "who": 0, **more}
    if comes.other:
        found["another"] = {"at": point, "who": other, **more}
    return found


def test_every_failpoint_of_a_save_is_killed_at() -> None:
    assert crashkit.points_of_source() == {*crashkit.POINTS, crashkit.DOUBT}


@pytest.mark.parametrize("point", crashkit.POINTS)
def test_owner_0_or_another_or_all_killed_at_a_failpoint(
    tmp_path: Path, stores: dict[int, Path], mpi: str, point: str
) -> None:
    steps = several(tmp_path, plans_of(point, 1), stores[3], 3, mpi)
    check_went_on(steps, point)


@pytest.mark.parametrize("owners", [1, 2, 5])
@pytest.mark.parametrize("point", ["writer.chunk", "commit.written", "save.committed", "commit.placed", "save.released"])
def test_killed_at_other_owner_counts(
    tmp_path: Path, stores: dict[int, Path], mpi: str, owners: int, point: str
) -> None:
    plans = plans_of(point, owners - 1)
    chosen = {"owner 0": plans["owner 0"]} if "owner 0" in plans else {"all": plans["all"]}
    if owners > 1:
        chosen |= {name: plan for name, plan in plans.items() if name == "another"}
    elif point == "save.committed":
        chosen = {"all": {"at": "save.compared", "who": None}}
    several(tmp_path, chosen, stores[owners], owners, mpi)


@pytest.mark.parametrize("point", ["writer.chunk", "save.committed", "commit.closed", "commit.placed"])
def test_killed_while_owner_0_writes_for_all(tmp_path: Path, stores: dict[int, Path], mpi: str, point: str) -> None:
    plans = plans_of(point, 1, write="gather")
    if point != "save.committed":
        plans.pop("another", None)  # it writes nothing
    steps = several(tmp_path, plans, stores[3], 3, mpi)
    assert all(step in (2, 3) for step in steps.values())
    assert steps.get("owner 0", 2) == (3 if point == "commit.placed" else 2)


def test_killed_while_in_doubt(tmp_path: Path, stores: dict[int, Path], mpi: str) -> None:
    """Owner 0 is lost before it publishes, then who doubts is killed; or owner 0 itself, as it makes an abort final."""
    before, another = {"0": "save.compared"}, {"2": "writer.created"}
    plans: dict[str, dict[str, Any]] = {
        "another": {"at": crashkit.DOUBT, "who": 1, "lost": before},
        "another and all with it": {"at": crashkit.DOUBT, "who": None, "lost": before},
        "owner 0": {"at": crashkit.DOUBT, "who": 0, "lost": another},
    }
    steps = several(tmp_path, plans, stores[3], 3, mpi)
    assert set(steps.values()) == {2}


@pytest.mark.parametrize("point", ["writer.created", "commit.closed", "commit.placed", "rotate.roots-removed"])
def test_the_same_command_goes_on_after_all_are_killed(
    tmp_path: Path, stores: dict[int, Path], mpi: str, point: str
) -> None:
    step = killed(tmp_path / "all", stores[3], 3, mpi, {"at": point, "who": None}, again=True)
    assert step in ((2,) if point in ("writer.created", "commit.closed") else (3,))


# --- all owners of one process killed at each event


def at_once(tmp_path: Path, store: Path | None, *options: str, shares: int = 2) -> int:
    """Kill three owners of one process at each event of a save in turn, and check every store; gives how many."""
    command = [sys.executable, str(ALL_AT_ONCE), str(tmp_path), str(store or ""), *options]
    env = mpilaunch.environment("openmpi")
    servers = [
        subprocess.Popen([*command, f"--share={share}/{shares}"], env=env, stdout=subprocess.PIPE, text=True)
        for share in range(shares)
    ]
    for server in servers:
        output, _ = server.communicate(timeout=240)
        assert server.returncode == 0, output
    folders = sorted(tmp_path.glob("event-*"))
    for folder in folders:
        try:
            crashkit.check_crashed(folder / "run", folder, 3, () if store is None else (1, 2), KEEP)
        except Exception as error:
            raise AssertionError(f"killed at event {(folder / 'events').read_text()}") from error
    return len(folders)


@pytest.mark.parametrize("way", ["rename", "link"])
def test_all_owners_killed_at_every_event_of_a_first_save(tmp_path: Path, way: str) -> None:
    """The claim and run.json are among them."""
    assert at_once(tmp_path, None, f"--way={way}") >= 50


def test_all_owners_killed_at_every_event_of_a_later_save(tmp_path: Path, stores: dict[int, Path]) -> None:
    assert at_once(tmp_path, stores[3]) >= 45


@pytest.mark.long
@pytest.mark.parametrize("way", ["rename", "link"])
@pytest.mark.parametrize("first", [True, False])
def test_all_owners_killed_before_and_after_every_operation(
    tmp_path: Path, stores: dict[int, Path], first: bool, way: str
) -> None:
    assert at_once(tmp_path, None if first else stores[3], f"--way={way}", "--operations") > 200
