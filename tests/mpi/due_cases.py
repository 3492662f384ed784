"""`due` on real owners: one answer at one step on all of them. test_due.py says what must come.

Cases run in a star; where the name says so, in a tree of fan-out 2, which five owners make two edges high.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rank
from scene import Scene, at

import mpickpt
from mpickpt.cluster import watch

if TYPE_CHECKING:
    from mpi4py import MPI

TREE: dict[str, Any] = {"topology": "tree", "fan_out": 2}


def rival(scene: Scene) -> None:
    """Continue the run from elsewhere, and leave."""
    with mpickpt.Checkpointer(scene.path, alone=True, keep=None) as ckpt:
        ckpt.resume(repartition=True)


def loop(ckpt: mpickpt.Checkpointer, steps: range, before: Callable[[int], None] = lambda step: None) -> Any:
    """Call due at each step; give the steps at which it said True, and the first at which `stopping` was."""
    due, stopping = [], None
    for step in steps:
        before(step)
        if ckpt.due(step):
            due.append(step)
        if ckpt.stopping and stopping is None:
            stopping = step
    return {"due": due, "stopping": stopping}


@contextmanager
def open_(comm: MPI.Intracomm, directory: Path, **options: Any) -> Iterator[tuple[Scene, mpickpt.Checkpointer]]:
    """Open a Checkpointer and resume."""
    with Scene(comm, directory, begin=False) as scene:
        scene.ckpt = ckpt = scene.open(**options)
        ckpt.resume(scene.good(0))
        yield scene, ckpt


def until(ckpt: mpickpt.Checkpointer, scene: Scene, first: int, seconds: float = 20.0) -> Any:
    """Call due until it says stop, owners in step, as a training keeps them; give the loop's outcome."""
    end, step, due = time.monotonic() + seconds, first, []
    while not ckpt.stopping:
        assert time.monotonic() < end, "nobody said stop"
        if ckpt.due(step):
            due.append(step)
        step += 1
        time.sleep(0.02)
    return {"due": due, "stopping": step - 1}


# --- the interval


@rank.case
def every_so_many_steps(comm: MPI.Intracomm, directory: Path) -> Any:
    """From the first call on."""
    with open_(comm, directory, every=4) as (_, ckpt):
        return loop(ckpt, range(4, 20))


@rank.case
@at(1, 3)
def every_so_many_seconds(comm: MPI.Intracomm, directory: Path) -> Any:
    """By owner 0's clock, which here jumps ahead once."""
    with open_(comm, directory, every_seconds=1000.0) as (scene, ckpt):
        found = [loop(ckpt, range(1, 6))["due"]]
        if scene.role == 0:
            ckpt._rounds.schedule._saved -= 1000.0
        for steps in (range(6, 7), range(7, 10)):
            found.append(loop(ckpt, steps)["due"])
            scene.publish(steps[-1])
        return [*found, loop(ckpt, range(10, 13))["due"]]


@rank.case
@at(1, 3)
def the_interval_of_daly(comm: MPI.Intracomm, directory: Path) -> Any:
    """At once where no save has been measured; then what the measured one says."""
    with open_(comm, directory, mtbf_seconds=1e5) as (scene, ckpt):
        found = [loop(ckpt, range(1, 3))["due"]]
        scene.publish(2)
        found.append(loop(ckpt, range(3, 6))["due"])
        interval = ckpt._rounds.schedule.interval
        assert interval is not None
        if scene.role == 0:
            ckpt._rounds.schedule._saved -= interval
        return [*found, loop(ckpt, range(6, 7))["due"]]


# --- stopping


def _signalled(comm: MPI.Intracomm, directory: Path, *numbers: int, **options: Any) -> Any:
    found, number = [], numbers[-1]

    def again() -> None:
        for each in numbers:
            os.kill(os.getpid(), each)
        seen.append(number)

    for who in range(comm.Get_size()):
        for each in (signal.SIGUSR1, signal.SIGTERM):  # an earlier stop has left them ignored
            signal.signal(each, signal.SIG_DFL)
        rank.meet(comm)
        seen: list[int] = [] if comm.Get_rank() == who else [0]
        with open_(comm, directory / str(who), signals=[signal.SIGUSR1, signal.SIGTERM], **options) as (scene, ckpt):
            loop(ckpt, range(1, 4))
            if scene.role == who:
                for each in numbers:
                    os.kill(os.getpid(), each)
            found.append(loop(ckpt, range(4, 10)))
            with rank.fault("save.agreed", again, role=who, comm=comm):  # a second one, during the last save
                scene.publish(9)
            assert seen, "the second one came"
            assert (ckpt.stopped_by, ckpt.exit_code) == (signal.Signals(number).name, 75)
        os.kill(os.getpid(), number)  # a third, after close: no owner ends by it, whichever was told
        assert signal.getsignal(number) == signal.SIG_IGN
    return found


@rank.case
def sigusr1_at_any_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """One owner after the other."""
    return _signalled(comm, directory, signal.SIGUSR1)


