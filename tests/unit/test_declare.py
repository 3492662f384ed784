from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from mpickpt import canonical
from mpickpt.errors import DisagreementError, FormatError
from mpickpt.state import coverage
from mpickpt.state.capture import Capture, Holding, Node, Part
from mpickpt.state.contract import Contract
from mpickpt.state.declare import Declarations
from mpickpt.state.region import Box, Region, Rule, Schema

NEST = Node("dict", "", {}, [])


def array(name: str, shape: tuple[int, ...] = (4, 4), dtype: str = "float32", rule: Rule | None = None) -> Holding:
    part = Part(Box.whole(shape), np.zeros(shape))
    return Holding(Region(name, dtype, shape, "array", rule), "replicated", (0, 1), [part])


def boxes(name: str, copies: int = 1, shape: tuple[int, ...] = (4, 4), rule: Rule | None = None) -> Holding:
    return Holding(Region(name, "float32", shape, "array", rule), "boxes", (0, copies))


def value(name: str) -> Holding:
    return Holding(Region(name, "uint8", None, "value"), "replicated", data=b"1")


def per_owner(name: str) -> Holding:
    return Holding(Region(name, "uint8", None, "per_owner"), "per_owner", data=b"1")


def declare(
    role: int,
    *holdings: Holding,
    containers: Mapping[str, str] | None = None,
    contract: Contract | None = None,
    options: Mapping[str, Any] | None = None,
) -> Declarations:
    capture = Capture(list(holdings), dict(containers or {}), NEST, [])
    return Declarations.of(capture, role, contract or Contract(), options or {"write": "each"})


def union(each: Iterable[Declarations]) -> Declarations:
    first, *others = each
    return first.merge(others)


def refusal(*each: Declarations) -> DisagreementError:
    with pytest.raises(DisagreementError) as caught:
        union(each)
    return caught.value


def pipeline(owners: int) -> list[Declarations]:
    return [
        declare(
            role,
            array("common"),
            boxes(f"stage{role % 3}/w", 2),
            value(f"stage{role % 3}/v"),
            *([per_owner("rng")] if role % 2 else []),
            containers={f"stage{role % 3}/l": "list", "t": "tuple"},
        )
        for role in range(owners)
    ]


def test_an_owner_declares_only_what_it_holds() -> None:
    found = union(pipeline(7))
    assert list(found.schema) == sorted(found.schema, key=lambda region: region.name)
    entry = found.entries["stage1/w"]
    assert (entry.mode, entry.copies, entry.first, entry.count) == ("boxes", 2, 1, 2)
    assert entry.weights == (coverage.weight(1) + coverage.weight(4)) % 2**256
    assert (found.entries["common"].first, found.entries["common"].count) == (0, 7)
    assert (found.entries["rng"].first, found.entries["rng"].count) == (1, 3)
    assert found.containers == {"stage0/l": "list", "stage1/l": "list", "stage2/l": "list", "t": "tuple"}
    assert found.first == 0


def test_a_tree_gives_the_same_as_a_star_in_whatever_order() -> None:
    star = union(pipeline(13))
    for seed in range(20):
        drawn = random.Random(seed)
        waiting = pipeline(13)
        while len(waiting) > 1:
            drawn.shuffle(waiting)
            taken, waiting = waiting[:3], waiting[3:]
            waiting.append(Declarations.from_bytes(union(taken).to_bytes()))
        assert waiting[0].to_bytes() == star.to_bytes()
        assert waiting[0].digest() == star.digest()


def test_merging_changes_neither_side() -> None:
    each = pipeline(4)
    before = [Declarations.from_bytes(one.to_bytes()).entries for one in each]
    union(each)
    assert [one.entries for one in each] == before


def test_comes_back_as_it_was() -> None:
    contract = Contract(identity={"lr": 1e-3}, numerics={"x": [1.5, True]}, placement="bound")
    ruled = [array("a", rule=Rule("ceil", 1)), boxes("b", 3), value("v"), per_owner("r")]
    one = declare(5, *ruled, containers={"l": "list"}, contract=contract, options={"deadline": 60.0})
    back = Declarations.from_bytes(one.to_bytes())
    assert back.entries == one.entries
    assert (back.containers, back.contract, back.options, back.first) == (one.containers, *_terms(one), 5)
    assert Contract.from_json(back.contract) == contract
    assert back.schema == one.schema
    assert back.digest() == one.digest()
    assert back.digest().startswith("blake3:")


def _terms(one: Declarations) -> tuple[dict[str, Any], dict[str, Any]]:
    return one.contract, one.options


