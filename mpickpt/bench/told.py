"""The figures of a benchmark for people: a table with ratios to the limit, and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mpickpt import units
from mpickpt.errors import NotFoundError


class Line(NamedTuple):
    """One line of the table: a name, its values, those of the limit, and what that limit is."""

    what: str
    values: Sequence[float]
    limit: Sequence[float]
    of: str
    show: Callable[[float], str]


#: A figure, how it is called, the figure of its limit and how that is called.
_RATES: Final = (
    ("save", "save", "disk write", "write"),
    ("restore", "cold verified restore", "disk read", "read"),
)


def lines(figures: Mapping[str, Any]) -> list[Line]:
    """Say what stands in the table; figures that were not measured are left out."""
    known: Mapping[str, Sequence[float]] = figures["figures"]
    found = []
    for name, what, limit, of in _RATES:
        if limit in known:
            found.append(Line(what, known[name], known[limit], f"{figures['limit']} {of}", units.rate))
        else:
            found.append(Line(what, known[name], known["cores"], "copy + digest", units.rate))
    pieces = f"{figures['pieces']} x 1 KiB"
    found.append(Line(f"save {pieces}", known["small save"], (), "", units.seconds))
    found.append(Line(f"restore {pieces}", known["small restore"], (), "", units.seconds))
    found.append(Line("async save returns", known["stall"], known["memory copy"], "memory copy", units.seconds))
    return found


def ratio(line: Line) -> float | None:
    """Give the median of the ratios to the limit, run by run."""
    if not line.limit:
        return None
    return statistics.median(a / b for a, b in zip(line.values, line.limit, strict=True))


def rows(figures: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Give the cells of the table: WHAT, MEDIAN, MIN, MAX, LIMIT, OF, RATIO."""
    found = []
    for line in lines(figures):
        show, share = line.show, ratio(line)
        limit = show(statistics.median(line.limit)) if line.limit else ""
        middle = (statistics.median(line.values), min(line.values), max(line.values))
        found.append((line.what, *map(show, middle), limit, line.of, "" if share is None else f"{share:.2f}"))
    return found


def head(figures: Mapping[str, Any]) -> str:
    """Say in a line what was measured, and on what."""
    return (
        f"{figures['file system']}, {figures['owners']} owner(s), {units.human(figures['bytes'])}, "
        f"{figures['runs']} run(s), {figures['cores']} core(s), {figures['mpi']}; page cache {figures['cache']}"
    )


def phases(figures: Mapping[str, Any]) -> str:
    """Say what the saves' time went into: the mean of the runs."""
    told: Sequence[Mapping[str, float]] = figures["phases"]
    if not told:
        return ""
    shares = {name: statistics.fmean(one[name] for one in told) for name in told[0]}
    return "a save's time: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())


def check_plot() -> None:
    """Refuse to plot without matplotlib, before anything is measured.

    Raises
    ------
    NotFoundError
        If it is not there.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise NotFoundError(
            "there is no matplotlib, which --plot needs", advice="pip install matplotlib, or leave --plot out"
        ) from error


def plot(figures: Mapping[str, Any], path: str) -> None:
    """Draw the figures beside their limits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    told = lines(figures)
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for axis, show, unit, scale in ((axes[0], units.rate, "GB/s", 1e9), (axes[1], units.seconds, "s", 1.0)):
        shown = [line for line in told if line.show is show]
        for at, line in enumerate(shown):
            middle = statistics.median(line.values) / scale
            spread = [[middle - min(line.values) / scale], [max(line.values) / scale - middle]]
            axis.barh(at, middle, 0.4, xerr=spread, color="tab:blue", label="mpickpt" if at == 0 else None)
            if line.limit:
                limit = statistics.median(line.limit) / scale
                axis.barh(at + 0.4, limit, 0.4, color="lightgrey", label=f"limit ({line.of})")
        axis.set_yticks([at + 0.2 for at in range(len(shown))], [line.what for line in shown])
        axis.invert_yaxis()
        axis.set_xlabel(unit)
        axis.legend(fontsize="small")
    figure.suptitle(head(figures), fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
