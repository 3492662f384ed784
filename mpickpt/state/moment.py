"""The moment of a capture: committed step, input cursor, membership epoch."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Final

from mpickpt.errors import MomentError, StateError

LIMIT: Final = 1 << 63  # a commitment writes each as a signed 64-bit number

_ADVICE: Final = {
    "step": "give the number of optimizer updates done so far",
    "cursor": "give the number of inputs that all owners together have consumed so far",
    "epoch": "count continuations from 1",
}


def _number(value: object, field: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise StateError(
            f"{field} is no whole number", expected="an int >= 0", found=repr(value)[:100], advice=_ADVICE[field]
        ) from None
    if not 0 <= number < LIMIT:
        raise StateError(
            f"{field} is out of range", expected="0 <= value < 2**63", found=repr(value)[:100], advice=_ADVICE[field]
        )
    return number


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a training run.

    Parameters
    ----------
    step : int
        Committed steps: optimizer updates done, >= 0.
    cursor : int
        Inputs consumed by all owners together, >= 0; never reset.
    epoch : int
        Membership epoch that produced it, >= 0; it counts continuations, not passes over the data.

    Raises
    ------
    StateError
        If one of them is no whole number in ``[0, 2**63)``.

    Examples
    --------
    >>> Moment(step=1200, cursor=76800, epoch=7).text()
    'step 1200, cursor 76800, epoch 7'
    """

    step: int
    cursor: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        for field in ("step", "cursor", "epoch"):
            object.__setattr__(self, field, _number(getattr(self, field), field))

    def text(self) -> str:
        """Give the moment as messages write it."""
        return f"step {self.step}, cursor {self.cursor}, epoch {self.epoch}"

    def check_after(self, newest: Moment) -> None:
        """Check that step and cursor do not go back behind `newest`, the newest moment on the lineage.

        An equal step is not judged here: it is published already, which is another refusal.

        Raises
        ------
        MomentError
            If the step is lower, or the cursor is.
        """
        for field in ("step", "cursor"):
            mine, theirs = getattr(self, field), getattr(newest, field)
            if mine < theirs:
                raise MomentError(
                    f"{field} goes back behind the newest generation",
                    expected=f"{field} >= {theirs} ({newest.text()})",
                    found=f"{field} {mine}",
                    advice="resume from the store first, and count on from what the Continuation says",
                )
