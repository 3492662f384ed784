"""``mpickpt verify RUN``: a verdict for every file."""

from __future__ import annotations

import click

from mpickpt.cli import output


@click.command("verify")
@output.run_argument
@click.argument("generation", required=False, metavar="[STEP]")
@click.option("--all", "everything", is_flag=True, help="All generations, orphaned ones and the claims too.")
@click.option("--fast", is_flag=True, help="CRCs only, no digests of chunks.")
@output.json_option
def command(run: str, generation: str | None, everything: bool, fast: bool, as_json: bool) -> None:
    """Check every file of a generation of RUN: the newest live one, or STEP (a number, or a root digest's beginning).

    Writes nothing. Exit code 3 if a file is missing, cut, longer, or differs by a byte from what its record names.
    """
    from mpickpt.store.inspect import open_store

    if everything and generation is not None:
        raise click.UsageError("--all and STEP exclude each other")
    store = open_store(run)
    level = "fast" if fast else "full"
    report = store.verify_all(level) if everything else store.verify(output.selector(generation), level)
    if as_json:
        output.document(report.to_json())
    else:
        output.table(
            ("VERDICT", "FILE", "REASON"),
            [
                ("ok" if one.ok else "DAMAGED", one.path, "" if one.error is None else one.error.message)
                for one in report
            ],
        )
        checked = ", ".join(f"{one.step} (epoch {one.epoch})" for one in report.generations) or "none"
        output.line()
        output.line(
            f"{len(report.verdicts)} files, {len(report.failed)} damaged; level {level}; generations: {checked}"
        )
    report.raise_for_damage()
