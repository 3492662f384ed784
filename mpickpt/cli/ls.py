"""``mpickpt ls RUN``: the generations of a run, oldest first, or how they came about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from mpickpt.cli import output

if TYPE_CHECKING:
    from mpickpt.store.report import Epoch, Generation

_MARKS: Final = {"live": "*", "orphaned": "x", "damaged": "!"}


@click.command("ls")
@output.run_argument
@click.option("--lineage", is_flag=True, help="By epoch: who went on from what, and what became of it.")
@output.json_option
def command(run: str, lineage: bool, as_json: bool) -> None:
    """List the generations of RUN, oldest first.

    Reads the root manifests and no shard; writes nothing. STATUS is live (a resume would take the newest live one),
    orphaned (off the lineage), or damaged (its root, or what the root itself records, is not there as it should be).
    """
    from mpickpt.store.inspect import open_store

    store = open_store(run)
    if lineage:
        epochs = store.epochs()
        if as_json:
            output.document({"path": store.path, "run": store.run_id, "epochs": [epoch.to_json() for epoch in epochs]})
        elif not epochs:
            output.line(f"no epoch in {store.path}")
        else:
            _drawing(epochs)
    else:
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


def _drawing(epochs: list[Epoch]) -> None:
    """Draw the epochs, each with its generations and, behind one, the epochs that go on from there."""
    heirs: dict[tuple[int, int] | None, list[str]] = {}
    newest = next((epoch for epoch in reversed(epochs) if epoch.status == "taken"), None)
    for epoch in epochs:
        if epoch.status == "taken":
            heirs.setdefault(epoch.origin, []).append(str(epoch.epoch))
    for epoch in epochs:
        output.line(f"epoch {epoch.epoch}: {_origin(epoch)}")
        if epoch.status != "missing":
            output.line(f"|    {_claimant(epoch)}")
            if epoch.reason:
                output.line(f"|    why: {epoch.reason}")
            if epoch.ended or (epoch.status == "taken" and epoch is not newest):
                output.line(f"|    ended: {epoch.ended or 'it did not say (killed, or its node lost)'}")
        for field, then, now, why in epoch.accepted:
            output.line(f"|    accepted: {field} {then} -> {now}: {why}")
        for one in epoch.generations:
            after = heirs.get((one.epoch, one.step), [])
            output.line(
                f"{_MARKS.get(one.status, '?')}    step {one.step}, cursor {'?' if one.cursor is None else one.cursor}"
                f"  {one.status}  {output.short(one.root)}" + (f"  -> epoch {', '.join(after)}" if after else "")
            )


def _origin(epoch: Epoch) -> str:
    if epoch.status == "missing":
        return "its claim is missing"
    told = "a fresh start" if epoch.origin is None else "from epoch {}, step {}".format(*epoch.origin)
    return told if epoch.status == "taken" else f"{told} ({epoch.status})"


def _claimant(epoch: Epoch) -> str:
    again = f" (restart {epoch.restarts})" if epoch.restarts else ""
    who = f"job {epoch.job}{again} on " if epoch.job else ""
    nodes = f" (nodes {epoch.nodes})" if epoch.nodes else ""
    return f"{who}host {epoch.host}{nodes}, {epoch.owners} owner{'' if epoch.owners == 1 else 's'}, {epoch.time}"
