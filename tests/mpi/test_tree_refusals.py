"""Every refusal that a tree adds, made to happen on eight real owners: see tree_refusals_cases.py for who is where."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mpilaunch
import pytest
from expecting import Expect, check_next_save, check_readable, check_refused, check_unharmed

CASES = Path(__file__).with_name("tree_refusals_cases.py")
OWNERS = 8
VOID = ("void",)
REPORT = "report this"
MANIFEST = r"/run/data/000000000002-e00000001-\w+/00000/00000{}\.json$"
SECONDS = 6.0
"""Eight owners share a core or two."""


def outcomes(mpi: str, case: str) -> list[Any]:
    return mpilaunch.batch(CASES, mpi, world=OWNERS, owners=(OWNERS,), timeout=240.0).passed(case, OWNERS)


SAVING = {
    "a_role_too_many": Expect(
        "TopologyError", "another place", role=2, expected=r"role 2 with 2", found="role 2 with 3", advice=REPORT,
    ),
    "a_role_too_few": Expect(
        "TopologyError", "another place", role=2, expected=r"role 2 with 2", found="role 2 with 1", advice=REPORT,
    ),
    "a_leaf_that_claims_another_role": Expect(
        "TopologyError", "another place", role=3, expected="role 3 with 1", found="role 7 with 1", advice=REPORT,
    ),
    "two_roles_swapped": Expect(
        "TopologyError", "another place", expected=r"role [67] with 1", found="role [67] with 1", advice=REPORT,
    ),
    "a_subtree_of_another_step": Expect(
        "MomentError", "of another capture: other step$", role=2, expected="^step 3", found="^step 2", advice=REPORT,
    ),
    "a_leaf_of_another_cursor": Expect(
        "MomentError", "of another capture: other cursor$", role=3, expected="^cursor 30", found="^cursor 29",
    ),
    "a_subtree_of_another_epoch": Expect(
        "MomentError", "of another capture: other epoch$", role=5, expected="^epoch 1", found="^epoch 2",
    ),
    "a_cover_that_says_something_else": Expect("CoverageError", "sums .* do not say so", advice=REPORT),
    "a_commitment_that_comes_twice": Expect(
        "TopologyError", "a second commit message", role=7, expected="one", found="another", advice=REPORT,
    ),
    "a_leafs_row_that_lies_where_anothers_does": Expect(
        "CoverageError", r"no owner holds \[3:4,0:4\]; beside it: owners 2, 4", region="^box$", roles=(2, 4),
        found=r"gap at box \[3:4,0:4\], first index \(3, 0\)",
    ),
    "two_rows_that_only_look_like_a_tiling": Expect(
        "CoverageError", r"\[3:4,0:4\] is held 2 times by owners 3, 6", region="^box$", roles=(3, 6),
    ),
    "a_copy_that_diverged_deep_in_the_tree": Expect(
        "ReplicaError", r"first at index \(399, 499\)", region="^w$", role=3, roles=range(8),
        expected="^7.0, as at owner 0$", found="^-1.0 at owner 3$", advice="PerOwner",
    ),
    "two_copies_of_a_box_that_diverged": Expect(
        "ReplicaError", r"index \(3, 2\)", region="^copies$", roles=(2, 7), expected="^0.0,", found="^5.0 ",
    ),
    "a_nan_deep_in_the_tree": Expect("NonFiniteError", r"nan at index", region="^m$", role=3, advice="'m': 'allow'"),
}  # fmt: skip

RESUMING = {
    "a_manifest_of_another_save": (
        Expect("IntegrityError", "", role=3, path=MANIFEST.format(3), expected="blake3:", found="blake3:"), 3,
    ),
    "a_manifest_of_a_sibling": (
        Expect("FormatError", "another role than its parent or root says", role=3, path=MANIFEST.format(3),
               expected="3", found="4"), 3,
    ),
    "a_manifest_of_another_size": (
        Expect("FormatError", "another size than its parent or root says", role=2, path=MANIFEST.format(2),
               expected="2", found="3"), 2,
    ),
    "a_manifest_of_another_capture": (
        Expect("FormatError", "another prefix than its parent or root says", role=3, path=MANIFEST.format(3),
               expected="cursor 20", found="cursor 19"), 3,
    ),
    "a_cover_that_its_pieces_do_not_give": (
        Expect("CoverageError", "do not tile", path=r"/run/roots/0+2-.*\.json$", expected="cover", found="cover"), 3,
    ),
}  # fmt: skip


def test_every_case_is_judged() -> None:
    others = {"a_subtree_that_does_not_come", "messages_of_a_dead_call"}
    assert SAVING.keys() | RESUMING.keys() | others == set(mpilaunch.cases(CASES))


@pytest.mark.parametrize("case", SAVING)
def test_save_is_refused(mpi: str, case: str) -> None:
    found = outcomes(mpi, case)
    check_refused(found, dataclasses.replace(SAVING[case], seconds=SECONDS))
    check_unharmed(found, VOID)
    check_next_save(found)


@pytest.mark.parametrize("case", RESUMING)
def test_resume_is_refused_and_verify_names_the_file(mpi: str, case: str) -> None:
    found = outcomes(mpi, case)
    expect, role = RESUMING[case]
    record = check_refused(found, dataclasses.replace(expect, seconds=SECONDS))
    check_unharmed(found)
    assert [one["next"] for one in found] == [[2, True]] * OWNERS
    assert "step 1" in record["advice"] or "000000000001" in record["advice"], record["advice"]
    verdicts = found[0]["verdicts"]
    assert all(one["verdicts"] == verdicts for one in found)
    paths = [verdict["path"] for verdict in verdicts]
    assert any(path.endswith(f"/00000{role}.json") for path in paths), paths
    assert all(verdict["error"] for verdict in verdicts)
    assert all(one["good"] for one in found)


def test_a_subtree_that_does_not_come_is_named_and_takes_part_again(mpi: str) -> None:
    found = outcomes(mpi, "a_subtree_that_does_not_come")
    expect = Expect(
        "DeadlineError", "an owner is silent", role=2, expected="sign of life within 2 s", advice="process and node",
        apart=(2,), seconds=2.0 + 2.0,
    )  # fmt: skip
    record = check_refused(found, expect)
    check_unharmed(found)
    missed = found[2]["next"][0]["raised"]
    assert missed["record"] == record, "late, it hears what the others raised"
    check_readable(missed["record"], missed["message"])
    assert found[2]["next"][0]["seconds"] < 2.0
    assert len({one["next"][1] for one in found}) == 1


def test_messages_of_a_dead_call_are_dropped(mpi: str) -> None:
    found = outcomes(mpi, "messages_of_a_dead_call")
    assert len({one[0] for one in found}) == 1
    assert found[0][2] is True
    for role, one in enumerate(found):
        # The parents of 2, 3 and 5, and their children, get them.
        assert (one[1] > 0) == (role in (0, 1, 2, 3, 6, 7)), (role, one[1])
