"""Calls that look at the store together: lists, verification, pins, and the last meeting before the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from mpickpt import canonical
from mpickpt.cluster.agree import agree
from mpickpt.cluster.channel import Call, Kind, Line
from mpickpt.cluster.lineage import Lineage
from mpickpt.cluster.request import Request
from mpickpt.errors import CheckpointError
from mpickpt.state.capture import Capture, Node
from mpickpt.state.declare import Declarations
from mpickpt.store.directory import Directory
from mpickpt.store.generation import Generation as Files
from mpickpt.store.inspect import open_store
from mpickpt.store.presence import is_directory
from mpickpt.store.progress import Progress
from mpickpt.store.report import Generation, Report, Verdict
from mpickpt.store.shard import check_level
from mpickpt.store.tally import Tally
from mpickpt.store.verifying import verdicts

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
        return open_store(self.directory.path).generations() if is_directory(self.directory.roots_path) else []

    def pin(self, step: int) -> None:
        """Pin the generation of a step."""
        with self.line.call() as call:
            self._together(call, "pin", {"path": self.directory.path, "step": step}, lambda: self.lineage.pin(step))

    def verify(self, step: int | None, level: Literal["fast", "full"]) -> Report:
        """Check one generation; each owner checks its share of the files, and what they tell each other is bounded."""
        request = Request(step=step, readonly=True)
        with self.line.call() as call:
            check_level(level)
            facts = {"path": self.directory.path, "step": step, "level": level}
            chosen = self._together(call, "verify", facts, lambda: self.lineage.choose(request))
            if chosen["fresh"]:
                return Report((), level, ())
            share, progress = (call.place.role, call.place.owners), Progress()
            tally = call.run(self._check, share, chosen, level, progress, working=progress)
            for _, body in sorted(call.from_children(Kind.OUTCOME).items()):
                tally.merge(_tally(body))
            if call.place.parent is not None:
                call.up(Kind.OUTCOME, canonical.dumps(tally.to_json()))
                _, body = call.from_parent(Kind.RESULT)
            else:
                body = canonical.dumps(tally.to_json())
            call.down(Kind.RESULT, body)
            call.over()
        return _tally(body).report(level)

    def _check(self, share: tuple[int, int], chosen: dict[str, Any], level: str, progress: Progress) -> Tally:
        tally = Tally()
        try:
            generation = Files(self.directory, chosen["name"], chosen["digest"])
            for verdict, counted in verdicts(generation, level, share, progress):
                tally.add(verdict, counted)
        except CheckpointError as error:
            tally.add(Verdict(f"roots/{chosen['name']}", False, error), share[0] == 0)  # the root is in the first share
        return tally


def _tally(body: bytes) -> Tally:
    return Tally.from_json(canonical.loads(body, what="what owners found of the files"))
