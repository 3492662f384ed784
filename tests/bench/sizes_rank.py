"""One rank of sizes.py: throughput_rank.py with another number of threads and another size of chunks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import throughput_rank

from mpickpt.format.layout import CHUNK


def set_chunk(size: int) -> None:
    """Let everything take `size` for the bytes of a chunk: the constant, and the arguments that have it by default."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mpickpt."):
            if hasattr(module, "CHUNK"):
                module.CHUNK = size
            for function in vars(module).values():
                defaults = getattr(function, "__defaults__", None)
                if defaults and CHUNK in defaults:
                    function.__defaults__ = tuple(size if value == CHUNK else value for value in defaults)


def main() -> None:
    """Do what the arguments say: ``THREADS CHUNK``, and then what throughput_rank.py takes."""
    threads, chunk = int(sys.argv[1]), int(sys.argv[2])
    del sys.argv[1:3]
    os.sched_getaffinity = lambda _: set(range(threads))
    set_chunk(chunk)
    throughput_rank.main()


if __name__ == "__main__":
    main()
