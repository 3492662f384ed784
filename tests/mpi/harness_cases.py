"""Cases for the harness's own test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rank

if TYPE_CHECKING:
    from mpi4py import MPI


@rank.case
def who_am_i(comm: MPI.Intracomm, directory: Path) -> list[int]:
    """Tell role and owner count, through a file that all see."""
    (directory / f"{comm.Get_rank()}").touch()
    rank.meet(comm)
    return [comm.Get_rank(), len(list(directory.iterdir()))]


@rank.case
def one_owner_raises(comm: MPI.Intracomm, directory: Path) -> None:
    """Raise at the last owner only."""
    if comm.Get_rank() == comm.Get_size() - 1:
        raise ValueError("planned")


if __name__ == "__main__":
    rank.main()
