"""From the caller's communicator to roles and lines: an MPI communicator, threads of one process, or nothing."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mpickpt import canonical, launch
from mpickpt.cluster.grounds import grounds_of
from mpickpt.cluster.topology import KINDS, Place, Topology
from mpickpt.cluster.transport import LocalTransport, MpiTransport, Transport
from mpickpt.errors import CheckpointError, DeadlineError, DisagreementError, StateError, from_record

if TYPE_CHECKING:
    from mpi4py import MPI

_LONGEST: Final = 2048
#: What an owner says of itself when all meet: topology and fan-out that it asks for, its host, a refusal's record.
_WORD: Final = struct.Struct(f"<Bq64s{_LONGEST}s")
#: Seconds that one that makes no Checkpointer waits for the others, to tell them so.
_PATIENCE: Final = 10.0
#: A fan-out above this is as good as this.
_WIDEST: Final = 1 << 31
#: What was begun with owners that never came: MPI may write into the buffers until it is finalized.
_PENDING: Final[list[Any]] = []


@dataclass(frozen=True, slots=True)
class Wiring:
    """One owner's wires: one for saves, one for everything else, so that neither disturbs the other."""

    place: Place
    topology: Topology
    saves: Transport
    others: Transport
    background: bool = True
    """Whether MPI lets one thread save while another does the rest."""

    @property
    def role(self) -> int:
        """This owner's role."""
        return self.place.role

    @property
    def owners(self) -> int:
        """How many owners there are."""
        return self.place.owners

    @classmethod
    def of(
        cls,
        comm: Any,
        alone: bool,
        deadline: float = 60.0,
        kind: str = "auto",
        fan_out: int = 16,
        gathers: bool = False,
    ) -> Wiring:
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
        gathers : bool
            Whether owner 0 writes for all, which it can do for its children only: a tree is refused.

        Raises
        ------
        StateError
            If `comm` is no communicator, or of one process where a launcher has started several; if a tree would come
            of it and `gathers`.
        DisagreementError
            If owners ask for different topologies.
        DeadlineError
            If not all owners come.
        """
        if isinstance(comm, Wiring):
            _check_gather(comm.topology, gathers)
            return comm
        if comm is None:
            launch.check_alone(alone)
            return cls.local(1)[0]
        _check_communicator(comm)
        _check_alone(comm, alone)
        _check_gather(Topology.of(kind, comm.Get_size(), fan_out), gathers)
        _meet(comm, deadline, _Word(KINDS.index(kind), min(fan_out, _WIDEST)))
        return cls._mpi(comm, kind, fan_out)

    @staticmethod
    def refuse(comm: Any, error: CheckpointError) -> None:
        """Tell the others, who make their Checkpointer, that this owner makes none: its arguments were refused.

        Where all owners are refused alike, all come here. Nothing is raised: the caller raises its own refusal, which
        names this owner now.
        """
        with contextlib.suppress(CheckpointError):
            if comm is not None and not isinstance(comm, Wiring):
                _check_communicator(comm)
                error.complete("the store: nothing was written")
                if comm.Get_size() > 1:
                    error.at(comm.Get_rank())
                _meet(comm, _PATIENCE, _Word(len(KINDS), 0, refusal=error))

    @classmethod
    def _mpi(cls, comm: MPI.Intracomm, kind: str, fan_out: int) -> Wiring:
        from mpi4py import MPI

        topology = Topology.of(kind, comm.Get_size(), fan_out)
        if not topology.star:
            topology = Topology.of(kind, comm.Get_size(), fan_out, grounds_of(comm))
        place = topology.place(comm.Get_rank())
        # A graph made from a communicator that has a topology of its own crashes Open MPI 5.
        plain: Any = comm if comm.Get_topology() == MPI.UNDEFINED else comm.Split(0, comm.Get_rank())
        saves, others = MpiTransport(plain, place.neighbours), MpiTransport(plain, place.neighbours)
        if plain is not comm:
            plain.Free()
        return cls(place, topology, saves, others, MPI.Query_thread() == MPI.THREAD_MULTIPLE)

    @classmethod
    def local(cls, owners: int, topology: Topology | None = None) -> list[Wiring]:
        """Wire up owners that are threads of this process, as a star unless told otherwise."""
        shape = topology or Topology.of("star", owners, owners)
        places = [shape.place(role) for role in range(owners)]
        saves, others = (LocalTransport.wires([place.neighbours for place in places]) for _ in range(2))
        return [cls(place, shape, one, other) for place, one, other in zip(places, saves, others, strict=True)]


@dataclass(frozen=True, slots=True)
class _Word:
    """What an owner says of itself when all meet; a refusal where it asks for nothing."""

    kind: int
    fan_out: int
    host: str = ""
    refusal: CheckpointError | None = None

    def pack(self) -> bytearray:
        """Give its bytes. Of a refusal that is too long only the beginning of its message stays."""
        record = {} if self.refusal is None else self.refusal.to_record()
        text = canonical.dumps(record)
        if len(text) > _LONGEST:
            text = canonical.dumps({"class": record["class"], "message": record["message"][: _LONGEST // 8]})
        return bytearray(_WORD.pack(self.kind, self.fan_out, socket.gethostname().encode(), text))

    @classmethod
    def unpack(cls, data: bytearray) -> _Word:
        """Read it back."""
        kind, fan_out, host, text = _WORD.unpack(data)
        record = canonical.loads(text.rstrip(b"\0"), what="what another owner says of itself")
        return cls(kind, fan_out, host.rstrip(b"\0").decode(errors="replace"), from_record(record) if record else None)

    def asks(self) -> tuple[int, int]:
        """Give what must be the same for all."""
        return self.kind, self.fan_out


def _meet(comm: MPI.Intracomm, deadline: float, mine: _Word) -> None:
    """Wait until all owners are here and see that they ask for one topology: what follows waits without end.

    Nobody hears all others: owner 0 says what it asks for, the lowest role that asks for something else is found by a
    reduction, and then that one says what it asks for.
    """
    from mpi4py import MPI

    rank, owners, end = comm.Get_rank(), comm.Get_size(), time.monotonic() + deadline

    def said_by(role: int) -> _Word:
        word = mine.pack()
        _finish(comm.Ibcast([word, MPI.BYTE], role), comm, end, deadline, word)
        return _Word.unpack(word)

    first = said_by(0)
    if first.refusal is not None:
        raise first.refusal
    odd = np.array([owners if first.asks() == mine.asks() else rank], np.int64)
    _finish(comm.Iallreduce(MPI.IN_PLACE, odd, MPI.MIN), comm, end, deadline, odd)
    role = int(odd[0])
    if role == owners:
        return
    other = said_by(role)
    if other.refusal is not None:
        raise other.refusal
    name, ours, theirs = "fan_out", str(first.fan_out), str(other.fan_out)
    if other.kind != first.kind:
        name, ours, theirs = "topology", repr(KINDS[first.kind]), repr(KINDS[other.kind])
    raise DisagreementError(
        f"owners made their Checkpointer with different arguments: {name} {ours} at owner 0, {theirs} at owner {role}",
        role=role,
        host=other.host,
        roles=[0, role],
        expected=f"{name}={ours}, as at owner 0",
        found=f"{name}={theirs}",
        unharmed="the store: nothing was written",
        advice="make every owner call with the same arguments",
    )


def _finish(request: MPI.Request, comm: MPI.Intracomm, end: float, deadline: float, buffer: Any) -> None:
    """Wait for a collective that all must come to."""
    while not request.Test():
        if time.monotonic() > end:
            _PENDING.append((request, buffer))
            raise DeadlineError(
                "not all owners have come to make their Checkpointer",
                expected=f"all {comm.Get_size()} within {deadline:g} s",
                found="at least one is missing: it has raised, is late, or does not call it",
                unharmed="the store: nothing was written",
                advice="see that every rank of the communicator makes its Checkpointer; end the job and start it again",
            )
        time.sleep(0.001)


def _check_communicator(comm: Any) -> None:
    problem = None
    if not (callable(getattr(comm, "Get_rank", None)) and hasattr(comm, "Create_dist_graph_adjacent")):
        problem = "comm is no communicator of mpi4py"
    else:
        try:
            comm.Get_size()
        except Exception as error:  # whatever this MPI says of one that was freed
            problem = f"comm is a communicator that cannot be used: {error}"
    if problem is not None:
        raise StateError(problem, expected="mpi4py.MPI.Intracomm or None", found=repr(comm)[:100])


def _check_gather(topology: Topology, gathers: bool) -> None:
    if gathers and not topology.star:
        raise StateError(
            'write="gather" is only for a star: owner 0 writes what its children send it',
            expected='topology="star"',
            found=f"a tree of {topology.owners} owners with fan_out={topology.fan_out}",
            unharmed="the store: nothing was written",
            advice='give topology="star" to all owners, or write="each"',
        )


def _check_alone(comm: MPI.Intracomm, alone: bool) -> None:
    """Refuse one process where a launcher has started several, but for a communicator split off a larger world."""
    from mpi4py import MPI

    if MPI.Comm.Compare(comm, MPI.COMM_SELF) == MPI.IDENT and MPI.COMM_WORLD.Get_size() > 1:
        launch.check_alone(alone)
    elif MPI.COMM_WORLD.Get_size() == comm.Get_size() == 1:
        name, version = MPI.get_vendor()
        launch.check_alone(alone, f"{name} {'.'.join(map(str, version))}")
