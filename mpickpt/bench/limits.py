"""What a machine gives: its file system, by fio or by plain writes and reads, and its cores and memory.

Every byte of a checkpoint is copied and digested, so ``1 / (1/copy + 1/digest)`` over the cores is a limit, and the
only one on a memory-backed file system, where fio writes over pages that are laid out already.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from mpickpt import digest

#: Buffered and direct, with either way of asking.
FIO: Final = tuple((engine, direct) for engine in ("psync", "io_uring") for direct in (0, 1))
_CHUNK: Final = 4 << 20
#: Bytes a second below which a file system is given up: no program that is waited for may hang.
_SLOWEST: Final = 5e6


def drop_caches(folder: Path) -> bool:
    """Empty the page cache, or at least ask it to forget the files below `folder`; tell whether it was emptied."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return True
    except OSError:
        forget(folder)
        return False


def forget(path: Path) -> None:
    """Ask the page cache to forget a file, or all below a directory; they are synced first: what is dirty stays."""
    for file in (path, *path.rglob("*")):
        with contextlib.suppress(OSError):  # it is gone meanwhile, or not for this user to read
            if file.is_file():
                _forget_file(file)


def _forget_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def warm_memory(size: int) -> None:
    """Touch memory and let go of it: what a virtual machine gave back to its host comes at a tenth of the speed."""
    np.ones(size, np.uint8)


def fio(folder: Path, what: str, owners: int, per_owner: int, engine: str, direct: int) -> float:
    """Measure bytes a second of fio: one file a job, a sync at the end of a write."""
    command = [
        "fio", "--name=limit", f"--directory={folder}", f"--rw={what}", "--bs=4M", f"--size={per_owner}",
        f"--numjobs={owners}", "--group_reporting", f"--ioengine={engine}", "--iodepth=8", f"--direct={direct}",
        "--end_fsync=1", "--fallocate=none", "--output-format=json",
    ]  # fmt: skip
    drop_caches(folder)
    limit = 60 + owners * per_owner / _SLOWEST
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit)
    told = json.loads(found.stdout[found.stdout.index("{") :])["jobs"][0][what]
    return float(told["bw_bytes"])


def fio_best(folder: Path, owners: int, per_owner: int) -> tuple[float, float]:
    """Give fio's best write and read rate; zeros where it can measure nothing here."""
    best = {"write": 0.0, "read": 0.0}
    for engine, direct in FIO:
        place = folder / "fio"
        place.mkdir()
        try:
            for what in best:
                best[what] = max(best[what], fio(place, what, owners, per_owner, engine, direct))
        except (subprocess.SubprocessError, ValueError):
            pass  # this engine, or direct access, is not to be had here
        finally:
            shutil.rmtree(place)
    return best["write"], best["read"]


def write_plainly(path: Path, size: int) -> float:
    """Write a file in one stretch after the other, and sync it; gives the seconds."""
    data = memoryview(np.random.default_rng(1).bytes(min(size, _CHUNK)))
    began = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        at = 0
        while at < size:
            at += os.pwrite(fd, data[: min(len(data), size - at)], at)
        os.fsync(fd)
    finally:
        os.close(fd)
    return time.perf_counter() - began


def read_plainly(path: Path) -> float:
    """Read a file in one stretch after the other; gives the seconds."""
    into = memoryview(bytearray(_CHUNK))
    began = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    try:
        at = 0
        while found := os.preadv(fd, [into], at):
            at += found
    finally:
        os.close(fd)
    return time.perf_counter() - began


def rate(work: Callable[[int], object], size: int, threads: int) -> float:
    """Give bytes a second of `threads` threads that each do `work` on `size` bytes."""
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(work, range(threads)))
        return threads * size / (time.perf_counter() - began)


def roofline(size: int = 256 << 20) -> float:
    """Give 1 / (1/copy + 1/digest) over the cores there are, in bytes a second, with `size` bytes for each core."""
    cores = len(os.sched_getaffinity(0))
    sources = [np.full(size, 7, np.uint8) for _ in range(cores)]
    targets = [np.zeros(size, np.uint8) for _ in range(cores)]

    def copy(i: int) -> None:
        for at in range(0, size, _CHUNK):
            targets[i][at : at + _CHUNK] = sources[i][at : at + _CHUNK]

    def hash_(i: int) -> None:
        for at in range(0, size, _CHUNK):
            digest.digest("blake3", "chunk", sources[i][at : at + _CHUNK].data)

    return 1 / (1 / rate(copy, size, cores) + 1 / rate(hash_, size, cores))
