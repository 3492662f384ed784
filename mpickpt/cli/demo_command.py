"""``mpickpt demo``: registers the demonstration, which is in `mpickpt.cli.demo`; the one command that needs MPI."""

from __future__ import annotations

import sys

import click

from mpickpt.cli import output


@click.command("demo")
@click.argument("folder", required=False, type=click.Path(path_type=str))
@click.option("--owners", type=click.IntRange(min=1), default=4, show_default=True, help="MPI processes.")
@click.option("--steps", type=click.IntRange(min=2), default=600, show_default=True, help="Steps of the training.")
@click.option("--every", type=click.IntRange(min=1), default=20, show_default=True, help="Steps between checkpoints.")
@click.option("--seed", type=click.IntRange(min=0), help="Draws the time of the kill; default: at random.")
@output.json_option
def command(folder: str | None, owners: int, steps: int, every: int, seed: int | None, as_json: bool) -> int:
    """Train a small network with several owners, kill it with SIGKILL, resume, and compare bit for bit.

    Works in FOLDER (default: a new temporary one). Exit code 0 if both end states are equal.
    """
    from mpickpt.cli.demo import run

    out = sys.stderr if as_json else sys.stdout
    code = run(folder, owners=owners, steps=steps, every=every, seed=seed, out=out)
    if as_json:
        output.document({"equal": code == 0})
    return code
