"""Claims, the lineage that follows from them, and what is damage of a store as a whole."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import genkit
import pytest
from dirkit import damage, steps, tree

from mpickpt.cluster.claims import Claims
from mpickpt.errors import FormatError, IntegrityError, StoreError
from mpickpt.format.manifest import claim_name
from mpickpt.store.directory import Directory

pytestmark = pytest.mark.usefixtures("no_leak")


def test_of_two_that_claim_one_gets_it(directory: Directory) -> None:
    assert directory.claim(genkit.claim_of(directory, nonce="other")) is False
    assert directory.claim(genkit.claim_of(directory)) is True, "one's own nonce: won"
    newest = directory.newest_claim(fresh=True)
    assert newest is not None
    assert (newest.epoch, newest.nonce) == (1, "claimed1")


def test_after_the_last_epoch_there_is_none(directory: Directory) -> None:
    last = (1 << 63) - 1
    assert directory.claim(genkit.claim_of(directory, epoch=last))
    before = sorted(os.listdir(directory.epochs_path))
    with pytest.raises(FormatError, match="no epoch is left"):
        Claims(directory, 1, "here").propose(directory.claims(), None, "more")
    assert sorted(os.listdir(directory.epochs_path)) == before


def test_the_lineage_follows_from_the_claims(directory: Directory) -> None:
    for step in (1, 2, 3):
        genkit.bare_root(directory, step)
    directory.claim(genkit.claim_of(directory, 2, (1, 2)))
    for step in (3, 4):
        genkit.bare_root(directory, step, 2)
    assert steps(directory.lineage()) == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert steps(directory.off_lineage(directory.claims(), directory.roots())) == [(1, 3)]
    directory.claim(genkit.claim_of(directory, 3, (2, 3)))
    assert steps(directory.lineage()) == [(1, 1), (1, 2), (2, 3)]
    directory.claim(genkit.claim_of(directory, 4, (1, 1)))
    assert steps(directory.lineage()) == [(1, 1)]
    directory.claim(genkit.claim_of(directory, 5))  # a fresh start
    assert directory.lineage() == []
    assert len(directory.roots()) == 5
    directory.check()


def test_an_old_claim_that_is_missing_is_a_warning(directory: Directory, caplog: pytest.LogCaptureFixture) -> None:
    genkit.bare_root(directory, 1)
    directory.claim(genkit.claim_of(directory, 2, (1, 1)))
    os.unlink(os.path.join(directory.epochs_path, claim_name(1)))
    with caplog.at_level(logging.WARNING, "mpickpt"):
        assert steps(Directory(directory.path).open().lineage()) == [(1, 1)]
    assert "older" in caplog.text


@pytest.mark.parametrize(
    "what",
    [
        "no roots",
        "root newer than every claim",
        "no root readable",
        "origin missing",
        "origin void",
        "claim of another run",
        "claim under another name",
    ],
)
def test_a_damaged_store_is_never_taken_for_an_empty_one(directory: Directory, what: str) -> None:
    damage(directory, what)
    before = tree(directory.path)
    for write in (False, True):
        with pytest.raises(IntegrityError) as caught:
            Directory(directory.path).open(write=write)
        assert caught.value.path is not None
    assert tree(directory.path) == before
    Directory(directory.path).open(check=False)  # tools look at it all the same


def test_where_an_origin_was_rotated_by_an_older_job_the_refusal_says_which_claim_to_move_away(
    directory: Directory, tmp_path: Path
) -> None:
    genkit.bare_root(directory, 2)  # 1 was rotated, while the job of epoch 2 claimed and was killed
    directory.claim(genkit.claim_of(directory, 2, (1, 1)))
    with pytest.raises(IntegrityError, match="a root that is not there") as caught:
        Directory(directory.path).open(write=True)
    claim = os.path.join(directory.epochs_path, claim_name(2))
    assert f"move {claim} away" in str(caught.value)
    os.rename(claim, tmp_path / "moved")
    assert steps(Directory(directory.path).open(write=True).lineage()) == [(1, 2)]


def test_one_unreadable_root_among_readable_ones_is_not_gone_past(directory: Directory) -> None:
    genkit.bare_root(directory, 1)
    name = genkit.bare_root(directory, 2)
    os.truncate(directory.root_path(name), 100)
    found = Directory(directory.path).open(write=True)
    assert steps(found.lineage()) == [(1, 1), (1, 2)]
    assert found.is_root(name) is None
    with pytest.raises(IntegrityError):
        found.read_root(found.lineage()[-1].name)


def test_an_unreadable_directory_is_a_store_error(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> list[str]:
        raise OSError(errno.EACCES, "")

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(StoreError) as caught:
        directory.roots()
    assert caught.value.errno == errno.EACCES
