"""``mpickpt fsprobe DIR``: what a file system can do and promises."""

from __future__ import annotations

import click

from mpickpt.cli import output


@click.command("fsprobe")
@click.argument("directory", type=click.Path(path_type=str))
@output.json_option
def command(directory: str, as_json: bool) -> None:
    """Try in DIR, with files that are removed again, how a checkpoint would be put in place there.

    DURABLE says what a finished save rests on: proven (tried by us through power cuts), vendor (read in the file
    system's source), server (up to the server), none (memory: gone with the machine).
    """
    from mpickpt.store.filesystem import probe

    told = {"path": directory} | probe(directory).to_json()
    if as_json:
        output.document(told)
        return
    rows = []
    for key, value in told.items():
        if isinstance(value, list):
            value = "; ".join(map(str, value)) or "-"
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        rows.append((key.replace("_", " "), value))
    output.table(("WHAT", "ANSWER"), rows)
