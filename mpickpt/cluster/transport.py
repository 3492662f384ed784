"""How bytes travel between neighbours: over MPI, or between threads of one process.

A transport delivers whole messages, in order on each edge, and never blocks. Waiting, numbering and deadlines are the
channel's business.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG: Final = 7
_HOST_BYTES: Final = 64
#: Tells the messages of one transport from those of a freed one.
_MARK_BYTES: Final = 8
#: In front of each part: whether more follow, and the receiver's mark.
_HEAD: Final = 1 + _MARK_BYTES
#: How a message begins: what of it follows, or that nothing follows on this edge any more.
_LAST: Final = b"\0"
_MORE: Final = b"\1"
_GOODBYE: Final = b"\2"
#: MPI counts are 32-bit in many libraries; a longer message travels in parts.
_PART: Final = 64 << 20
#: What a transport could not send before it was closed: the other owner is stopped, or gone.
_STUCK: Final[list[Any]] = []


class Transport(Protocol):
    """What the channel needs of a wire."""

    name: str
    #: The neighbours' hosts by role, so that a refusal can say where a silent one was.
    hosts: dict[int, str]

    def send(self, role: int, message: bytes) -> None:
        """Begin to send; the message is kept until it is gone. Sends to the dead vanish."""

    def poll(self) -> list[tuple[int, bytes]]:
        """Give all messages that have arrived since, each with its sender's role."""

    def dead(self) -> frozenset[int]:
        """Give the roles whose process is known to have died."""

    def close(self, patience: float) -> None:
        """Reap what was sent for at most `patience` seconds, then let go of the wire."""


class LocalTransport:
    """A wire between threads of one process: one queue a role. With one role, that of a single owner."""

    name = "none"

    def __init__(self, role: int) -> None:
        self._role = role
        self._queue: deque[tuple[int, bytes]] = deque()
        self._others: dict[int, deque[tuple[int, bytes]]] = {}
        self.hosts: dict[int, str] = {}

    @classmethod
    def wires(cls, neighbours: Sequence[Sequence[int]]) -> list[LocalTransport]:
        """Make the connected transports of all owners; `neighbours` has those of each role."""
        wires, host = [cls(role) for role in range(len(neighbours))], socket.gethostname()
        for wire, roles in zip(wires, neighbours, strict=True):
            wire._others = {role: wires[role]._queue for role in roles}
            wire.hosts = dict.fromkeys(roles, host)
        return wires

    def send(self, role: int, message: bytes) -> None:
        """Put the message into the other's queue."""
        self._others[role].append((self._role, message))

    def poll(self) -> list[tuple[int, bytes]]:
        """Empty the own queue."""
        arrived = []
        while self._queue:
            arrived.append(self._queue.popleft())
        return arrived

    def dead(self) -> frozenset[int]:
        """Threads of one process die together."""
        return frozenset()

    def close(self, patience: float) -> None:
        """Nothing is held."""


