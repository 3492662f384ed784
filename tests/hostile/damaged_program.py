"""A rank of test_damage_on_owners: damage one drawn place after the other, and let all owners resume afresh each time.

Arguments: seed, how many places. Owner 0 damages and repairs; each owner tells what it came to. Reported: what was
drawn, and every place at which not all owners raised one and the same refusal that names the file.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import rank
from damage import in_memory

import mpickpt
from mpickpt.errors import FormatError, IntegrityError


def state(role: int, owners: int, fill: float) -> dict[str, Any]:
    rows = mpickpt.shares(7, owners)[role]
    return {
        "split": mpickpt.Split(np.full((len(rows), 3), fill, np.float32), length=7),
        "box": mpickpt.Sharded(np.full((2, 2), fill), shape=(2 * owners, 2), at=(2 * role, 0)),
        "all": np.full((4, 2), fill, np.float16),
        "lr": fill,
        "own": mpickpt.PerOwner([fill, role]),
    }


def untouched(into: dict[str, Any]) -> bool:
    return not (into["split"].array.any() or into["box"].parts[0][0].any() or into["all"].any())


def damaged(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Draw a place and what happens there; half of the places are outside the padding of a header."""
    text = [at for at in range(len(data)) if data[at : at + 1] != b" "] if draw.random() < 0.5 else range(len(data))
    at = draw.choice(text)
    what = draw.choices(("flip", "cut", "lengthen"), (8, 1, 1))[0]
    if what == "cut":
        return f"cut at {at}", data[:at]
    if what == "lengthen":
        more = draw.randbytes(draw.choice((1, 7, 4096)))
        return f"lengthened by {len(more)}", data + more
    other = data[at] ^ draw.randrange(1, 256)
    return f"byte {at} is {other}", data[:at] + bytes([other]) + data[at + 1 :]


def resume(path: Path, comm: Any) -> tuple[str, Any]:
    """Resume afresh; tell what came of it."""
    into = state(comm.Get_rank(), comm.Get_size(), 0.0)
    begun = time.monotonic()
    try:
        with mpickpt.Checkpointer(path, comm, deadline=30.0) as ckpt:
            ckpt.resume(into)
        return "resumed", None
    except mpickpt.CheckpointError as error:
        if not untouched(into):
            return "a destination was partly filled", error.to_record()
        if time.monotonic() - begun > 5:
            return "the refusal came late", error.to_record()
        return type(error).__name__, error.to_record()
    except Exception as error:
        return "no refusal", rank.raised(error)


def main() -> None:
    seed, count = map(int, sys.argv[1:])
    comm = rank.world()
    role, owners = comm.Get_rank(), comm.Get_size()
    draw = random.Random(seed)
    with in_memory() as folder:
        path = comm.bcast(folder / "run")
        with mpickpt.Checkpointer(path, comm) as ckpt:
            ckpt.resume(state(role, owners, 0.0))
            ckpt.save(state(role, owners, 1.0), step=1)
        # How a job ended and what it took is told, and nothing rests on it: tests/unit/test_ended.py, test_events.py.
        told = (".ended", ".jsonl")
        found = (file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix not in told)
        files = {file: file.read_bytes() for file in found}
        rank.meet(comm)  # all have read them whole
        wrong: list[Any] = []
        for number in range(count):
            file = draw.choice(sorted(files))
            what, data = damaged(files[file], draw)
            if role == 0:
                file.write_bytes(data)
            rank.meet(comm)
            outcomes = comm.allgather(resume(path, comm))
            if role == 0:
                file.write_bytes(files[file])
            name, record = outcomes[0]
            same = all(outcome == outcomes[0] for outcome in outcomes)
            refused = name in (IntegrityError.__name__, FormatError.__name__) and record["path"] == str(file)
            if not same or not refused:
                wrong.append([number, str(file.relative_to(path)), what, outcomes])
        rank.meet(comm)
        last = comm.allgather(resume(path, comm))
        rank.report(wrong=wrong, count=count, files=sorted(str(f.relative_to(path)) for f in files), last=last)
        rank.meet(comm)


if __name__ == "__main__":
    main()
