"""The libraries that peers.py compares: each saves a state and loads it again in the way that its own pages show.

A state is a list of arrays, each held by rows or whole by every rank. What a library does not do itself is done here
for it, so that all give the same promise: files and their directory are synced before a save counts as made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from mpi4py import MPI

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(slots=True)
class Held:
    """One array of a state, as one rank holds it.

    Attributes
    ----------
    name : str
    array : ndarray
        This rank's rows, or the whole array; float32.
    shape : tuple of int
        Of the whole array.
    start : int
        Where the rows begin in the whole array.
    whole : bool
        Whether every rank holds all of it.
    """

    name: str
    array: Array
    shape: tuple[int, ...]
    start: int
    whole: bool

    @property
    def rows(self) -> slice:
        """Which rows of the whole array these are."""
        return slice(self.start, self.start + len(self.array))


State: TypeAlias = Sequence[Held]


def sync(path: Path) -> None:
    """Sync a file, or all files below a directory, and the directories."""
    files = [path] if path.is_file() else [*path.rglob("*"), path]
    for each in [*files, path.parent]:
        fd = os.open(each, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Peer:
    """A library. Both calls are collective.

    Attributes
    ----------
    name : str
        In tables.
    packages : tuple of str
        Whose versions are told.
    levels : tuple of str
        The ways in which it loads: one row each.
    learns : bool
        Whether a later save of the same arrays is made with what an earlier one has found out.
    """

    name = ""
    packages: tuple[str, ...] = ()
    levels: tuple[str, ...] = ("",)
    learns = False

    def __init__(self, comm: MPI.Intracomm, folder: Path) -> None:
        self.comm = comm

    @classmethod
    def missing(cls) -> str | None:
        """Say what is not there that it needs."""
        for package in cls.packages:
            try:
                metadata.version(package)
            except metadata.PackageNotFoundError:
                return f"{package} is not installed"
        return None

    def begin(self, path: Path, state: State, what: str) -> None:
        """Prepare, untimed, what a training code has at hand anyway; `what`: save, save later, load."""

    def save(self, path: Path, state: State) -> None:
        """Write the state to `path`, durably."""
        raise NotImplementedError

    def load(self, path: Path, state: State, level: str) -> None:
        """Fill the arrays of `state` from `path`."""
        raise NotImplementedError

    def end(self) -> None:
        """Undo `begin`, untimed."""


class Mpickpt(Peer):
    """This library: digests on; every chunk verified by digest ("full") or by CRC ("fast")."""

    name = "mpickpt"
    packages = ("numpy", "mpi4py")
    levels = ("full", "fast")
    learns = True

    def begin(self, path: Path, state: State, what: str) -> None:
        """Open the store."""
        import mpickpt

        self.open = mpickpt.Checkpointer(path, self.comm)
        self.step = 1
        if what == "save":
            self.open.resume({"nothing": np.zeros(1)})  # an empty store: takes the first epoch
        elif what == "save later":
            self.open.resume(self._nest(state))
            self.open.save(self._nest(state), step=2)
            self.step = 3

    def _nest(self, state: State) -> dict[str, Any]:
        import mpickpt

        return {
            held.name: held.array
            if held.whole
            else mpickpt.Sharded(held.array, shape=held.shape, at=(held.start,) + (0,) * (len(held.shape) - 1))
            for held in state
        }

    def save(self, path: Path, state: State) -> None:
        """Save one generation."""
        self.open.save(self._nest(state), step=self.step)

    def load(self, path: Path, state: State, level: str) -> None:
        """Resume from the newest."""
        found = self.open.resume(self._nest(state), level="fast" if level == "fast" else "full")
        assert found.step in (1, 3)

    def end(self) -> None:
        """Close the store."""
        self.open.close()


class Distributed(Peer):
    """torch.distributed.checkpoint over gloo; shards as DTensor, whole arrays as plain tensors; it syncs its files."""

    name = "torch.distributed.checkpoint"
    packages = ("torch",)

    def __init__(self, comm: MPI.Intracomm, folder: Path) -> None:
        super().__init__(comm, folder)
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=comm.rank, world_size=comm.size)
        self.mesh = init_device_mesh("cpu", (comm.size,))

    def _tensors(self, state: State) -> dict[str, Any]:
        import torch
        from torch.distributed.tensor import DTensor, Shard

        found: dict[str, Any] = {}
        for held in state:
            tensor = torch.from_numpy(held.array)
            if not held.whole:
                tensor = DTensor.from_local(tensor, self.mesh, [Shard(0)], run_check=False)
            found[held.name] = tensor
        return found

    def save(self, path: Path, state: State) -> None:
        """Save; the default writer syncs each file."""
        import torch.distributed.checkpoint as dcp

        dcp.save(self._tensors(state), checkpoint_id=path)

    def load(self, path: Path, state: State, level: str) -> None:
        """Load in place."""
        import torch.distributed.checkpoint as dcp

        dcp.load(self._tensors(state), checkpoint_id=path)


class Hdf5(Peer):
    """Parallel HDF5 through h5py: one file, a dataset an array, each rank its own rows; checks nothing."""

    name = "parallel h5py"
    packages = ("h5py",)

    @classmethod
    def missing(cls) -> str | None:
        """Say so too where h5py was built without MPI."""
        found = super().missing()
        if found is None:
            import h5py

            found = None if h5py.get_config().mpi else "h5py is built without MPI"
        return found

    def save(self, path: Path, state: State) -> None:
        """Make all datasets together, then write independently: collective writing was slower on one machine."""
        import h5py

        with h5py.File(path, "w", driver="mpio", comm=self.comm, libver="latest") as file:
            made = [file.create_dataset(held.name, held.shape, "f4") for held in state]
            for number, (held, dataset) in enumerate(zip(state, made, strict=True)):
                if not held.whole:
                    dataset[held.rows] = held.array
                elif number % self.comm.size == self.comm.rank:
                    dataset[...] = held.array
        self.comm.Barrier()
        if self.comm.rank == 0:
            sync(path)
        self.comm.Barrier()

    def load(self, path: Path, state: State, level: str) -> None:
        """Read right into the arrays."""
        import h5py

        with h5py.File(path, "r", driver="mpio", comm=self.comm) as file:
            for held in state:
                file[held.name].read_direct(held.array, np.s_[...] if held.whole else np.s_[held.rows])


class _Gathered(Peer):
    """What one process writes, once it has everything."""

    def _gather(self, state: State) -> dict[str, Array]:
        """Bring all rows to rank 0; gives nothing elsewhere."""
        found: dict[str, Array] = {}
        for held in state:
            whole = held.array
            if not held.whole:
                whole = np.empty(held.shape if self.comm.rank == 0 else 0, np.float32)
                self.comm.Gather(held.array, whole)
            if self.comm.rank == 0:
                found[held.name] = whole
        return found

    def write(self, path: Path, arrays: dict[str, Array]) -> None:
        """Write a file."""
        raise NotImplementedError

    def save(self, path: Path, state: State) -> None:
        """Gather, write, sync."""
        arrays = self._gather(state)
        if self.comm.rank == 0:
            self.write(path, arrays)
            sync(path)
        self.comm.Barrier()


class Safetensors(_Gathered):
    """safetensors, written by rank 0; each rank maps the file and reads its own rows; checks nothing."""

    name = "safetensors, gathered"
    packages = ("safetensors",)

    def write(self, path: Path, arrays: dict[str, Array]) -> None:
        """Write a file."""
        from safetensors.numpy import save_file

        save_file(arrays, path)

    def load(self, path: Path, state: State, level: str) -> None:
        """Read rows where they are wanted."""
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            for held in state:
                held.array[...] = file.get_tensor(held.name) if held.whole else file.get_slice(held.name)[held.rows]


class Savez(_Gathered):
    """numpy.savez, written by rank 0, which reads it again and sends to each rank what is its; zip checks a CRC."""

    name = "np.savez, gathered"
    packages = ("numpy",)

    def write(self, path: Path, arrays: dict[str, Array]) -> None:
        """Write a file."""
        with open(path, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def load(self, path: Path, state: State, level: str) -> None:
        """Read and send."""
        for held, whole in zip(state, self._arrays(path, state), strict=True):
            if held.whole:
                if self.comm.rank == 0:
                    held.array[...] = whole
                self.comm.Bcast(held.array)
            else:
                self.comm.Scatter(whole, held.array)

    def _arrays(self, path: Path, state: State) -> Iterator[Array | None]:
        if self.comm.rank:
            yield from [None] * len(state)
            return
        with np.load(path) as file:
            for held in state:
                yield file[held.name]


PEERS: Final[tuple[type[Peer], ...]] = (Mpickpt, Distributed, Hdf5, Safetensors, Savez)
