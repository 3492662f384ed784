"""Where NaN and infinities are refused: a rule for each pattern of region names."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from mpickpt.errors import StateError


def policy_of(nonfinite: str | Mapping[str, str]) -> dict[str, str]:
    """Read what a caller gave: one rule for all, or by name pattern (`fnmatch`).

    Raises
    ------
    StateError
        If a rule is neither ``"refuse"`` nor ``"allow"``.
    """
    policy: dict[Any, Any] = dict(nonfinite) if isinstance(nonfinite, Mapping) else {"*": nonfinite}
    for pattern, rule in policy.items():
        if not isinstance(pattern, str) or rule not in ("refuse", "allow"):
            raise StateError(
                "nonfinite is no policy",
                expected="'refuse', 'allow', or {name pattern: either}",
                found=repr({pattern: rule})[:100],
            )
    return policy


def refusing(policy: Mapping[str, str]) -> Callable[[str], bool]:
    """Tell for a region's name whether it refuses them: the first pattern that fits rules, and what none fits does."""
    first = next(iter(policy.items()), ("*", "refuse"))
    if first[0] == "*":  # as nearly always: nothing to look at, for thousands of names
        return lambda name: first[1] == "refuse"
    known: dict[str, bool] = {}

    def refuses(name: str) -> bool:
        if name not in known:
            rule = next((rule for pattern, rule in policy.items() if fnmatch.fnmatchcase(name, pattern)), "refuse")
            known[name] = rule == "refuse"
        return known[name]

    return refuses
