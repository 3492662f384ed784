"""The public face: `Checkpointer`.

A Checkpointer ties one owner's wires, the run's directory and the caller's policies together; what happens in a call
is in `mpickpt.cluster`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import weakref
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal

from mpickpt import digest as digests
from mpickpt.background import Saving
from mpickpt.calls import collective
from mpickpt.cluster.channel import Line
from mpickpt.cluster.due import Rounds
from mpickpt.cluster.garbage import fewer_collections
from mpickpt.cluster.lineage import Lineage
from mpickpt.cluster.publish import Publisher
from mpickpt.cluster.request import Request
from mpickpt.cluster.restore import resume
from mpickpt.cluster.saves import Options
from mpickpt.cluster.schedule import When, seconds_of
from mpickpt.cluster.survey import Survey
from mpickpt.cluster.told import Told
from mpickpt.cluster.topology import KINDS
from mpickpt.cluster.wiring import Wiring
from mpickpt.continuation import Continuation, Save
from mpickpt.errors import CheckpointError, StateError
from mpickpt.filling import Filling
from mpickpt.format.layout import CHUNK
from mpickpt.looking import Looking
from mpickpt.reporting import Reporter
from mpickpt.state import arguments, nest
from mpickpt.state import device as devices
from mpickpt.state.contract import Contract
from mpickpt.state.policy import policy_of, refusing
from mpickpt.stepping import Stepping
from mpickpt.store.directory import Directory
from mpickpt.store.threads import STAGING, Pool, finished

_log = logging.getLogger("mpickpt")

#: Threads for whole jobs of one call: the writer, a manifest, a void while the writer hangs.
_JOBS: Final = 6
_MOST_WRITERS: Final = 8
_CLOSING_PATIENCE: Final = 1.0
#: Seconds that writing down how the job ended may hold `close` up.
_TELLING_PATIENCE: Final = 5.0


class Checkpointer(Stepping, Looking):
    """Saves and resumes the state of one training run. Collective, unless `comm` is None.

    Parameters
    ----------
    path : str or path-like
        The run's directory, the same on all owners; made at the first `resume` or `save`.
    comm : mpi4py.MPI.Intracomm, optional
        The owners; a role is a rank of it. It is duplicated, and the duplicate freed by `close`. None: one owner, and
        MPI is not imported.
    contract : Contract, optional
        What must be equal for a resume to mean the same training.
    topology : {"auto", "star", "tree"}
        Which way owners talk: all with owner 0, or each with a parent and at most `fan_out` children, so that nobody's
        part grows with the number of owners. Auto: a star up to 32 owners.
    fan_out : int
        The most children of an owner in a tree, 2 or more.
    write : {"each", "gather"}
        Every owner writes its own shard, or owner 0 writes all, which needs a star.
    keep : int or None
        How many generations stay; None keeps all.
    keep_every : int, optional
        Generations whose step is a multiple of it stay for good.
    async_ : bool
        Whether `save` returns once the state has been copied, into memory that is kept for the next save, and a thread
        does the rest. Needs MPI_THREAD_MULTIPLE; with less, saves are made at once, and a warning says so.
    digest : {"blake3", "sha256"}
        The digest of chunks and records.
    nonfinite : {"refuse", "allow"} or mapping
        Whether NaN and infinities may be saved and restored, or by name pattern (`fnmatch`): the first that fits
        rules, and what none fits is refused.
    deadline : float
        Seconds of silence or of no progress after which an owner counts as lost; not a limit of duration.
    every, every_seconds, mtbf_seconds : optional
        When `due` says that a save is: at multiples of so many steps; so many seconds after the last save; after the
        interval that loses least with such a mean time between failures of the whole job, from what saves have taken so
        far (J. T. Daly, 2006: `mpickpt.cluster.schedule.daly`). Any of them may be given together.
    end_time : float or datetime, optional
        When the job will be ended, in seconds since 1970; otherwise the environment's MPICKPT_END_TIME (such seconds,
        or a time of ISO 8601), otherwise what Slurm says. `due` says stop while there is still time for a save. That of
        owner 0 counts; one that is past already does not, and a warning says so.
    signals : iterable of int
        Signals at which `due` says stop, such as ``(signal.SIGUSR1, signal.SIGTERM)``, on any owner that gets one. They
        are caught until `close`, which puts back what handled them before; a handler of the caller's is called as well.
        After a stop that was not the program's own, `close` leaves those ignored that nothing handled before: one more
        would only kill the process on its way out, before its exit code.
    device : mapping, optional
        What this owner computes on, ``{"product": ..., "uuid": ...}``: needed where the contract binds the device, and
        recorded in any case.
    rotate : {"after", "before"}
        Whether old generations go after the new one is published, or, under a tight quota, before it is written.
    staging_bytes : int, optional
        The most memory of this owner's that saves may copy arrays into: 4 MiB or more; by default 64 MiB while a save
        is written (at owner 0 with ``write="gather"`` too), and for `async_` as much as this owner's arrays take.
        Where these take more than was said, an `async_` save is made at once, and a warning says so.
    progress : bool, optional
        Whether owner 0 draws on stderr how far a save or a resume is that takes longer than a second; by default where
        stderr is a terminal.
    events : path or False, optional
        Where owner 0 writes a line of JSON for each save and resume: by default ``events.jsonl`` in the run's
        directory; False: nowhere. That it cannot be written is said once in the log, and changes nothing else.
    alone : bool
        This process is the only owner even where a launcher has started several; otherwise ``comm=None`` is refused
        there, and so is an MPI that has not found the others (the wrong ``srun --mpi``).

    Raises
    ------
    StateError
        For an argument that is out of range, on this owner or another.
    DisagreementError
        If owners ask for different topologies.
    DeadlineError
        If not all owners come within the deadline.

    Examples
    --------
    >>> import tempfile, numpy as np, mpickpt
    >>> store = tempfile.mkdtemp()
    >>> with mpickpt.Checkpointer(store, alone=True) as ckpt:
    ...     run = ckpt.resume({"w": np.zeros(3)})
    ...     saved = ckpt.save({"w": np.ones(3)}, step=1)
    >>> with mpickpt.Checkpointer(store, alone=True) as ckpt:
    ...     ckpt.resume({"w": np.zeros(3)}).state["w"]
    array([1., 1., 1.])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        comm: Any = None,
        *,
        contract: Contract | None = None,
        topology: Literal["auto", "star", "tree"] = "auto",
        fan_out: int = 16,
        write: Literal["each", "gather"] = "each",
        keep: int | None = 3,
        keep_every: int | None = None,
        async_: bool = False,
        digest: Literal["blake3", "sha256"] = "blake3",
        nonfinite: str | Mapping[str, str] = "refuse",
        deadline: float = 60.0,
        every: int | None = None,
        every_seconds: float | None = None,
        mtbf_seconds: float | None = None,
        end_time: float | datetime | None = None,
        signals: Iterable[int] = (),
        rotate: Literal["after", "before"] = "after",
        device: Mapping[str, Any] | None = None,
        staging_bytes: int | None = None,
        progress: bool | None = None,
        events: str | os.PathLike[str] | bool | None = None,
        alone: bool = False,
    ) -> None:
        try:
            arguments.one_of("topology", topology, KINDS)
            arguments.at_least("fan_out", fan_out, 2)
            arguments.one_of("write", write, ("each", "gather"))
            arguments.one_of("digest", digest, digests.ALGORITHMS)
            arguments.one_of("rotate", rotate, ("after", "before"))
            arguments.positive("keep", keep)
            arguments.positive("keep_every", keep_every)
            arguments.deadline(deadline)
            if staging_bytes is not None:
                arguments.at_least("staging_bytes", staging_bytes, CHUNK)
            when, told = When.of(every, every_seconds, mtbf_seconds, end_time), Told(signals)
            if contract is not None and not isinstance(contract, Contract):
                raise StateError("contract is no Contract", found=repr(contract)[:100])
            self._contract = contract or Contract()
            self._device = devices.told(device, self._contract.device)
            policy = policy_of(nonfinite)
            self._directory = Directory(path)
        except CheckpointError as error:
            Wiring.refuse(comm, error)
            raise
        wiring = Wiring.of(comm, alone, float(deadline), topology, fan_out, write == "gather")
        self._host, self._refuses = socket.gethostname(), refusing(policy)
        self._jobs = Pool(_JOBS, "mpickpt-job")
        writers = max(1, min(_MOST_WRITERS, len(os.sched_getaffinity(0))))
        self._chunks = Pool(writers, "mpickpt-chunk")
        self._quiet = Pool(max(1, writers - 1), "mpickpt-quiet")
        # One that is dropped without `close` leaves no threads behind. Its communicators it does leave: freeing these
        # is collective.
        self._dropped = weakref.finalize(self, _end_threads, os.getpid(), self._jobs, self._chunks, self._quiet)
        self._wiring, here, seconds = wiring, wiring.place, float(deadline)
        self._saves = Line(wiring.saves, here, seconds, self._host, self._jobs)
        self._others = Line(wiring.others, here, seconds, self._host, self._jobs)
        self._lineage = Lineage(self._directory, wiring.owners, self._host, keep, keep_every, rotate == "before")
        self._survey = Survey(self._others, self._directory, self._lineage)
        options = Options(write, digest, policy, STAGING if staging_bytes is None else staging_bytes)
        self._publisher = Publisher(
            self._saves,
            wiring.topology,
            self._directory,
            self._contract,
            options,
            self._device,
            self._refuses,
            self._chunks,
        )
        self._rounds = Rounds(self._others, self._directory, self._lineage.claims, when, told)
        self._publisher.alike = when.alike()
        self._asynchronous = bool(async_)
        self._reporter = Reporter(self._directory, wiring.role, wiring.owners, progress, events)
        self._saving = Saving(
            self._publisher,
            self._lineage,
            self._jobs,
            self._chunks,
            self._quiet,
            wiring.role,
            wiring.owners,
            wiring.background,
            self._rounds.schedule.saved,
            self._reporter,
            staging_bytes,
        )
        self._closed, self._calling, self._process = False, [], os.getpid()
        told.catch()

    # -- saving and resuming

    @collective("_saves")
    def save(self, state: Any, *, step: int, cursor: int = 0, async_: bool | None = None) -> Save:
        """Publish `state` as one generation. Collective; all owners return, or raise the same refusal.

        Parameters
        ----------
        state : nested containers
            What this owner holds: NumPy arrays of any shape and stride, `Sharded`, `Split`, `Replicated`, `PerOwner`,
            `Value`, plain Python values, objects with ``state_dict()``.
        step : int
            Committed step: optimizer updates so far, >= 0.
        cursor : int
            Inputs consumed so far by all owners together; never reset.
        async_ : bool, optional
            Return once the state has been copied, and publish it in the background; the Checkpointer's own by
            default. At most one save is in flight: the next call waits for it, and raises how it failed.

        Returns
        -------
        Save
            Durable when this returns, unless it is `async_`.

        Raises
        ------
        StateError, DisagreementError, CoverageError, ReplicaError, NonFiniteError
            The state cannot be saved as it is; nothing was published.
        MomentError, ExistsError, EpochError
            The step or cursor goes back, the step is published already, or `resume` was not called.
        StoreError, DeadlineError
            The file system refused, or an owner is lost; earlier generations are untouched.
        InDoubtError
            Nobody can tell whether it was published; the next resume finds out.
        """
        self._saving.settle(self._saves)
        asynchronous = self._asynchronous if async_ is None else bool(async_)
        made = self._saving.save(state, step, cursor, asynchronous, self)
        self._begun = True
        return made

    def _follow(self) -> None:
        """Let `save` go on with a run that was not restored: for tools, whose states need nothing of what is there."""
        self._lineage.follow()

    @collective("_others")
    def resume(
        self,
        state: Any = None,
        *,
        step: int | None = None,
        root: str | None = None,
        repartition: bool = False,
        on_damage: Literal["refuse", "previous"] = "refuse",
        readonly: bool = False,
        level: Literal["full", "fast"] = "full",
        low_memory: bool = False,
        accept: Mapping[str, str] = {},
    ) -> Continuation:
        """Restore the newest generation, or the one asked for. Collective; all owners resume, or all refuse.

        The run goes on as a new epoch, under a claim in the store: a job that still runs under an older one can save
        no more, and what is newer than the generation that was taken is orphaned, never restored.

        Parameters
        ----------
        state : nested containers, optional
            The destination, as for `save`. Arrays, lists, dicts and other mutable containers are filled in place,
            generators set, ``load_state_dict`` called; what is immutable comes back in ``Continuation.state``;
            `Spec` stands for an array that does not exist yet. None: whole regions as NumPy arrays.
        step : int, optional
            Which generation. An older one than the newest is a rollback.
        root : str, optional
            Its root's digest: the only defence against forgery.
        repartition : bool
            Whether another owner count than at the save is meant, where the contract asks.
        on_damage : {"refuse", "previous"}
            Whether a newest generation that is damaged is refused, or the run goes on, with a warning, from the
            newest one that verifies. A `step` or `root` that is asked for is never replaced by another.
        readonly : bool
            For evaluation: writes and claims nothing, so that no save can follow.
        level : {"full", "fast"}
            How what is read is verified: by digest, or by CRC, which costs less and finds damage, but no forgery.
        low_memory : bool
            For a state that takes more than half of the memory: without it, arrays are read into private memory as
            large as this owner's part before anything of the caller's is written. With it all is read and verified
            first, and nothing kept; once all owners have agreed it is read again, right into the caller's arrays,
            and verified as it is read. That takes twice the reading. Arrays that come back as new objects (`Spec`,
            read-only, below ``load_state_dict``) and those that share memory take as much memory as ever.
        accept : mapping
            Differences of the contract that are meant: field -> why. ``{"identity.lr": "warm restart"}``. They are
            recorded in the claim.

        Returns
        -------
        Continuation
            ``fresh`` where there was nothing to resume.

        Raises
        ------
        IntegrityError, FormatError, NonFiniteError
            The checkpoint is damaged, malformed, or holds a NaN or an infinity where that is refused.
        ContractError, PlacementError, SchemaError
            It is another learner's, of another owner count, or of other regions than the destination. A ContractError
            lists all differences of all owners side by side.
        NotFoundError
            The generation asked for is not there.
        EpochError
            It is off the lineage, or another job continued the run meanwhile; OvertakenError if an older one saved
            meanwhile, which it can do no more: start again.
        DisagreementError, DeadlineError, StoreError, StateError
            As for `save`. In every case nothing of the caller's was written, but for two: where ``load_state_dict()``
            of the caller's raises at one owner, arrays are filled already, and all owners get the StateError; and
            where the second reading of `low_memory` fails at one, what the arrays hold is undefined at all of them,
            and the refusal says so. `save` is then refused until a `resume` has succeeded.
        """
        self._saving.settle(self._others)
        alike = self._publisher.alike
        request = Request(
            step, root, bool(repartition), bool(readonly), level, bool(low_memory), on_damage, accept, alike
        )
        filling = Filling(state, self._wiring.role, self._wiring.owners)

        def flatten() -> nest.Capture | None:
            request.check()
            return filling.flatten()

        with fewer_collections(), self._reporter.resuming(step, readonly) as reading:
            found = reading.result = resume(
                self._others,
                self._directory,
                self._contract,
                self._device,
                self._refuses,
                self._chunks,
                flatten,
                request,
                self._lineage,
                filling.prepare,
                self._saving.undefined.set,
                reading.began,
            )
        self._saving.undefined.clear()
        self._lineage.claims.took()
        self._begun = True
        chosen = self._lineage.chosen
        self._rounds.began(None if found.fresh or chosen is None else seconds_of(chosen.written))
        return filling.continuation(found)

    # -- ending

    def close(self) -> None:
        """Let go of the communicator and the threads. Collective; calling it again does nothing.

        Raises
        ------
        DeadlineError
            If another owner does not come.
        """
        self._end(meet=True)

    def _end(self, meet: bool, error: BaseException | None = None) -> None:
        if self._closed or os.getpid() != self._process:  # a forked process has nothing of it to end
            return
        self._closed = True
        self._dropped.detach()
        try:
            self._saving.settle(self._others if meet else None)
        except BaseException as failed:
            error = error or failed
            meet = False  # the others have heard of it instead
            raise
        finally:
            if not self._saving.in_flight:  # else interrupted: the save needs all of it, and ends before the process
                self._let_go(meet, error)

    def _let_go(self, meet: bool, error: BaseException | None) -> None:
        told = self._rounds.end(error)
        try:
            if meet:
                self._survey.meet()
            self._saving.await_rotation()
        finally:
            if told is not None:
                finished(told, min(_TELLING_PATIENCE, self._others.deadline / 4))
            self._rounds.told.release(self._rounds.by)
            self._reporter.settle(_CLOSING_PATIENCE)
            end = time.monotonic() + _CLOSING_PATIENCE  # for all of it together
            for each in (self._wiring.saves, self._wiring.others, self._jobs, self._chunks, self._quiet):
                each.close(max(0.0, end - time.monotonic()))

    def __enter__(self) -> Checkpointer:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With an exception on its way, the others may never come to the end: they are not waited for.
        try:
            self._end(error is None, error)
        except CheckpointError as failed:
            if error is None:
                raise
            _log.error("%s", failed)


def _end_threads(process: int, *pools: Pool) -> None:
    for pool in pools if os.getpid() == process else ():  # a forked one has none of the threads
        pool.end()


__all__ = ["Checkpointer", "Continuation", "Save"]
