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
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import crashkit
import mpilaunch
import pytest

from mpickpt.cluster.topology import Topology

PROGRAM = Path(__file__).with_name("killed_program.py")
ALL_AT_ONCE = Path(__file__).with_name("killed_at_once_program.py")
KEEP = 2
SIDE_BY_SIDE = 4
"""Jobs at a time; a part of each is to wait for the launcher."""
TREE_OWNERS = 7
TREE = {"topology": "tree", "fan_out": 2}
"""Owner 0 has children 1 and 4, and 1 has 2 and 3, which are leaves."""
Plan = dict[str, Any]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Stores with two generations, by owner count: what a run that is killed in its third save had before."""
    found = {}
    for owners in (1, 2, 3, 5, TREE_OWNERS):
        found[owners] = tmp_path_factory.mktemp("before") / str(owners)
        crashkit.publish(found[owners], owners, (1, 2))
    return found


def job(folder: Path, store: Path, owners: int, mpi: str, plan: Plan | None) -> mpilaunch.Result:
    env = {} if plan is None else {"CRASH": json.dumps(plan)}
    return mpilaunch.run(PROGRAM, owners, mpi, [str(store)], env, timeout=40.0, folder=folder)


def killed(folder: Path, before: Path, owners: int, mpi: str, plan: Plan, again: bool = False) -> int:
    """Run one job that is killed; check the store it leaves; give the step from which the next run went on."""
    store = folder / "run"
    shutil.copytree(before, store)
    result = job(folder, store, owners, mpi, plan)
    assert result.returncode != 0, f"nobody was killed: {plan} is not reached\n{result.output}"
    assert not any("last" in (report or {}) for report in result.reports), "the job came to its end"
    if not again:
        options = plan.get("options")
        shape = None if options is None else Topology.of(options["topology"], owners, options["fan_out"])
        return crashkit.check_crashed(store, folder, owners, (1, 2), KEEP, shape)
    there, said = crashkit.listed(store), crashkit.said(folder)
    assert said.keys() <= there.keys()
    second = job(folder, store, owners, mpi, None).ok()
    last = max(there)
    assert [(one["step"], one["root"], one["same"]) for one in second] == [(last, there[last], True)] * owners
    assert sorted(crashkit.listed(store)) == [last + 1, last + 2]
    return last


def several(tmp_path: Path, plans: dict[str, Plan], *args: Any, **more: Any) -> dict[str, int]:
    """Run jobs side by side; give for each from which step the next run went on."""
    found, failed = {}, {}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        futures = {name: pool.submit(killed, tmp_path / name, *args, plan, **more) for name, plan in plans.items()}
        for name, future in futures.items():
            error = future.exception()
            if error is None:
                found[name] = future.result()
            else:
                failed[name] = "".join(traceback.format_exception(error))
    assert not failed, "\n".join(f"--- {name}\n{text}" for name, text in failed.items())
    return found


def plans_of(points: Iterable[str], other: int, **more: Any) -> dict[str, Plan]:
    """Make the plans: owner 0, another, and all, where they come to a point."""
    found: dict[str, Plan] = {}
    for point in points:
        comes = crashkit.POINTS[point]
        found[f"{point}, all"] = {"at": point, "who": None, **more}
        if comes.root:
            found[f"{point}, owner 0"] = {"at": point, "who": 0, **more}
        if comes.other:
            found[f"{point}, another"] = {"at": point, "who": other, **more}
    return found


def allowed(plan: Plan) -> tuple[int, ...]:
    """Tell from which steps the next run may go on."""
    comes, who = crashkit.POINTS[plan["at"]], plan["who"]
    if comes.other is not None and (who is None or (who != 0 and comes.other == "after")):
        return 2, 3  # the others may get as far as to publish what this one has committed
    # Otherwise nothing is a matter of luck. Where only owner 0 comes, it is killed with all others too.
    return {"before": (2,), "after": (3,)}[comes.when(0 if comes.other is None else who) or "before"]


def test_every_failpoint_of_a_save_is_killed_at() -> None:
    assert crashkit.points_of_source() == {*crashkit.POINTS, crashkit.DOUBT}


@pytest.mark.parametrize("floor", ["save", "writer", "commit", "rotate"])
def test_owner_0_or_another_or_all_killed_at_every_failpoint(
    tmp_path: Path, stores: dict[int, Path], mpi: str, floor: str
) -> None:
    plans = plans_of((point for point in crashkit.POINTS if point.startswith(floor)), 1)
    steps = several(tmp_path, plans, stores[3], 3, mpi)
    assert {name: step for name, step in steps.items() if step not in allowed(plans[name])} == {}


@pytest.mark.parametrize("owners", [1, 2, 5])
def test_killed_at_other_owner_counts(tmp_path: Path, stores: dict[int, Path], mpi: str, owners: int) -> None:
    plans = plans_of(["writer.chunk", "save.committed", "commit.placed"], owners - 1)
    plans = {name: plan for name, plan in plans.items() if not name.endswith("all")}
    if owners == 1:
        plans = {name: plan for name, plan in plans.items() if plan["at"] != "save.committed"}
    steps = several(tmp_path, plans, stores[owners], owners, mpi)
    if owners > 1:
        assert {name: step for name, step in steps.items() if step not in allowed(plans[name])} == {}


@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
def test_killed_while_owner_0_writes_for_all(tmp_path: Path, stores: dict[int, Path], mpi: str) -> None:
    plans = plans_of(["writer.chunk", "save.committed", "commit.closed", "commit.placed"], 1, write="gather")
    for point in ("writer.chunk", "commit.closed"):
        del plans[f"{point}, another"]  # it writes nothing
    steps = several(tmp_path, plans, stores[3], 3, mpi)
    for name, step in steps.items():
        assert step in ((3,) if "placed" in name else (2, 3) if "committed" in name else (2,)), name


def test_killed_while_in_doubt(tmp_path: Path, stores: dict[int, Path], mpi: str) -> None:
    """Owner 0 is lost before it publishes, then who doubts is killed; or owner 0 itself, as it makes an abort final."""
    before, another = {"0": "save.compared"}, {"2": "writer.created"}
    plans: dict[str, Plan] = {
        "another": {"at": crashkit.DOUBT, "who": 1, "lost": before},
        "another and all with it": {"at": crashkit.DOUBT, "who": None, "lost": before},
        "owner 0": {"at": crashkit.DOUBT, "who": 0, "lost": another},
    }
    steps = several(tmp_path, plans, stores[3], 3, mpi)
    assert set(steps.values()) == {2}


def test_the_same_command_goes_on_after_all_are_killed(tmp_path: Path, stores: dict[int, Path], mpi: str) -> None:
    plans = plans_of(["writer.created", "commit.closed", "rotate.roots-removed"], 1)
    plans = {name: plan for name, plan in plans.items() if name.endswith("all")}
    several(tmp_path, plans, stores[3], 3, mpi, again=True)


#: Who is killed in a tree, where, and from which steps the next run may go on.
IN_TREES: dict[str, tuple[int, str, tuple[int, ...]]] = {
    "a leaf, after its commitment": (3, "save.committed", (2, 3)),
    "an inner owner, before its commitment": (1, "save.heard", (2,)),
    "an inner owner, before it passes the release on": (1, "save.released", (3,)),
    "the root, before it publishes": (0, "save.compared", (2,)),
    "the root, after its rename": (0, "commit.placed", (3,)),
    "the root, before the release": (0, "save.root-published", (3,)),
}
MPICH_IN_TREES = ("a leaf, after its commitment", "the root, before it publishes", "the root, after its rename")


def test_one_owner_of_a_tree_killed(tmp_path: Path, stores: dict[int, Path], mpi: str) -> None:
    """MPI ends the job; what the root's name says by then is what the next run, a tree too, goes on from."""
    names = IN_TREES if mpi == "openmpi" else MPICH_IN_TREES
    plans: dict[str, Plan] = {
        name: {"at": IN_TREES[name][1], "who": IN_TREES[name][0], "options": TREE} for name in names
    }
    steps = several(tmp_path, plans, stores[TREE_OWNERS], TREE_OWNERS, mpi)
    assert {name: step for name, step in steps.items() if step not in IN_TREES[name][2]} == {}


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
