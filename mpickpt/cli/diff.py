"""``mpickpt diff``: what differs between two generations, region by region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mpickpt.cli import output

if TYPE_CHECKING:
    from mpickpt.store.compare import Difference


@click.command("diff")
@click.argument("what", nargs=-1, metavar="RUN A B | RUN1 RUN2")
@click.option("--step", metavar="STEP", help="With RUN1 RUN2: this generation of both, not the newest of each.")
@output.json_option
def command(what: tuple[str, ...], step: str | None, as_json: bool) -> int:
    """Compare generations A and B of RUN, or the newest live generations of RUN1 and RUN2, bit for bit.

    A and B are steps, or beginnings of root digests. Moments are shown, not compared; a NaN equals a NaN of the same
    bits. Exit code 0: equal; 1: different. Writes nothing; memory is bounded however large the regions are.
    """
    from mpickpt.store.compare import compare
    from mpickpt.store.inspect import open_store

    if len(what) == 3 and step is None:
        stores = (open_store(what[0]),) * 2
        wanted = (output.selector(what[1]), output.selector(what[2]))
    elif len(what) == 2:
        stores = (open_store(what[0]), open_store(what[1]))
        wanted = (output.selector(step),) * 2
    else:
        raise click.UsageError("give RUN A B, or RUN1 RUN2 [--step STEP]")
    sides = [store.open(selector) for store, selector in zip(stores, wanted, strict=True)]
    told = [store.tell(side) for store, side in zip(stores, sides, strict=True)]
    found = list(compare(sides[0], sides[1]))
    if as_json:
        output.document(
            {
                "equal": not found,
                "first": {"path": stores[0].path} | told[0].to_json(),
                "second": {"path": stores[1].path} | told[1].to_json(),
                "differences": [difference.to_json() for difference in found],
            }
        )
        return 1 if found else 0
    for path, one, side in zip((what[0], what[0 if len(what) == 3 else 1]), told, ("first", "second"), strict=True):
        moment = f"step {one.step}, cursor {one.cursor}, epoch {one.epoch}"
        output.line(f"{side + ':':8}{path}  {moment}  {output.short(one.root)}")
    if not found:
        output.line("equal: every region, bit for bit")
        return 0
    output.table(
        ("REGION", "WHAT", "AT", "FIRST", "SECOND", "DIFFERENT"),
        [
            (
                one.region,
                one.what,
                _place(one),
                one.first,
                one.second,
                "" if one.count is None else f"{one.count} of {one.size}",
            )
            for one in found
        ],
        right=("DIFFERENT",),
    )
    return 1


def _place(one: Difference) -> str:
    if one.role is not None:
        return f"owner {one.role}"
    return "" if one.index is None else str(one.index)
