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
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from mpickpt import failpoints
from mpickpt._version import __version__
from mpickpt.cluster import attempt as attempts
from mpickpt.cluster import deciding, gather, inquire
from mpickpt.cluster.agree import agree
from mpickpt.cluster.attempt import Agreed, Attempt, Sums
from mpickpt.cluster.channel import Call, Kind, Line, Outcome
from mpickpt.cluster.commitments import Heard, bounds_of, hear, shared_records
from mpickpt.cluster.topology import Place, Topology
from mpickpt.errors import NonFiniteError, StoreError, TopologyError
from mpickpt.format.commitment import Commitment, SharedShard
from mpickpt.format.manifest import Manifest, ShardRecord
from mpickpt.format.names import manifest_file
from mpickpt.format.prefix import Prefix
from mpickpt.format.records import Lineage
from mpickpt.state import coverage
from mpickpt.state.capture import Capture
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.store import commit
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from mpickpt.store.finite import allowing
from mpickpt.store.threads import Pool, finished

_log = logging.getLogger("mpickpt")

_NO_DIGEST = bytes(32)
#: For how long a refusal waits until the failed attempt's files are gone: seconds, and at most so much of a deadline,
#: for the others may be in the next call already. The rest goes on in the background.
_CLEANING, _CLEANING_SHARE = 1.0, 0.25


@dataclass(frozen=True, slots=True)
class Published:
    """What the newest publication of this process was."""

    step: int
    cursor: int
    root: str
    name: str


