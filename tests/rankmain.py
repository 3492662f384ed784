"""The main program of a rank of a test: ``python -m mpi4py rankmain.py PROGRAM ARGUMENTS``."""

from __future__ import annotations

import json
import os
import runpy
import sys

import rank


def main() -> None:
    """Prepare this process, then run the program as if it had been started directly."""
    rank.begin(json.loads(os.environ["MPICKPT_TEST_FAILPOINTS"]))
    del sys.argv[0]
    sys.path.insert(1, os.path.dirname(os.path.abspath(sys.argv[0])))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        rank.report(raised=rank.raised(error))
        raise


if __name__ == "__main__":
    main()
