"""What owners tell each other of the files that they checked: every file counted once, and few of them named."""

from __future__ import annotations

from pathlib import Path

import crashkit
import numpy as np
import pytest

import mpickpt
from mpickpt import canonical
from mpickpt.cluster.topology import Topology
from mpickpt.cluster.wiring import Wiring
from mpickpt.errors import IntegrityError
from mpickpt.store.report import Report, Verdict
from mpickpt.store.tally import MOST_NAMED, Tally


def bad(path: str) -> Verdict:
    return Verdict(path, False, IntegrityError("the file is not what its record names", path=path))


def tally(good: int, *damaged: str, elsewhere: tuple[str, ...] = ()) -> Tally:
    """Make the tally of one share; `elsewhere` are damaged files on the way that are in no share of its own."""
    found = Tally()
    for number in range(good):
        found.add(Verdict(f"good/{number}", True))
    for path in damaged:
        found.add(bad(path))
    for path in elsewhere:
        found.add(bad(path), counted=False)
    return found


def merged(*parts: Tally) -> Report:
    """Merge as owners do: each part travels."""
    whole = Tally()
    for part in parts:
        whole.merge(Tally.from_json(canonical.loads(canonical.dumps(part.to_json()), what="a tally")))
    return whole.report("full")


def test_files_that_are_well_are_only_counted() -> None:
    report = merged(tally(3), tally(4), tally(0))
    assert (report.ok, bool(report), report.good, report.damaged) == (True, True, 7, 0)
    assert (list(report), report.failed, report.level) == ([], (), "full")
    report.raise_for_damage()


def test_a_damaged_file_is_named_with_its_refusal() -> None:
    report = merged(tally(3), tally(4, "data/b"), tally(1, "data/a"))
    assert (report.ok, report.good, report.damaged) == (False, 8, 2)
    assert [verdict.path for verdict in report.failed] == ["data/a", "data/b"]
    with pytest.raises(IntegrityError) as caught:
        report.raise_for_damage()
    assert caught.value.path == "data/a"
    assert caught.value.message == "the file is not what its record names"


def test_a_manifest_that_many_had_to_read_is_one_damaged_file() -> None:
    report = merged(tally(2, "data/1.json"), *(tally(2, elsewhere=("data/1.json",)) for _ in range(50)))
    assert (report.good, report.damaged, len(report.failed)) == (102, 1, 1)


def test_what_only_another_than_its_checker_found_damaged_is_damaged() -> None:
    """A manifest that one owner reads well and another does not: it counts once."""
    report = merged(tally(3), tally(2, elsewhere=("data/1.json",)))
    assert (report.ok, report.good, report.damaged, len(report.failed)) == (False, 4, 1, 1)


def test_the_first_twenty_are_named_in_whatever_order_they_come_and_all_are_counted() -> None:
    paths = [f"data/{number:03}" for number in range(100)]
    parts = [tally(1, *paths[start::7], elsewhere=("data/000", "data/099")) for start in range(7)]
    for order in (parts, parts[::-1]):
        report = merged(*order)
        assert [verdict.path for verdict in report.failed] == paths[:MOST_NAMED]
        assert (report.good, report.damaged, report.unnamed_damaged) == (7, 100, 80)
        assert {key: report.to_json()[key] for key in ("ok", "good", "damaged")} == {
            "ok": False,
            "good": 7,
            "damaged": 100,
        }


def test_a_tally_of_many_is_not_larger_than_one_of_twenty() -> None:
    few, many = tally(9, *(f"{n:05}" for n in range(20))), tally(9, *(f"{n:05}" for n in range(5000)))
    sizes = [len(canonical.dumps(one.to_json())) for one in (few, many)]
    assert sizes[1] - sizes[0] == len("5000") - len("20")


@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("level", ["fast", "full"])
def test_all_owners_get_the_same_report_of_a_store_with_many_damaged_files(
    tmp_path: Path, topology: str, level: str
) -> None:
    owners = 30
    shape = Topology.of(topology, owners, 3)

    def save(wires: Wiring) -> None:
        with mpickpt.Checkpointer(tmp_path / "run", wires) as ckpt:
            ckpt.save({"own": mpickpt.PerOwner(wires.role), "all": np.arange(4.0)}, step=1)

    def verify(wires: Wiring) -> Report:
        with mpickpt.Checkpointer(tmp_path / "run", wires) as ckpt:
            return ckpt.verify(level=level)

    crashkit.local(owners, save, topology=shape)
    files = len(mpickpt.open_store(tmp_path / "run").verify().verdicts) - 3  # but run.json, the claim, how it ended
    assert {(one.ok, one.good, one.damaged) for one in crashkit.local(owners, verify, topology=shape)} == {
        (True, files, 0)
    }
    for role in range(4, owners):
        (shard,) = (tmp_path / "run" / "data").glob(f"*/00000/{role:06}.safetensors")
        shard.write_bytes(shard.read_bytes()[:-1])
    there = mpickpt.open_store(tmp_path / "run").verify(level=level)
    assert (there.damaged, there.good) == (owners - 4, files + 3 - (owners - 4))
    found = crashkit.local(owners, verify, topology=shape)
    assert {(one.ok, one.good, one.damaged, one.unnamed_damaged) for one in found} == {
        (False, files - (owners - 4), owners - 4, owners - 4 - MOST_NAMED)
    }
    expected = [(one.path, str(one.error)) for one in there.failed][:MOST_NAMED]
    assert all([(one.path, str(one.error)) for one in report.failed] == expected for report in found)
