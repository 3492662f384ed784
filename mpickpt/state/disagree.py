"""What owners declare differently although they may not: collected, at most 20 named, with roles and both values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mpickpt import canonical
from mpickpt.errors import DisagreementError
from mpickpt.state.contract import compare, flatten
from mpickpt.state.region import Region

if TYPE_CHECKING:
    from mpickpt.state.declare import Entry

MAX_DIFFERENCES: Final = 20
_ADVICE: Final = "declare these alike on all owners; what is different at each owner is a PerOwner"


@dataclass(frozen=True, slots=True)
class _Difference:
    text: str
    left: str
    first: int
    right: str
    other: int
    region: str | None
    advice: str


def _text(value: object) -> str:
    return str(value).replace(", ", ",") if isinstance(value, tuple) else str(value)


def _rule(region: Region) -> str:
    return "none" if region.rule is None else f"{region.rule.name} along axis {region.rule.axis}"


class Differences:
    """Differences in the order in which they are met, each distinct one once, however many owners have it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], _Difference] = {}

    def note(
        self, what: str, name: str, mine: object, first: int, theirs: object, other: int, region: str | None = None
    ) -> None:
        """Note one difference.

        Parameters
        ----------
        what, name : str
            What differs (``region w``), and in which of its fields; empty for in itself.
        mine, theirs : object
            Both values.
        first, other : int
            A role that has each.
        region : str, optional
            The region's name, or the container's path.
        """
        left, right = _text(mine), _text(theirs)
        text = f"{what}: {f'{name} ' if name else ''}{left} at owner {first}, {right} at owner {other}"
        advice = f"give all owners the same {what}" if region is None else _ADVICE
        if name and region is None:
            left, right = f"{name} {left}", f"{name} {right}"
        self._found.setdefault((what, name, right), _Difference(text, left, first, right, other, region, advice))

    def entries(self, mine: Entry, theirs: Entry) -> None:
        """Note in what two declarations of one region differ."""
        name = mine.region.name
        pairs: list[tuple[str, object, object]] = [
            (field, getattr(mine.region, field), getattr(theirs.region, field)) for field in ("shape", "dtype", "kind")
        ]
        pairs.append(("rule", _rule(mine.region), _rule(theirs.region)))
        pairs += [("mode", mine.mode, theirs.mode), ("copies", mine.copies, theirs.copies)]
        for field, left, right in pairs:
            if left != right:
                self.note(f"region {name}", field, left, mine.first, right, theirs.first, name)

    def nested(self, entries: Mapping[str, Entry]) -> None:
        """Note names that are a region at one owner and hold regions at another."""
        seen: set[str] = set()
        for name, entry in entries.items():
            above = name
            while above:  # the empty name, the state itself, is above all others
                above = above.rpartition("/")[0]
                if above in seen:
                    break
                seen.add(above)
                outer = entries.get(above)
                if outer is not None:
                    within = f"a container of {name}"
                    self.note(f"region {above}", "", f"a {outer.mode} region", outer.first, within, entry.first, above)

    def terms(self, what: str, mine: Mapping[str, Any], first: int, theirs: Mapping[str, Any], other: int) -> None:
        """Note in which fields contracts or options differ; type and bits count."""
        if canonical.dumps(mine) != canonical.dumps(theirs):
            for name, left, right in compare(flatten(mine, ""), flatten(theirs, "")):
                self.note(what, name, repr(left), first, repr(right), other)

    def refuse(self) -> None:
        """Raise what was found, if anything was.

        Raises
        ------
        DisagreementError
            With region, roles, expected and found of the first difference.
        """
        if not self._found:
            return
        found = list(self._found.values())
        more = f"; and {len(found) - MAX_DIFFERENCES} more" if len(found) > MAX_DIFFERENCES else ""
        one = found[0]
        raise DisagreementError(
            "owners differ: " + "; ".join(each.text for each in found[:MAX_DIFFERENCES]) + more,
            role=one.other,
            region=one.region,
            roles=(one.first, one.other),
            expected=f"{one.left} (owner {one.first})",
            found=f"{one.right} (owner {one.other})",
            advice=one.advice,
        )
