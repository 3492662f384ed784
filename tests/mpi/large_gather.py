"""Two owners hold more than 2 GiB each and owner 0 writes all: see test_gather.py. Arguments: the run's directory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import rank
from sameness import open_run, require

import mpickpt

ROWS = 2 * 2200
WIDTH = 1 << 18  # uint32: a row is 1 MiB


def main() -> None:
    comm = rank.world()
    part = mpickpt.shares(ROWS, comm.Get_size())[comm.Get_rank()]
    mine = np.empty((len(part), WIDTH), np.uint32)
    for row, number in zip(mine, part, strict=True):
        row[:] = np.arange(number * WIDTH, (number + 1) * WIDTH, dtype=np.uint32)
    require(mine.nbytes > 2 << 30, "too small:", mine.nbytes)
    with open_run(Path(sys.argv[1]), comm, write="gather") as ckpt:
        ckpt.save({"x": mpickpt.Split(mine, length=ROWS)}, step=1)
        mine[:] = 0
        ckpt.resume({"x": mpickpt.Split(mine, length=ROWS)})
    for row, number in zip(mine, part, strict=True):
        require(row[0] == number * WIDTH, "row", number, "begins with", row[0])
        require((np.diff(row) == 1).all(), "row", number, "is another")
    rank.report(nbytes=mine.nbytes)


if __name__ == "__main__":
    main()
