"""``python -m mpickpt``: the same as the ``mpickpt`` command."""

from __future__ import annotations

import sys

from mpickpt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