@rank.case
@at(2)
def sigterm_at_any_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """As Slurm sends it: behind a SIGCONT."""
    return _signalled(comm, directory, signal.SIGCONT, signal.SIGTERM)


@rank.case
@at(3, 5)
def a_signal_at_any_owner_of_a_tree(comm: MPI.Intracomm, directory: Path) -> Any:
    """Through inner owners."""
    return _signalled(comm, directory, signal.SIGUSR1, **TREE)


@rank.case
@at(2)
def a_handler_of_the_callers_own(comm: MPI.Intracomm, directory: Path) -> Any:
    """It is called as well, and is back after close."""
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with open_(comm, directory, signals=[signal.SIGUSR1]) as (_, ckpt):
            os.kill(os.getpid(), signal.SIGUSR1)
            ckpt.due(1), ckpt.due(2)
            stopping = ckpt.stopping
        os.kill(os.getpid(), signal.SIGUSR1)
        return [len(seen), stopping]
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@rank.case
def the_program_asks_for_a_stop(comm: MPI.Intracomm, directory: Path) -> Any:
    """With stop(), at the last owner; other calls in between drop the round and lose nothing."""
    with open_(comm, directory) as (scene, ckpt):
        ckpt.due(1)
        if scene.role == scene.last:
            ckpt.stop()
        ckpt.latest()
        found = [ckpt.due(2), ckpt.stopping]  # no answer: another call had the line
        found += [ckpt.due(3), ckpt.stopping, ckpt.due(4), ckpt.stopping]
        return [*found, ckpt.stopped_by, ckpt.exit_code]


@rank.case
@at(1, 3)
def a_stop_file(comm: MPI.Intracomm, directory: Path) -> Any:
    """In the run's directory, of which the store takes no notice."""
    with open_(comm, directory) as (scene, ckpt):
        loop(ckpt, range(1, 4))
        scene.together(lambda: (scene.path / "stop").touch())
        found = until(ckpt, scene, 4)
        why = [ckpt.stopped_by, ckpt.exit_code]
        scene.publish(99)
        again = scene.open().resume(scene.good(0)).step
        assert ckpt.verify().ok
        return [found["due"] == [found["stopping"]], found["stopping"], again, why]


class Lines(logging.Handler):
    """What owner 0 says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.said.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect log lines."""
    lines, log = Lines(), logging.getLogger("mpickpt")
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        yield lines.said
    finally:
        log.removeHandler(lines)
        log.setLevel(level)


@rank.case
@at(1, 3)
def the_end_time_is_near(comm: MPI.Intracomm, directory: Path) -> Any:
    """There is still time for a save."""
    with listening() as said, open_(comm, directory, end_time=time.time() + 4.0) as (scene, ckpt):
        found = until(ckpt, scene, 1)
        scene.publish(found["stopping"] + 1)
        left = ckpt._rounds.schedule.left
        why = [ckpt.stopped_by, ckpt.exit_code]
        return {"one": found["due"] == [found["stopping"]], "in time": 0 < left < 2.5, "said": said, "why": why}


@rank.case
@at(1, 3)
def the_end_time_is_too_near(comm: MPI.Intracomm, directory: Path) -> Any:
    """5 s are left, and a save takes 20: none is begun, not even where `every` wants one."""
    with listening() as said, open_(comm, directory, every=2, end_time=time.time() + 5.0) as (_, ckpt):
        ckpt._rounds.schedule.saved(20.0)
        return {**loop(ckpt, range(1, 6)), "said": said, "why": [ckpt.stopped_by, ckpt.exit_code]}


@rank.case
@at(2)
def two_reasons_in_one_round(comm: MPI.Intracomm, directory: Path) -> Any:
    """A person's stop file goes before a signal; what comes later changes nothing."""
    with open_(comm, directory, signals=[signal.SIGUSR1]) as (scene, ckpt):
        loop(ckpt, range(1, 4))
        scene.together(lambda: (scene.path / "stop").touch())
        time.sleep(watch._EVERY)
        loop(ckpt, range(4, 5))  # owner 0 begins to look
        if scene.role == scene.last:
            os.kill(os.getpid(), signal.SIGUSR1)
        loop(ckpt, range(5, 9))
        first = [ckpt.stopped_by, ckpt.exit_code]
        scene.together(lambda: (scene.path / "stop").unlink())
        time.sleep(watch._EVERY)
        loop(ckpt, range(9, 12))
        return [first, [ckpt.stopped_by, ckpt.exit_code]]