def test_no_regions_at_all() -> None:
    found = union(declare(role) for role in range(3))
    assert Declarations.from_bytes(found.to_bytes()).to_bytes() == found.to_bytes()
    assert len(found.schema) == 0
    bare = Declarations.of(Capture([], {}, NEST, []), 0, {}, {})
    assert Declarations.from_bytes(bare.to_bytes()).contract == {}


def test_known_regions_are_not_parsed_again() -> None:
    each = [declare(role, array("a"), value("v")) for role in range(2)]
    back = Declarations.from_bytes(each[1].to_bytes(), like=each[0])
    assert back.schema is each[0].schema
    assert back.entries == each[1].entries
    other = declare(1, array("a"), value("w"))
    assert Declarations.from_bytes(other.to_bytes(), like=each[0]).entries == other.entries


def test_unchanged_declarations_are_the_same_object() -> None:
    last = declare(2, array("a"), containers={"t": "tuple"}, options={"keep": 1})

    def again(*holdings: Holding, role: int = 2, containers: str = "tuple", keep: object = 1) -> Declarations:
        capture = Capture(list(holdings), {"t": containers}, NEST, [])
        return Declarations.of(capture, role, Contract(), {"keep": keep}, last)

    assert again(array("a")) is last
    for changed in (
        again(array("a", (4, 5))),
        again(boxes("a")),
        again(),
        again(array("a"), role=3),
        again(array("a"), containers="list"),
        again(array("a"), keep=True),
    ):
        assert changed is not last
        assert changed.digest() != last.digest()


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        (array("w"), array("w", (4, 5)), "region w: shape (4,4) at owner 0, (4,5) at owner 2"),
        (array("w"), array("w", dtype="float16"), "region w: dtype float32 at owner 0, float16 at owner 2"),
        (
            value("w"),
            per_owner("w"),
            "region w: kind value at owner 0, per_owner at owner 2; region w: mode replicated",
        ),
        (array("w"), value("w"), "region w: shape (4,4) at owner 0, None at owner 2"),
        (array("w"), boxes("w"), "region w: mode replicated at owner 0, boxes at owner 2"),
        (boxes("w", 2), boxes("w", 3), "region w: copies 2 at owner 0, 3 at owner 2"),
        (
            boxes("w", rule=Rule("balanced", 0)),
            boxes("w"),
            "region w: rule balanced along axis 0 at owner 0, none at owner 2",
        ),
        (array("w"), array("w/x"), "region w: a replicated region at owner 0, a container of w/x at owner 2"),
        (array(""), array("w/x"), "region : a replicated region at owner 0, a container of w/x at owner 2"),
    ],
)
def test_one_name_declared_differently(mine: Holding, theirs: Holding, text: str) -> None:
    error = refusal(declare(0, mine), declare(1), declare(2, theirs))
    assert text in error.message
    assert error.region == mine.region.name
    assert error.roles == (0, 2)
    assert str(error.expected).endswith("(owner 0)")
    assert str(error.found).endswith("(owner 2)")


def test_containers_of_different_types() -> None:
    error = refusal(declare(0), declare(1, containers={"a": "list"}), declare(3, containers={"a": "tuple"}))
    assert "container a: list at owner 1, tuple at owner 3" in error.message
    assert (error.region, error.roles) == ("a", (1, 3))
    error = refusal(declare(0, value("a")), declare(1, containers={"a": "dict"}))
    assert "region a: a replicated region at owner 0, a dict at owner 1" in error.message


def test_an_object_that_is_one_array_is_a_container_and_a_region() -> None:
    each = [declare(role, array("opt"), containers={"opt": "object"}) for role in range(2)]
    assert union(each).containers == {"opt": "object"}


def test_contracts_and_options_field_by_field() -> None:
    error = refusal(
        declare(0, contract=Contract(identity={"lr": 1e-3, "n": 1}), options={"write": "each", "keep": 1}),
        declare(
            1,
            contract=Contract(identity={"lr": 1e-2, "n": 1}, placement="free"),
            options={"write": "gather", "keep": True},
        ),
    )
    assert error.message == (
        "owners differ: contract identity.lr 0.001 at owner 0, 0.01 at owner 1; "
        "contract placement 'ask' at owner 0, 'free' at owner 1; "
        "options keep 1 at owner 0, True at owner 1; options write 'each' at owner 0, 'gather' at owner 1"
    ).replace("contract ", "contract: ").replace("options ", "options: ")
    assert (error.region, error.expected, error.found) == (
        None,
        "identity.lr 0.001 (owner 0)",
        "identity.lr 0.01 (owner 1)",
    )


