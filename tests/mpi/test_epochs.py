"""Claims, fencing, lineage and `on_damage` on real owners, each refusal with the same record at all of them.

Each case of epochs_cases.py brings a rival, an older job, another past or damage to 2, 3 or 5 owners of Open MPI and
MPICH. Checked each time, as for every refusal: one exception in time, what it names, that nothing of the caller's or of
the store changed (by digest), that the run goes on afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expecting import Expect, check_refused, check_unharmed, outcomes, parameters

PROGRAM = Path(__file__).with_name("epochs_cases.py")
NEWER = Expect(
    "EpochError", "a newer job has continued this run", role=0, path=r"/run/epochs/00000002\.json$",
    expected="epoch 1 to be the newest", found="epoch 2, taken by .*host .*, from epoch 1, step 2",
    advice="end this job",
)  # fmt: skip
CLAIM = "epochs/0000000{}.json"
ENDED = "epochs/0000000{}.ended"
"""What the rival leaves when it closes."""


def both(*cases: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("case", "owners"), parameters(PROGRAM, list(cases)))


@both("a_newer_job_has_continued_the_run")
def test_an_older_job_is_fenced_at_its_next_save(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    check_refused(found, NEWER)
    check_unharmed(found)
    assert found[0]["added"] == [], "nothing of it is written"
    assert [one["next"] for one in found] == [[2, 3]] * owners


@both("a_newer_job_continues_while_this_one_writes")
def test_nothing_is_published_once_a_newer_claim_stands(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    check_refused(found, NEWER)
    check_unharmed(found, ["void", CLAIM.format(2), ENDED.format(2)])
    assert [one["next"] for one in found] == [[2, 3]] * owners
    assert found[0]["listed"] == [[1, 1, "live"], [1, 2, "live"], [3, 3, "live"]]


@both("a_newer_job_continues_just_before_the_root_is_in_place")
def test_what_slips_through_is_orphaned_and_in_nobodys_way(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    record = check_refused(
        found,
        Expect(
            "EpochError", "newer job has continued this run; this save came too late and is listed as orphaned", role=0,
            path=r"/run/roots/000000000003-e00000001-\w+\.json$", found="epoch 2, taken by", advice="end this job",
        ),
    )  # fmt: skip
    assert record["class"] == "EpochError"
    assert found[0]["changed"] == []
    assert [one["next"] for one in found] == [[2, 3]] * owners, "the same step is saved again"
    assert found[0]["listed"] == [[1, 1, "live"], [1, 2, "live"], [1, 3, "orphaned"], [3, 3, "live"]]


@both("a_save_after_a_resume_that_only_looked")
def test_a_resume_that_only_looks_takes_nothing(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    check_refused(found, Expect("EpochError", "save was called before resume", expected="readonly=True takes no epoch"))
    check_unharmed(found)
    assert found[0]["added"] == []
    assert not any(one["looking changed"] for one in found)


@both("a_rival_claims_first")
def test_of_two_that_resume_one_is_refused_before_it_trains(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    check_refused(
        found,
        Expect(
            "EpochError", "another job has continued this run first", role=0, path="/run/epochs$",
            expected="to take epoch 2", found="epoch 2, taken by", advice="let that job run",
        ),
    )  # fmt: skip
    check_unharmed(found, [CLAIM.format(2), ENDED.format(2)])
    assert [one["next"] for one in found] == [[2, 3]] * owners


@both("an_older_job_saves_while_this_one_reads", "an_older_job_saves_just_before_the_claim")
def test_an_acknowledged_save_of_an_older_job_is_not_lost(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    check_refused(
        found,
        Expect(
            "OvertakenError", "an older job has saved step 3 while this one resumed", role=0, path="/run/roots$",
            found="step 3 of epoch 2", advice="start again",
        ),
    )  # fmt: skip
    assert all(one["arrays"] for one in found)
    assert found[0]["changed"] == []
    claims = [name for name in found[0]["added"] if name.startswith("epochs/")]
    assert claims == [CLAIM.format(3), CLAIM.format(4)][: 2 if case.endswith("claim") else 1]
    assert [one["next"] for one in found] == [[3, 4]] * owners
    assert found[0]["older job"]["raised"]["record"]["class"] == "EpochError"
    assert [status for _, _, status in found[0]["listed"]] == ["live"] * 4


@both("a_generation_off_the_lineage")
def test_what_is_off_the_lineage_is_never_restored(mpi: str, case: str, owners: int) -> None:
    every = outcomes(PROGRAM, mpi, case, owners)
    for how in ("by step", "by root"):
        found = [one[how] for one in every]
        check_refused(
            found,
            Expect(
                "EpochError", "off the lineage: " + ("step 2" if how == "by step" else "blake3:"), role=0,
                path=r"/run/roots/000000000002-e00000001-\w+\.json$", found="epoch 1; since then epoch 2, taken by",
                advice="--lineage",
            ),
        )  # fmt: skip
        check_unharmed(found)
        assert found[0]["added"] == []
    assert [one["by root"]["next"] for one in every] == [[1, 2]] * owners


@pytest.mark.parametrize("name", ["other epochs", "a later generation before it", "an older epoch"])
def test_a_root_that_tells_of_another_past_is_refused(mpi: str, name: str) -> None:
    found = [one[name] for one in outcomes(PROGRAM, mpi, "a_root_of_another_past", 3)]
    check_refused(
        found, Expect("EpochError", "another past", role=0, path=r"/run/roots/000000000003-e00000002-", advice="bring")
    )
    check_unharmed(found)
    assert found[0]["added"] == []


@both("nobody_hears_whether_the_claim_was_made")
def test_in_doubt_about_the_claim_what_stands_in_the_store_decides_for_all(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    check_refused(found, Expect("DeadlineError", "owner is silent", role=0, seconds=8.0))
    check_unharmed(found, [CLAIM.format(2)])
    assert found[0]["void"] == [False, True, False, False]
    assert [one["next"] for one in found] == [[2, 3]] * owners


def test_on_damage_previous_goes_on_from_the_newest_that_verifies(mpi: str) -> None:
    every = outcomes(PROGRAM, mpi, "on_damage_previous", 3)
    assert len(every[0]) >= 17
    for damage in every[0]:
        check_gone_past([one[damage] for one in every], 1, [[1, 1, "live"], [1, 2, ...], [2, 2, "live"]])


@both("two_generations_are_gone_past")
def test_more_than_one_damaged_generation_is_gone_past(mpi: str, case: str, owners: int) -> None:
    found = outcomes(PROGRAM, mpi, case, owners)
    listed = [[1, 1, "live"], [1, 2, "live"], [1, 3, ...], [1, 4, ...], [2, 3, "live"]]
    check_gone_past(found, 2, listed)


def check_gone_past(found: list[dict[str, Any]], step: int, listed: list[list[Any]]) -> None:
    """Check that all owners go on alike from `step`, that it is said, and what is listed then (``...``: not live)."""
    for one in found:
        assert (one["step"], one["epoch"], one["same"], one["again"]) == (step, 2, True, step + 1)
    warned = found[0]["warned"]
    assert any("DAMAGED" in text and f"step {step} is tried instead" in text for text in warned), warned
    assert any(f"goes on from step {step}, not from the newest" in text for text in warned), warned
    there = [[epoch, at, ... if status != "live" else status] for epoch, at, status in found[0]["list"]]
    assert there == listed


@pytest.mark.parametrize("what", ["by step", "both"])
def test_on_damage_previous_refuses_where_nothing_may_be_taken(mpi: str, what: str) -> None:
    found = [one[what] for one in outcomes(PROGRAM, mpi, "nothing_verifies_to_go_on_from", 3)]
    advice = "step 1 passes the fast check.*on_damage='previous'" if what == "by step" else "no older generation passes"
    check_refused(found, Expect("IntegrityError", "not what", role=1, advice=advice))
    check_unharmed(found)


def test_an_accepted_difference_is_recorded(mpi: str) -> None:
    found = outcomes(PROGRAM, mpi, "a_difference_that_is_accepted", 3)
    record = check_refused(found, Expect("ContractError", "identity.model: 'other' this run, 'net'", advice="accept="))
    assert "identity.lr" not in record["message"]
    check_unharmed(found)
    assert [one["step"] for one in found] == [2, 2, 2]
    assert found[0]["accepted"] == [["identity.lr", "0.1", "0.2", "warm restart"]]
    assert [one["after"] for one in found] == [3, 3, 3]


def test_a_claim_tells_who_took_it_and_why(mpi: str) -> None:
    found = outcomes(PROGRAM, mpi, "a_claim_tells_who_and_why", 2)[0]
    assert found["told"] == ["EpochError"] * 3
    assert found["looks"] == 1, "a second look within a second costs nothing"
    told = [
        ["4711", 3, "n[1-2]", True, "20", "nothing to resume", None],
        ["4711", 3, "n[1-2]", True, "20", "the newest generation", None],  # the first one runs still
        ["4711", 3, "n[1-2]", True, "20", "the newest generation", "closed by the program"],
    ]
    assert found["claims"] == told
