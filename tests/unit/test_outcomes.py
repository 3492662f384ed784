"""Of several owners' refusals one is raised by all; where contracts differ, it lists what differs at any of them."""

from __future__ import annotations

from mpickpt import canonical
from mpickpt.cluster.messages import merge_outcomes
from mpickpt.errors import CheckpointError, ContractError, IntegrityError


def told(*errors: CheckpointError) -> dict[int, bytes]:
    return {number: canonical.dumps(error.to_record()) for number, error in enumerate(errors)}


def contract(role: int, *lines: str) -> ContractError:
    return ContractError("\n".join(["another contract:", *(f"    {line}" for line in lines)]), role=role)


def test_the_lowest_role_is_raised() -> None:
    found = merge_outcomes(IntegrityError("mine", role=2), told(IntegrityError("theirs", role=1), contract(3, "a")))
    assert found is not None
    assert (found.message, found.role, found.roles) == ("theirs", 1, ())
    assert merge_outcomes(None, {1: canonical.dumps(None)}) is None


def test_differences_of_all_owners_are_listed_once() -> None:
    found = merge_outcomes(contract(0, "lr", "device 0"), told(contract(2, "lr", "device 2"), contract(1, "lr")))
    assert found is not None
    assert found.message.split("\n") == ["another contract:", "    lr", "    device 0", "    device 2"]
    assert (found.role, found.roles) == (0, (0, 2))
    above = merge_outcomes(found, told(contract(7, "lr", "device 7"), IntegrityError("", role=9)))
    assert above is not None
    assert above.message.endswith("    device 2\n    device 7")
    assert above.roles == (0, 2, 7)


def test_equal_differences_name_no_other_owner() -> None:
    found = merge_outcomes(contract(0, "lr"), told(contract(1, "lr"), contract(2, "lr")))
    assert found is not None
    assert (found.role, found.roles) == (0, ())


def test_a_refusal_stays_readable_whatever_the_number_of_owners() -> None:
    found: CheckpointError | None = None
    for role in range(100):
        found = merge_outcomes(found, told(contract(role, f"device {role}")))
    assert found is not None
    lines = found.message.split("\n")[1:]
    assert lines == [f"    device {role}" for role in range(20)] + ["    and more"]
    assert found.roles == tuple(range(20))


def test_what_one_owner_lists_of_its_own_is_never_cut() -> None:
    mine = [f"field {number}" for number in range(30)]
    found = merge_outcomes(contract(1, *mine), told(contract(2, *mine), contract(3, *mine, "device 3")))
    assert found is not None
    assert found.message.split("\n")[1:] == [f"    {line}" for line in mine] + ["    and more"]
