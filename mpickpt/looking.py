"""What can be asked of a run's generations: `latest`, `generations`, `verify`, `pin`. See `mpickpt.cluster.survey`."""

from __future__ import annotations

from typing import Literal

from mpickpt.calls import Calls, collective
from mpickpt.cluster.survey import Survey
from mpickpt.store.report import Generation, Report


class Looking(Calls):
    """The part of a Checkpointer that looks at generations."""

    _survey: Survey

    def latest(self) -> Generation | None:
        """Give the newest generation of the lineage, or None. Collective: owner 0 reads, all get it."""
        live = [generation for generation in self.generations() if generation.status == "live"]
        return live[-1] if live else None

    @collective("_others")
    def generations(self) -> list[Generation]:
        """List all generations, orphaned and damaged ones too, the newest last. Collective."""
        self._saving.settle(self._others)
        return self._survey.generations()

    @collective("_others")
    def verify(self, step: int | None = None, level: Literal["fast", "full"] = "full") -> Report:
        """Check every byte of a generation, the newest one by default. Collective: each owner checks a share.

        Parameters
        ----------
        level : {"fast", "full"}
            CRCs, or digests.

        Returns
        -------
        Report
            The same at all owners: how many files are well and how many are not, and the verdicts of at most 20 damaged
            ones. Damage is told in it and not raised. `Store.verify` has a verdict for every file.
        """
        self._saving.settle(self._others)
        return self._survey.verify(step, level)

    @collective("_others")
    def pin(self, step: int) -> None:
        """Keep a generation for good: rotation leaves it alone. Collective."""
        self._saving.settle(self._others)
        self._survey.pin(step)
