"""Fixtures of the Slurm tests: one virtual cluster for all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import mpilaunch
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import training
import virtual


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[virtual.Cluster]:
    """A cluster of sixteen nodes with two processors each; skips, naming what is absent, where none can be made.

    So many, since all runs of test_training.py are on it at once, and each has nodes of its own, one of them killed.
    """
    try:
        virtual.check()
    except virtual.Unavailable as missing:
        pytest.skip(str(missing))
    with virtual.Cluster(tmp_path_factory.mktemp("slurm") / "cluster", nodes=16) as found:
        yield found


@pytest.fixture
def mpi(mpi: str, cluster: virtual.Cluster) -> str:
    """One of the MPIs that Slurm can start here; skips, naming what is absent."""
    if mpi == "openmpi" and "can not load PMIx library" in (cluster.folder / "log" / "first").read_text():
        pytest.skip("Slurm does not find libpmix.so (package libpmix-dev)")
    return mpi


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run of four owners that nothing was done to, without Slurm; both MPIs come to the same bits."""
    folder = tmp_path_factory.mktemp("whole")
    for mpi in mpilaunch.MPIS:
        try:
            mpilaunch.python_of(mpi)
        except mpilaunch.Unavailable:
            continue
        arguments = [str(folder / "store"), "--steps", "300", "--every", str(training.EVERY)]
        result = mpilaunch.run(training.EXAMPLE, training.OWNERS, mpi, arguments)
        assert result.returncode == 0, result.output
        return folder / "store"
    pytest.skip("no MPI")
