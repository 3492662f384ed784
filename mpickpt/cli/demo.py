"""The demonstration: train, kill with SIGKILL, resume, and compare with a run that nothing interrupted.

Three runs of docs/examples/train_digits.py under mpirun:

1. one from beginning to end;
2. one in another store, whose processes all get SIGKILL from outside in the middle, at a time drawn from the seed;
3. the command of run 2 once more, which resumes.

It ends well if and only if the end states of 1 and 3 are equal bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import mpickpt
from mpickpt.cli.output import size as human
from mpickpt.errors import CheckpointError, NotFoundError
from mpickpt.gates.launch import below, environment, find

EXAMPLE: Final = "train_digits.py"
LIMIT: Final = 120.0
"""Seconds after which a run that still goes on is killed and the demonstration has failed."""
_SETTINGS: Final = {
    # Open MPI only: shared memory alone. MPICH needs nothing.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm",
}


def example() -> Path:
    """Find the example: in the checkout that this package is part of, or where the installation put it.

    Raises
    ------
    NotFoundError
        If it is in neither place.
    """
    package = Path(mpickpt.__file__).resolve().parent
    places = [
        package.parent / "docs" / "examples" / EXAMPLE,
        Path(sysconfig.get_path("data")) / "share" / "mpickpt" / "examples" / EXAMPLE,
    ]
    for place in places:
        if place.is_file():
            return place
    raise NotFoundError(
        "the example that the demonstration runs is not installed",
        expected=" or ".join(map(str, places)),
        advice="run it from a checkout: make demo",
    )


class Training:
    """One run of the example under mpirun, its output passed on line by line."""

    def __init__(self, folder: Path, name: str, owners: int, steps: int, every: int, out: TextIO) -> None:
        self.store = folder / name
        self.report = folder / f"{name}.json"
        self.command = [find("mpirun"), "-n", str(owners), sys.executable, "-m", "mpi4py"]
        self.command += [str(example()), str(self.store)]
        self.command += ["--steps", str(steps), "--every", str(every), "--report", str(self.report)]
        self.out = out

    def go(self, watch: Callable[[int, int], None] = lambda pid, step: None) -> tuple[int, float]:
        """Run to the end; `watch(pid of mpirun, last step seen)` is called at every line.

        Returns
        -------
        int
            The exit code of mpirun.
        float
            Seconds it took.
        """
        begun = time.monotonic()
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(_SETTINGS),
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def end() -> None:
            if process.poll() is None:  # never signal a number that may by now be another process's
                _kill_tree(process.pid)

        # Whatever hangs is ended: mpirun's processes, then mpirun, and with them the pipe that is read below.
        timer = threading.Timer(LIMIT, end)
        timer.start()
        with process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    print(f"    {line.rstrip()}", file=self.out, flush=True)
                    if found := re.match(r"step (\d+):", line):
                        watch(process.pid, int(found[1]))
                return process.wait(), time.monotonic() - begun
            finally:
                timer.cancel()
                end()

    def facts(self) -> dict[str, Any]:
        """Give what the run reported at its end."""
        try:
            return dict(json.loads(self.report.read_bytes()))
        except (OSError, ValueError) as error:
            raise CheckpointError("the run did not end well: it left no report", path=str(self.report)) from error


def _kill_tree(pid: int) -> None:
    for process in (*below(pid), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _owners(pid: int) -> list[int]:
    """List the processes below mpirun that run the example."""
    found = []
    for child in below(pid):
        with contextlib.suppress(OSError):
            if EXAMPLE.encode() in Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" "):
                found.append(child)
    return found


def run(
    folder: str | Path | None = None,
    *,
    owners: int = 4,
    steps: int = 600,
    every: int = 20,
    seed: int | None = None,
    out: TextIO | None = None,
) -> int:
    """Run the demonstration.

    Parameters
    ----------
    folder : path, optional
        Where the two stores go; it must not hold them yet. Default: a new temporary folder.
    owners, steps, every : int
        Of the training: MPI processes, steps, steps between checkpoints.
    seed : int, optional
        Draws the time of the kill; printed, so that it can be given again.
    out : text stream, optional
        Where to print; default: standard output.

    Returns
    -------
    int
        0 if both end states are equal bit for bit, else 1.

    Raises
    ------
    NotFoundError
        If mpirun or the example is missing.
    CheckpointError
        If a run that was not killed did not end well, or the kill came too late.
    """
    out = out or sys.stdout
    where = Path(tempfile.mkdtemp(prefix="mpickpt-demo-")) if folder is None else Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    for name in ("uninterrupted", "killed"):
        if (where / name).exists():
            raise CheckpointError(
                "the demonstration starts from nothing", path=str(where / name), advice="name another folder"
            )
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    whole = Training(where, "uninterrupted", owners, steps, every, out)
    broken = Training(where, "killed", owners, steps, every, out)

    def say(line: str = "") -> None:
        print(line, file=out, flush=True)

    say(f"1. Train {steps} steps without interruption: {' '.join(whole.command)}")
    _well(whole.go(), "the uninterrupted run")

    killer = _Killer(random.Random(seed), steps, every)
    say(f"\n2. The same in another store, with SIGKILL to all owners soon after step {killer.after} (seed {seed})")
    code, _ = broken.go(killer)
    say(f"    sent SIGKILL to processes {', '.join(map(str, killer.killed))}; mpirun ended with {code}")
    if not killer.killed or code == 0:
        raise CheckpointError("the run ended before it was killed", advice="more steps: mpickpt demo --steps 1000")

    say(f"\n3. The command of run 2 once more, which resumes: {' '.join(broken.command)}")
    _well(broken.go(), "the resumed run")

    a, b = whole.facts(), broken.facts()
    equal = bool(a["digest"] == b["digest"])
    if b["began"] < killer.seen:
        raise CheckpointError("a step that was called saved is lost", expected=killer.seen, found=b["began"])
    say()
    say(f"saved     {len(a['saves'])} checkpoints of {human(a['nbytes'])} by {owners} owners, every {every} steps")
    say(f"where     {whole.store}, {broken.store}  (mpickpt ls, show, verify, diff look into them)")
    say(f"time      {_speed(a['saves'], a['nbytes'])}")
    say(f"resumed   at step {b['began']} of {steps}; the killed run had last called step {killer.seen} saved")
    say(f"accuracy  {a['accuracy']:.3f} on images that were not trained on")
    say(f"end state of the uninterrupted run  sha256:{a['digest']}")
    say(f"end state of the resumed run        sha256:{b['digest']}")
    say("EQUAL bit for bit" if equal else "DIFFERENT: this must never happen; please report it with the seed")
    return 0 if equal else 1


class _Killer:
    """Sends SIGKILL to all owners, a drawn time after a drawn step: in a step or in the midst of a save."""

    def __init__(self, draw: random.Random, steps: int, every: int) -> None:
        saves = max(1, steps // every)
        self.after = every * draw.randint(max(1, saves // 4), max(1, saves // 2))
        self.delay = draw.uniform(0.0, 0.02)
        self.killed: list[int] = []
        self.seen = 0

    def __call__(self, pid: int, step: int) -> None:
        self.seen = step
        if step >= self.after and not self.killed:
            time.sleep(self.delay)
            self.killed = _owners(pid)
            for owner in self.killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(owner, signal.SIGKILL)


def _well(ended: tuple[int, float], what: str) -> None:
    if ended[0] != 0:
        raise CheckpointError(f"{what} failed", expected="exit code 0", found=f"exit code {ended[0]}")


def _speed(saves: Sequence[float], nbytes: int) -> str:
    """Tell how fast saves were: so small a state shows the cost of one commit, not of bytes."""
    if not saves:
        return "nothing was left to save"
    middle = sorted(saves)[len(saves) // 2]
    return (
        f"{1e3 * middle:.1f} ms a save (median of {len(saves)}, worst {1e3 * max(saves):.1f} ms), synced to disk; "
        f"{nbytes / middle / 1e6:.1f} MB/s"
    )
