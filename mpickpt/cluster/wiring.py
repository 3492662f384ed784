"""From the caller's communicator to roles and lines: an MPI communicator, threads of one process, or nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mpickpt.cluster.topology import place
from mpickpt.cluster.transport import LocalTransport, MpiTransport, Transport
from mpickpt.errors import StateError

if TYPE_CHECKING:
    from mpi4py import MPI

#: What launchers tell each process of how many there are.
LAUNCHER_VARIABLES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Wiring:
    """One owner's wires: one for saves, one for everything else, so that neither disturbs the other."""

    role: int
    owners: int
    saves: Transport
    others: Transport

    @classmethod
    def of(cls, comm: Any, alone: bool) -> Wiring:
        """Wire an owner up. Collective over `comm`.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm, Wiring or None
            None makes one owner, without MPI.
        alone : bool
            Whether one owner is right even where a launcher says that there are several processes.

        Raises
        ------
        StateError
            If `comm` is no communicator, or None where a launcher has started several processes.
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
        return cls._mpi(comm)

    @classmethod
    def _mpi(cls, comm: MPI.Intracomm) -> Wiring:
        role, owners = comm.Get_rank(), comm.Get_size()
        neighbours = place(role, owners).neighbours
        return cls(role, owners, MpiTransport(comm, neighbours), MpiTransport(comm, neighbours))

    @classmethod
    def local(cls, owners: int) -> list[Wiring]:
        """Wire up owners that are threads of this process."""
        saves, others = LocalTransport.wires(owners), LocalTransport.wires(owners)
        return [cls(role, owners, saves[role], others[role]) for role in range(owners)]


def _check_alone(alone: bool) -> None:
    for name in LAUNCHER_VARIABLES:
        text = os.environ.get(name, "")
        if not alone and text.isdigit() and int(text) > 1:
            raise StateError(
                "comm=None makes every process believe that it is alone, and they would write one store as rivals",
                expected="one process, or comm=MPI.COMM_WORLD",
                found=f"{name}={text}: the launcher has started several",
                unharmed="the store: nothing was written",
                advice="pass the communicator, or alone=True if each process has a store of its own",
            )
