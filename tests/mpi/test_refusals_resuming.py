"""Every row of "Resuming" in docs/refusals.md happens on real owners, and is refused as it says.

Each case of refusals_resuming_cases.py damages, forges or asks for something at 2, 3 or 5 owners of Open MPI and MPICH.
Checked each time: the same exception with the same record at all owners, in time; what it names; that a person can
read it; that no array, generator or object of the caller's was touched, and no file of the store; that the older
generation verifies, and the store resumes once it is mended or rightly asked.

Generations off the lineage, rivals and damage that is gone past are in test_epochs.py. Bound devices are told as data.
Damage at every byte is in tests/hostile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expecting import Expect, check_refused, check_unharmed, outcomes, owners_of, parameters

PROGRAM = Path(__file__).with_name("refusals_resuming_cases.py")

OLDER = r"step 1 passes the fast check: resume\(\.\.\., step=1\)"
ROOT = r"/run/roots/00000000000{}-e00000001-\w+\.json$"
FILE = r"/run/data/000000000002-e00000001-\w+/00000/{}$"
RESUMED = [2, True]
"""After the refusal: the newest step, and every piece of it."""

DAMAGED = {
    "a claim that is missing": ("a root is newer than every claim", ROOT.format(2), 0),
    "a root that is cut": ("truncated", ROOT.format(2), 0),
    "a root that is empty": ("truncated", ROOT.format(2), 0),
    "a root that goes on": ("too long", ROOT.format(2), 0),
    "a root with one other bit": ("not what its digest names", ROOT.format(2), 0),
    "a manifest that is missing": ("missing", FILE.format(r"000001\.json"), None),
    "a manifest that is cut": ("truncated", FILE.format(r"000001\.json"), None),
    "a manifest that goes on": ("too long", FILE.format(r"000001\.json"), None),
    "a manifest with one other bit": ("not what its digest names", FILE.format(r"000001\.json"), None),
    "a manifest of another save": ("another one than was recorded", FILE.format(r"000001\.json"), None),
    "a shard that is missing": ("missing", FILE.format(r"000001\.safetensors"), 1),
    "a shard that is cut": ("truncated", FILE.format(r"000001\.safetensors"), 1),
    "a shard that is empty": ("truncated", FILE.format(r"000001\.safetensors"), 1),
    "a shard that goes on": ("longer", FILE.format(r"000001\.safetensors"), 1),
    "a shard with one other bit": ("not what", FILE.format(r"000001\.safetensors"), 1),
    "a shard of another save": ("not what its manifest names", FILE.format(r"000001\.safetensors"), 1),
    "a shared shard that is missing": ("missing", FILE.format(r"000000\.r\.safetensors"), None),
    "a shared shard with one other bit": ("not what", FILE.format(r"000000\.r\.safetensors"), None),
    "a claim that is cut": ("truncated", r"/epochs/00000001\.json$", 0),
    "a claim with one other bit": ("digest", r"/epochs/00000001\.json$", 0),
    "run.json with one other bit": ("digest", r"/run/run\.json$", 0),
}
"""What is damaged: what the message says, the file that it names, the role that has met it (None: whoever reads it)."""

MALFORMED = {
    "a newer format": ("is of format 2, which is newer", "format 1", r"mpickpt 2\.0 or newer .*; or: step 1 passes"),
    "an unknown key": ("unknown keys", "children, containers", OLDER),
    "another owner count": ("bad 'size'", "owner count, 4", OLDER),
    "a role twice": ("bad 'role'", "an integer", OLDER),
    "a role that cannot be": ("bad 'role'", "an integer of 1", OLDER),
    "two records of one file": ("bad 'role'|names one file", "once", OLDER),
    "a shard less than there is": ("add up", "", OLDER),
    "a name that leaves the store": ("file name is not one of a shard in its store", "relative name", OLDER),
    "no digest of a shard": ("malformed digest", "blake3:HEX", OLDER),
    "no digest": ("no digest", "second line", OLDER),
    "a digest that is null": ("no digest", "second line", OLDER),
    "no JSON": ("not JSON", "", OLDER),
    "a key twice": ("a key that stands twice", "", OLDER),
    "nesting without end": ("nested too deeply", "levels", OLDER),
    "a number of thousands of digits": ("too many digits", "at most", OLDER),
}

REFUSED = {
    "a_shard_of_the_last_owner_has_one_other_bit": Expect(
        "IntegrityError", "not what", role=-1, path=FILE.format(r"00000LAST\.safetensors"), expected="blake3:",
        found="blake3:", advice=OLDER,
    ),
    "both_generations_are_damaged": Expect(
        "IntegrityError", "not what", role=1, path=FILE.format(r"000001\.safetensors"),
        advice="no older generation passes",
    ),
    "the_newest_is_damaged_and_the_one_before_is_taken": Expect("IntegrityError", "not what", role=1, advice=OLDER),
    "the_directory_of_roots_is_missing": Expect(
        "IntegrityError", "claims, but no directory of roots", role=0, path="/run/roots$", expected="roots/",
        found="1 claim", advice="epochs/",
    ),
    "an_input_output_error_while_reading": Expect(
        "StoreError", "read failed", role=2, path=r"\.safetensors$", advice="kernel log",
    ),
    "a_cursor_that_was_reset": Expect(
        "MomentError", "cursor was reset", path=ROOT.format(2), expected="cursor >= 10000", found="cursor 20",
        advice=OLDER,
    ),
    "another_contract": Expect(
        "ContractError",
        r"lr: 0\.2 this run, 0\.1 checkpoint\n.*name: \(absent\) this run, 'adam' checkpoint\n.*numerics\.sum: 'ring'",
        path=ROOT.format(2), expected="0.2", found="0.1", advice="contract that the run was saved with",
    ),
    "another_device_product": Expect(
        "ContractError",
        r"device\.product at owner 0 \(host \S+\): 'A100' this run, 'H200' checkpoint\n"
        r".*product at owner [12] \(host \S+\): 'A100' this run", role=0,
        path=ROOT.format(2), expected="A100", found="H200", advice="'device.product'",
    ),
    "another_device_uuid": Expect(
        "ContractError",
        r"device\.uuid at owner 1 .*: 'GPU-2' this run, 'GPU-1' checkpoint\n.*uuid at owner 2 .*: 'GPU-1' this run",
        role=1, path=ROOT.format(2), expected="GPU-2", found="GPU-1",
    ),
    "a_device_that_was_never_told": Expect(
        "ContractError", r"device\.product at owner 0 .*: 'H200' this run, \(absent\) checkpoint", role=0,
        path=ROOT.format(2),
    ),
    "a_change_that_is_accepted_but_for_one_field": Expect(
        "ContractError", r"contract:\n    identity\.data: 'new' this run, 'old' checkpoint$", path=ROOT.format(2),
        expected="{'identity.data': 'new'}", advice="accept={'identity.data': 'the reason'}",
    ),
    "accept_that_says_no_reason": Expect("StateError", "accept says not why", found="identity"),
    "contracts_that_differ_between_owners": Expect(
        "DisagreementError", r"identity\.lr 0\.1 at owner 0, 0\.2 at owner 1", role=1, roles=(0, 1),
        advice="same contract",
    ),
    "a_destination_that_differs_in_everything": Expect(
        "SchemaError", r"5 region.*lr: .*; m: float64 \(12,\) in .*, float32 .*; more: .*nothing.*; w: .*; box: no",
        region="^lr$", path=ROOT.format(2), expected="lr: float64", found="value", advice=r"open_store\(path\)",
    ),
    "a_destination_of_another_dtype_at_one_owner": Expect(
        "DisagreementError", "dtype float64 at owner 0, float32 at owner 1", region="^w$", roles=(0, 1),
    ),
    "a_spec_of_a_smaller_float": Expect(
        "SchemaError", "w: bfloat16", region="^w$", path=ROOT.format(2), expected="bfloat16", found="float64",
    ),
    "a_random_generator_of_another_kind": Expect(
        "SchemaError", "generator is of another kind", region="^rng$", role=2, expected="PCG64", found="MT19937",
    ),
    "something_of_its_own_that_an_owner_never_saved": Expect(
        "SchemaError", "not in the checkpoint", region="^rng$", role=2, path=ROOT.format(3), expected="owner 2 saved",
    ),
    "a_step_that_never_was": Expect(
        "NotFoundError", "step 99", role=0, path="/run/roots$", expected="step 99", found="step 1, step 2",
        advice="mpickpt ls",
    ),
    "a_root_that_never_was": Expect(
        "NotFoundError", "blake3:abab", role=0, path="/run/roots$", expected="abab", found="step 1, step 2",
    ),
    "a_root_that_is_no_digest": Expect("StateError", "root= is no digest", expected="blake3:HEX", found="newest"),
    "a_saved_nan_of_one_owner": Expect(
        "NonFiniteError", r"nan at index \(11,\)", region="^m$", role=-1,
        path=r"/data/000000000003-e00000001-\w+/00000/00000LAST\.safetensors$", advice="'m': 'allow'.*step 2 passes",
    ),
    "a_saved_infinity_in_a_value": Expect("NonFiniteError", "not finite", region="^lr$", path=ROOT.format(3)),
    "another_step_at_one_owner": Expect(
        "DisagreementError", "called resume .* step 2 at owner 0, 1 at owner 1", role=1, expected="step 2",
        found="step 1",
    ),
    "every_argument_of_each_owner_its_own": Expect(
        "DisagreementError", "path .*readonly .*repartition .*root .*state .*step .*; and 4 more$", roles=range(5),
    ),
    "an_interrupt_of_one_owner_while_it_reads": Expect("CheckpointError", "KeyboardInterrupt", role=1, apart=(1,)),
}  # fmt: skip

FOLLOWS = {
    "both_generations_are_damaged": None,
    "the_directory_of_roots_is_missing": None,
    "the_newest_is_damaged_and_the_one_before_is_taken": [1, 10, True],
    "something_of_its_own_that_an_owner_never_saved": 3,
    "a_saved_nan_of_one_owner": 3,
    "a_saved_infinity_in_a_value": 3,
}
"""What works after a refusal, where it is not the proper resume of the newest step."""


def test_every_case_is_judged() -> None:
    others = {
        "a_file_is_damaged",
        "a_root_is_malformed",
        "a_generation_is_removed_while_it_is_read",
        "the_data_of_a_generation_go_while_it_is_read",
        "another_owner_count",
        "another_owner_count_where_the_placement_is_bound",
        "another_owner_count_and_something_of_each_owners_own",
        "everything_that_differs_at_once",
        "accepted_changes_are_recorded",
        "a_step_of_an_empty_store",
        "nothing_to_resume",
        "load_state_dict_raises_at_one_owner",
        "an_interrupt_of_one_owner_while_it_fills",
        "the_last_owner_never_calls_resume",
        "owner_0_never_calls_resume",
    }
    assert REFUSED.keys() | others == owners_of(PROGRAM).keys()


@pytest.mark.parametrize(("case", "owners"), parameters(PROGRAM, list(REFUSED)))
def test_resume_is_refused(mpi: str, owners: int, case: str) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    check_refused(found, REFUSED[case])
    check_unharmed(found)
    assert [one["next"] for one in found] == [FOLLOWS.get(case, RESUMED)] * owners
    assert found[0].get("made", ["run"]) == ["run"]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_named(mpi: str, damage: str) -> None:
    found = [one[damage] for one in outcomes(PROGRAM, mpi, "a_file_is_damaged", 3)]
    message, path, role = DAMAGED[damage]
    of_a_generation = not damage.startswith(("a claim", "run.json"))
    expect = Expect(
        "IntegrityError", message, role=role, path=path, expected=".", found=".",
        advice=OLDER if of_a_generation else "mpickpt verify",
    )  # fmt: skip
    check_refused(found, expect)
    check_unharmed(found)
    assert [one["next"] for one in found] == [RESUMED] * 3


def test_every_damage_is_judged(mpi: str) -> None:
    assert list(outcomes(PROGRAM, mpi, "a_file_is_damaged", 3)[0]) == list(DAMAGED)
    assert list(outcomes(PROGRAM, mpi, "a_root_is_malformed", 3)[0]) == list(MALFORMED)


@pytest.mark.parametrize("form", MALFORMED)
def test_a_malformed_root_is_named(mpi: str, form: str) -> None:
    found = [one[form] for one in outcomes(PROGRAM, mpi, "a_root_is_malformed", 3)]
    message, expected, advice = MALFORMED[form]
    check_refused(found, Expect("FormatError", message, path=ROOT.format(2), expected=expected, advice=advice))
    check_unharmed(found)
    assert [one["next"] for one in found] == [RESUMED] * 3


@pytest.mark.parametrize(
    ("case", "expect"),
    [
        ("a_generation_is_removed_while_it_is_read", Expect("NotFoundError", "rotated", path=ROOT.format(2))),
        (
            "the_data_of_a_generation_go_while_it_is_read",
            Expect("IntegrityError", "missing", path=FILE.format(r".*\.(safetensors|json)"), advice=OLDER),
        ),
    ],
)
def test_what_goes_while_it_is_read_is_rotated_or_damaged(mpi: str, case: str, expect: Expect) -> None:
    found = outcomes(PROGRAM, mpi, case, 3)
    check_refused(found, expect)
    assert all(one["arrays"] for one in found)


@pytest.mark.parametrize(
    ("case", "expect", "following"),
    [
        (
            "another_owner_count",
            Expect("PlacementError", "another number of owners", expected="3 owners", found="2 owners", role=0,
                   path=ROOT.format(2), advice=r"resume\(\.\.\., repartition=True\)"),
            RESUMED,
        ),
        (
            "another_owner_count_where_the_placement_is_bound",
            Expect("PlacementError", "another number of owners", expected="3 owners", found="2 owners",
                   path=ROOT.format(2), advice="binds the placement"),
            None,
        ),
        (
            "another_owner_count_and_something_of_each_owners_own",
            Expect("PlacementError", "per-owner region", region="^rng$", expected="3 owners", found="2 owners",
                   path=ROOT.format(2), advice="on_resize='keep'"),
            RESUMED,
        ),
    ],
)  # fmt: skip
def test_another_owner_count_is_refused_unless_asked_for(mpi: str, case: str, expect: Expect, following: Any) -> None:
    two, idle = outcomes(PROGRAM, mpi, case, 3)[:2], outcomes(PROGRAM, mpi, case, 3)[2]
    assert idle is None
    check_refused(two, expect)
    check_unharmed(two)
    assert [one["next"] for one in two] == [following] * 2


def test_everything_that_differs_stands_in_one_refusal(mpi: str) -> None:
    two = outcomes(PROGRAM, mpi, "everything_that_differs_at_once", 3)[:2]
    record = check_refused(two, Expect(
        "ContractError",
        r"identity\.lr: 0\.2 this run, 0\.1 .*\n    numerics\.tree: 4 this run, 2 .*\n    owners: 2 this run, 3 "
        r"checkpoint\n    device\.product at owner 1 \(host \S+\): 'A100' this run, 'H200' checkpoint$",
        path=ROOT.format(2), roles=(0, 1), advice="repartition=True",
    ))  # fmt: skip
    assert "inputs" not in record["message"]


def test_what_is_accepted_is_recorded_in_the_claim(mpi: str) -> None:
    found = outcomes(PROGRAM, mpi, "accepted_changes_are_recorded", 3)
    assert [one[:2] for one in found] == [[2, True]] * 3
    assert found[0][2] == [
        None,
        [
            ["identity.lr", "0.1", "0.2", "decayed"],
            ["identity.note", "(absent)", "'new'", "named"],
            ["device.product", "'H200'", "'A100'", "moved"],
        ],
        None,
    ]


def test_a_step_of_an_empty_store_is_not_found_rather_than_a_fresh_start(mpi: str) -> None:
    found = outcomes(PROGRAM, mpi, "a_step_of_an_empty_store", 3)
    check_refused(found, Expect("NotFoundError", "step 1", role=0, path="/run/roots$", found="none"))


@pytest.mark.parametrize("owners", [2, 3, 5])
def test_nothing_to_resume_is_a_fresh_start_at_all_owners(mpi: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, "nothing_to_resume", owners)
    for role, (looked, made, fresh, *rest) in enumerate(found):
        assert (looked, fresh) == (True, True)
        assert made is (False if role == 0 else None), "a look must not make a store"
        assert rest == [0, 0, 1, None, True]


@pytest.mark.parametrize("owners", [2, 3, 5])
def test_load_state_dict_that_raises_at_one_owner_lets_nobody_begin_to_train(mpi: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, "load_state_dict_raises_at_one_owner", owners)
    expect = Expect(
        "StateError", r"load_state_dict\(\) raised ValueError: another layout", region="^model$", role=-1,
        advice="do not train on from here",
    )  # fmt: skip
    record = check_refused(found, expect)
    assert "arrays of the destination hold it" in record["unharmed"]
    # A claim that nobody goes on under does no harm.
    assert (found[0]["changed"], found[0]["added"]) == ([], ["epochs/00000002.json"])
    assert [one["next"] for one in found] == [RESUMED] * owners


def test_an_interrupt_of_one_owner_while_it_fills_lets_nobody_begin_to_train(mpi: str) -> None:
    found = outcomes(PROGRAM, mpi, "an_interrupt_of_one_owner_while_it_fills", 3)
    record = check_refused(found, Expect("CheckpointError", "KeyboardInterrupt", role=1, apart=(1,)))
    assert "all arrays" not in record["unharmed"], "some are filled already"
    assert found[1]["value"] == "interrupted"
    assert (found[0]["changed"], found[0]["added"]) == ([], ["epochs/00000002.json"])
    assert [one["next"] for one in found] == [RESUMED] * 3


@pytest.mark.parametrize(
    ("case", "owners"), parameters(PROGRAM, ["the_last_owner_never_calls_resume", "owner_0_never_calls_resume"])
)
def test_an_owner_that_never_calls_is_named_and_fails_only_the_call_it_missed(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    role = 0 if case.startswith("owner_0") else owners - 1
    expect = Expect(
        "DeadlineError", "an owner is silent", role=role, expected="sign of life within 0.6 s", apart=(role,),
        seconds=0.6 + 2.0,
    )  # fmt: skip
    record = check_refused(found, expect)
    check_unharmed(found)
    late = found[role]["next"][0]
    assert late["raised"]["record"] == record, "late, it hears what the others raised"
    assert [one["next"][1] for one in found] == [2] * owners
