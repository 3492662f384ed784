"""30,000 arrays of 1 KiB are saved and resumed by four owners within seconds: no step is quadratic."""

from __future__ import annotations

from pathlib import Path

import mpilaunch
import pytest

CASES = Path(__file__).with_name("many_arrays_cases.py")
#: Seconds: about ten times what it takes, for machines that are slow or shared.
LIMIT = 10.0


def quiet(calls: tuple[list[float], ...]) -> float:
    """Give the seconds that one call of all owners takes on a machine which does nothing else.

    Other programs that run meanwhile take their share of the cores, and by it the call takes longer.
    """
    wall = max(seconds for seconds, _, _ in calls)
    worked = max(busy for _, busy, _ in calls)
    return wall * min(1.0, sum(own for _, _, own in calls) / worked)


@pytest.mark.parametrize("case", mpilaunch.cases(CASES))
def test_thirty_thousand_arrays_take_seconds(mpi: str, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = mpilaunch.batch(CASES, mpi, world=4, owners=(4,), timeout=240).passed(case, 4)
    save, resume = (min(quiet(calls) for calls in zip(*(one[what] for one in found), strict=True)) for what in found[0])
    with capsys.disabled():
        print(f"\n{mpi}, {case.replace('_', ' ')}: save {save:.2f} s, resume {resume:.2f} s")
    assert save < LIMIT
    assert resume < LIMIT
