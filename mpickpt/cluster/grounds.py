"""Where nodes, and switches, begin among the roles: all owners find it out together, at construction.

Each knows its own node, and the switches above it where Slurm tells them; whether a node or a switch begins at a role,
that role learns from the one before. What comes of it is the same at all owners, and is small: groups that are
equally large, one after the other, take one entry together. Nobody hears all others.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mpickpt import launch
from mpickpt.cluster.topology import Starts

if TYPE_CHECKING:
    from mpi4py import MPI

#: So many stretches of equally large groups are told at most; where there are more, subtrees do not follow them.
MOST: Final = 1024
_SHIFT: Final = 31  # roles and counts of MPI are below 2^31


def grounds_of(comm: MPI.Intracomm) -> tuple[Starts, ...]:
    """Find out where switches, the widest first, and at last nodes begin. Collective; waits for all.

    Where owners know of different numbers of switches above them, only nodes count.
    """
    from mpi4py import MPI

    rank, owners = comm.Get_rank(), comm.Get_size()
    switches = launch.switches()
    most = np.array([len(switches), -len(switches)], np.int64)
    comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
    levels = int(most[0]) if most[0] == -most[1] else 0
    mine = np.array([*map(_number, switches[:levels]), _node(comm)], np.int64)
    before = np.empty_like(mine)
    after = rank + 1 if rank + 1 < owners else MPI.PROC_NULL
    comm.Sendrecv(mine, after, recvbuf=before, source=rank - 1 if rank else MPI.PROC_NULL)
    differs = np.logical_or.accumulate(mine != before) if rank else np.ones(len(mine), bool)
    found = [_stretches(comm, bool(begins)) for begins in differs]
    *wide, nodes = found
    wide = [starts for starts in wide if starts]
    return (*wide, nodes or ((0, 1),)) if wide or nodes else ()


def _number(switch: str) -> int:
    return int.from_bytes(hashlib.sha256(switch.encode(errors="surrogateescape")).digest()[:7], "big")


def _node(comm: MPI.Intracomm) -> int:
    """Give the lowest role on this owner's node."""
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    first = np.array([comm.Get_rank()], np.int64)
    node.Bcast(first, 0)
    node.Free()
    return int(first[0])


def _stretches(comm: MPI.Intracomm, begins: bool) -> Starts:
    """Give where groups begin, from whether one does at each role; none where that takes more than `MOST` entries.

    A role at which a group begins knows from two reductions over the lower roles how large the group before it is, and
    the one before that. Where these differ, a stretch began with the former. The last role sees to the last group.
    """
    from mpi4py import MPI

    rank, owners = comm.Get_rank(), comm.Get_size()
    begin = _over_lower(comm, MPI.MAX, rank if begins else -1)  # of the group that ends here, or that rank is in
    size = rank - begin if begins and rank else 0
    code = _over_lower(comm, MPI.MAX, rank << _SHIFT | size if size else -1)
    earlier = code & ((1 << _SHIFT) - 1) if code >= 0 else 0  # how large the group is that ended at `begin`
    found = [(begin, size)] if size and size != earlier else []
    if rank == owners - 1:
        last, known = (rank, size) if begins else (begin, earlier)
        if owners - last > known:  # a smaller one may end the stretch before it
            found.append((last, owners - last))
    at = _over_lower(comm, MPI.SUM, len(found), 0)
    total = np.array([len(found)], np.int64)
    comm.Allreduce(MPI.IN_PLACE, total, MPI.SUM)
    if total[0] > MOST:
        return ()
    table = np.zeros((int(total[0]), 2), np.int64)
    table[at : at + len(found)] = np.array(found, np.int64).reshape(-1, 2)
    comm.Allreduce(MPI.IN_PLACE, table, MPI.SUM)
    return tuple((int(first), int(step)) for first, step in table)


def _over_lower(comm: MPI.Intracomm, operation: Any, value: int, none: int = -1) -> int:
    """Reduce over the roles below; `none` where there are none."""
    result = np.array([none], np.int64)
    comm.Exscan(np.array([value], np.int64), result, operation)
    return int(result[0]) if comm.Get_rank() else none