class MpiTransport:
    """A wire over a distributed-graph communicator with the topology's edges.

    Messages are received by matched probe and nothing is posted ahead; nothing is ever cancelled. Where MPI is built
    and started with fault tolerance (ULFM), a death is learnt from the probe and told by `dead`.
    """

    def __init__(self, comm: MPI.Intracomm, neighbours: Sequence[int]) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.name = MPI.Get_library_version().splitlines()[0][:80]
        self._graph = comm.Create_dist_graph_adjacent(list(neighbours), list(neighbours), reorder=False)
        self._graph.Set_errhandler(MPI.ERRORS_RETURN)
        self._mark = secrets.token_bytes(_MARK_BYTES)
        self.hosts, self._marks = self._introduce(neighbours)
        self._sending: list[tuple[MPI.Request, bytes]] = []
        self._partial: dict[int, list[bytes]] = {}
        self._left: set[int] = set()
        self._dead: frozenset[int] = frozenset()

    def _introduce(self, neighbours: Sequence[int]) -> tuple[dict[int, str], dict[int, bytes]]:
        """Exchange hosts and marks with the neighbours: the only collective, before anything is awaited.

        An MPI library gives the context of a freed communicator to a later one, and with it what was sent there and
        not yet received: a beat, an abort. So every message bears the mark of the transport that it is meant for.
        """
        if not neighbours:
            return {}, {}
        host = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
        mine, size = bytearray(self._mark + host), _MARK_BYTES + _HOST_BYTES
        theirs = bytearray(size * len(neighbours))
        self._graph.Neighbor_allgather([mine, self._mpi.BYTE], [theirs, size, self._mpi.BYTE])
        told = {role: bytes(theirs[at * size : (at + 1) * size]) for at, role in enumerate(neighbours)}
        hosts = {role: one[_MARK_BYTES:].rstrip(b"\0").decode(errors="replace") for role, one in told.items()}
        return hosts, {role: one[:_MARK_BYTES] for role, one in told.items()}

    def send(self, role: int, message: bytes) -> None:
        """Begin to send, a long message in parts."""
        for start in range(0, max(1, len(message)), _PART):
            last = start + _PART >= len(message)
            head = (_LAST if last else _MORE) + self._marks[role]
            self._post(role, b"".join((head, memoryview(message)[start : start + _PART])))  # one copy, not two

    def _post(self, role: int, part: bytes) -> None:
        if role in self._dead:
            return
        try:
            request = self._graph.Isend([part, self._mpi.BYTE], role, _TAG)
        except self._mpi.Exception as error:
            self._learn(error)
            return
        self._sending.append((request, part))

    def poll(self) -> list[tuple[int, bytes]]:
        """Receive all that has arrived, and reap what has been sent."""
        arrived: list[tuple[int, bytes]] = []
        if not self._marks:  # nobody sends; to ask MPI is to let the interpreter lock go
            return arrived
        status = self._mpi.Status()
        while True:
            try:
                matched = self._graph.Improbe(self._mpi.ANY_SOURCE, _TAG, status)
                if matched is None:
                    break
                buffer = bytearray(status.Get_count(self._mpi.BYTE))
                source = status.Get_source()
                matched.Recv([buffer, self._mpi.BYTE])
            except self._mpi.Exception as error:
                self._learn(error)
                continue
            if buffer[1:_HEAD] != self._mark:
                continue  # meant for a transport that was freed
            if buffer[:1] == _GOODBYE:
                self._left.add(source)
                continue
            self._partial.setdefault(source, []).append(bytes(memoryview(buffer)[_HEAD:]))
            if buffer[:1] == _LAST:
                arrived.append((source, b"".join(self._partial.pop(source))))
        self._reap()
        return arrived

    def _reap(self) -> None:
        self._sending = [(request, part) for request, part in self._sending if not self._gone(request)]

    def _gone(self, request: MPI.Request) -> bool:
        try:
            return bool(request.Test())
        except self._mpi.Exception as error:
            self._learn(error)
            return True

    def _learn(self, error: Any) -> None:
        """Take a process failure into account; anything else is a fault of the MPI library and is raised."""
        failed = {getattr(self._mpi, name, None) for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING")}
        if error.Get_error_class() not in failed - {None}:
            raise error
        group = self._graph.Get_failed()
        ours = self._graph.Get_group()
        self._dead = frozenset(group.Translate_ranks(list(range(group.Get_size())), ours))
        self._graph.Ack_failed(group.Get_size())
        group.Free()
        ours.Free()

    def dead(self) -> frozenset[int]:
        """Give the ranks of which MPI has reported the failure."""
        return self._dead

    def close(self, patience: float) -> None:
        """Take leave, then free the communicator, unless a message may still be on its way.

        To free one of which messages are unreceived is an error that shows late: the library gives its context to
        another communicator, and loses messages of that one. Nothing follows a neighbour's goodbye on its edge.
        """
        end = time.monotonic() + patience
        for role, mark in self._marks.items():
            self._post(role, _GOODBYE + mark)
        self.poll()
        while (self._sending or not self._left >= self._marks.keys()) and time.monotonic() < end:
            time.sleep(0.001)
            self.poll()
        if self._sending:
            _STUCK.append(self._sending)  # MPI may read the buffers until it is finalized
        elif self._left >= self._marks.keys() and not self._dead:
            self._graph.Free()