@dataclass(frozen=True, slots=True)
class Options:
    """What all owners must have asked for alike."""

    write: str
    algorithm: str
    nonfinite: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Give the options as plain data."""
        return {"write": self.write, "digest": self.algorithm, "nonfinite": dict(self.nonfinite)}


class Publisher:
    """Saves of one Checkpointer."""

    def __init__(
        self,
        line: Line,
        topology: Topology,
        directory: Directory,
        contract: Contract,
        options: Options,
        refuses: Callable[[str], bool],
        pool: Pool,
    ) -> None:
        self.line = line
        self.topology = topology
        self.directory = directory
        self.contract = contract
        self.options = options
        self.refuses = refuses
        self.pool = pool
        self.epoch: int | None = None
        self.last: Published | None = None
        #: What owner 0 writes in the next root: the generation before it, and the epochs that the run descends from.
        self.parent: dict[str, Any] | None = None
        self.lineage: Lineage = ()
        self._agreed: Agreed | None = None
        self._declared: Declarations | None = None
        self._began = 0.0

    def save(
        self,
        flatten: Callable[[], Capture],
        step: int,
        cursor: int,
        decide: Callable[[int, int], dict[str, Any]],
    ) -> Published:
        """Publish one generation. Collective.

        Parameters
        ----------
        flatten : callable
            Gives this owner's capture; may raise StateError.
        decide : callable
            Runs in a worker at owner 0 once all agree on step and cursor, which it is given: checks them against the
            lineage, makes the attempt, and tells its name.
        """
        self._began = time.monotonic()
        self.pool.renew()  # what hangs since an earlier call must not use up the threads of this one
        made: list[Attempt] = []
        begun: list[str] = []
        call = self.line.call(unharmed="earlier generations and all arrays")

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

    def _done(self, attempt: Attempt, root: str) -> Published:
        attempt.root = root
        prefix = attempt.prefix
        self.epoch = prefix.epoch
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
        self._check_values(capture, place.role)
        declarations, mine = call.run(self._declare, capture, place.role)
        known = self._agreed.digest if self._agreed is not None and self._agreed.mine == mine else ""
        facts = {"path": self.directory.path, "step": step, "cursor": cursor}
        decision, union = agree(call, "save", facts, declarations, known, lambda _: begin())
        if "same" in decision:
            if place.parent is not None:  # this owner may have missed how the last save ended
                self.last = Published(step, cursor, *decision["same"])
            assert self.last is not None
            return self.last
        if union is not None:
            self._agreed = call.run(Agreed.of, mine, union)
        attempt = call.run(self._attempt, call, capture, step, cursor, decision)
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

    def _check_values(self, capture: Capture, role: int) -> None:
        """Refuse values that are not finite; arrays are scanned as they are written."""
        for holding in capture.holdings:
            if not holding.finite and self.refuses(holding.region.name):
                raise NonFiniteError(
                    "a value is not finite",
                    role=role,
                    region=holding.region.name,
                    expected="finite numbers",
                    found="a NaN or an infinity in it",
                    advice=allowing(holding.region.name),
                )

    def _attempt(self, call: Call, capture: Capture, step: int, cursor: int, decision: Mapping[str, Any]) -> Attempt:
        agreed = self._agreed
        assert agreed is not None
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
        )

    # -- 3. writing

    def _write(self, call: Call, attempt: Attempt) -> tuple[Sequence[ShardRecord | None], Sums]:
        """Write what this owner has to write, and add up what it holds."""
        call.working = attempt.progress
        sums = self.line.pool.submit(attempt.sums, self.pool)
        parts = call.run(attempt.parts)
        if self.options.write == "gather" and call.place.parent is not None:
            gather.offer(call, parts)
            return [None, None], call.join(sums, working=attempt.progress)
        attempt.work = self.line.pool.submit(attempt.write, parts, self.pool)
        records: list[ShardRecord | None] = list(call.join(attempt.work, working=attempt.progress))
        if self.options.write == "gather" and call.place.children:
            pulled = gather.collect(call, attempt.layout_of_plan, attempt.create, attempt.finish, self.pool)
            records += [pulled[key] for key in sorted(pulled)]
        return records, call.join(sums, working=attempt.progress)

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
        sums = call.run(attempt.total, own, mine, heard.sums)
        digest, bounds = _NO_DIGEST, None
        if not gathered:
            digest = call.run(self._write_manifest, attempt, call.place, own, heard, sums)
            bounds = call.run(bounds_of, attempt, own, heard.children)
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
        call.up(Kind.COMMIT, commitment.pack())
        failpoints.reach("save.committed")

    def _write_manifest(
        self, attempt: Attempt, place: Place, own: Sequence[ShardRecord], heard: Heard, sums: Sums
    ) -> bytes:
        """Write this owner's group manifest; gives its digest."""
        manifest = Manifest(
            kind="group",
            role=place.role,
            size=place.size,
            prefix=attempt.prefix,
            device={},
            shards=tuple(own),
            children=heard.children,
            cover=sums.cover,
        )
        data, name = manifest.encode(attempt.algorithm)
        path = attempt.path(manifest_file(place.role))
        attempt.made(path, lambda: commit.write_new(path, data))
        attempt.files.append(path)
        if place.children:
            deciding.sync_folders(self.directory, attempt, place, self.pool)
        return bytes.fromhex(name.partition(":")[2])

    def _await_release(self, call: Call, attempt: Attempt) -> Published:
        respondent = inquire.Respondent(
            attempt.capture, attempt.agreed.declarations, attempt.agreed.schema, call.place.role
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
        shards = [*records, *call.run(shared_records, attempt, heard.shared)]
        sums = call.run(attempt.total, shards, mine, heard.sums)
        self._compare(call, attempt, sums)
        failpoints.reach("save.compared")

        manifest = Manifest(
            kind="root",
            role=0,
            size=call.place.owners,
            prefix=attempt.prefix,
            device={},
            shards=tuple(shards),
            children=heard.children,
            cover=sums.cover,
            schema=schema,
            containers=declarations.containers,
            contract=self.contract.to_json(),
            owners=call.place.owners,
            topology=self.topology.to_json(),
            parent=self.parent,
            written=self._told(call.place.owners),
            lineage=self.lineage,
        )
        data, root = call.run(manifest.encode, attempt.algorithm)
        call.run(deciding.sync_attempt, self.directory, attempt, call.place, self.pool)
        call.committed()
        placed = call.run(deciding.place_root, self.directory, attempt, data)
        if isinstance(placed, StoreError):
            call.withdrawn()
            raise placed
        if not placed:
            # Somebody who doubted was first: what stands there decides, for the root too.
            call.fail(TopologyError("the root's name was taken", path=attempt.name))
        failpoints.reach("save.root-published")
        call.down(Kind.RELEASE, root.encode())
        call.over()
        failpoints.reach("save.released")
        return self._done(attempt, root)

    def _told(self, owners: int) -> dict[str, Any]:
        """Say who wrote the generation: told, never compared."""
        end = datetime.now(timezone.utc)
        start = end - timedelta(seconds=time.monotonic() - self._began)
        return {
            "mpickpt": __version__,
            "mpi": self.line.transport.name,
            "host": self.line.host,
            "owners": owners,
            "start": start.isoformat(timespec="milliseconds"),
            "end": end.isoformat(timespec="milliseconds"),
        }

    def _compare(self, call: Call, attempt: Attempt, sums: Sums) -> None:
        """Refuse unless everything is tiled once, held as declared, and equal where it is held in copies."""
        schema, declarations = attempt.agreed.schema, attempt.agreed.declarations
        respondent = inquire.Respondent(attempt.capture, declarations, schema, call.place.role)
        held = call.run(coverage.expected_held, declarations, schema)
        if sums.held != held or sums.cover != call.run(coverage.expected_cover, schema):
            raise inquire.coverage_fault(call, respondent)
        if sums.copies != 0:
            raise inquire.copies_fault(call, respondent)
