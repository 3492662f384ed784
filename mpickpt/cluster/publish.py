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

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from mpickpt import failpoints
from mpickpt._version import __version__
from mpickpt.cluster import gather, inquire
from mpickpt.cluster.agree import agree
from mpickpt.cluster.attempt import Agreed, Attempt, Sums
from mpickpt.cluster.channel import Call, Kind, Line, Outcome
from mpickpt.cluster.commitments import Heard, bounds_of, hear, shared_record
from mpickpt.cluster.topology import writers
from mpickpt.errors import CheckpointError, NonFiniteError, TopologyError
from mpickpt.format.commitment import Commitment, SharedShard
from mpickpt.format.manifest import Manifest, ShardRecord
from mpickpt.format.names import manifest_file, shard_file
from mpickpt.format.prefix import Prefix
from mpickpt.format.records import Lineage
from mpickpt.state import coverage
from mpickpt.state.capture import Capture
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.store import commit
from mpickpt.store.commit import Way
from mpickpt.store.directory import Directory
from mpickpt.store.threads import Pool

_log = logging.getLogger("mpickpt")

_NO_DIGEST = bytes(32)


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
        directory: Directory,
        contract: Contract,
        options: Options,
        refuses: Callable[[str], bool],
        pool: Pool,
    ) -> None:
        self.line = line
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
        made: list[Attempt] = []
        call = self.line.call()
        try:
            with call:
                failpoints.reach("save.entered")
                return self._save(call, flatten, step, cursor, decide, made)
        except Outcome:
            return self._done(made[0])
        except BaseException:
            # After its own commitment an owner must not remove what a root may name: only a durable void is sure.
            if made and (call.void or not made[0].committed):
                self._clean(made[0])
            raise

    def _clean(self, attempt: Attempt) -> None:
        patience = self.line.deadline
        work = self.line.pool.submit(attempt.clean, self.line.place.parent is None, patience)
        try:
            work.result(patience)
        except TimeoutError:
            _log.warning("still removing %s in the background", attempt.directory)

    def _done(self, attempt: Attempt) -> Published:
        assert attempt.root is not None
        prefix = attempt.prefix
        self.epoch = prefix.epoch
        self.last = Published(prefix.step, prefix.cursor, attempt.root, attempt.name)
        return self.last

    def _save(
        self,
        call: Call,
        flatten: Callable[[], Capture],
        step: int,
        cursor: int,
        decide: Callable[[int, int], dict[str, Any]],
        made: list[Attempt],
    ) -> Published:
        capture = flatten()
        place = call.place
        self._check_values(capture, place.role)
        declarations = Declarations.of(
            capture, place.role, self.contract.to_json(), self.options.to_json(), last=self._declared
        )
        self._declared = declarations
        mine = declarations.digest()
        known = self._agreed.digest if self._agreed is not None and self._agreed.mine == mine else ""
        facts = {"path": self.directory.path, "step": step, "cursor": cursor}
        decision, union = agree(call, "save", facts, declarations, known, lambda _: decide(step, cursor))
        if "same" in decision:
            if place.parent is not None:  # this owner may have missed how the last save ended
                self.last = Published(step, cursor, *decision["same"])
            assert self.last is not None
            return self.last
        if union is not None:
            self._agreed = call.run(Agreed.of, mine, union)
        assert self._agreed is not None
        attempt = self._attempt(call, capture, step, cursor, decision)
        made.append(attempt)
        if place.parent is None:
            call.sealed(lambda error: self._settle(attempt, error))
        failpoints.reach("save.agreed")

        records, sums = self._write(call, attempt)
        gathered = self.options.write == "gather"
        heard = hear(call, attempt, gathered)
        failpoints.reach("save.heard")
        own = [record for record in records if record is not None and not record.shared]
        cover = sums.cover + sum(attempt.cover(record) for record in own)
        sums = Sums(cover & coverage.MASK, sums.held, sums.copies) + heard.sums
        if place.parent is None:
            return self._publish(call, attempt, records, heard, sums)
        shared = next((record for record in records if record is not None and record.shared), None)
        self._commit(call, attempt, own, shared, heard, sums, gathered)
        return self._await_release(call, attempt)

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
                    unharmed="earlier generations",
                    advice="allow it for this region with nonfinite={'REGION': 'allow'}, if it is meant",
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
            writers=writers(call.place.owners),
            refuses=self.refuses,
        )

    # -- 3. writing

    def _write(self, call: Call, attempt: Attempt) -> tuple[Sequence[ShardRecord | None], Sums]:
        """Write what this owner has to write, and add up what it holds."""
        call.working = attempt.progress
        sums = self.line.pool.submit(attempt.sums, self.pool)
        parts = call.run(attempt.parts, working=attempt.progress)
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
        own: Sequence[ShardRecord],
        shared: ShardRecord | None,
        heard: Heard,
        sums: Sums,
        gathered: bool,
    ) -> None:
        digest, bounds = _NO_DIGEST, None
        if not gathered:
            manifest = Manifest(
                kind="group",
                role=call.place.role,
                size=call.place.size,
                prefix=attempt.prefix,
                device={},
                shards=tuple(own),
                children=heard.children,
                cover=sums.cover,
            )
            data, name = call.run(manifest.encode, attempt.algorithm)
            path = attempt.path(manifest_file(call.place.role))
            call.run(self._write_manifest, attempt, path, data, bool(call.place.children))
            attempt.files.append(path)
            digest = bytes.fromhex(name.partition(":")[2])
            bounds = bounds_of(attempt, own, heard.children)
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
        # From here on the store decides: this must stand before the commitment is on its way.
        attempt.committed = True
        call.committed(lambda error: self._settle(attempt, error))
        call.up(Kind.COMMIT, commitment.pack())
        failpoints.reach("save.committed")

    def _write_manifest(self, attempt: Attempt, path: str, data: bytes, parent: bool) -> None:
        attempt.make_folder(path)
        commit.write_new(path, data)
        if parent:
            commit.sync_directory(os.path.dirname(path), self.directory.fence)

    def _await_release(self, call: Call, attempt: Attempt) -> Published:
        respondent = inquire.Respondent(
            attempt.capture, attempt.agreed.declarations, attempt.agreed.schema, call.place.role
        )
        while True:
            kind, body = call.from_parent(Kind.RELEASE, Kind.INQUIRE)
            if kind is Kind.RELEASE:
                attempt.root = body.decode()
                call.down(Kind.RELEASE, body)
                call.over()
                failpoints.reach("save.released")
                return self._done(attempt)
            inquire.reply(call, respondent, body)

    def _settle(self, attempt: Attempt, error: CheckpointError) -> CheckpointError | None:
        """In doubt: whichever file exists under the root's name decides. Runs in a worker."""
        if commit.was_published(error):
            return error  # the root stands, its durability unknown: nobody may call it void, nor durable
        failpoints.reach("save.doubt")
        verdict = self.directory.void(attempt.name, error)
        if verdict is None:
            found = self.directory.read_root(attempt.name)
            assert isinstance(found, Manifest)
            attempt.root = found.digest
        return verdict

    # -- 5. the root

    def _publish(
        self, call: Call, attempt: Attempt, records: Sequence[ShardRecord | None], heard: Heard, sums: Sums
    ) -> Published:
        schema, declarations = attempt.agreed.schema, attempt.agreed.declarations
        shards = [record for record in records if record is not None]
        for role, told in heard.shared:
            shards.append(shared_record(attempt, role, told))
        cover = sums.cover + sum(attempt.cover(record) for record in shards if record.shared)
        sums = Sums(cover & coverage.MASK, sums.held, sums.copies)
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
            topology={"kind": "star", "fan_out": max(1, call.place.owners - 1)},
            parent=self.parent,
            written=self._told(call.place.owners),
            lineage=self.lineage,
        )
        data, attempt.root = call.run(manifest.encode, attempt.algorithm)
        call.run(self._sync_attempt, attempt)
        attempt.committed = True
        call.committed(lambda error: self._settle(attempt, error))
        if not call.run(self._place, attempt, data):
            # Somebody who doubted was first: what stands there decides, for the root too.
            call.settle(TopologyError("the root's name was taken", path=attempt.name))
        failpoints.reach("save.root-published")
        call.down(Kind.RELEASE, attempt.root.encode())
        call.over()
        failpoints.reach("save.released")
        return self._done(attempt)

    def _place(self, attempt: Attempt, data: bytes) -> bool:
        """Publish the root, and say where the store has nothing to decide: the root is certainly not there."""
        try:
            return self.directory.publish_root(attempt.name, data)
        except CheckpointError:
            with contextlib.suppress(OSError):
                attempt.committed = attempt.name in os.listdir(self.directory.roots_path)
            raise

    def _sync_attempt(self, attempt: Attempt) -> None:
        """Sync what the star's owners have made: each folder once, and the attempt's directory."""
        for folder in sorted({os.path.dirname(attempt.path(shard_file(role))) for role in range(attempt.owners)}):
            if os.path.isdir(folder):
                commit.sync_directory(folder, self.directory.fence)
        commit.sync_directory(attempt.directory, self.directory.fence)

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
        if sums.held != coverage.expected_held(declarations, schema) or sums.cover != coverage.expected_cover(schema):
            raise inquire.coverage_fault(call, respondent)
        if sums.copies != 0:
            raise inquire.copies_fault(call, respondent)
