"""What reading and verifying alone gives: every shard of a generation by a process of its own, cold, without MPI.

The limit of a verified restore on this machine: no owner waits for another, and nothing is copied on.

    python tests/bench/verified_read.py RUN [--runs 5]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

from throughput import drop_caches, warm_memory

from mpickpt import open_store
from mpickpt.store.bulk import address, numbers, work_off
from mpickpt.store.memory import aligned
from mpickpt.store.progress import Progress


def read(run: str, number: int, begin: Barrier, end: Barrier) -> None:
    """Read shard `number` whole into memory that nobody has used, between two barriers."""
    generation = open_store(run).open(None)
    record = list(generation.shards())[number]
    with generation.open_shard(record) as shard:
        shard.expect_all()
        memory = aligned(shard.layout.payload)
        chunks = range(shard.layout.chunks)
        targets = numbers(((index, address(memory) + index * shard.layout.chunk, -1) for index in chunks), 3)
        progress = Progress()
        begin.wait(60)
        work_off(None, [shard.job(targets, "full", progress)], progress)
        end.wait(60)


def main() -> None:
    """Measure and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    records = list(open_store(given.run).open(None).shards())
    size = sum(record.bytes for record in records)
    rates = []
    context = multiprocessing.get_context("spawn")
    for _ in range(given.runs):
        barriers = context.Barrier(len(records) + 1), context.Barrier(len(records) + 1)
        drop_caches(given.run)
        warm_memory(2 * size)
        workers = [context.Process(target=read, args=(str(given.run), i, *barriers)) for i in range(len(records))]
        for worker in workers:
            worker.start()
        barriers[0].wait(60)
        began = time.perf_counter()
        barriers[1].wait(60)
        rates.append(size / (time.perf_counter() - began))
        for worker in workers:
            worker.join(60)
    shown = ", ".join(f"{x / 1e9:.2f}" for x in (statistics.median(rates), min(rates), max(rates)))
    print(
        f"{len(records)} shards, {size >> 20} MiB, read and verified by a process each: {shown} GB/s (median, min, max)"
    )


if __name__ == "__main__":
    main()
