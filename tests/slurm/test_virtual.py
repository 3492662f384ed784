"""The virtual cluster itself: nodes are apart, can be killed and come back, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import virtual


def processes(folder: Path) -> list[str]:
    """List the processes that have to do with a cluster: its configuration is in their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in text:
                found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes()!r}")
    return found


@pytest.fixture(autouse=True)
def _available() -> None:
    try:
        virtual.check()
    except virtual.Unavailable as missing:
        pytest.skip(str(missing))


def test_nodes_are_apart_and_a_killed_one_comes_back(tmp_path: Path) -> None:
    with virtual.Cluster(tmp_path / "cluster", nodes=3) as cluster:
        names = cluster.run("srun", "-N3", "sh", "-c", f"hostname > {cluster.local}/name; cat {cluster.local}/name")
        assert sorted(names.split()) == ["n1", "n2", "n3"]
        job = cluster.submit("--requeue", "-N2", "--wrap", "srun sleep 1000", cwd=tmp_path)
        cluster.until_state(job, "RUNNING")
        node = cluster.job(job)["BatchHost"]
        cluster.kill(node)
        cluster.until(lambda: cluster.job(job)["Restarts"] == "1", 30, "the job is requeued")
        assert node not in cluster.up()
        cluster.start(node)
        cluster.until(lambda: len(cluster.up()) == 3, 30, "all nodes are up again")
    assert not processes(tmp_path)


def test_nothing_stays_when_the_process_that_wanted_it_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import virtual, pathlib, time\n"
        "cluster = virtual.Cluster(pathlib.Path(sys.argv[2]), nodes=2)\n"
        "cluster.submit('-N2', '--wrap', 'srun sleep 1000', cwd=sys.argv[2])\n"
        "print('up', flush=True); time.sleep(1000)\n"
    )
    arguments = [sys.executable, "-c", program, str(Path(virtual.__file__).parent), str(tmp_path / "cluster")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert processes(tmp_path)
        owner.send_signal(signal.SIGKILL)
    end = time.monotonic() + 10
    while left := processes(tmp_path):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_cluster_that_does_not_come_up_says_why_and_stays_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "_CONFIGURATION", virtual._CONFIGURATION + "NoSuchOption=1\n")
    with pytest.raises(virtual.Late, match="NoSuchOption"):
        virtual.Cluster(tmp_path / "cluster", nodes=1, wait=3)
    assert not processes(tmp_path)
