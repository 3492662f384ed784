"""``mpickpt ls RUN``: the generations of a run, oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mpickpt.cli import output

if TYPE_CHECKING:
    from mpickpt.store.report import Generation


@click.command("ls")
@output.run_argument
@output.json_option
def command(run: str, as_json: bool) -> None:
    """List the generations of RUN, oldest first.

    Reads the root manifests and no shard; writes nothing. STATUS is live (a resume would take the newest live one),
    orphaned (off the lineage), or damaged (its root, or what the root itself records, is not there as it should be).
    """
    from mpickpt.store.inspect import open_store

    store = open_store(run)
    found = store.generations()
    if as_json:
        output.document(
            {"path": store.path, "run": store.run_id, "generations": [generation.to_json() for generation in found]}
        )
    elif not found:
        output.line(f"no generation in {store.path}")
    else:
        _table(found)
    store.check()  # what is damaged as a whole is listed as far as it goes, and then refused


def _table(found: list[Generation]) -> None:
    output.table(
        ("STEP", "CURSOR", "EPOCH", "OWNERS", "SIZE", "CREATED", "STATUS", "ROOT"),
        [
            (one.step, one.cursor, one.epoch, one.owners, output.size(one.nbytes), one.created, one.status,
             output.short(one.root))
            for one in found
        ],
        right=("STEP", "CURSOR", "EPOCH", "OWNERS", "SIZE"),
    )  # fmt: skip
