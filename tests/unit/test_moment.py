from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from mpickpt.errors import MomentError, StateError
from mpickpt.state.moment import Moment


def test_keeps_three_plain_ints() -> None:
    moment = Moment(np.int64(1200), np.uint32(76800), 7)
    assert (moment.step, moment.cursor, moment.epoch) == (1200, 76800, 7)
    assert {type(value) for value in (moment.step, moment.cursor, moment.epoch)} == {int}
    assert moment == Moment(1200, 76800, 7)
    assert Moment(3) == Moment(step=3, cursor=0, epoch=0)


def test_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Moment(1).step = 2  # type: ignore[misc]


@pytest.mark.parametrize("field", ["step", "cursor", "epoch"])
@pytest.mark.parametrize("value", [-1, 1 << 63, 1.0, "1", None, True, np.float64(1)])
def test_refuses_what_is_no_count(field: str, value: object) -> None:
    with pytest.raises(StateError, match=f"^{field} ") as caught:
        Moment(**{"step": 1, field: value})  # type: ignore[arg-type]
    assert caught.value.expected
    assert caught.value.found == repr(value)


def test_the_largest_moment() -> None:
    assert Moment((1 << 63) - 1).step == (1 << 63) - 1


@pytest.mark.parametrize(
    ("mine", "field"), [(Moment(9, 100), "step"), (Moment(11, 99), "cursor"), (Moment(9, 99), "step")]
)
def test_refuses_a_step_or_cursor_that_goes_back(mine: Moment, field: str) -> None:
    with pytest.raises(MomentError, match=f"^{field} goes back") as caught:
        mine.check_after(Moment(10, 100, 2))
    assert "step 10, cursor 100, epoch 2" in str(caught.value)


@pytest.mark.parametrize("mine", [Moment(10, 100), Moment(11, 100), Moment(11, 101)])
def test_accepts_what_goes_on(mine: Moment) -> None:
    mine.check_after(Moment(10, 100, 2))
