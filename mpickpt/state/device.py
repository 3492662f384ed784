"""What an owner computes on, as data, and what of it a contract compares (docs/protocol.md, R3).

The policy stands in the contract; each role's device stands in its manifest. It is told by the caller: nothing here
looks for a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mpickpt.errors import StateError
from mpickpt.state.contract import Device, Difference, compare, flatten, plain

#: What each policy compares. Of the very same device the product is told as well, for whoever reads the refusal.
_COMPARED: Final[dict[Device, tuple[str, ...]]] = {"free": (), "product": ("product",), "uuid": ("product", "uuid")}
#: Of a gathered capture the root tells all devices: its own, and under this name those of the others, by role.
GATHERED: Final = "others"


def stricter(one: Device, other: Device) -> Device:
    """Give the policy of two that compares more."""
    return max(one, other, key=lambda policy: len(_COMPARED[policy]))


def told(device: Mapping[str, Any] | None, policy: Device) -> dict[str, Any]:
    """Check what a caller tells of its device, and give it as canonical JSON data.

    Parameters
    ----------
    device : mapping, optional
        JSON-able; ``product`` and ``uuid`` are what contracts compare.
    policy : {"free", "product", "uuid"}
        The contract's.

    Raises
    ------
    StateError
        If it is no such mapping, or does not name what the policy compares.
    """
    if device is not None and not isinstance(device, Mapping):
        raise StateError("device is no mapping", expected="{'product': ..., 'uuid': ...}", found=repr(device)[:100])
    given: dict[str, Any] = plain(dict(device or {}), "device")
    if GATHERED in given:
        raise StateError(f"a device has no field {GATHERED!r}", expected="another name", found=repr(device)[:100])
    wanted = None if policy == "free" else policy
    if wanted is not None and not (isinstance(given.get(wanted), str) and given[wanted]):
        raise StateError(
            f"the contract binds the device by its {wanted}, and this owner does not name it",
            expected=f"device={{'{wanted}': a string, ...}}",
            found=repr(device)[:100],
            advice="say it: Checkpointer(..., device={'product': ..., 'uuid': ...}); or Contract(device='free')",
        )
    return given


def saved_role(policy: Device, role: int, saved: int, owners: int) -> int | None:
    """Say whose saved device an owner's is compared with; None: nobody's, which no device equals.

    With as many owners as at the save, that of the same role. With another number, by product, the saved roles in
    turn; the very same device can be that of the same role only.
    """
    if policy == "product" and saved != owners:
        return role % saved
    return role if role < saved else None


def differences(policy: Device, mine: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> list[Difference]:
    """List ``("device.FIELD", mine, theirs)`` of what a policy compares.

    Examples
    --------
    >>> differences("product", {"product": "A", "uuid": "1"}, {"product": "B", "uuid": "2"})
    [('device.product', 'A', 'B')]
    """
    return compare(_fields(policy, mine), _fields(policy, theirs or {}))


def _fields(policy: Device, device: Mapping[str, Any]) -> dict[str, Any]:
    return flatten({name: device[name] for name in _COMPARED[policy] if name in device}, "device")
