"""Any one byte of any file of a small generation is flipped, the file is cut at any length or lengthened: refused.

Exhaustive, but for the spaces that pad a shard's header to 4096 bytes, of which some are drawn. Whoever verifies, reads
or resumes names the file. What may be missing without damage (run.json, an older claim) is a warning; where it is
damaged, it is refused like any other.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import Store, in_memory
from storekit import claim, publish

import mpickpt
from mpickpt.errors import IntegrityError
from mpickpt.store.directory import Directory

KINDS = ("run.json", "epochs/*.json", "roots/*.json", "data/*/*/000001.json", "data/*/*/000000.safetensors",
         "data/*/*/000000.r.safetensors")  # fmt: skip
WRITING = 16  # one resume in so many is one that may write


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with in_memory() as found:
        yield found


@pytest.fixture(scope="module")
def of_one(folder: Path) -> Store:
    return Store.of_one(folder / "one")


@pytest.fixture(scope="module")
def of_two(folder: Path) -> Store:
    return Store.of_two(folder / "two")


@pytest.fixture(params=KINDS)
def store_and_file(request: pytest.FixtureRequest, of_one: Store, of_two: Store) -> tuple[Store, Path]:
    store = of_two if "000001" in request.param else of_one
    return store, store.file(request.param)


def places(data: bytes, shard: bool, draw: random.Random) -> list[int]:
    """Every offset; of the padding of a shard's header its ends, and some between them."""
    if not shard:
        return list(range(len(data)))
    head = 8 + int.from_bytes(data[:8], "little")
    text = len(data[:head].rstrip(b" "))
    assert head - text > 1000, "the padding is short enough to be done whole"
    return [*range(text + 16), *sorted(draw.sample(range(text + 16, head - 16), 48)), *range(head - 16, len(data))]


def test_the_unchanged_generations_are_taken(of_one: Store, of_two: Store) -> None:
    for store in (of_one, of_two):
        store.well()
        # Nothing rests on these: tests/unit/test_ended.py, test_events.py.
        told = {file for pattern in ("epochs/*.ended", "events.jsonl") for file in store.files(pattern)}
        known = {file for kind in KINDS for file in store.files(kind)} | set(store.files("*/*/*/*"))
        assert known | told == set(store.kept)


def test_every_flipped_byte_is_refused_and_the_file_is_named(store_and_file: tuple[Store, Path]) -> None:
    store, file = store_and_file
    data, draw = store.kept[file], random.Random(1)
    for at in places(data, file.suffix == ".safetensors", draw):
        changed = bytearray(data)
        changed[at] ^= draw.randrange(1, 256)
        file.write_bytes(changed)
        store.refused(file, readonly=at % WRITING != 0, told=("flipped", at, changed[at]))
    file.write_bytes(data)


def test_every_cut_is_refused_and_the_file_is_named(store_and_file: tuple[Store, Path]) -> None:
    store, file = store_and_file
    data, draw = store.kept[file], random.Random(2)
    for at in places(data, file.suffix == ".safetensors", draw):
        file.write_bytes(data[:at])
        store.refused(file, readonly=at % WRITING != 0, told=("cut", at))
    file.write_bytes(data)


@pytest.mark.parametrize("count", [1, 4096])
@pytest.mark.parametrize("what", ["zeros", "spaces", "line ends", "its own end", "its own beginning"])
def test_every_lengthened_file_is_refused_and_named(what: str, count: int, store_and_file: tuple[Store, Path]) -> None:
    store, file = store_and_file
    data = store.kept[file]
    more = {
        "zeros": bytes(count), "spaces": b" " * count, "line ends": b"\n" * count,
        "its own end": (data * count)[-count:], "its own beginning": (data * count)[:count],
    }[what]  # fmt: skip
    file.write_bytes(data + more)
    error = store.refused(file, readonly=False)
    if file.suffix == ".safetensors":
        assert (error.expected, error.found) == (f"{len(data)} bytes", f"{len(data) + count} bytes")
    file.write_bytes(data)


def test_every_missing_file_is_damage_but_run_json(
    store_and_file: tuple[Store, Path], caplog: pytest.LogCaptureFixture
) -> None:
    store, file = store_and_file
    file.unlink()
    if file.name == "run.json":
        with caplog.at_level(logging.WARNING, "mpickpt"):
            store.well()
        assert "run.json is missing" in caplog.text
    elif file.parent.name == "roots":
        # Its claim is a fresh start that may not have saved yet: nothing tells that there was a root.
        assert mpickpt.open_store(store.path).generations() == []
        assert store.resume(readonly=True).fresh
    elif file.parent.name == "epochs":
        error = store.refused(None)
        assert type(error) is IntegrityError
        assert "newer than every claim" in error.message
    else:
        assert type(store.refused(file)) is IntegrityError
    file.write_bytes(store.kept[file])
    store.well()


def test_an_older_claim_may_be_missing_but_not_be_damaged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "claims"
    state = {"w": mpickpt.Value(1)}
    publish(path, [state], step=1)
    directory = Directory(path).open(write=True)
    for epoch, step in ((2, 1), (3, 2)):
        (root,) = directory.lineage()[-1:]
        claim(directory, epoch, (root.epoch, root.step, Directory(path).read_root(root.name).digest))  # type: ignore[union-attr]
        publish(path, [state], step=step + 1, epoch=epoch)
    store = Store(path, lambda: {"w": mpickpt.Value(0)}).keep()
    assert store.resume(readonly=True).step == 3
    for file in store.files("epochs/*.json"):
        newest = file.name == "00000003.json"
        for at in range(0, len(store.kept[file]), 7):
            file.write_bytes(store.kept[file][:at] + b"\1" + store.kept[file][at + 1 :])
            store.refused(file)
        file.unlink()
        if newest:
            assert type(store.refused(None)) is IntegrityError
        else:
            caplog.clear()
            with caplog.at_level(logging.WARNING, "mpickpt"):
                store.well()
                assert store.resume(readonly=True).step == 3
            assert "claims older than" in caplog.text
        file.write_bytes(store.kept[file])