def test_at_most_twenty_differences_are_listed_and_each_once() -> None:
    mine = [array(f"w{i:03d}") for i in range(50)]
    theirs = [array(f"w{i:03d}", (4, 5)) for i in range(50)]
    error = refusal(declare(0, *mine), *(declare(role, *theirs) for role in range(1, 9)))
    assert error.message.count("at owner 0") == 20
    assert error.message.endswith("; and 30 more")
    assert error.message.count("region w000:") == 1
    three = refusal(declare(0, array("w")), declare(4, array("w", (9,))), declare(2, array("w", (8,))))
    assert "(4,4) at owner 0, (8,) at owner 2; region w: shape (4,4) at owner 0, (9,) at owner 4" in three.message


def record() -> tuple[dict[str, Any], dict[str, Any]]:
    head, body = declare(1, array("a"), boxes("b", 2), value("v"), per_owner("r")).to_bytes().split(b"\n")
    return canonical.loads(head, what="head"), canonical.loads(body, what="body")


MALFORMED_HEAD: list[dict[str, Any]] = [
    {"first": -1},
    {"first": True},
    {"first": 1 << 31},
    {"first": None},
    {"holders": None},
    {"holders": [[1, 1]]},
    {"holders": [[1, 0, "0" * 64]]},
    {"holders": [[1, 1, "0" * 63]]},
    {"holders": [[1, 1, "G" * 64]]},
    {"holders": [[1, 1, "0" * 64], [2, 1, "0" * 64]]},
    {"runs": []},
    {"runs": [[0, 3]]},
    {"runs": [[0, 5]]},
    {"runs": [[0, 1 << 40]]},
    {"runs": [[1, 4]]},
    {"runs": [[0, 2], [0, 2]]},
    {"runs": [[0, 4], [0, 0]]},
    {"runs": {}},
    {"containers": []},
    {"containers": {"a": "list"}},
    {"containers": {"a": [1, 1]}},
    {"containers": {"a": ["list", -1]}},
    {"containers": {"a#": ["list", 1]}},
    {"contract": {"identity": {}}},
    {"contract": []},
    {"contract": None},
    {"options": []},
    {"options": {"x": {"f64": "zz"}}},
    {"more": 1},
]
MALFORMED_BODY: list[dict[str, Any]] = [
    {"held": []},
    {"held": None},
    {"held": [["boxes", 1]] * 4},
    {"held": [["replicated", 1], ["boxes", 0], ["per_owner", 1], ["replicated", 1]]},
    {"held": [["replicated", 2], ["boxes", 2], ["per_owner", 1], ["replicated", 1]]},
    {"held": [[["x"], 1], ["boxes", 2], ["per_owner", 1], ["replicated", 1]]},
    {"held": ["ab", "ab", "ab", "ab"]},
    {"schema": []},
    {"schema": {"a": {}}},
    {"more": 1},
]


@pytest.mark.parametrize(
    ("line", "change"),
    [*zip(itertools.repeat(0), MALFORMED_HEAD), *zip(itertools.repeat(1), MALFORMED_BODY)],
    ids=lambda x: repr(x)[:40],
)
def test_malformed_declarations_are_a_format_error(line: int, change: dict[str, Any]) -> None:
    lines = record()
    assert Declarations.from_bytes(b"\n".join(map(canonical.dumps, lines))).first == 1
    lines[line].update(change)
    with pytest.raises(FormatError):
        Declarations.from_bytes(b"\n".join(map(canonical.dumps, lines)))


def test_hostile_bytes_are_a_format_error() -> None:
    good = declare(1, array("a"), boxes("b", 2), value("v")).to_bytes()
    for data in (
        b"",
        b"\n",
        b"{}",
        b"{}\n{}",
        b"[]\n[]",
        b"\xff\n\xff",
        good[:-1],
        good + b"\n",
        good + b" ",
        b"[" * 9999,
    ):
        with pytest.raises(FormatError):
            Declarations.from_bytes(data)
    drawn = random.Random(5)
    for _ in range(300):
        data = bytearray(good)
        at = drawn.randrange(len(data))
        data[at] ^= 1 << drawn.randrange(8)
        try:
            back = Declarations.from_bytes(bytes(data))
        except FormatError:
            continue
        assert back.to_bytes() == bytes(data)  # another record, in its one form


def test_the_schema_is_the_union_by_name() -> None:
    assert union(pipeline(3)).schema == Schema(
        entry.region for entry in {name: e for one in pipeline(3) for name, e in one.entries.items()}.values()
    )
