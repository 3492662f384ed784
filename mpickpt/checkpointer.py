"""The public face: `Checkpointer`.

A Checkpointer ties one owner's wires, the run's directory and the caller's policies together; what happens in a call
is in `mpickpt.cluster`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Literal

from mpickpt import digest as digests
from mpickpt.cluster.channel import Line
from mpickpt.cluster.garbage import fewer_collections
from mpickpt.cluster.lineage import Lineage
from mpickpt.cluster.publish import Options, Publisher
from mpickpt.cluster.restore import Request, Resumed, resume
from mpickpt.cluster.survey import Survey
from mpickpt.cluster.wiring import Wiring
from mpickpt.continuation import Continuation, Save
from mpickpt.errors import FormatError, StateError
from mpickpt.state import nest, values
from mpickpt.state.contract import Contract
from mpickpt.state.moment import Moment
from mpickpt.state.policy import policy_of, refusing
from mpickpt.store.directory import Directory
from mpickpt.store.report import Generation, Report
from mpickpt.store.threads import Pool, finished

_log = logging.getLogger("mpickpt")

#: Threads for whole jobs of one call: the writer, a manifest, a void while the writer hangs.
_JOBS: Final = 6
_MOST_WRITERS: Final = 8
_CLOSING_PATIENCE: Final = 1.0
_LONGEST_DEADLINE: Final = 1e6


class Checkpointer:
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
    write : {"each", "gather"}
        Every owner writes its own shard, or owner 0 writes all.
    keep : int or None
        How many generations stay; None keeps all.
    keep_every : int, optional
        Generations whose step is a multiple of it stay for good.
    digest : {"blake3", "sha256"}
        The digest of chunks and records.
    nonfinite : {"refuse", "allow"} or mapping
        Whether NaN and infinities may be saved and restored, or by name pattern (`fnmatch`): the first that fits
        rules, and what none fits is refused.
    deadline : float
        Seconds of silence or of no progress after which an owner counts as lost; not a limit of duration.
    rotate : {"after", "before"}
        Whether old generations go after the new one is published, or, under a tight quota, before it is written.
    alone : bool
        With ``comm=None``: this process is the only owner even where a launcher has started several.

    Raises
    ------
    StateError
        For an argument that is out of range.

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
        write: Literal["each", "gather"] = "each",
        keep: int | None = 3,
        keep_every: int | None = None,
        digest: Literal["blake3", "sha256"] = "blake3",
        nonfinite: str | Mapping[str, str] = "refuse",
        deadline: float = 60.0,
        rotate: Literal["after", "before"] = "after",
        alone: bool = False,
    ) -> None:
        _one_of("write", write, ("each", "gather"))
        _one_of("digest", digest, digests.ALGORITHMS)
        _one_of("rotate", rotate, ("after", "before"))
        _positive("keep", keep)
        _positive("keep_every", keep_every)
        if type(deadline) not in (int, float) or not 0 < deadline <= _LONGEST_DEADLINE:
            raise StateError(
                "deadline is out of range",
                expected=f"seconds, above 0 and up to {_LONGEST_DEADLINE:g}",
                found=repr(deadline),
            )
        if contract is not None and not isinstance(contract, Contract):
            raise StateError("contract is no Contract", found=repr(contract)[:100])
        policy = policy_of(nonfinite)
        wiring = Wiring.of(comm, alone, float(deadline), "star")
        self._host = socket.gethostname()
        self._directory = Directory(path)
        self._contract = contract or Contract()
        self._refuses = refusing(policy)
        self._jobs = Pool(_JOBS, "mpickpt-job")
        writers = max(1, min(_MOST_WRITERS, len(os.sched_getaffinity(0))))
        self._chunks = Pool(writers, "mpickpt-chunk")
        here = wiring.place
        self._wiring = wiring
        self._saves = Line(wiring.saves, here, float(deadline), self._host, self._jobs)
        self._others = Line(wiring.others, here, float(deadline), self._host, self._jobs)
        self._lineage = Lineage(self._directory, wiring.owners, self._host, keep, keep_every, rotate == "before")
        self._survey = Survey(self._others, self._directory, self._lineage)
        options = Options(write, digest, policy)
        self._publisher = Publisher(
            self._saves, wiring.topology, self._directory, self._contract, options, self._refuses, self._chunks
        )
        self._rotating: Future[None] | None = None
        self._closed = False
        self._process = os.getpid()

    # -- saving and resuming

    def save(self, state: Any, *, step: int, cursor: int = 0) -> Save:
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

        Returns
        -------
        Save
            Durable when this returns.

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
        self._check_open()
        role, owners = self._wiring.role, self._wiring.owners
        checked: list[Moment] = []

        def flatten() -> nest.Capture:
            checked.append(Moment(step, cursor))
            return nest.flatten(state, role, owners)

        before = self._publisher.last
        with fewer_collections():
            published = self._publisher.save(flatten, _plain(step), _plain(cursor), self._begin_save)
        if role == 0 and published is not before:
            _log.info("saved step %d: %s", published.step, published.root)
            self._rotating = self._jobs.submit(self._lineage.rotate, published)
        return Save(published.step, published.root)

    def _follow(self) -> None:
        """Let `save` go on with a run that was not restored: for tools, whose states need nothing of what is there."""
        self._lineage.follow()

    def _begin_save(self, step: int, cursor: int) -> dict[str, Any]:
        self._await_rotation()
        return self._lineage.begin_save(self._publisher, step, cursor)

    def _await_rotation(self) -> None:
        """Let the removal of old generations end, unless the file system hangs in it."""
        if self._rotating is not None and not finished(self._rotating, self._saves.deadline):
            _log.warning("old generations are still being removed in %s", self._directory.path)

    def resume(
        self,
        state: Any = None,
        *,
        step: int | None = None,
        root: str | None = None,
        repartition: bool = False,
        readonly: bool = False,
    ) -> Continuation:
        """Restore the newest generation, or the one asked for. Collective; all owners resume, or all refuse.

        Parameters
        ----------
        state : nested containers, optional
            The destination, as for `save`. Arrays, lists, dicts and other mutable containers are filled in place,
            generators set, ``load_state_dict`` called; what is immutable comes back in ``Continuation.state``;
            `Spec` stands for an array that does not exist yet. None: whole regions as NumPy arrays.
        step : int, optional
            Which generation.
        root : str, optional
            Its root's digest: the only defence against forgery.
        repartition : bool
            Whether another owner count than at the save is meant, where the contract asks.
        readonly : bool
            For evaluation: writes and claims nothing.

        Returns
        -------
        Continuation
            ``fresh`` where there was nothing to resume.

        Raises
        ------
        IntegrityError, FormatError, NonFiniteError
            The checkpoint is damaged, malformed, or holds a NaN or an infinity where that is refused.
        ContractError, PlacementError, SchemaError
            It is another learner's, of another owner count, or of other regions than the destination.
        NotFoundError
            The generation asked for is not there.
        DisagreementError, DeadlineError, StoreError, StateError
            As for `save`. In every case nothing of the caller's was written, but for one: where ``load_state_dict()``
            of the caller's raises at one owner, arrays are filled already, and all owners get the StateError.
        """
        self._check_open()
        role, owners = self._wiring.role, self._wiring.owners
        request = Request(step=step, root=root, repartition=bool(repartition), readonly=bool(readonly))
        filled: list[Any] = []
        known: dict[str, Any] = {}
        asked: list[str] = []
        decided: dict[str, Any] = {}

        def flatten() -> nest.Capture | None:
            if step is not None:
                Moment(step)
            if root is not None:
                _digest(root)
            if state is None:
                return None
            capture = nest.flatten(state, role, owners, destination=True)
            nest.check_destination(capture)
            asked.extend(holding.region.name for holding in capture.holdings)
            return capture

        def decide() -> dict[str, Any]:
            decided.update(self._lineage.choose(request))
            return decided

        def prepare(capture: nest.Capture | None, found: Resumed) -> Callable[[], None]:
            restored, containers = found.restored, found.containers
            known.update({name: parts[0] if len(parts) == 1 else parts for name, parts in restored.arrays.items()})
            known.update({name: values.decode(data, name) for name, data in restored.opaque.items()})
            if found.fresh:
                return lambda: filled.append(state)
            if capture is None:
                built = nest.build(restored, containers)
                return lambda: filled.append(built)
            fill = nest.prepare(capture, restored, containers)
            return lambda: filled.append(fill())

        with fewer_collections():
            found = resume(
                self._others,
                self._directory,
                self._contract,
                self._refuses,
                self._chunks,
                flatten,
                request,
                decide,
                lambda: self._lineage.chosen,
                lambda: self._lineage.conclude(request, decided),
                self._lineage.advise,
                prepare,
            )
        self._publisher.epoch = found.epoch
        if role == 0:
            if found.fresh:
                _log.info("nothing to resume in %s: a fresh start", self._directory.path)
            else:
                _log.info("resumed step %d: %s", found.step, found.root)
        left = (frozenset(asked) | found.restored.dropped) - known.keys()
        return Continuation(found.step, found.cursor, found.epoch, found.fresh, found.root, filled[0], known, left)

    # -- looking

    def latest(self) -> Generation | None:
        """Give the newest generation of the lineage, or None. Collective: owner 0 reads, all get it."""
        live = [generation for generation in self.generations() if generation.status == "live"]
        return live[-1] if live else None

    def generations(self) -> list[Generation]:
        """List all generations, orphaned and damaged ones too, the newest last. Collective."""
        self._check_open()
        return self._survey.generations()

    def verify(self, step: int | None = None, level: Literal["fast", "full"] = "full") -> Report:
        """Check every byte of a generation, the newest one by default. Collective: each owner checks a share.

        Parameters
        ----------
        level : {"fast", "full"}
            CRCs, or digests.

        Returns
        -------
        Report
            A verdict a file. Damage is told in it and not raised.
        """
        self._check_open()
        return self._survey.verify(step, level)

    def pin(self, step: int) -> None:
        """Keep a generation for good: rotation leaves it alone. Collective."""
        self._check_open()
        self._survey.pin(step)

    # -- ending

    def close(self) -> None:
        """Let go of the communicator and the threads. Collective; calling it again does nothing.

        Raises
        ------
        DeadlineError
            If another owner does not come.
        """
        self._end(meet=True)

    def _end(self, meet: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if meet:
                self._survey.meet()
            self._await_rotation()
        finally:
            end = time.monotonic() + _CLOSING_PATIENCE  # for all of it together
            for each in (self._wiring.saves, self._wiring.others, self._jobs, self._chunks):
                each.close(max(0.0, end - time.monotonic()))

    def __enter__(self) -> Checkpointer:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With an exception on its way, the others may never come to the end: they are not waited for.
        self._end(meet=error is None)

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this Checkpointer is closed", path=self._directory.path)
        if os.getpid() != self._process:
            raise StateError(
                "this Checkpointer was made by another process, and its threads are not in this one",
                path=self._directory.path,
                expected=f"process {self._process}",
                found=f"process {os.getpid()}, forked from it",
                advice="save in the process that made the Checkpointer",
            )


def _plain(number: Any) -> Any:
    """Give a whole number as int, so that NumPy's integers agree with Python's; anything else is judged later."""
    try:
        return int(number.__index__())
    except (AttributeError, TypeError):
        return repr(number)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise StateError(f"{name} is none of its values", expected=" or ".join(map(repr, allowed)), found=repr(value))


def _digest(root: object) -> None:
    try:
        digests.parse(root, "root=")
    except FormatError as error:
        raise StateError(
            "root= is no digest of a generation",
            expected=error.expected,
            found=error.found,
            advice="give it as `mpickpt ls` and `Save.root` do",
        ) from None


def _positive(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise StateError(f"{name} is out of range", expected="a whole number of 1 or more, or None", found=repr(value))


__all__ = ["Checkpointer", "Continuation", "Save"]
