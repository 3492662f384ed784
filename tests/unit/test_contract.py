from __future__ import annotations

import math
import struct
from enum import Enum
from typing import Any

import numpy as np
import pytest

from mpickpt import canonical
from mpickpt.errors import FormatError, StateError
from mpickpt.state import device
from mpickpt.state.contract import ABSENT, Contract, flatten, side_by_side

NAN = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]


def again(contract: Contract) -> Contract:
    return Contract.from_json(canonical.loads(canonical.dumps(contract.to_json()), what="contract"))


def test_comes_back_as_it_was() -> None:
    contract = Contract(
        identity={"model": "mlp", "lr": 1e-3, "net": {"sizes": (64, 32), "bias": True, "none": None}, "größe": -5},
        numerics={"order": "fixed", "empty": {}, "tiny": 5e-324, "minus": -0.0, "inf": -math.inf},
        placement="bound",
        device="product",
    )
    back = again(contract)
    assert back == contract
    assert back.digest() == contract.digest()
    assert back.digest().startswith("blake3:")
    assert contract.digest("sha256").startswith("sha256:")
    assert back.identity["net"]["sizes"] == [64, 32]
    assert math.copysign(1, back.numerics["minus"]) == -1
    assert contract.to_json()["identity"]["lr"] == {"f64": (1e-3).hex()}


def test_nan_keeps_its_bits() -> None:
    back = again(Contract(identity={"x": NAN}))
    assert struct.pack(">d", back.identity["x"]).hex() == "7ff8000000000001"
    assert not Contract(identity={"x": NAN}).differences(back)
    assert Contract(identity={"x": math.nan}).differences(back)


def test_numpy_numbers_count_by_value() -> None:
    given = Contract(
        identity={"lr": np.float64(0.5), "depth": np.int32(3), "on": np.bool_(True), "h": np.float32(0.25)}
    )
    assert not given.differences(Contract(identity={"lr": 0.5, "depth": 3, "on": True, "h": 0.25}))


def test_what_the_caller_changes_afterwards_is_no_part_of_it() -> None:
    sizes = [64, 32]
    contract = Contract(identity={"sizes": sizes})
    digest = contract.digest()
    sizes.append(10)
    assert contract.digest() == digest


def test_differences_are_listed_field_by_field() -> None:
    mine = Contract(identity={"lr": 1e-3, "net": {"depth": 3, "width": 8}, "old": 1}, numerics={"dtype": "float32"})
    theirs = Contract(identity={"lr": 1e-2, "net": {"depth": 4, "width": 8}, "new": 1}, numerics={"dtype": "float16"})
    assert mine.differences(theirs) == [
        ("identity.lr", 1e-3, 1e-2),
        ("identity.net.depth", 3, 4),
        ("identity.new", ABSENT, 1),
        ("identity.old", 1, ABSENT),
        ("numerics.dtype", "float32", "float16"),
    ]
    text = side_by_side(mine.differences(theirs), "now", "in the checkpoint")
    assert "identity.lr: 0.001 now, 0.01 in the checkpoint" in text
    assert "identity.new: (absent) now, 1 in the checkpoint" in text
    assert not mine.differences(mine)


def test_placement_and_device_are_no_differences_of_the_learner() -> None:
    assert not Contract(placement="bound", device="uuid").differences(Contract(placement="free"))


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (1, 1.0), (0, False), (0.0, -0.0), ("1", 1), (0.1 + 0.2, 0.3), ([], {}), (None, False), ({}, {"a": 1})],
)
def test_type_and_bits_count(left: object, right: object) -> None:
    assert Contract(identity={"x": left}).differences(Contract(identity={"x": right}))
    assert Contract(identity={"x": left}).digest() != Contract(identity={"x": right}).digest()


def test_no_two_fields_differ_only_by_joining() -> None:
    assert set(flatten({"a.b": 1, "a": {"b": 1}, "a%2Eb": 1}, "identity")) == {
        "identity.a%2Eb",
        "identity.a.b",
        "identity.a%252Eb",
    }
    assert Contract(identity={"a.b": 1}).differences(Contract(identity={"a": {"b": 1}}))


