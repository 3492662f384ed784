"""``mpickpt gate NAME|all``: registers the verification gates, which are in `mpickpt.gates`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from mpickpt.cli import output
from mpickpt.gates.gate import GATES, run
from mpickpt.gates.ground import TOPOLOGIES
from mpickpt.gates.launch import LAUNCHERS
from mpickpt.gates.report import write


def _counts(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Read owner counts: ``4,3,5``."""
    parts = text.split(",") if text else []
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 100_000 for part in parts):
        raise click.BadParameter(f"{output.printable(text)!r} is no list of owner counts, such as 4,3,5")
    counts = tuple(map(int, parts))
    if counts[:1] == (1,):
        raise click.BadParameter("one owner has nobody to differ from: give 2 or more")
    return counts


@click.command("gate")
@click.argument("name", type=click.Choice([*GATES, "all"]))
@click.option(
    "--store", required=True, type=click.Path(path_type=Path), help="A directory on the file system that is judged."
)
@click.option("--launcher", type=click.Choice(LAUNCHERS), default="mpirun", show_default=True)
@click.option("--launcher-args", default="", help="Further arguments of the launcher, in one string.")
@click.option("--owners", default="", callback=_counts, metavar="N,N,...", help="Instead of each gate's own counts.")
@click.option("--topology", type=click.Choice([*TOPOLOGIES, "both"]), default="both", show_default=True)
@click.option("--deadline", type=click.FloatRange(min=1.0), default=120.0, show_default=True, help="Seconds a start.")
@click.option("--report", type=click.Path(path_type=Path), help="Where the JSON report goes; default: into the folder.")
@output.json_option
def command(
    name: str,
    store: Path,
    launcher: str,
    launcher_args: str,
    owners: tuple[int, ...],
    topology: str,
    deadline: float,
    report: Path | None,
    as_json: bool,
) -> int:
    """Prove on this cluster what mpickpt promises: each check starts fresh processes and says its verdict.

    Works in a new folder in the directory of --store, which stays. Exit code 0 if every check passed and every
    deliberately broken build was caught, else 1.
    """
    names = list(GATES) if name == "all" else [name]
    found = run(
        names,
        store,
        launcher=launcher,
        arguments=shlex.split(launcher_args),
        owners=owners,
        topologies=TOPOLOGIES if topology == "both" else (topology,),
        deadline=deadline,
        say=(lambda line: print(line, file=sys.stderr, flush=True)) if as_json else output.say,
    )
    where = Path(found["folder"]) / "report.json" if report is None else report
    write(where, found)
    if as_json:
        output.document(found)
    else:
        failed = sum(not check["ok"] for check in found["checks"])
        output.line()
        output.line(f"{len(found['checks'])} checks, {failed} failed; {found['seconds']:.0f} s; report: {where}")
    return 0 if found["ok"] else 1
