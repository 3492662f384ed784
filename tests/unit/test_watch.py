"""Owner 0's looks at the store between saves: how often, and what becomes of one that fails or hangs."""

from __future__ import annotations

import logging
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpickpt.cluster import watch
from mpickpt.cluster.watch import Watch
from mpickpt.errors import EpochError, StoreError
from mpickpt.store.threads import Pool


class Scene:
    """A watch, a clock, and what the claims say."""

    def __init__(self, path: Path) -> None:
        self.now, self.looks = 100.0, 0
        self.said: Callable[[], EpochError | None] = lambda: None
        self.pool = Pool(2, "watch")
        self.released = threading.Event()
        directory: Any = types.SimpleNamespace(path=str(path))
        claims: Any = types.SimpleNamespace(fenced=self.fenced)
        self.watch = Watch(directory, claims, self.pool, 8.0)

    def fenced(self, now: float) -> EpochError | None:
        self.looks += 1
        return self.said()

    def wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            self.now += 0.01

    def round(self) -> None:
        """Begin a look and take what it saw."""
        call: Any = types.SimpleNamespace(wait=self.wait)
        self.watch.begin()
        look = self.watch._look
        if look is not None and self.said != self.hang:
            look.exception()  # done
        self.watch.end(call)

    def hang(self) -> EpochError | None:
        self.released.wait(20)
        return None


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    monkeypatch.setattr(watch, "time", types.SimpleNamespace(monotonic=lambda: scene.now))
    yield scene
    scene.pool.close(1)


def test_a_look_a_second_at_most(scene: Scene, tmp_path: Path) -> None:
    for _ in range(20):
        scene.round()
        scene.now += 0.26
    assert scene.looks == 5
    assert not scene.watch.stop
    (tmp_path / watch.STOP_FILE).touch()
    scene.now += 1
    scene.round()
    assert scene.watch.stop


def test_a_newer_job_is_told_in_every_round_until_an_epoch_is_taken(scene: Scene) -> None:
    scene.said = lambda: EpochError("a newer job has continued this run")
    for _ in range(3):
        with pytest.raises(EpochError):
            scene.round()
    scene.said = lambda: None
    scene.watch.forget()
    scene.round()


def test_a_look_that_fails_is_told_once_and_ends_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> EpochError | None:
        raise StoreError("the claims cannot be read")

    scene.said = fails
    with caplog.at_level(logging.WARNING, "mpickpt"):
        for _ in range(3):
            scene.round()
            scene.now += 1
    assert scene.looks == 3
    assert [record.message.split("\n")[0] for record in caplog.records] == [
        "whether a newer job has continued the run is not known at present: the claims cannot be read"
    ]


def test_a_look_that_hangs_holds_up_for_a_second_and_is_left_to_itself(scene: Scene) -> None:
    scene.said = scene.hang
    began = scene.now
    scene.round()
    assert 1.0 <= scene.now - began <= 1.1
    scene.said = lambda: EpochError("a newer job has continued this run")
    scene.watch.begin()
    assert scene.looks <= 1, "no second one while it may still come back"
    scene.now += 8.0
    with pytest.raises(EpochError):
        scene.round()
    scene.released.set()
