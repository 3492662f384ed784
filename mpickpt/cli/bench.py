"""``mpickpt bench DIR``: what a file system gives, and what of it mpickpt reaches; see `mpickpt.bench`."""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import click

from mpickpt.cli import output
from mpickpt.errors import CheckpointError, StoreError

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _size(ctx: click.Context, param: click.Parameter, text: str) -> int:
    """Read a number of bytes: 512M, 2G, 2GiB."""
    plain = text.upper().removesuffix("B").removesuffix("I")
    factor = _UNITS.get(plain[-1:])
    digits = plain if factor is None else plain[:-1]
    if not (digits.isascii() and digits.isdigit() and 0 < len(digits) < 16 and int(digits) > 0):
        raise click.BadParameter(f"{text!r} is no size, such as 512M or 2G", ctx, param)
    return int(digits) * (factor or 1)


@click.command("bench")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=str, exists=True, file_okay=False, writable=True))
@click.option(
    "--owners", type=click.IntRange(min=1), default=4, show_default=True, help="MPI processes; 1: without MPI."
)
@click.option("--size", callback=_size, default="1G", show_default=True, help="Bytes of all owners together.")
@click.option(
    "--runs", type=click.IntRange(min=1), default=3, show_default=True, help="In alternation with the limit's."
)
@click.option("--pieces", type=click.IntRange(min=1), default=10000, show_default=True, help="Small arrays, of 1 KiB.")
@click.option("--fio/--no-fio", default=True, help="Whether the limit is fio's, where it is there.")
@click.option("--json", "figures_path", type=click.Path(path_type=str, dir_okay=False), help="Where all figures go.")
@click.option("--plot", "plot_path", type=click.Path(path_type=str, dir_okay=False), help="A plot (needs matplotlib).")
def command(
    directory: str,
    owners: int,
    size: int,
    runs: int,
    pieces: int,
    fio: bool,
    figures_path: str | None,
    plot_path: str | None,
) -> None:
    """Measure the file system of DIR: its own limit first, then saves and restores beside it.

    Starts OWNERS processes with mpirun; started by mpirun or srun itself, it measures in the processes that are there.
    Works in a folder of its own in DIR, which is removed at the end. RATIO is to the limit; of times, small is good.
    """
    from mpickpt.bench import start, told
    from mpickpt.bench.plan import Plan

    if plot_path is not None:
        told.check_plot()
    plan = Plan(str(Path(directory).resolve()), owners, size, runs, pieces, fio)
    figures = _in_ranks(plan) if start.in_ranks() else start.run(plan)
    if figures is None:  # owner 0 tells
        return
    output.line(told.head(figures))
    columns = ("WHAT", "MEDIAN", "MIN", "MAX", "LIMIT", "OF", "RATIO")
    output.table(columns, told.rows(figures), right=("MEDIAN", "MIN", "MAX", "LIMIT", "RATIO"))
    output.line(told.phases(figures))
    if figures_path is not None:
        _write(figures_path, json.dumps(figures, indent=1) + "\n")
    if plot_path is not None:
        told.plot(figures, plot_path)


def _in_ranks(plan: Any) -> dict[str, Any] | None:
    """Measure in the processes that a launcher has started; an owner that fails ends them all."""
    from mpi4py import MPI

    from mpickpt.bench import start

    try:
        return start.run_in_ranks(plan, MPI.COMM_WORLD)
    except BaseException as error:
        # The others wait for this one, and MPI_Finalize would wait for them.
        if not isinstance(error, (CheckpointError, KeyboardInterrupt)):
            traceback.print_exc()
        print(f"mpickpt: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        time.sleep(1.0)  # an abort ends MPICH's launcher with whatever it has not read yet
        MPI.COMM_WORLD.Abort(error.exit_code if isinstance(error, CheckpointError) else 1)
        raise


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise StoreError(
            f"the figures could not be written ({error.strerror})", errno=error.errno, path=path
        ) from error
