"""``mpickpt show RUN [STEP]``: what one generation holds, and who holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from mpickpt.cli import output
from mpickpt.state.contract import flatten


@click.command("show")
@output.run_argument
@click.argument("generation", required=False, metavar="[STEP]")
@click.option("--tree", is_flag=True, help="The manifests and their files too.")
@click.option("--timings", "timed", is_flag=True, help="What saves took, instead: of STEP, or of all the run.")
@click.option("--events", type=click.Path(path_type=str), help="With --timings: the file of events, if elsewhere.")
@output.json_option
def command(run: str, generation: str | None, tree: bool, timed: bool, events: str | None, as_json: bool) -> None:
    """Show a generation of RUN: the newest live one, or STEP (a number, or the beginning of a root digest).

    Reads every manifest and no array; writes nothing. HELD BY: the owners whose files hold pieces of the region.

    With --timings reads the events of the run alone: saves, resumes, failures, how long they took, and what the time
    of the owner went into that was busy for longest.
    """
    if events is not None and not timed:
        raise click.UsageError("--events goes with --timings")
    if timed:
        from mpickpt.cli import timings

        found = timings.of(run, events, output.selector(generation))
        if as_json:
            output.document({"path": run, "events": found})
        else:
            timings.draw(found, generation is not None)
        return
    from mpickpt.store.describe import describe
    from mpickpt.store.inspect import open_store

    store = open_store(run)
    opened = store.open(output.selector(generation))
    told = store.tell(opened)
    described = describe(opened)
    if as_json:
        if not tree:
            del described["manifests"]
        output.document({"path": store.path, "generation": told.to_json()} | described)
        return
    _head(told.to_json(), described)
    output.line()
    output.table(
        ("REGION", "KIND", "DTYPE", "SHAPE", "SIZE", "RULE", "HELD BY"),
        [
            (
                region["name"],
                region["kind"],
                region["dtype"] or "",
                "" if region["shape"] is None else tuple(region["shape"]),
                output.size(region["nbytes"]),
                "" if region["rule"] is None else f"{region['rule'][0]} axis {region['rule'][1]}",
                output.roles(region["held_by"]),
            )
            for region in described["regions"]
        ],
        right=("SIZE",),
    )
    if tree:
        output.line()
        rows = list(_files(described["manifests"]))
        output.table(("ROLE", "FILE", "SIZE", "PIECES", "DIGEST"), rows, right=("SIZE", "PIECES"))


def _head(told: dict[str, Any], described: dict[str, Any]) -> None:
    rows: list[tuple[str, object]] = [
        ("root", told["root"]),
        ("status", told["status"]),
        ("moment", f"step {told['step']}, cursor {told['cursor']}, epoch {told['epoch']}"),
        ("owners", told["owners"]),
        ("bytes", f"{output.size(told['nbytes'])} in {len(described['regions'])} regions"),
    ]
    rows += [(f"prefix {key}", value) for key, value in described["prefix"].items() if key not in _MOMENT]
    parent = described["parent"]
    rows.append(("parent", "none" if parent is None else f"{parent['digest']} (step {parent['step']})"))
    for field, value in sorted(described["contract"].items()):
        if isinstance(value, dict):
            rows += [(f"contract {name}", repr(inner)) for name, inner in sorted(flatten(value, field).items())]
        else:
            rows.append((f"contract {field}", value))
    rows += [
        (f"{part} {key}", value) for part in ("written", "device") for key, value in sorted(described[part].items())
    ]
    output.table(("WHAT", "VALUE"), rows)


_MOMENT = ("step", "cursor", "epoch")


def _files(manifests: Iterable[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Give rows of manifests, each with its shards behind it; what is deeper in the tree is indented."""
    for manifest in manifests:
        indent = "  " * manifest["depth"]
        count = f"{manifest['size']} role" + "s" * (manifest["size"] != 1)
        yield indent + str(manifest["role"]), manifest["file"], count, "", manifest["digest"]
        for one in manifest["shards"]:
            yield f"{indent}- {one['role']}", one["file"], output.size(one["bytes"]), one["pieces"], one["digest"]
