"""``mpickpt sweep RUN``: remove what failed attempts left behind."""

from __future__ import annotations

import click

from mpickpt.cli import output


@click.command("sweep")
@output.run_argument
@click.option("--orphans", is_flag=True, help="Remove generations off the lineage too.")
@output.json_option
def command(run: str, orphans: bool, as_json: bool) -> None:
    """Remove from RUN what failed attempts left behind. No published generation on the lineage is ever touched."""
    from mpickpt.store.directory import Directory
    from mpickpt.store.inspect import open_store

    open_store(run)  # refuses what is no store
    removed = [str(path) for path in Directory(run).sweep(orphans=orphans)]
    if as_json:
        output.document({"path": run, "removed": removed})
        return
    for path in removed:
        output.line(f"removed {path}")
    if not removed:
        output.line("nothing to remove")
