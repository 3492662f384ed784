"""Every row of "Saving" in docs/refusals.md happens on real owners, and is refused as it says.

Each case of refusals_declaring_cases.py and refusals_saving_cases.py makes one mistake, one lie or one fault of the
file system at 2, 3 or 5 owners of Open MPI and MPICH. Checked each time: the same exception with the same record at all
owners, in time; what it names; that a person can read it; the caller's arrays and every file that was there before,
byte for byte; that the older generations verify and the next save works.

The rows on epochs beyond the first (a newer job has continued the run) come with the claims of later epochs. An owner
that is stopped, killed or on a full disk is in tests/crash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expecting import (
    Expect,
    check_next_save,
    check_readable,
    check_record,
    check_refused,
    check_unharmed,
    outcomes,
    owners_of,
    parameters,
)

DECLARING = Path(__file__).with_name("refusals_declaring_cases.py")
SAVING = Path(__file__).with_name("refusals_saving_cases.py")
CASES = {case: program for program in (DECLARING, SAVING) for case in owners_of(program)}
"""Each case and the program that it stands in."""

VOID = ("void",)
"""Once a commitment has arrived, the refusal may be made final in the store."""
SHARD = r"/run/data/000000000003-e00000001-\w+/00000/00000{}\.safetensors$"
ROOT = r"/run/roots/00000000000{}-e00000001-\w+\.json$"
REPORT = "report this"

REFUSED = {
    # owners differ
    "another_shape": Expect(
        "DisagreementError", r"region w: shape \(6,\) at owner 0, \(7,\) at owner LAST", region="^w$", role=-1,
        roles=(0, -1), expected=r"\(6,\) \(owner 0\)", found=r"\(7,\) \(owner LAST\)", advice="PerOwner",
    ),
    "another_dtype": Expect(
        "DisagreementError", "region m: dtype float32 at owner 0, float64 at owner 2", region="^m$", role=2,
        roles=(0, 2), expected="float32", found="float64",
    ),
    "another_kind": Expect(
        "DisagreementError", "region lr: kind value at owner 0, per_owner at owner 1", region="^lr$", roles=(0, 1),
    ),
    "sharded_at_one_owner_and_replicated_at_another": Expect(
        "DisagreementError", "region w: mode replicated at owner 0, boxes at owner 1", region="^w$", roles=(0, 1),
    ),
    "another_number_of_copies": Expect(
        "DisagreementError", "region box: copies 1 at owner 0, 2 at owner 1", region="^box$", roles=(0, 1),
    ),
    "another_container": Expect(
        "DisagreementError", "container inner: list at owner 0, tuple at owner 1", region="^inner$", roles=(0, 1),
    ),
    "thirty_regions_differ": Expect(
        "DisagreementError", r"region many/19: .*; and 10 more$", region="^many/00$", roles=(0, 1),
    ),
    "another_step": Expect(
        "DisagreementError", "called save .* step 3 at owner 0, 4 at owner LAST", role=-1, roles=(0, -1),
        expected="step 3", found="step 4", advice="same arguments",
    ),
    "another_cursor": Expect(
        "DisagreementError", "cursor 30 at owner 0, 15 at owner 2", role=2, expected="cursor 30", found="cursor 15",
    ),
    "step_and_cursor_of_each_owner_its_own": Expect(
        "DisagreementError", "cursor 30 at owner 0, 31 at owner 1; .*step 3 at owner 0, 7 at owner 4", roles=range(5),
    ),
    "another_contract": Expect(
        "DisagreementError", r"identity\.lr 0\.1 at owner 0, 0\.2 at owner 2; .*numerics\.sum 'tree'.*\(absent\)",
        roles=(0, 2), expected=r"identity\.lr 0\.1", found=r"identity\.lr 0\.2", advice="same contract",
    ),
    "other_options": Expect(
        "DisagreementError", "digest 'blake3' .*nonfinite.* 'allow' .*write 'each' at owner 0, 'gather' at owner 1",
        roles=(0, 1), expected="digest 'blake3'", found="digest 'sha256'", advice="same options",
    ),
    "another_path": Expect(
        "DisagreementError", "path .*/run at owner 0, .*/elsewhere at owner LAST", role=-1, found="/elsewhere$",
    ),
    "a_path_that_is_another_directory_on_each_node": Expect(
        "StoreError", "not there for this owner", role=-1, path="/local/", expected="one directory that all owners see",
        advice="share", added=VOID,
    ),
    # boxes
    "a_gap": Expect(
        "CoverageError", r"gap in the region: no owner holds \[\d:\d,0:4\]; beside it: owner LAST", region="^box$",
        roles=(-1,), expected="tile it exactly once", found=r"gap at box .*first index", advice="`at`", added=VOID,
    ),
    "an_overlap": Expect(
        "CoverageError", r"\[0:1,1:3\] is held 2 times by owners 0, LAST", region="^box$", roles=(0, -1),
        found=r"overlap at box \[0:1,1:3\], first index \(0, 1\)", added=VOID,
    ),
    "a_shift_with_the_same_byte_count": Expect(
        "CoverageError", "held 2 times by owners", region="^box$", roles=(-2, -1), found="overlap", added=VOID,
    ),
    "a_copy_doubled_while_another_is_missing": Expect(
        "CoverageError", "copy 0 of 2 tiles the region 2 times.*; copy 1 of 2 is missing", region="^copies$",
        roles=(0, 1), expected="each copy tiles it exactly once", found="doubled", added=VOID,
    ),
    "copies_in_different_boxes": Expect(
        "CoverageError", "have different boxes", region="^copies$", roles=(0, 1), found="cut at box", added=VOID,
    ),
    "a_box_that_leaves_its_region": Expect(
        "StateError", "outside its region", region="^box$", role=2, expected=r"shape \(3, 4\)", found=r"\[2:3,1:5\]",
    ),
    "a_split_that_is_not_this_owners_share": Expect(
        "StateError", "not this owner's share", region="^m$", role=1, expected=r"rows \[4, 8\) of 12",
        found=r"shape \(3,\)", advice="shares",
    ),
    "a_gap_under_gather": Expect(
        "CoverageError", r"no owner holds \[3:4,0:4\]", region="^box$", roles=(2,), added=VOID,
    ),
    # copies
    "a_number_in_the_middle_of_a_big_array_differs": Expect(
        "ReplicaError", r"first at index \(1234, 567\)", region="^w$", role=-1, roles=range(5),
        expected="^1234567.0, as at owner 0$", found="^-1.0 at owner LAST$", advice="PerOwner", added=VOID,
    ),
    "a_float16_differs": Expect(
        "ReplicaError", r"index \(66000,\)", region="^w$", role=2, expected="^1.0,", found="^1.5 ", added=VOID,
    ),
    "a_bfloat16_differs": Expect(
        "ReplicaError", r"index \(2, 3\)", region="^w$", role=2, expected="^1.0,", found="^2.0 ", added=VOID,
    ),
    "a_number_in_a_strided_array_differs": Expect(
        "ReplicaError", r"index \(299, 1\)", region="^w$", role=2, expected="^0,", found="^7 ", added=VOID,
    ),
    "a_sign_of_zero_differs_in_a_big_endian_array": Expect(
        "ReplicaError", r"index \(4,\)", region="^w$", role=2, expected="^0.0,", found="^-0.0 ", added=VOID,
    ),
    "a_value_differs": Expect(
        "ReplicaError", "first at its value", region="^lr$", role=-1, expected="^0.25,", found="^0.5 ", added=VOID,
    ),
    "a_number_deep_in_a_value_differs": Expect(
        "ReplicaError", r"first at its value\['plan'\]\[1\]\[1\]", region="^lr$", role=2, expected="^1,",
        found="^True ", added=VOID,
    ),
    "a_long_value_differs_at_its_end": Expect(
        "ReplicaError", r"byte \d{6,} of its stored value", region="^lr$", role=2, expected=r'"49999".*"0"',
        found=r'"49999".*"1"', added=VOID,
    ),
    "two_copies_of_a_box_differ": Expect(
        "ReplicaError", r"index \(7, 2\)", region="^copies$", roles=(0, 1), expected="^0.0,", found="^5.0 ",
        added=VOID,
    ),
    "a_number_differs_under_gather": Expect(
        "ReplicaError", r"index \(5,\)", region="^w$", role=2, expected="^0.0,", found="^1.0 ", added=VOID,
    ),
    # commitments that lie
    "a_commitment_of_another_role": Expect(
        "TopologyError", "another place", role=-1, expected="role LAST with 1", found="role 0 with 1", advice=REPORT,
        added=VOID,
    ),
    "a_commitment_of_a_subtree_one_role_too_large": Expect(
        "TopologyError", "another place", role=-1, expected="role LAST with 1", found="role LAST with 2", advice=REPORT,
        added=VOID,
    ),
    "a_commitment_of_another_role_under_gather": Expect(
        "TopologyError", "another place", role=2, expected="role 2 with 1", found="role 1 with 1", added=VOID,
    ),
    "a_commitment_that_is_cut": Expect(
        "FormatError", "a commitment is cut", role=2, expected="bytes", found="200", advice=REPORT, added=VOID,
    ),
    "a_commitment_that_comes_twice": Expect(
        "TopologyError", "a second commit message", role=1, expected="one", found="another", advice=REPORT, added=VOID,
    ),
    "a_false_sum_of_what_is_in_files": Expect("CoverageError", "sums .* do not say so", advice=REPORT, added=VOID),
    "a_false_sum_of_what_is_held": Expect("CoverageError", "sums .* do not say so", advice=REPORT, added=VOID),
    "a_false_sum_of_copies": Expect("ReplicaError", "sums .* do not say so", advice=REPORT, added=VOID),
    # values that are not finite
    "a_nan_in_one_owners_share": Expect(
        "NonFiniteError", r"nan at index \(11,\)", region="^m$", role=-1, found="nan", advice="'m': 'allow'",
        added=VOID,
    ),
    "an_infinity_in_a_replicated_array": Expect(
        "NonFiniteError", r"-inf at index \(30, 4\)", region="^w$", found="-inf", advice="'w': 'allow'", added=VOID,
    ),
    "a_nan_in_every_owners_share": Expect(
        "NonFiniteError", "nan at index", region="^m$", expected="finite", advice="'m': 'allow'", added=VOID,
    ),
    "a_nan_in_a_value": Expect(
        "NonFiniteError", "not finite", region="^lr/losses$", found="NaN", advice="'lr/losses': 'allow'",
    ),
    "a_nan_in_something_of_one_owners_own": Expect(
        "NonFiniteError", "not finite", region="^rng$", role=2, found="NaN", advice="'rng': 'allow'",
    ),
    "a_nan_of_another_owner_under_gather": Expect(
        "NonFiniteError", r"nan at index \(8,\)", region="^m$", role=2, added=VOID,
    ),
    # moments
    "a_step_that_goes_back": Expect(
        "MomentError", "step goes back", role=0, path=ROOT.format(2), expected="step >= 2", found="step 1",
        advice="Continuation",
    ),
    "a_cursor_that_goes_back": Expect(
        "MomentError", "cursor goes back", role=0, path=ROOT.format(2), expected="cursor >= 20", found="cursor 5",
    ),
    "a_step_that_is_published_already": Expect(
        "ExistsError", "step 2 is published already", role=0, path=ROOT.format(2), expected="after 2",
        found="step 2, cursor 25; published: step 2, cursor 20",
    ),
    "a_step_that_another_process_published": Expect("ExistsError", "step 2 is published already", path=ROOT.format(2)),
    "a_step_below_zero": Expect("StateError", "step is out of range", expected="0 <= value", found="-1"),
    "a_cursor_that_is_no_whole_number_at_one_owner": Expect(
        "StateError", "cursor is no whole number", role=1, found="30.5", advice="inputs",
    ),
    "a_save_before_resume_on_a_store_that_holds_something": Expect(
        "EpochError", "save was called before resume", role=0, path="/run$", expected="resume", found="up to step 2",
        advice=r"resume\(\)",
    ),
    # what cannot be saved
    "an_array_of_objects": Expect("StateError", "dtype object", region="^odd$", role=2, expected="float64"),
    "a_longdouble": Expect("StateError", "cannot be saved exactly", region="^odd/deep/#0$", role=2),
    "a_container_that_holds_itself": Expect("StateError", "holds itself", region="^odd/loop$", role=2),
    "a_function": Expect("StateError", "would not come back", region="^odd$", role=2, found="function"),
    "a_python_generator": Expect("StateError", "would not come back", region="^odd$", role=2, found="generator"),
    "a_random_generator_without_a_state": Expect(
        "StateError", "random generator without a state", region="^odd$", role=2, found="SystemRandom",
    ),
    # what a caller's code does
    "state_dict_raises_at_one_owner": Expect(
        "StateError", r"state_dict\(\) raised ValueError: no gradient yet", region="^model$", role=-1, found="Model",
    ),
    "a_mapping_raises_at_one_owner": Expect("CheckpointError", "RuntimeError: not loaded", role=1, advice="traceback"),
    "an_interrupt_of_one_owner_before_it_commits": Expect(
        "CheckpointError", "KeyboardInterrupt", role=-1, added=VOID, apart=(-1,),
    ),
    "an_interrupt_of_owner_0_before_it_publishes": Expect(
        "CheckpointError", "KeyboardInterrupt", role=0, added=VOID, apart=(0,),
    ),
    "a_writer_that_hangs": Expect(
        "DeadlineError", "writer of this owner made no progress", role=2, expected="progress within 0.6 s",
        found="none for", added=VOID,
    ),
    # the file system
    "no_space_for_one_owners_shard": Expect(
        "StoreError", "no space left", role=-1, path=SHARD.format("LAST"), expected=r"\d+ bytes and 1 file free",
        found=r"\d+ bytes and \d+ files free", advice="free space", added=VOID,
    ),
    "no_space_for_any_shard": Expect(
        "StoreError", "no space left", path=SHARD.format(r"\d"), expected=r"\d+ bytes and 1 file free", added=VOID,
    ),
    "a_quota_that_is_used_up_while_writing": Expect(
        "StoreError", "quota is used up", role=1, path=SHARD.format(1), expected="bytes", advice="quota", added=VOID,
    ),
    "an_input_output_error_at_write": Expect(
        "StoreError", "Input/output error", role=0, path=SHARD.format(0), advice="kernel log", added=VOID,
    ),
    "an_input_output_error_at_sync": Expect(
        "StoreError", "sync of a shard failed", role=2, path=SHARD.format(2), added=VOID,
    ),
    "an_input_output_error_at_close": Expect(
        "StoreError", "Input/output error", role=2, path=SHARD.format(2), added=VOID,
    ),
    "no_space_for_a_manifest": Expect(
        "StoreError", "no space left", role=2, path=r"/00000/000002\.json$", expected=r"\d+ bytes", added=VOID,
    ),
    "no_space_for_another_owners_shard_under_gather": Expect(
        "StoreError", "no space left", role=0, path=SHARD.format(1), added=VOID,
    ),
    "no_space_for_the_root": Expect(
        "StoreError", "no space left", role=0, path=ROOT.format(3), expected=r"\d+ bytes and 1 file free",
    ),
    "a_final_rename_that_fails": Expect(
        "StoreError", "placing the file failed", role=0, path=ROOT.format(3), added=VOID,
    ),
}  # fmt: skip


def test_every_case_is_judged() -> None:
    others = {
        "a_commitment_of_another_capture",
        "the_same_save_again",
        "no_communicator_under_a_launcher",
        "an_interrupt_of_one_owner_after_it_has_committed",
        "an_interrupt_of_owner_0_after_it_has_published",
        "the_last_owner_never_calls_save",
        "owner_0_never_calls_save",
        "nobody_can_tell_whether_the_root_was_published",
        "a_directory_sync_that_fails_after_the_root_is_in_place",
        "a_file_system_that_cannot_place_without_replacing",
        "a_store_that_is_not_writable",
        "a_file_in_the_place_of_the_store",
    }
    assert REFUSED.keys() | others == CASES.keys()


@pytest.mark.parametrize(("case", "owners"), [one for case in REFUSED for one in parameters(CASES[case], [case])])
def test_save_is_refused(mpi: str, owners: int, case: str) -> None:
    found = outcomes(CASES[case], mpi, case, owners)
    check_refused(found, REFUSED[case])
    check_unharmed(found, REFUSED[case].added)
    check_next_save(found)
    assert "elsewhere" not in found[0] or not found[0]["elsewhere"]


def test_a_commitment_of_another_capture_is_refused_field_by_field(mpi: str) -> None:
    found = outcomes(DECLARING, mpi, "a_commitment_of_another_capture", 3)
    fields = ("run", "schema", "contract", "step", "cursor", "epoch", "call", "attempt")
    assert tuple(found[0]) == fields
    for name in fields:
        each = [outcome[name] for outcome in found]
        expect = Expect(
            "MomentError", f"of another capture: other {name}$", role=2, expected=f"^{name} ", found=f"^{name} ",
            advice=REPORT,
        )  # fmt: skip
        check_refused(each, expect)
        check_unharmed(each, VOID)
        check_next_save(each)


@pytest.mark.parametrize("owners", [2, 3])
def test_the_same_save_again_is_the_same_generation_and_writes_nothing(mpi: str, owners: int) -> None:
    found = outcomes(SAVING, mpi, "the_same_save_again", owners)
    assert len({tuple(one[:4]) for one in found}) == 1
    assert found[0][1:] == [True, True, 2, True]


@pytest.mark.parametrize("owners", [2, 3])
def test_no_communicator_under_a_launcher_is_refused_before_anything_is_written(mpi: str, owners: int) -> None:
    found = outcomes(SAVING, mpi, "no_communicator_under_a_launcher", owners)
    for role, one in enumerate(found):
        for record in (one["raised"]["record"], one["itself"]["raised"]["record"]):
            assert record["class"] == "StateError"
            assert record["message"].startswith("every process would believe that it is alone")
            assert record["found"].split(":")[0] in {"OMPI_COMM_WORLD_SIZE=5", "PMI_SIZE=5"}
            assert ("comm=MPI.COMM_WORLD" in record.get("expected", "")) == (role == 0)
            assert ("alone=True" in record["advice"]) == (role == 0)
        assert not one["made"]
        assert one["split off"] == [1, True]


@pytest.mark.parametrize("role", [-1, 0])
@pytest.mark.parametrize("owners", [2, 3, 5])
def test_an_owner_that_never_calls_is_named_and_fails_only_the_call_it_missed(mpi: str, owners: int, role: int) -> None:
    case = "owner_0_never_calls_save" if role == 0 else "the_last_owner_never_calls_save"
    found = outcomes(CASES[case], mpi, case, owners)
    expect = Expect(
        "DeadlineError", "an owner is silent", role=role, expected="sign of life within 0.6 s", found="none",
        advice="process and node", apart=(role,), seconds=0.6 + 2.0,
    )  # fmt: skip
    record = check_refused(found, expect)
    check_unharmed(found)
    late = found[role % owners]["next"][0]
    assert late["raised"]["record"] == record, "late, it hears what the others raised"
    assert late["seconds"] < 2.0
    assert len({one["next"][1] for one in found}) == 1


def _check_the_store_decided(found: list[Any], published: bool) -> None:
    """Whatever was said, what is listed is whole, and whoever reported success reported what is listed."""
    assert found[0]["listed"] == ([1, 2, 3] if published else [1, 2])
    for one in found:
        assert published or "raised" in one or one["value"] == "interrupted"
    assert found[0]["older"]
    assert all(one["arrays"] for one in found)
    check_next_save(found)


@pytest.mark.parametrize("owners", [2, 3])
def test_nobody_can_tell_whether_the_root_was_published(mpi: str, owners: int) -> None:
    found = outcomes(SAVING, mpi, "nobody_can_tell_whether_the_root_was_published", owners)
    for role, one in enumerate(found[1:], 1):
        record = one["raised"]["record"]
        expect = Expect(
            "InDoubtError", r"nobody can tell .* silent \(owner 0 \(host .*Input/output error", role=role,
            path=ROOT.format(3), advice="next resume finds out",
        )  # fmt: skip
        check_record(record, one["raised"]["message"], expect, owners)
        assert one["seconds"] < 0.6 + 2.0
    # Owner 0, stopped meanwhile, hears of their doubt before it publishes, or not; it can reach the store.
    published = "value" in found[0]
    if not published:
        check_readable(found[0]["raised"]["record"], found[0]["raised"]["message"])
        assert found[0]["raised"]["record"]["class"] in ("DeadlineError", "InDoubtError")
    _check_the_store_decided(found, published)


def test_an_interrupt_of_one_owner_after_it_has_committed(mpi: str) -> None:
    found = outcomes(SAVING, mpi, "an_interrupt_of_one_owner_after_it_has_committed", 3)
    _check_the_store_decided(found, found[0]["listed"] == [1, 2, 3])
    assert found[2]["value"] == "interrupted"
    assert ("raised" in found[0]) == ("raised" in found[1])


@pytest.mark.parametrize("owners", [2, 3])
def test_an_interrupt_of_owner_0_after_it_has_published(mpi: str, owners: int) -> None:
    found = outcomes(SAVING, mpi, "an_interrupt_of_owner_0_after_it_has_published", owners)
    _check_the_store_decided(found, published=True)
    assert found[0]["value"] == "interrupted"
    assert len({one["value"] for one in found[1:]}) == 1
    assert found[1]["value"].startswith("blake3:")


@pytest.mark.parametrize("owners", [2, 3])
def test_a_directory_sync_that_fails_after_the_root_is_in_place(mpi: str, owners: int) -> None:
    found = outcomes(SAVING, mpi, "a_directory_sync_that_fails_after_the_root_is_in_place", owners)
    expect = Expect(
        "StoreError", "published, durability unknown: the sync of the directory failed", role=0, path=ROOT.format(3),
        advice="next resume syncs it",
    )  # fmt: skip
    check_refused(found, expect)
    _check_the_store_decided(found, published=True)


@pytest.mark.parametrize(
    ("case", "expect"),
    [
        (
            "a_file_system_that_cannot_place_without_replacing",
            Expect("StoreError", "without replacing", role=0, path="/run$", expected="renameat2", advice="another"),
        ),
        (
            "a_store_that_is_not_writable",
            Expect("StoreError", "Read-only file system", role=0, path="/run$", advice="read-only"),
        ),
    ],
)
@pytest.mark.parametrize("owners", [2, 3])
def test_a_store_that_cannot_be_is_refused_before_the_first_write(
    mpi: str, owners: int, case: str, expect: Expect
) -> None:
    found = outcomes(CASES[case], mpi, case, owners)
    check_refused(found, expect)
    assert found[0]["made"] == []
    check_next_save(found)


def test_a_file_in_the_place_of_the_store_is_left_as_it_is(mpi: str) -> None:
    found = outcomes(SAVING, mpi, "a_file_in_the_place_of_the_store", 3)
    check_refused(found, Expect("StoreError", "no directory", role=0, path="/run$", expected="a directory"))
    assert found[0]["made"]
