"""A save and a restore cost an owner the same, however many owners there are; nothing that it holds or sends grows.

The driver runs the library's own publish and restore for thousands of owners in one process (docs/scale.md). What an
owner sends, writes and reads is asserted to be exactly what its place in the tree prescribes. What depends on the
owner count at all are the digits of numbers (in manifests, messages), and the height of the tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver
import plot
from driver import Measured, measure
from held import held_by
from world import COUNTED, Deadlock, Owner, World, world_of

import mpickpt
from mpickpt.cluster.topology import Place, Topology
from mpickpt.format.names import FOLDER
from mpickpt.store.report import Report
from mpickpt.store.tally import MOST_NAMED

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
OWNERS = (3, 64, 1000, 2000)
FAN_OUT = 16
#: Longer numbers take more digits, and an owner notes which folders (at most 17) it syncs: nearly equal.
_NEARLY = 1.02
_LARGE = 200_000
_LARGE_GIB = 26


def _in_memory() -> Path:
    """Choose a place for stores of thousands of files, in memory where that is to be had."""
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


@pytest.fixture(scope="module")
def runs() -> dict[int, Measured]:
    """Drive each owner count once."""
    found = {}
    for owners in OWNERS:
        path = Path(tempfile.mkdtemp(prefix="mpickpt-scale-", dir=_in_memory()))
        try:
            found[owners] = measure(owners, FAN_OUT, path)
        finally:
            shutil.rmtree(path)
    return found


def _counted(run: Measured, call: str, what: str) -> np.ndarray[Any, Any]:
    return run.counts[call][:, COUNTED.index(what)]


def _places(run: Measured) -> list[Place]:
    return [run.topology.place(role) for role in range(run.topology.owners)]


def _shared(topology: Topology) -> list[int]:
    """Give the roles that write a `.r` shard: those of the three regions that all hold, by their ordinals."""
    writers = topology.writers
    return sorted({writers[ordinal % len(writers)] for ordinal in (0, 2, 4)})


@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize(("call", "words"), [("save", 2), ("first save", 3), ("restore", 5)])
def test_an_owner_says_a_few_words_to_each_neighbour_and_no_more(
    runs: dict[int, Measured], owners: int, call: str, words: int
) -> None:
    run = runs[owners]
    sent = _counted(run, call, "messages")
    expected = [words * len(place.neighbours) for place in _places(run)]
    np.testing.assert_array_equal(sent, expected)
    if call == "save":  # its declarations did not change
        assert sent.max() <= 3 * (FAN_OUT + 1)


@pytest.mark.parametrize("owners", OWNERS)
def test_all_commitments_have_one_size_at_every_owner_count(runs: dict[int, Measured], owners: int) -> None:
    for call in ("first save", "save"):
        table = runs[owners].table[call]
        sizes = table["shortest message"]["COMMIT"], table["longest message"]["COMMIT"]
        assert sizes == (runs[3].table["save"]["longest message"]["COMMIT"],) * 2


def test_no_message_grows_but_by_digits(runs: dict[int, Measured]) -> None:
    for call in ("first save", "save", "restore"):
        small, large = (runs[owners].table[call]["longest message"] for owners in (1000, 2000))
        assert small.keys() == large.keys()
        assert {kind: large[kind] - small[kind] for kind in large if not 0 <= large[kind] - small[kind] <= 8} == {}


def test_no_manifest_grows_but_by_digits(runs: dict[int, Measured]) -> None:
    """Manifests are text: with each number as one digit, the largest are equal byte for byte in length."""
    aside = "bytes, numbers aside"
    small, large = (runs[owners].table["manifests"] for owners in (1000, 2000))
    assert {kind: one[aside] for kind, one in small.items()} == {kind: one[aside] for kind, one in large.items()}
    assert runs[64].table["manifests"]["root"][aside] == large["root"][aside]  # the root has 16 children here too


@pytest.mark.parametrize("call", ["first save", "save", "restore"])
def test_the_memory_of_the_largest_owner_does_not_grow(runs: dict[int, Measured], call: str) -> None:
    peaks = {
        owners: max(peak["bytes"] for peak in runs[owners].table[call]["memory"].values()) for owners in (1000, 2000)
    }
    assert peaks[2000] <= _NEARLY * peaks[1000], peaks


@pytest.mark.parametrize("call", ["first save", "save", "restore"])
def test_the_memory_of_a_leaf_does_not_grow(runs: dict[int, Measured], call: str) -> None:
    def leaf(owners: int) -> int:
        return int(runs[owners].table[call]["memory"][str(owners - 1)]["bytes"])

    assert leaf(2000) <= _NEARLY * leaf(64)


@pytest.mark.parametrize("owners", OWNERS)
def test_an_owner_reads_the_manifests_of_its_path_and_its_own_shard(runs: dict[int, Measured], owners: int) -> None:
    run = runs[owners]
    read = _counted(run, "restore", "manifests read")
    np.testing.assert_array_equal(read[1:], [place.height + 1 for place in _places(run)[1:]])
    assert read[0] <= 4  # two roots are there, of which owner 0 chooses one: of each it looks whether it is a void
    np.testing.assert_array_equal(_counted(run, "restore", "shards read"), np.ones(owners))
    # What all hold alike is read by owner 0 and passed on.
    shared = _counted(run, "restore", "shared shards read")
    np.testing.assert_array_equal(shared, [len(_shared(run.topology))] + [0] * (owners - 1))


@pytest.mark.parametrize("owners", OWNERS)
def test_an_owner_makes_a_shard_and_a_manifest_and_syncs_each_once(runs: dict[int, Measured], owners: int) -> None:
    run = runs[owners]
    made, synced = (_counted(run, "save", what)[1:] for what in ("files created", "syncs of files"))
    np.testing.assert_array_equal(made, [3 if role in _shared(run.topology) else 2 for role in range(1, owners)])
    np.testing.assert_array_equal(synced, made)


@pytest.mark.parametrize("owners", OWNERS)
def test_a_directory_is_synced_once(runs: dict[int, Measured], owners: int) -> None:
    """Each folder of files, the attempt's directory, ``data/`` and ``roots/``."""
    assert _counted(runs[owners], "save", "syncs of directories").sum() == -(-owners // FOLDER) + 3


@pytest.mark.parametrize("owners", OWNERS)
def test_a_save_asks_the_file_system_for_little_more_than_its_files(runs: dict[int, Measured], owners: int) -> None:
    space = _counted(runs[owners], "save", "namespace operations")
    folders = -(-owners // FOLDER)
    assert space.sum() <= 2 * owners + 8 * folders + 40
    # Who finds its folder missing makes it: a failed open, a look at the attempt's directory, mkdir, the open again.
    assert owners == 3 or np.median(space) == 2


@pytest.mark.parametrize("owners", OWNERS)
def test_what_has_to_happen_in_a_row_grows_with_the_height_alone(runs: dict[int, Measured], owners: int) -> None:
    table = runs[owners].table
    height = table["height"]
    assert table["save"]["in a row"]["messages"] == 4 * height
    assert table["first save"]["in a row"]["messages"] == 6 * height
    assert table["restore"]["in a row"]["messages"] == 8 * height
    # data/, own shard, a manifest each level below the root, the attempt's directory, the root and roots/; where the
    # tree is a star, a leaf has a `.r` shard as well, which in a higher one is written while its children write.
    assert table["save"]["in a row"]["syncs"] == height + 5 + (height == 1)


@pytest.mark.parametrize("owners", [64, 1000, 2000])
def test_the_counts_that_seconds_are_derived_from_are_those_counted(runs: dict[int, Measured], owners: int) -> None:
    save, restore = (runs[owners].table[call]["total"] for call in ("save", "restore"))
    chosen = _counted(runs[owners], "restore", "manifests read")[0] - 1  # what owner 0 looks at, to choose
    read = sum(restore[what] for what in ("manifests read", "shards read", "shared shards read")) - chosen
    assert (save["files created"], save["syncs of files"], read) == plot.totals(owners, FAN_OUT)


def _verified(path: Path, owners: int, fan_out: int, break_it: Callable[[], None]) -> tuple[World, list[Report]]:
    """Save with so many owners, damage what was saved, and let all verify it; gives the world as it then is."""
    reports: list[Report] = []

    def save(owner: Owner) -> None:
        assert owner.wires is not None
        owner.things = mpickpt.Checkpointer(path / "run", owner.wires)
        owner.things.save(driver.state(owner, 1), step=1)

    def verify(owner: Owner) -> None:
        reports.append(owner.things.verify())

    with world_of(Topology.of("tree", owners, fan_out)) as world:
        world.wire()
        world.run(save)
        break_it()
        world.run(verify)
    return world, reports


def test_an_owner_verifies_its_own_shard_and_the_manifests_of_its_path(tmp_path: Path) -> None:
    world, reports = _verified(tmp_path, 64, 3, lambda: None)
    assert all(report.ok for report in reports)
    assert {report.good for report in reports} == {2 * 64 + len(_shared(world.topology))}
    counts = np.array([owner.counts for owner in world.owners])[1:]
    places = [world.topology.place(role) for role in range(1, 64)]
    read = counts[:, COUNTED.index("manifests read")]
    np.testing.assert_array_equal(read, [place.height + 1 for place in places])
    np.testing.assert_array_equal(counts[:, COUNTED.index("shards read")], np.ones(63))
    assert counts[:, COUNTED.index("shared shards read")].max() <= 1


@pytest.mark.parametrize("damaged", [False, True])
def test_what_owners_tell_each_other_of_a_check_does_not_grow(damaged: bool) -> None:
    """Nor does the number of their messages: all files well, or each shard and a manifest near the root damaged."""
    longest, sent = [], []
    for owners in (64, 1000):
        with tempfile.TemporaryDirectory(dir=_in_memory()) as folder:

            def harm(run: Path = Path(folder) / "run") -> None:
                if damaged:
                    for shard in run.glob("data/*/*/*.safetensors"):
                        os.truncate(shard, 10)
                    os.truncate(next(run.glob("data/*/00000/000001.json")), 10)

            world, reports = _verified(Path(folder), owners, FAN_OUT, harm)
        files = 2 * owners + len(_shared(world.topology))
        unknown = 2 * world.topology.place(1).size - 1  # the shard of owner 1, and all files of those below it
        well = 1 + owners - 1 - world.topology.place(1).size  # the root, and the other manifests
        found = {(report.good, report.damaged, len(report.failed)) for report in reports}
        assert found == {(well, files - unknown - well, MOST_NAMED) if damaged else (files, 0, 0)}
        assert len({json.dumps(report.to_json(), sort_keys=True) for report in reports}) == 1
        longest.append(dict(world.longest))
        sent.append(max(owner.counts[COUNTED.index("messages")] for owner in world.owners))
    assert sent[0] <= sent[1] <= 2 * (FAN_OUT + 1)
    # Digits of counts and roles; at 64 owners no child has twenty damaged files below it, but the result has.
    before = longest[0] | {"OUTCOME": longest[0]["RESULT"]}
    assert {
        kind: (before[kind], size) for kind, size in longest[1].items() if size > before[kind] + 2 * MOST_NAMED
    } == {}


def test_an_owner_that_does_not_come_is_a_deadlock_and_not_a_hang(tmp_path: Path) -> None:
    def save(owner: Owner) -> None:
        assert owner.wires is not None
        if owner.role != 5:
            mpickpt.Checkpointer(tmp_path / "run", owner.wires).save(driver.state(owner, 1), step=1)

    with world_of(Topology.of("tree", 20, 3)) as world:
        world.wire()
        with pytest.raises(Deadlock, match="wait for ever"):
            world.run(save)


def test_an_object_of_all_owners_would_be_seen() -> None:
    """The measure itself: what hangs from a Checkpointer, or from a frame, counts; other owners do not."""
    found = []

    def hold(owner: Owner, count: int) -> None:
        rows = list(range(1000, 1000 + count))
        found.append(held_by(owner))
        assert len(rows) == count

    with world_of(Topology.of("tree", 40, 3)) as world:
        world.wire()
        for count in (0, 4000):
            world.run(lambda owner, count=count: hold(owner, count) if owner.role == 7 else None)
            world.owners[7].things = {"roles": list(range(1000, 1000 + count))}
            world.run(lambda owner: hold(owner, 0) if owner.role == 7 else None)
    assert min(found[2] - found[0], found[3] - found[1]) > 4000 * 36
    assert found[0] < 4000


def test_the_page_says_what_was_measured() -> None:
    runs, costs = (json.loads((DOCS / name).read_text()) for name in ("scale.json", "scale-costs.json"))
    page = (DOCS / "scale.md").read_text()
    for table in plot.tables(runs, costs):
        assert table in page


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_hundred_thousand_owners_cost_an_owner_what_a_thousand_do(tmp_path: Path) -> None:
    free = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvail" in line)
    if free < _LARGE_GIB << 20:
        pytest.skip(f"absent: {_LARGE_GIB} GiB of free memory, for {_LARGE:,} owners in one process")
    command = [sys.executable, str(HERE / "driver.py"), "--owners", "1000", str(_LARGE), "--fan-out", str(FAN_OUT)]
    command += ["--json", str(tmp_path / "json"), "--store", str(_in_memory())]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=7000)
    small, large = json.loads((tmp_path / "json").read_text())
    assert large["owners"] == _LARGE
    for kind in ("root", "group"):
        assert large["manifests"][kind]["bytes, numbers aside"] == small["manifests"][kind]["bytes, numbers aside"]
    for call in ("first save", "save", "restore"):
        assert large[call]["largest"]["messages"] == small[call]["largest"]["messages"]
        peaks = [max(peak["bytes"] for peak in run[call]["memory"].values()) for run in (small, large)]
        assert peaks[1] <= _NEARLY * peaks[0], peaks
    for size in ("shortest message", "longest message"):
        assert large["save"][size]["COMMIT"] == small["save"][size]["COMMIT"]
    assert large["restore"]["largest, owner 0 aside"]["manifests read"] == large["height"] + 1
    assert large["restore"]["largest, owner 0 aside"]["shards read"] == 1
