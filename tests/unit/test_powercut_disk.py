"""The models of `powercut.disk`, on recordings of a few operations: which states they allow, and which they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from powercut.disk import Crashes, Model
from powercut.trace import ROOT, Op

F, G = 1, 2


def ops(*given: tuple[Any, ...]) -> list[Op]:
    """Write operations down as (kind, more), one after the other."""
    return [Op(kind, 2 * at, 2 * at + 1, group=at, **more) for at, (kind, more) in enumerate(given)]


def made(ino: int, name: str) -> tuple[str, dict[str, Any]]:
    return "name", {"ino": ino, "place": ROOT, "name": name}


def written(ino: int) -> tuple[str, dict[str, Any]]:
    return "data", {"ino": ino, "data": b"abcd"}


def synced(ino: int) -> tuple[str, dict[str, Any]]:
    return "sync", {"ino": ino}


TOLD = ("told", {"data": json.dumps({"saved": 1, "root": "root"}).encode()})


def found(recording: list[Op], model: Model, told: bool = False) -> set[tuple[tuple[str, bytes], ...]]:
    """Give the trees that a crash may leave; only those after something was told, if so asked."""
    crashes = Crashes(recording, {ROOT}, model)
    return {
        tuple((path, crashes.contents.of[digest]) for path, _, digest in state.files)
        for state in crashes.states()
        if state.told.saves or not told
    }


ALL = {(), (("f", b""),), (("f", b"ab"),), (("f", bytes(4)),), (("f", b"abcd"),)}
WHOLE = (("f", b"abcd"),)


@pytest.mark.parametrize("model", Model)
def test_what_is_not_synced_may_be_there_or_not_or_torn(model: Model) -> None:
    assert found(ops(made(F, "f"), written(F)), model) == ALL


@pytest.mark.parametrize("model", [Model.WEAK, Model.ORDERED])
def test_what_is_synced_is_there(model: Model) -> None:
    assert found(ops(made(F, "f"), written(F), synced(F), synced(ROOT), TOLD), model, told=True) == {WHOLE}


def test_a_file_s_sync_makes_its_name_durable_in_a_journal_only() -> None:
    recording = ops(made(F, "f"), written(F), synced(F), TOLD)
    assert found(recording, Model.WEAK, told=True) == {(), WHOLE}
    assert found(recording, Model.ORDERED, told=True) == {WHOLE}


def test_names_reach_a_journal_in_their_order() -> None:
    recording = ops(made(F, "f"), made(G, "g"))
    both = (("f", b""), ("g", b""))
    assert found(recording, Model.ORDERED) == {(), (("f", b""),), both}
    assert found(recording, Model.WEAK) == {(), (("f", b""),), (("g", b""),), both}


def test_a_fence_makes_the_names_before_it_durable_and_a_directory_s_sync_none() -> None:
    begin = [made(F, "f"), written(F), synced(F), synced(ROOT)]
    assert found(ops(*begin, TOLD), Model.FENCE, told=True) == {(), WHOLE}
    after = found(ops(*begin, made(G, "g"), synced(G), TOLD), Model.FENCE, told=True)
    assert after == {WHOLE, (*WHOLE, ("g", b""))}


def test_what_a_failed_sync_was_to_write_is_lost_whatever_a_later_one_says() -> None:
    recording = ops(made(F, "f"), written(F), ("lost", {"ino": F}), synced(F), synced(ROOT), TOLD)
    for model in (Model.WEAK, Model.ORDERED):
        assert found(recording, model, told=True) == {(("f", b""),)}


def test_a_sync_covers_only_what_ended_before_it_began() -> None:
    name, data, sync, told = ops(made(F, "f"), written(F), synced(F), TOLD)
    late = Op("data", sync.start + 1, sync.end + 1, group=9, ino=F, offset=4, data=b"e")
    trees = found([name, data, sync, late, told], Model.ORDERED, told=True)
    assert trees == {WHOLE, (("f", b"abcde"),), (("f", b"abcd\0"),)}


def test_a_rename_loses_neither_name() -> None:
    name, sync, *_ = ops(made(F, "f"), synced(ROOT))
    new = Op("name", 4, 5, group=7, ino=F, place=ROOT, name="g")
    old = Op("gone", 4, 5, group=7, ino=F, place=ROOT, name="f")
    trees = found([name, sync, new, old], Model.WEAK)
    assert trees == {(), (("f", b""),), (("f", b""), ("g", b"")), (("g", b""),)}
    assert () not in found([name, sync, new, old, ops(TOLD)[0]], Model.WEAK, told=True)
    assert (("f", b""), ("g", b"")) not in found([name, sync, new, old], Model.ORDERED)


def test_without_a_sync_what_it_alone_made_durable_may_be_missing() -> None:
    recording = ops(made(F, "f"), written(F), synced(F), synced(ROOT), TOLD)
    crashes = Crashes(recording, {ROOT}, Model.WEAK)
    trees = [[(path, crashes.contents.of[digest]) for path, _, digest in state.files] for state in crashes.without(3)]
    assert [] in trees
    trees = [[(path, crashes.contents.of[digest]) for path, _, digest in state.files] for state in crashes.without(2)]
    assert [("f", b"")] in trees
