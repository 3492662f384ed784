"""ext4, xfs and btrfs after a power cut: saves on a real file system whose device is logged, images mounted and judged.

See `powercut.images`. Owners are threads of this process. That the tests can fail is shown by leaving out the syncs of
files, or of directories.
"""

from __future__ import annotations

from pathlib import Path

import crashkit
import pytest
from powercut import mistakes, tally
from powercut.images import KINDS, LoggedDisk, absent
from powercut.judge import Judges, promises
from powercut.proof import STORE

import mpickpt
from mpickpt.cluster.wiring import Wiring
from mpickpt.store.commit import Way

OWNERS, KEEP = 3, 2
IMAGES = 110
"""So many of each file system in the short run."""


def available(kind: str) -> None:
    """Skip where something is absent, naming it."""
    if missing := absent(KINDS[kind]):
        pytest.skip(missing)


def images(folder: Path, judges: Judges, kind: str, way: str, count: int, mistake: str | None = None) -> list[str]:
    """Save three times on a logged disk, and judge images of it; give what was found wrong."""
    disk = LoggedDisk(KINDS[kind], folder)
    known: set[str] = set()
    with disk.recording() as place:

        def owner(wiring: Wiring) -> None:
            with mpickpt.Checkpointer(place / STORE, wiring, keep=KEEP) as ckpt:
                ckpt._directory._way = Way[way.upper()]
                ckpt.resume(crashkit.state(wiring.role, OWNERS, 0))
                for step in (1, 2, 3):
                    root = ckpt.save(crashkit.state(wiring.role, OWNERS, step), step=step, cursor=10 * step).root
                    known.add(root)
                    if wiring.role == 1:
                        disk.tell(step, root)

        with mistakes.planted(mistake, place / STORE, folder):
            crashkit.local(OWNERS, owner)
    wrong, waiting = [], []
    for cut, state, contents in disk.trees(disk.cuts(count)):
        waiting.append((cut, state, judges.judge(state, contents, STORE, OWNERS)))
    for cut, state, future in waiting:
        verdict = future.result()
        if broken := promises(verdict, state.told, KEEP, known):
            wrong.append(f"{kind}, {cut.sure} writes and {len(cut.more)} more: {broken}")
    tally.add("mounted images", len(waiting), 0 if mistake else len(wrong))
    assert len(waiting) >= min(count, 20)
    return wrong


@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_on_a_real_file_system(memory: Path, judges: Judges, kind: str) -> None:
    available(kind)
    assert images(memory / kind, judges, kind, "rename", IMAGES // 2) == []
    assert images(memory / f"{kind}-link", judges, kind, "link", IMAGES - IMAGES // 2) == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["rename", "link"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_power_cuts_on_a_real_file_system(memory: Path, judges: Judges, kind: str, way: str) -> None:
    available(kind)
    assert images(memory / f"{kind}-{way}-many", judges, kind, way, 2000) == []


@pytest.mark.parametrize("mistake", ["no_file_sync", "no_directory_sync"])
@pytest.mark.parametrize("kind", ["ext4", pytest.param("xfs", marks=pytest.mark.long)])
def test_a_planted_mistake_is_found_on_a_real_file_system(
    memory: Path, judges: Judges, kind: str, mistake: str
) -> None:
    available(kind)
    assert images(memory / f"{kind}-{mistake}", judges, kind, "rename", 30, mistake) != []