@rank.case
@at(3)
def slurm_tells_the_end_time(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 alone asks, once."""
    if comm.Get_rank() == 0:
        tool = directory / "bin" / "squeue"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho $$ >> {directory}/asked\necho 17 0:02\n")
        tool.chmod(0o755)
    rank.meet(comm)
    path = os.environ["PATH"]
    os.environ |= {"SLURM_JOB_ID": "17", "PATH": f"{directory / 'bin'}:{path}"}
    try:
        with open_(comm, directory) as (scene, ckpt):
            found = until(ckpt, scene, 1)
            why = [ckpt.stopped_by, ckpt.exit_code]
            asked = len((directory / "asked").read_text().splitlines())
            return [found["due"] == [found["stopping"]], asked, why]
    finally:
        os.environ["PATH"] = path
        del os.environ["SLURM_JOB_ID"]


@rank.case
@at(2)
def the_end_time_is_in_the_environment(comm: MPI.Intracomm, directory: Path) -> Any:
    """As a script gives it."""
    os.environ["MPICKPT_END_TIME"] = str(int(time.time()) + 20)
    try:
        with open_(comm, directory) as (_, ckpt):
            ckpt._rounds.schedule.saved(20.0)
            return loop(ckpt, range(1, 4))["stopping"]
    finally:
        del os.environ["MPICKPT_END_TIME"]


# --- refusals


@rank.case
@at(1, 2, 5)
def a_newer_job_is_seen_by_due(comm: MPI.Intracomm, directory: Path) -> Any:
    """The second call that begins a second or more after the claim."""
    options = TREE if comm.Get_size() == 5 else {}
    with Scene(comm, directory, **options) as scene:
        loop(scene.ckpt, range(3, 5))
        scene.together(lambda: rival(scene))
        time.sleep(watch._EVERY)
        found = [rank.attempt(lambda step=step: scene.ckpt.due(step)) for step in (5, 6)]  # type: ignore[misc]
        with_save = rank.attempt(lambda: scene.publish(7))
        return {"due": found, "save": with_save}


@rank.case
@at(1, 3)
def due_before_resume(comm: MPI.Intracomm, directory: Path) -> Any:
    """Nobody knows at which step the run is."""
    with Scene(comm, directory, begin=False) as scene:
        ckpt = scene.open(every=1)
        found = rank.attempt(lambda: ckpt.due(1))
        ckpt.resume(scene.good(0))
        return [found, ckpt.due(1)]


@rank.case
@at(2, 3, 5)
def due_with_another_step(comm: MPI.Intracomm, directory: Path) -> Any:
    """At the last owner; the calls after that go on."""
    options = TREE if comm.Get_size() == 5 else {}
    with open_(comm, directory, every=3, **options) as (scene, ckpt):
        ckpt.due(1)
        found = rank.attempt(lambda: [ckpt.due(2 + (scene.role == scene.last)), ckpt.due(4)])
        return [found, loop(ckpt, range(5, 8))["due"]]


@rank.case
@at(1, 2, 3)
def due_with_a_step_that_is_no_number(comm: MPI.Intracomm, directory: Path) -> Any:
    """At the last owner; the others hear of it."""
    with open_(comm, directory, every=3) as (scene, ckpt):
        step: Any = "2" if scene.role == scene.last else 2
        found = rank.attempt(lambda: [ckpt.due(step), ckpt.due(3)])
        return found


@rank.case
@at(2, 3)
def other_intervals_at_one_owner(comm: MPI.Intracomm, directory: Path) -> Any:
    """Refused by resume, and by a save without one."""
    with Scene(comm, directory, begin=False) as scene:
        ckpt = scene.open(every=10 if scene.role == scene.last else 5, every_seconds=2.0)
        return [rank.attempt(lambda: ckpt.resume(scene.good(0))), rank.attempt(lambda: ckpt.save({}, step=1))]


@rank.case
@at(2, 3, 5)
def an_owner_is_stopped(comm: MPI.Intracomm, directory: Path) -> Any:
    """By SIGSTOP, for longer than the deadline: the others name it, and all go on afterwards."""
    options = TREE if comm.Get_size() == 5 else {}
    with open_(comm, directory, every=3, deadline=1.0, **options) as (scene, ckpt):
        loop(ckpt, range(1, 3))
        if scene.role == scene.last:
            rank.stop(2.5)
        found = [rank.attempt(lambda step=step: ckpt.due(step)) for step in (3, 4)]  # type: ignore[misc]
        rank.meet(comm)
        return [found, loop(ckpt, range(6, 10))["due"]]


@rank.case
def beside_other_calls(comm: MPI.Intracomm, directory: Path) -> Any:
    """With every other call in between, and closed with a round begun."""
    with open_(comm, directory, every=2) as (scene, ckpt):
        due = []
        for step in range(1, 9):
            if ckpt.due(step):
                due.append(step)
                scene.publish(step)
            if step == 3:
                ckpt.generations()
            if step == 5:
                assert ckpt.verify().ok
                ckpt.pin(4)
        return [due, [one.step for one in ckpt.generations()]]


@rank.case
def messages_of_a_step(comm: MPI.Intracomm, directory: Path) -> Any:
    """One each way an edge; none where there is one owner, and none left behind."""
    with open_(comm, directory) as (_scene, ckpt):
        loop(ckpt, range(1, 4))
        line = ckpt._others
        rank.meet(comm)
        line.counts.clear()
        loop(ckpt, range(4, 104))
        rank.meet(comm)
        counts = dict(line.counts)
    return {"sent": counts.get("sent", 0), "bytes": counts.get("bytes", 0), "edges": len(line.place.neighbours)}


if __name__ == "__main__":
    rank.main()