class _Word(Enum):
    ONE = "one"


def _in_itself() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["self"] = found
    return found


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        {1, 2},
        1j,
        {1: "int key"},
        np.zeros(3),
        np.longdouble(1) / 3,
        _Word.ONE,
        "\ud800",
        {"\ud800": 1},
        10**19,
        -(10**19),
        {"f64": "0x1.0p+0"},
        _in_itself(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_json_able_is_refused(value: object) -> None:
    with pytest.raises(StateError, match=r"^contract field identity\.here") as caught:
        Contract(identity={"here": value})
    assert caught.value.expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"identity": [1]},
        {"numerics": "x"},
        {"placement": "Free"},
        {"placement": None},
        {"device": "ask"},
        {"device": []},
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(StateError) as caught:
        Contract(**arguments)
    assert next(iter(arguments)) in caught.value.message


GOOD = Contract(identity={"lr": 0.5}).to_json()


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {**GOOD, "more": 1},
        {**GOOD, "identity": []},
        {**GOOD, "identity": {"f64": "0x1.0p+0"}},
        {**GOOD, "placement": "nowhere"},
        {**GOOD, "device": {}},
        {**GOOD, "identity": {"lr": {"f64": "0.5"}}},
        {**GOOD, "identity": {"lr": {"f64": "0x2.0p-2"}}},
        {**GOOD, "identity": {"lr": {"f64": "0x1p99999"}}},
        {**GOOD, "identity": {"lr": {"f64": 1}}},
        {**GOOD, "identity": {"lr": {"f64": "nan"}}},
        {**GOOD, "identity": {"lr": {"f64": "nan:7ff0000000000000"}}},
        {**GOOD, "identity": {"lr": {"f64": "nan:7ff80000 0000 00"}}},
        {**GOOD, "identity": {"lr": {"f64": "nan:zzzzzzzzzzzzzzzz"}}},
        {**GOOD, "identity": {"lr": 0.5}},
    ],
    ids=repr,
)
def test_malformed_data_is_a_format_error(data: object) -> None:
    with pytest.raises(FormatError, match="malformed contract") as caught:
        Contract.from_json(data, path="roots/x.json")
    assert caught.value.path == "roots/x.json"


def test_deep_nesting_is_a_format_error() -> None:
    deep: dict[str, Any] = {"lr": 1}
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(FormatError):
        Contract.from_json({**GOOD, "identity": deep})


@pytest.mark.parametrize(
    ("policy", "given"),
    [
        ("product", None),
        ("product", {"uuid": "1"}),
        ("product", {"product": ""}),
        ("uuid", {"product": "A"}),
        ("uuid", {"uuid": 7}),
        ("free", {"others": {}}),
        ("free", ["A"]),
        ("free", {1: "A"}),
    ],
)
def test_a_device_must_be_told_where_it_is_bound(policy: Any, given: Any) -> None:
    with pytest.raises(StateError):
        device.told(given, policy)


def test_a_device_is_compared_as_the_stricter_policy_says() -> None:
    mine, theirs = {"product": "A", "uuid": "1", "memory": 80}, {"product": "A", "uuid": "2", "memory": 141}
    assert device.told(mine, "uuid") == mine
    assert device.stricter("free", "product") == device.stricter("product", "free") == "product"
    assert device.stricter("uuid", "product") == "uuid"
    assert device.differences("free", mine, theirs) == device.differences("product", mine, theirs) == []
    assert device.differences("uuid", mine, theirs) == [("device.uuid", "1", "2")]
    assert device.differences("uuid", mine, None) == [("device.product", "A", ABSENT), ("device.uuid", "1", ABSENT)]


def test_whose_device_is_compared_at_another_owner_count() -> None:
    assert [device.saved_role("product", role, 2, 3) for role in range(3)] == [0, 1, 0]
    assert [device.saved_role("uuid", role, 2, 3) for role in range(3)] == [0, 1, None]
    assert [device.saved_role("uuid", role, 3, 3) for role in range(3)] == [0, 1, 2]
