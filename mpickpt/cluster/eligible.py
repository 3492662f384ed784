"""Whether a generation is one to go on from (docs/protocol.md, R3): contract, device, placement, moment, schema.

Each comparison lists all that differs, side by side, in one refusal. What the caller has accepted by name is no
difference; it is kept for the record in the claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mpickpt.errors import ContractError, MomentError, PlacementError, SchemaError, owner
from mpickpt.format.manifest import Manifest
from mpickpt.state import device as devices
from mpickpt.state.contract import Contract, Difference, side_by_side
from mpickpt.state.declare import Declarations
from mpickpt.state.region import Region, Schema
from mpickpt.store.generation import Generation

_UNHARMED: Final = "all arrays and the store"


@dataclass(frozen=True, slots=True)
class Applicant:
    """The owner that wants to go on.

    Attributes
    ----------
    contract : Contract
    device : dict
        What it computes on.
    role, owners : int
    host : str
    repartition : bool
        Whether another owner count is meant.
    accept : mapping of str to str
        Fields that may differ, and why.
    """

    contract: Contract
    device: Mapping[str, Any]
    role: int
    owners: int
    host: str = ""
    repartition: bool = False
    accept: Mapping[str, str] = field(default_factory=dict)

    def check(self, generation: Generation) -> list[list[str]]:
        """Compare contract, device and placement; give what was accepted, for the claim: field, then, now, why.

        Raises
        ------
        ContractError
            If identity, numerics or a bound device differ in what was not accepted; another owner count that is not
            allowed is listed there as well.
        PlacementError
            If only the owner count is not allowed.
        """
        root, path = generation.root, generation.path
        saved = Contract.from_json(root.contract, path=path)
        accepted: list[Difference] = []
        refused: list[Difference] = []
        for difference in [*self.contract.differences(saved), *self._device(generation, saved)]:
            (accepted if difference[0] in self.accept else refused).append(difference)
        placement = self._placement(saved, root.owners)
        if refused:
            # The device is this owner's own; all else is the same at every owner, and is told once for all.
            text = side_by_side(
                [(self._named(name), mine, theirs) for name, mine, theirs in refused], "this run", "checkpoint"
            )
            if placement is not None:
                text += f"\n    owners: {self.owners} this run, {root.owners} checkpoint"
            advice = "give the contract that the run was saved with, or start a new store"
            example = ", ".join(f"{name!r}: 'the reason'" for name, _, _ in refused[:1])
            raise ContractError(
                "the checkpoint is of another contract:\n" + text,
                path=path,
                expected=str({name: mine for name, mine, _ in refused}),
                found=str({name: theirs for name, _, theirs in refused}),
                unharmed=_UNHARMED,
                advice=f"{advice}; a change that is intended is named: resume(..., accept={{{example}}})"
                + ("" if placement is None else f"; and {placement}"),
            )
        if placement is not None:
            raise PlacementError(
                "the checkpoint was saved by another number of owners",
                path=path,
                expected=f"{root.owners} owners",
                found=f"{self.owners} owners",
                unharmed=_UNHARMED,
                advice=placement,
            )
        return [[name, repr(theirs), repr(mine), self.accept[name]] for name, mine, theirs in accepted]

    def _named(self, name: str) -> str:
        return f"{name} at {owner(self.role, self.host)}" if name.startswith("device.") else name

    def _device(self, generation: Generation, saved: Contract) -> list[Difference]:
        """Compare this owner's device with that of the saved role that it follows."""
        policy = devices.stricter(self.contract.device, saved.device)
        if policy == "free":
            return []
        role = devices.saved_role(policy, self.role, generation.root.owners, self.owners)
        theirs = None if role is None else _device_of(generation, role)
        return devices.differences(policy, self.device, theirs)

    def _placement(self, saved: Contract, then: int) -> str | None:
        """Say what to do where the owner count is not allowed; None where it is."""
        if then == self.owners:
            return None
        policies = {saved.placement, self.contract.placement}
        if "bound" in policies:
            return "the contract binds the placement: start the run with that many owners"
        if "ask" in policies and not self.repartition:
            return "call resume(..., repartition=True), or give Contract(placement='free') from the first save on"
        return None


def _device_of(generation: Generation, role: int) -> dict[str, Any]:
    """Give what was saved of a role's device; reads the manifests on the path to it."""
    root = generation.root
    if root.children:
        manifest = root
        while manifest.role != role:
            manifest = generation.child(next(c for c in manifest.children if c.role <= role < c.role + c.size))
        return manifest.device
    others = root.device.get(devices.GATHERED)  # owner 0 wrote for all
    found = root.device if role == 0 else others.get(str(role)) if isinstance(others, dict) else None
    return found if isinstance(found, dict) else {}


def check_moment(root: Manifest, path: str) -> None:
    """Refuse a generation whose step or cursor is behind that of the generation before it."""
    if root.parent is None:
        return
    before, now = root.parent, root.prefix
    for name, then, here in (("step", before["step"], now.step), ("cursor", before["cursor"], now.cursor)):
        if here < then:
            raise MomentError(
                f"the checkpoint's {name} was reset: it is behind that of the generation before it",
                path=path,
                expected=f"{name} >= {then}",
                found=f"{name} {here}",
                advice="inputs would be trained on twice: take another generation, with resume(step=...)",
            )


def resize_refused(region: str, then: int, now: int, path: str) -> PlacementError:
    """Make the refusal of a per-owner region at another owner count."""
    return PlacementError(
        "a per-owner region cannot go to another number of owners",
        region=region,
        path=path,
        expected=f"{then} owners, as at the save",
        found=f"{now} owners",
        unharmed=_UNHARMED,
        advice="say what to do: PerOwner(x, on_resize='keep') or 'drop'",
    )


def check_schema(union: Declarations, saved: Schema, path: str) -> None:
    """Compare what all owners together want with what was saved; list all differences."""
    wanted = union.schema
    if wanted is saved:  # its root was read as one that has this very schema
        return
    open_prefixes = tuple(union.containers)
    lines: list[tuple[str, str, str]] = []
    for region in wanted:
        if region.name not in saved:
            lines.append((region.name, f"{_form(region)} in the destination", "nothing in the checkpoint"))
            continue
        there = saved[saved.ordinal(region.name)]
        if (there.kind, there.dtype, there.shape) != (region.kind, region.dtype, region.shape):
            lines.append((region.name, f"{_form(region)} in the destination", f"{_form(there)} in the checkpoint"))
    for region in saved:
        below = any(region.name == prefix or region.name.startswith(f"{prefix}/") for prefix in open_prefixes)
        if region.name not in wanted and not below and "" not in open_prefixes:
            lines.append((region.name, "nothing in the destination", f"{_form(region)} in the checkpoint"))
    if lines:
        text = "; ".join(f"{name}: {mine}, {theirs}" for name, mine, theirs in lines)
        raise SchemaError(
            f"the destination does not fit the checkpoint in {len(lines)} region(s): {text}",
            region=lines[0][0],
            path=path,
            expected=f"{lines[0][0]}: {lines[0][1]}",
            found=f"{lines[0][0]}: {lines[0][2]}",
            unharmed="all arrays: nothing was filled, and nothing is ever cast",
            advice="give the state in the form that was saved, or convert it: open_store(path).read() gives it as is",
        )


def _form(region: Region) -> str:
    if region.shape is None:
        return region.kind
    return f"{region.dtype} {region.shape}" + ("" if region.kind == "array" else f" ({region.kind})")
