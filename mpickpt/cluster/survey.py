"""Calls that look at the store together: lists, verification, pins, and the last meeting before the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from mpickpt import canonical
from mpickpt.cluster.agree import agree
from mpickpt.cluster.channel import Call, Kind, Line
from mpickpt.cluster.lineage import Lineage
from mpickpt.cluster.restore import Request
from mpickpt.errors import CheckpointError, from_record
from mpickpt.state.capture import Capture, Node
from mpickpt.state.declare import Declarations
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation as Files
from mpickpt.store.inspect import open_store
from mpickpt.store.reader import check_level
from mpickpt.store.report import Generation, Report, Verdict
from mpickpt.store.writer import Progress

_NOTHING = Declarations.of(Capture([], {}, Node("dict", "", {}, []), []), 0, {}, {})


class Survey:
    """What a Checkpointer does beside saving and resuming."""

    def __init__(self, line: Line, directory: Directory, lineage: Lineage) -> None:
        self.line = line
        self.directory = directory
        self.lineage = lineage

    def _together(self, call: Call, action: str, facts: dict[str, Any], decide: Callable[[], dict[str, Any]]) -> Any:
        """Agree on what is asked, and learn what owner 0 found."""
        return agree(call, action, facts, _NOTHING, "-", lambda _: decide())[0]

    def meet(self) -> None:
        """Wait until every owner has come to the end."""
        with self.line.call() as call:
            self._together(call, "close", {}, dict)

    def generations(self) -> list[Generation]:
        """List all generations; owner 0 reads."""
        with self.line.call() as call:
            found = self._together(
                call,
                "generations",
                {"path": self.directory.path},
                lambda: {"generations": [one.to_json() for one in self._listed()]},
            )
        return [Generation(**one) for one in found["generations"]]

    def _listed(self) -> list[Generation]:
        # A run that has not begun yet has no generations; that is no error.
        return open_store(self.directory.path).generations() if os.path.isdir(self.directory.roots_path) else []

    def pin(self, step: int) -> None:
        """Pin the generation of a step."""
        with self.line.call() as call:
            self._together(call, "pin", {"path": self.directory.path, "step": step}, lambda: self.lineage.pin(step))

    def verify(self, step: int | None, level: Literal["fast", "full"]) -> Report:
        """Check one generation; each owner checks its share of the files."""
        request = Request(step=step, readonly=True)
        with self.line.call() as call:
            check_level(level)
            facts = {"path": self.directory.path, "step": step, "level": level}
            chosen = self._together(call, "verify", facts, lambda: self.lineage.choose(request))
            if chosen["fresh"]:
                return Report((), level, ())
            share, progress = (call.place.role, call.place.owners), Progress()
            verdicts = call.run(self._check, share, chosen, level, progress, working=progress)
            for body in call.from_children(Kind.OUTCOME).values():
                verdicts += canonical.loads(body, what="an owner's verdicts")
            verdicts = _once(verdicts)
            if call.place.parent is not None:
                call.up(Kind.OUTCOME, canonical.dumps(verdicts))
                _, body = call.from_parent(Kind.RESULT)
            else:
                body = canonical.dumps(sorted(verdicts, key=lambda verdict: verdict["path"]))
            call.down(Kind.RESULT, body)
            call.over()
            found = [
                Verdict(one["path"], one["ok"], None if one["error"] is None else from_record(one["error"]))
                for one in canonical.loads(body, what="the verdicts of all")
            ]
        return Report(tuple(found), level, ())

    def _check(self, share: tuple[int, int], chosen: dict[str, Any], level: str, progress: Progress) -> list[Any]:
        try:
            verdicts = Files(self.directory, chosen["name"], chosen["digest"]).verify(level, share, progress)
        except CheckpointError as error:
            verdicts = [Verdict(f"roots/{chosen['name']}", False, error)]
        return [verdict.to_json() for verdict in verdicts]


def _once(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep one verdict a file: of a damaged manifest all tell that had to read it."""
    found: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        if found.setdefault(verdict["path"], verdict)["ok"]:
            found[verdict["path"]] = verdict
    return list(found.values())
