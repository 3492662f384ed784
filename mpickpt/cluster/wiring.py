"""From the caller's communicator to roles and lines: an MPI communicator, threads of one process, or nothing."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mpickpt.cluster.topology import Place, Topology
from mpickpt.cluster.transport import LocalTransport, MpiTransport, Transport
from mpickpt.errors import DeadlineError, StateError

if TYPE_CHECKING:
    from mpi4py import MPI

#: What launchers tell each process of how many there are.
LAUNCHER_VARIABLES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Wiring:
    """One owner's wires: one for saves, one for everything else, so that neither disturbs the other."""

    place: Place
    topology: Topology
    saves: Transport
    others: Transport

    @property
    def role(self) -> int:
        """This owner's role."""
        return self.place.role

    @property
    def owners(self) -> int:
        """How many owners there are."""
        return self.place.owners

    @classmethod
    def of(cls, comm: Any, alone: bool, deadline: float = 60.0, kind: str = "auto", fan_out: int = 16) -> Wiring:
        """Wire an owner up. Collective over `comm`.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm, Wiring or None
            None makes one owner, without MPI.
        alone : bool
            Whether one owner is right even where a launcher says that there are several processes.
        deadline : float
            Seconds that are waited for the last owner.
        kind : {"star", "tree", "auto"}
        fan_out : int
            The most children of an owner in a tree.

        Raises
        ------
        StateError
            If `comm` is no communicator, or None where a launcher has started several processes.
        DeadlineError
            If not all owners come.
        """
        if isinstance(comm, Wiring):
            return comm
        if comm is None:
            _check_alone(alone)
            return cls.local(1)[0]
        if not (callable(getattr(comm, "Get_rank", None)) and hasattr(comm, "Create_dist_graph_adjacent")):
            raise StateError(
                "comm is no communicator of mpi4py", expected="mpi4py.MPI.Intracomm or None", found=repr(comm)[:100]
            )
        if _is_self(comm):
            _check_alone(alone)
        _meet(comm, deadline)
        return cls._mpi(comm, kind, fan_out)

    @classmethod
    def _mpi(cls, comm: MPI.Intracomm, kind: str, fan_out: int) -> Wiring:
        from mpi4py import MPI

        topology = Topology.of(kind, comm.Get_size(), fan_out, _owners_per_node(comm))
        place = topology.place(comm.Get_rank())
        # A graph made from a communicator that has a topology of its own crashes Open MPI 5.
        plain: Any = comm if comm.Get_topology() == MPI.UNDEFINED else comm.Split(0, comm.Get_rank())
        saves, others = MpiTransport(plain, place.neighbours), MpiTransport(plain, place.neighbours)
        if plain is not comm:
            plain.Free()
        return cls(place, topology, saves, others)

    @classmethod
    def local(cls, owners: int, topology: Topology | None = None) -> list[Wiring]:
        """Wire up owners that are threads of this process, as a star unless told otherwise."""
        shape = topology or Topology.of("star", owners, owners)
        places = [shape.place(role) for role in range(owners)]
        saves, others = (LocalTransport.wires([place.neighbours for place in places]) for _ in range(2))
        return [cls(place, shape, *wires) for place, *wires in zip(places, saves, others, strict=True)]


def _owners_per_node(comm: MPI.Intracomm) -> int | None:
    """Give how many owners each node has, where ranks fill one node after the other; None where they do not.

    Each owner knows its own node; whether all say the same takes two reductions, at construction.
    """
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    count, place = node.Get_size(), node.Get_rank()
    node.Free()
    most = np.array([count], np.int64)
    comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
    per_node, owners = int(most[0]), comm.Get_size()
    first = comm.Get_rank() - place
    # The last node may have fewer owners than the others.
    regular = np.array([comm.Get_rank() % per_node == place and count == min(per_node, owners - first)], np.int64)
    comm.Allreduce(MPI.IN_PLACE, regular, MPI.MIN)
    return per_node if regular[0] and 1 < per_node < owners else None


def _meet(comm: MPI.Intracomm, deadline: float) -> None:
    """Wait until all owners are here, for what follows is collective and waits without end."""
    request = comm.Ibarrier()
    end = time.monotonic() + deadline
    while not request.Test():
        if time.monotonic() > end:
            raise DeadlineError(
                "not all owners have come to make their Checkpointer",
                role=comm.Get_rank(),
                host=socket.gethostname(),
                expected=f"all {comm.Get_size()} within {deadline:g} s",
                found="at least one is missing: it has raised, is late, or does not call it",
                unharmed="the store: nothing was written",
                advice="see that every rank of the communicator makes its Checkpointer; end the job and start it again",
            )
        time.sleep(0.001)


def _is_self(comm: MPI.Intracomm) -> bool:
    from mpi4py import MPI

    return bool(MPI.Comm.Compare(comm, MPI.COMM_SELF) == MPI.IDENT)


def _check_alone(alone: bool) -> None:
    for name in LAUNCHER_VARIABLES:
        text = os.environ.get(name, "")
        if not alone and text.isdigit() and int(text) > 1:
            raise StateError(
                "every process would believe that it is alone, and they would write one store as rivals",
                expected="one process, or comm=MPI.COMM_WORLD; not None or MPI.COMM_SELF",
                found=f"{name}={text}: the launcher has started several",
                unharmed="the store: nothing was written",
                advice="pass the communicator, or alone=True if each process has a store of its own",
            )
