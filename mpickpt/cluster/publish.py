"""Publication: from what each owner holds to one published root, or one refusal on all owners.

The steps, each with its failpoints, are those of docs/protocol.md, "Publish":

1. agree                 save.entered, save.agreed
2. capture               (by reference: a synchronous save)
3. write the own shards  save.shards-written
4. hear the children, write the group manifest, commit    save.heard, save.manifest-written, save.committed
5. the root compares the sums and publishes               save.compared, save.root-published
6. release               save.released
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from mpickpt import failpoints
from mpickpt.cluster import attempt as attempts
from mpickpt.cluster import contents, deciding, gather, inquire
from mpickpt.cluster import root as root_of
from mpickpt.cluster.agree import agree
from mpickpt.cluster.attempt import Agreed, Attempt, Sums
from mpickpt.cluster.channel import Call, Kind, Line, Outcome
from mpickpt.cluster.commitments import Heard, bounds_of, hear, shared_records
from mpickpt.cluster.performing import LITTLE, perform, reckon
from mpickpt.cluster.saves import Options, Published, Staged
from mpickpt.cluster.timings import Timings
from mpickpt.cluster.topology import Place, Topology
from mpickpt.cluster.writing import GroupManifest, Root, Shards, Syncs
from mpickpt.errors import StoreError, TopologyError
from mpickpt.format.commitment import Commitment, SharedShard
from mpickpt.format.manifest import Manifest, ShardRecord
from mpickpt.format.names import manifest_file
from mpickpt.format.prefix import Prefix
from mpickpt.format.records import Lineage
from mpickpt.state.capture import Capture
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.state.device import GATHERED
from mpickpt.store import fencing
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from mpickpt.store.finite import check_values
from mpickpt.store.threads import Pool, finished

T = TypeVar("T")

_log = logging.getLogger("mpickpt")

_NO_DIGEST = bytes(32)
#: So many folders are synced one after the other, without the interpreter lock.
_FEW = 4
#: For how long a refusal waits until the failed attempt's files are gone: seconds, and at most so much of a deadline,
#: for the others may be in the next call already. The rest goes on in the background.
_CLEANING, _CLEANING_SHARE = 1.0, 0.25


class Publisher:
    """Saves of one Checkpointer."""

    def __init__(
        self,
        line: Line,
        topology: Topology,
        directory: Directory,
        contract: Contract,
        options: Options,
        device: Mapping[str, Any],
        refuses: Callable[[str], bool],
        pool: Pool,
    ) -> None:
        self.line = line
        self.topology = topology
        self.directory = directory
        self.contract = contract
        self.options = options
        self.device = device
        self.refuses = refuses
        self.pool = pool
        self.last: Published | None = None
        #: What else all owners must have asked for alike.
        self.alike: Mapping[str, Any] = {}
        #: What owner 0 writes in the next root: the generation before it, and the epochs that the run descends from.
        self.parent: dict[str, Any] | None = None
        self.lineage: Lineage = ()
        self._agreed: Agreed | None = None
        self._declared: Declarations | None = None
        #: At owner 0: what the time of the last save went into, where it ended well (`Timings.ended`).
        self.timings: dict[str, Any] | None = None
        self._began = 0.0
        self._staged: Staged | None = None
        self._syncs: Syncs | None = None
        self._call: Call | None = None

    def save(
        self,
        flatten: Callable[[], Capture],
        step: int,
        cursor: int,
        decide: Callable[[int, int], dict[str, Any]],
        began: float | None = None,
        staged: Staged | None = None,
    ) -> Published:
        """Publish one generation. Collective.

        Parameters
        ----------
        flatten : callable
            Gives this owner's capture; may raise StateError.
        decide : callable
            Runs in a worker at owner 0 once all agree on step and cursor, which it is given: checks them against the
            lineage, makes the attempt, and tells its name.
        began : float, optional
            When the caller called, by the monotonic clock.
        staged : Staged, optional
            The copy that is being made of the state: nothing of it is looked at before that is complete.
        """
        self._began, self._staged = time.monotonic() if began is None else began, staged
        self._syncs = None
        self.timings = None
        self.pool.renew()  # what hangs since an earlier call must not use up the threads of this one
        made: list[Attempt] = []
        begun: list[str] = []
        number = None if staged is None else staged.number
        call = self._call = self.line.call("earlier generations and all arrays", number)

        def begin() -> dict[str, Any]:
            decision = decide(step, cursor)
            if "name" in decision:
                begun.append(self.directory.data_of(decision["name"]))
                if call.left:  # the others have failed meanwhile
                    attempts.remove(begun[0])
            return decision

        try:
            with call:
                failpoints.reach("save.entered")
                return self._save(call, flatten, step, cursor, begin, made)
        except Outcome as outcome:
            return self._done(made[0], outcome.release.decode())
        except BaseException:
            # After its own commitment an owner must not remove what a root may name: only a durable void is sure.
            if made and call.abandoned:
                self._clean(made[0].clean, call.place.parent is None, self.line.deadline)
            elif begun and call.abandoned:
                self._clean(attempts.remove, begun[0])
            raise

    def _clean(self, remove: Callable[..., None], *args: Any) -> None:
        patience = min(_CLEANING, self.line.deadline * _CLEANING_SHARE)
        if not finished(self.line.pool.submit(remove, *args), patience):
            _log.warning("a failed save's files are still being removed, in the background")

    def progress(self) -> tuple[int, int]:
        """Say how many bytes of how many are written by this owner and those below it, as far as that is known."""
        call, agreed = self._call, self._agreed
        if call is None or agreed is None:
            return 0, 0
        total = sum(region.nbytes for region in agreed.schema if region.shape is not None)
        return min(total, call.bytes_done()), total

    def _timings(self, call: Call, attempt: Attempt, heard: Heard) -> Timings:
        """Say what the time has gone into at this owner and those below it."""
        spent = attempt.progress.spent()
        spent = spent._replace(copy=spent.copy + (0.0 if self._staged is None else self._staged.seconds))
        planning = time.monotonic() - self._began - call.waited - spent.busy
        spent = spent._replace(planning=max(0.0, planning))
        mine = Timings.of(call.place.role, self._began, attempt.nbytes, spent)
        for below in heard.timings:
            mine = mine.merged(below)
        return mine

    def _done(self, attempt: Attempt, root: str) -> Published:
        attempt.root = root
        prefix = attempt.prefix
        self.last = Published(prefix.step, prefix.cursor, root, attempt.name)
        return self.last

    def _save(
        self,
        call: Call,
        flatten: Callable[[], Capture],
        step: int,
        cursor: int,
        begin: Callable[[], dict[str, Any]],
        made: list[Attempt],
    ) -> Published:
        capture = flatten()
        place = call.place
        check_values(capture, self.refuses, place.role)
        size = len(capture.holdings)
        declarations, mine = reckon(call, size, self._declare, capture, place.role)
        known = self._agreed.digest if self._agreed is not None and self._agreed.mine == mine else ""
        facts = {"path": self.directory.path, "step": step, "cursor": cursor, **self.alike}
        decision, union = agree(call, "save", facts, declarations, known, lambda _: begin())
        if "same" in decision:
            if place.parent is not None:  # this owner may have missed how the last save ended
                self.last = Published(step, cursor, *decision["same"])
            assert self.last is not None
            return self.last
        if union is not None:
            self._agreed = reckon(call, len(union.entries), Agreed.of, mine, union)
        attempt = reckon(call, size, self._attempt, call, capture, step, cursor, decision)
        made.append(attempt)
        call.decided_by(lambda error: deciding.settle(self.directory, attempt, error))
        failpoints.reach("save.agreed")

        written, sums = self._write(call, attempt)
        records = [record for record in written if record is not None]
        gathered = self.options.write == "gather"
        heard = hear(call, attempt, gathered)
        failpoints.reach("save.heard")
        if place.parent is None:
            return self._publish(call, attempt, records, heard, sums)
        self._commit(call, attempt, records, heard, sums, gathered)
        return self._await_release(call, attempt)

    def _declare(self, capture: Capture, role: int) -> tuple[Declarations, str]:
        self._declared = Declarations.of(
            capture, role, self.contract.to_json(), self.options.to_json(), last=self._declared
        )
        return self._declared, self._declared.digest()

    def _attempt(self, call: Call, capture: Capture, step: int, cursor: int, decision: Mapping[str, Any]) -> Attempt:
        agreed = self._agreed
        assert agreed is not None
        self.directory.expected = agreed.schema
        self.directory.adopt(Way(decision["way"]), decision["fence"])
        prefix = Prefix(
            run=decision["run"],
            schema=agreed.schema.digest(self.options.algorithm),
            contract=self.contract.digest(self.options.algorithm),
            step=step,
            cursor=cursor,
            epoch=decision["epoch"],
            call=call.number,
            attempt=decision["nonce"],
        )
        return Attempt(
            name=decision["name"],
            directory=self.directory.data_of(decision["name"]),
            prefix=prefix,
            algorithm=self.options.algorithm,
            agreed=agreed,
            capture=capture,
            role=call.place.role,
            owners=call.place.owners,
            writers=self.topology.writers,
            refuses=self.refuses,
            staging=self.options.staging,
        )

    # -- 3. writing

    def _write(self, call: Call, attempt: Attempt) -> tuple[Sequence[ShardRecord | None], Sums]:
        """Write what this owner has to write, and add up what it holds."""
        call.working, staged = attempt.progress, self._staged
        complete = None if staged is None else staged.complete
        if complete is not None and not complete.done():
            attempt.progress.staging = True
            complete.add_done_callback(lambda _: setattr(attempt.progress, "staging", False))
        size = max(len(attempt.capture.holdings), len(attempt.agreed.schema))

        def once_complete(work: Callable[..., T], *args: Any) -> T:
            if complete is not None:
                complete.result()
            return work(*args)

        sums: Future[Sums] = Future()
        if size <= LITTLE and not contents.needed(attempt.capture, attempt.agreed.declarations, call.place.role):
            sums.set_result(attempt.sums(self.pool))
        else:
            sums = self.line.pool.submit(once_complete, attempt.sums, self.pool)
        parts = reckon(call, size, attempt.parts)
        if self.options.write == "gather" and call.place.parent is not None:
            if complete is not None:
                call.join(complete)
            gather.offer(call, parts, self.device)
            return [None, None], call.join(sums, working=attempt.progress)
        attempt.task = reckon(call, size, Shards.of, attempt, parts, self.pool.size)
        records: list[ShardRecord | None]
        if attempt.task is None:
            attempt.work = self.line.pool.submit(once_complete, attempt.write, parts, self.pool)
            records = list(call.join(attempt.work, working=attempt.progress))
        else:
            if call.place.owners == 1:  # nobody is to be heard before its files are synced
                self._syncs = Syncs(self.directory, attempt, self._folders(call, attempt), attempt.task.steps)
            records = perform(call, attempt.task, attempt.progress, complete)
        if self.options.write == "gather" and call.place.children:
            done = time.monotonic() - call.waited - attempt.progress.spent().busy
            pulled, attempt.devices = gather.collect(
                call, attempt.layout_of_plan, attempt.create, attempt.finish, self.pool, attempt.staging
            )
            # What it did not do itself meanwhile, it waited for chunks.
            call.waited = time.monotonic() - attempt.progress.spent().busy - done
            records += [pulled[key] for key in sorted(pulled)]
        return records, sums.result() if sums.done() else call.join(sums, working=attempt.progress)

    # -- 4. commitments

    def _commit(
        self,
        call: Call,
        attempt: Attempt,
        records: Sequence[ShardRecord],
        heard: Heard,
        mine: Sums,
        gathered: bool,
    ) -> None:
        own = [record for record in records if not record.shared]
        shared = next((record for record in records if record.shared), None)
        size = self._size(attempt, heard)
        sums = reckon(call, size, attempt.total, own, mine, heard.sums)
        digest, bounds = _NO_DIGEST, None
        if not gathered:
            data, digest = reckon(call, size, self._manifest, attempt, call.place, own, heard, sums)
            folders = deciding.folder_paths(attempt, call.place)
            path = attempt.path(manifest_file(call.place.role))
            few = len(folders) <= _FEW
            perform(call, GroupManifest(attempt, path, data, folders if few else (), self.directory.fence))
            if not few:
                call.run(deciding.sync_folders, self.directory, folders, self.pool)
            bounds = reckon(call, size, bounds_of, attempt, own, heard.children)
            failpoints.reach("save.manifest-written")
        commitment = Commitment(
            prefix=attempt.prefix,
            role=call.place.role,
            size=call.place.size,
            digest=digest,
            cover=sums.cover,
            held=sums.held,
            copies=sums.copies,
            bounds=bounds,
            shared=None if shared is None else SharedShard(shared.file, shared.bytes, shared.digest),
        )
        call.committed()  # before the commitment is on its way: from here on the store decides
        call.up(Kind.COMMIT, commitment.pack() + self._timings(call, attempt, heard).pack(time.monotonic()))
        failpoints.reach("save.committed")

    def _folders(self, call: Call, attempt: Attempt) -> list[str]:
        """Give the folders that this owner is to sync; many it syncs now."""
        paths = deciding.folder_paths(attempt, call.place)
        if len(paths) <= _FEW:
            return paths
        call.run(deciding.sync_folders, self.directory, paths, self.pool)
        return []

    def _size(self, attempt: Attempt, heard: Heard) -> int:
        """Give how many regions, boxes and pieces are gone through at most when all is added up."""
        pieces = sum(len(holding.parts) for holding in attempt.capture.holdings)
        return max(pieces, len(attempt.agreed.schema)) * (1 + len(heard.children))

    def _manifest(
        self, attempt: Attempt, place: Place, own: Sequence[ShardRecord], heard: Heard, sums: Sums
    ) -> tuple[bytes, bytes]:
        """Make this owner's group manifest; gives its bytes and its digest."""
        manifest = Manifest(
            kind="group",
            role=place.role,
            size=place.size,
            prefix=attempt.prefix,
            device=dict(self.device),
            shards=tuple(own),
            children=heard.children,
            cover=sums.cover,
        )
        data, name = manifest.encode(attempt.algorithm)
        return data, bytes.fromhex(name.partition(":")[2])

    def _await_release(self, call: Call, attempt: Attempt) -> Published:
        respondent = inquire.Respondent(
            attempt.capture, attempt.agreed.declarations, attempt.agreed.schema, call.place.role, self.line.host
        )
        while True:
            kind, body = call.from_parent(Kind.RELEASE, Kind.INQUIRE)
            if kind is Kind.RELEASE:
                call.down(Kind.RELEASE, body)
                call.over()
                failpoints.reach("save.released")
                return self._done(attempt, body.decode())
            inquire.reply(call, respondent, body)

    # -- 5. the root

    def _publish(
        self, call: Call, attempt: Attempt, records: Sequence[ShardRecord], heard: Heard, mine: Sums
    ) -> Published:
        schema, declarations = attempt.agreed.schema, attempt.agreed.declarations
        size = self._size(attempt, heard)
        shards = [*records, *reckon(call, size, shared_records, attempt, heard.shared)]
        sums = reckon(call, size, attempt.total, shards, mine, heard.sums)
        root_of.compare(call, attempt, sums, size)
        failpoints.reach("save.compared")

        manifest = Manifest(
            kind="root",
            role=0,
            size=call.place.owners,
            prefix=attempt.prefix,
            device={**self.device, **({GATHERED: attempt.devices} if attempt.devices else {})},
            shards=tuple(shards),
            children=heard.children,
            cover=sums.cover,
            schema=schema,
            containers=declarations.containers,
            contract=self.contract.to_json(),
            owners=call.place.owners,
            topology=self.topology.to_json(),
            parent=self.parent,
            written=root_of.written(self.line, self._began, call.place.owners),
            lineage=self.lineage,
        )
        data, root = reckon(call, size, manifest.encode, attempt.algorithm)
        if self._syncs is not None:
            newer = self._syncs.conclude(None)
        else:
            newer = perform(call, Syncs(self.directory, attempt, self._folders(call, attempt)))
        if newer:
            call.run(fencing.check, self.directory, attempt.prefix.epoch)
        call.committed()
        placing = Root(self.directory, attempt, data)
        placed = perform(call, placing)
        if isinstance(placed, StoreError):
            call.withdrawn()
            raise placed
        if not placed:
            # Somebody who doubted was first: what stands there decides, for the root too.
            call.fail(TopologyError("the root's name was taken", path=attempt.name))
        if placing.newer:
            call.run(deciding.check_orphaned, self.directory, attempt)
        failpoints.reach("save.root-published")
        call.down(Kind.RELEASE, root.encode())
        call.over()
        self.timings = self._timings(call, attempt, heard).ended(time.monotonic(), call.place.owners)
        failpoints.reach("save.released")
        return self._done(attempt, root)
