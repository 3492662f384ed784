"""A job that resumes and saves one step: ``stopping_program.py STORE [POINT]``; owner 0 stops in the save at POINT."""

from __future__ import annotations

import sys

import crashkit
import rank

import mpickpt


def main() -> None:
    """Run one owner."""
    comm = rank.world()
    role, owners = comm.Get_rank(), comm.Get_size()
    with mpickpt.Checkpointer(sys.argv[1], comm, deadline=20.0, keep=None) as ckpt:
        run = ckpt.resume(crashkit.state(role, owners, 0))
        step = run.step + 1
        rank.report(step=run.step, epoch=run.epoch)
        if len(sys.argv) > 2:
            rank.failpoint(sys.argv[2], "stop", role=0)
        try:
            saved = ckpt.save(crashkit.state(role, owners, step), step=step, cursor=10 * step)
        except mpickpt.EpochError as error:
            rank.report(refused=str(error))
        else:
            rank.report(saved=saved.root)


if __name__ == "__main__":
    main()
