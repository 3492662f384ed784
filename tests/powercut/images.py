"""A real file system on a device whose every write is logged: the images that a power cut may leave, mounted and read.

The device is a file, exported by qemu-storage-daemon's FUSE export through its ``blklogwrites`` filter, and set up as
a loop device: no device mapper, no module. A crash may leave all writes up to the last flush, and any of those since.
Each image is mounted by the kernel, which replays its journal, and the store on it is copied out and judged.

Needs root, loop devices, /dev/fuse, qemu-storage-daemon, mount and the mkfs of the file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from powercut.disk import State
from powercut.trace import ROOT, Told

_MIB: Final = 1 << 20
_SECTOR: Final = 512
_FLUSH, _DISCARD = 1, 4
_LOG_MAGIC: Final = 0x6A736677736872


@dataclass(frozen=True)
class Kind:
    """A file system: its size in MiB, and how it is made and mounted."""

    name: str
    mib: int
    make: tuple[str, ...]
    options: str = "rw"

    @property
    def needs(self) -> tuple[str, ...]:
        """The programs that are needed."""
        return ("qemu-storage-daemon", "losetup", "mount", "umount", self.make[0])


KINDS: Final = {
    "ext4": Kind("ext4", 32, ("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0")),
    "xfs": Kind("xfs", 304, ("mkfs.xfs", "-q", "-f"), "rw,nouuid"),
    "btrfs": Kind("btrfs", 128, ("mkfs.btrfs", "-q", "-f")),
}


def absent(kind: Kind) -> str | None:
    """Say what is missing here to make images; None if nothing is."""
    if os.geteuid() != 0:
        return "not root"
    missing = [program for program in kind.needs if shutil.which(program) is None]
    missing += [path for path in ("/dev/fuse", "/dev/loop-control") if not os.path.exists(path)]
    return ", ".join(missing) + " absent" if missing else None


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


@contextlib.contextmanager
def mounted(kind: Kind, image: Path, at: Path) -> Iterator[Path]:
    """Mount an image for the length of a with-block."""
    device = _run("losetup", "-f", "--show", image)
    try:
        _run("mount", "-t", kind.name, "-o", kind.options, device, at)
        try:
            yield at
        finally:
            _run("umount", at)
    finally:
        _run("losetup", "-d", device)


@dataclass(frozen=True)
class Write:
    """One entry of the log: a write, a flush (no data), or a word that an owner told (`word`)."""

    offset: int = 0
    data: bytes = b""
    word: bytes = b""


@dataclass(frozen=True)
class Cut:
    """An image: the writes of the log up to the last flush, and these of those since; what had been told by then."""

    sure: int
    more: tuple[int, ...]
    told: Told


class LoggedDisk:
    """A file system on a logged device, mounted at `path` for the length of a with-block.

    Words of owners are written beyond its end, where the log has them in their order: see `tell`.
    """

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.path = folder / "mounted"
        self._size = kind.mib * _MIB
        self.log: list[Write] = []

    def _file(self, name: str) -> Path:
        return self.folder / name

    @contextlib.contextmanager
    def recording(self) -> Iterator[Path]:
        """Give the mounted file system; afterwards `log` holds what was written to its device."""
        self.path.mkdir(parents=True)
        base, start, log, export = map(self._file, ("base", "start", "log", "export"))
        _empty(base, self._size)
        _run(*self.kind.make, base)
        os.truncate(base, self._size + _MIB)
        with mounted(self.kind, base, self.path):
            pass  # what the first mount of all writes is none of ours
        _copy(base, start)
        _empty(log, 512 * _MIB)
        export.touch()
        daemon = subprocess.Popen(
            [
                *("qemu-storage-daemon", "--blockdev", f"driver=file,node-name=f0,filename={base}"),
                *("--blockdev", f"driver=file,node-name=l0,filename={log}"),
                *("--blockdev", f"driver=blklogwrites,node-name=bl,file=f0,log=l0,log-sector-size={_SECTOR}"),
                *("--export", f"type=fuse,id=e0,node-name=bl,mountpoint={export},writable=on,growable=off"),
            ],
            stderr=subprocess.PIPE,
        )
        try:
            limit = time.monotonic() + 20
            while export.stat().st_size == 0:
                assert daemon.poll() is None, daemon.stderr.read() if daemon.stderr else ""
                assert time.monotonic() < limit, "the device is not exported"
                time.sleep(0.01)
            with mounted(self.kind, export, self.path):
                yield self.path
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=60)
        self.log = list(self._read(log))
        log.unlink()
        base.unlink()

    def tell(self, step: int, root: str) -> None:
        """Tell of a success: it stands in the log after all that was durable before."""
        word = json.dumps({"saved": step, "root": root}).encode().ljust(4096, b"\0")
        fd = os.open(self._file("export"), os.O_WRONLY)
        try:
            os.pwrite(fd, word, self._size)
        finally:
            os.close(fd)

    def _read(self, log: Path) -> Iterator[Write]:
        with open(log, "rb") as file:
            magic, _, count, sector = struct.unpack("<QQQI", file.read(28))
            assert magic == _LOG_MAGIC
            at = sector
            for _ in range(count):
                file.seek(at)
                where, sectors, flags, _ = struct.unpack("<QQQQ", file.read(32))
                at += sector
                data = b""
                if sectors and not flags & _DISCARD:
                    file.seek(at)
                    data = file.read(sectors * sector)
                    at += len(data)
                if sectors and where * _SECTOR >= self._size:
                    yield Write(word=data.rstrip(b"\0"))
                    continue
                if flags & _FLUSH:
                    yield Write()
                if data:
                    yield Write(where * _SECTOR, data)

    # -- images

    def cuts(self, count: int, seed: int = 1) -> list[Cut]:
        """Choose crashes: right after each word that was told, and others by chance; in the order of the log."""
        draw = random.Random(seed)
        sure, since, told = 0, [], Told()
        critical, others = [], []
        for index, write in enumerate(self.log):
            if write.word:
                told = told.also(write.word)
                critical += [Cut(sure, tuple(since), told), Cut(sure, (), told)]
                continue
            if not write.data:
                sure, since = index, []
            else:
                since.append(index)
            others.append(Cut(sure, tuple(since), told))
            for _ in range(3):
                if len(since) > 1:
                    share = draw.random()
                    others.append(Cut(sure, tuple(i for i in since if draw.random() < share), told))
        distinct = list({(cut.sure, cut.more, cut.told.mark): cut for cut in others}.values())
        draw.shuffle(distinct)
        chosen = critical + distinct[: max(0, count - len(critical))]
        return sorted(chosen, key=lambda cut: (cut.sure, cut.more))

    def trees(self, cuts: list[Cut]) -> Iterator[tuple[Cut, State, dict[bytes, bytes]]]:
        """Mount the image of each crash, and give the tree that is found on it."""
        rolling, image = self._file("rolling"), self._file("image")
        _copy(self._file("start"), rolling)
        done = 0
        for cut in cuts:
            with open(rolling, "r+b") as file:
                for write in self.log[done : cut.sure]:
                    file.seek(write.offset)
                    file.write(write.data)
            done = cut.sure
            _copy(rolling, image)
            with open(image, "r+b") as file:
                for index in cut.more:
                    file.seek(self.log[index].offset)
                    file.write(self.log[index].data)
            with mounted(self.kind, image, self.path) as found:
                yield (cut, *_tree(found, cut.told))


def _empty(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        file.truncate(size)


def _copy(source: Path, target: Path) -> None:
    _run("cp", "--sparse=always", source, target)


def _tree(folder: Path, told: Told) -> tuple[State, dict[bytes, bytes]]:
    """Read a whole tree, as a state that can be judged."""
    files, folders, contents = [], [], {}
    for place, names, inner in os.walk(folder):
        names[:] = sorted(name for name in names if name != "lost+found")
        base = os.path.relpath(place, folder)
        folders += [os.path.normpath(os.path.join(base, name)) for name in names]
        for name in inner:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                data = file.read()
            digest = hashlib.sha256(data).digest()
            contents[digest] = data
            files.append((os.path.normpath(os.path.join(base, name)), os.stat(path).st_ino + ROOT, digest))
    files.sort()
    folders.sort()
    numbers = {ino: number for number, ino in enumerate(dict.fromkeys(ino for _, ino, _ in files))}
    numbered = [(path, numbers[ino], digest) for path, ino, digest in files]
    key = hashlib.sha256(repr((numbered, folders)).encode()).digest()
    return State(tuple(numbered), tuple(folders), told, key, "an image"), contents
