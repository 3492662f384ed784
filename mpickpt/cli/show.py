"""``mpickpt show RUN [STEP]``: what one generation holds, and who holds it."""

from __future__ import annotations

from typing import Any

import click

from mpickpt.cli import output
from mpickpt.state.contract import flatten


@click.command("show")
@output.run_argument
@click.argument("generation", required=False, metavar="[STEP]")
@click.option("--tree", is_flag=True, help="The manifests and their files too.")
@output.json_option
def command(run: str, generation: str | None, tree: bool, as_json: bool) -> None:
    """Show a generation of RUN: the newest live one, or STEP (a number, or the beginning of a root digest).

    Reads every manifest and no array; writes nothing. HELD BY: the owners whose files hold pieces of the region.
    """
    from mpickpt.store.describe import describe
    from mpickpt.store.inspect import open_store

    store = open_store(run)
    selector = output.selector(generation)
    told = store.generation(selector)
    described = describe(store.open(selector))
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
        rows = _files(described["manifests"], 0)
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
    rows += [(f"{part} {key}", value) for part in ("written", "device") for key, value in sorted(described[part].items())]
    output.table(("WHAT", "VALUE"), rows)


_MOMENT = ("step", "cursor", "epoch")


def _files(manifest: dict[str, Any], depth: int) -> list[tuple[object, ...]]:
    """Rows of a manifest, its shards and its children; children are indented."""
    indent = "  " * depth
    rows: list[tuple[object, ...]] = [
        (indent + str(manifest["role"]), manifest["file"], f"{manifest['size']} roles", "", manifest["digest"])
    ]
    for shard in manifest["shards"]:
        rows.append(
            (f"{indent}- {shard['role']}", shard["file"], output.size(shard["bytes"]), shard["pieces"], shard["digest"])
        )
    for child in manifest["children"]:
        rows += _files(child, depth + 1)
    return rows
