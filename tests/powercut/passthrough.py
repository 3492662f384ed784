"""A FUSE file system that ignores RENAME_NOREPLACE: ``passthrough.py SOURCE MOUNTPOINT``, for tests; needs root.

It speaks the kernel's protocol over /dev/fuse, one request at a time, and passes everything on to the directory SOURCE.
RENAME2 is taken for RENAME: its flags are not looked at, as some clients of network file systems did. The kernel itself
answers EEXIST where it knows of the target; where another has made it meanwhile, it is replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from typing import Final

_HEAD: Final = struct.Struct("<IIQQIIII")
_MOST: Final = 1 << 17
_READY: Final = b"ready\n"


def mount(mountpoint: str) -> int:
    """Mount, and give the descriptor that requests come from."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other".encode()
    if libc.mount(b"passthrough", mountpoint.encode(), b"fuse.passthrough", 0, options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), mountpoint)
    return fd


class Server:
    """Answers requests. Nodes are numbered as they are met, and known by path."""

    def __init__(self, source: str) -> None:
        self._paths = {1: source}
        self._numbers = {source: 1}
        self._count = 1

    # -- names

    def _child(self, parent: int, name: bytes) -> str:
        return os.path.join(self._paths[parent], os.fsdecode(name))

    def _number(self, path: str) -> int:
        if path not in self._numbers:
            self._count += 1
            self._numbers[path] = self._count
            self._paths[self._count] = path
        return self._numbers[path]

    def _forget(self, path: str) -> None:
        self._numbers.pop(path, None)

    def _moved(self, source: str, target: str) -> None:
        self._forget(target)
        number = self._numbers.pop(source, None)
        if number is not None:
            self._numbers[target] = number
            self._paths[number] = target

    # -- answers

    def _attributes(self, path: str) -> bytes:
        s = os.lstat(path)
        times = [divmod(t, 10**9) for t in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
        return struct.pack(
            "<QQQQQQIIIIIIIIII",
            *(s.st_ino, s.st_size, s.st_blocks, *(t[0] for t in times), *(t[1] for t in times)),
            *(s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0),
        )

    def _entry(self, path: str) -> bytes:
        attributes = self._attributes(path)  # no time is kept: each look-up asks anew
        return struct.pack("<QQQQII", self._number(path), 0, 0, 0, 0, 0) + attributes

    def answer(self, operation: int, node: int, body: bytes) -> bytes | None:
        """Carry out one request; None where no answer is expected."""
        name = _OPERATIONS.get(operation)
        if name is None:
            raise OSError(errno.ENOSYS, "")
        found: bytes | None = getattr(self, name)(node, body)
        return found

    def forget(self, node: int, body: bytes) -> None:
        """FORGET, BATCH_FORGET: numbers are kept."""

    def init(self, node: int, body: bytes) -> bytes:
        major, minor, readahead, _ = struct.unpack_from("<IIII", body)
        return struct.pack("<IIIIHHIIHHI28x", major, min(minor, 31), readahead, 0, 16, 12, _MOST, 1, 0, 0, 0)

    def lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body[:-1]))

    def getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(self._paths[node])

    def setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        (mode,) = struct.unpack_from("<I", body, 68)
        path = self._paths[node]
        if valid & 1:
            os.chmod(path, mode & 0o7777)
        if valid & 8:
            os.truncate(path, size)
        return self.getattr(node, body)

    def mkdir(self, node: int, body: bytes) -> bytes:
        (mode,) = struct.unpack_from("<I", body)
        path = self._child(node, body[8:-1])
        os.mkdir(path, mode)
        return self._entry(path)

    def unlink(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[:-1])
        os.unlink(path)
        self._forget(path)
        return b""

    def rmdir(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[:-1])
        os.rmdir(path)
        self._forget(path)
        return b""

    def _rename(self, node: int, to: int, names: bytes) -> bytes:
        old, new = names[:-1].split(b"\0")
        source, target = self._child(node, old), self._child(to, new)
        os.rename(source, target)
        self._moved(source, target)
        return b""

    def rename(self, node: int, body: bytes) -> bytes:
        (to,) = struct.unpack_from("<Q", body)
        return self._rename(node, to, body[8:])

    def rename2(self, node: int, body: bytes) -> bytes:
        (to,) = struct.unpack_from("<Q", body)  # and the flags, which are ignored
        return self._rename(node, to, body[16:])

    def link(self, node: int, body: bytes) -> bytes:
        (old,) = struct.unpack_from("<Q", body)
        path = self._child(node, body[8:-1])
        os.link(self._paths[old], path)
        # One number for both names: to the kernel they are one file.
        number = old
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(path)

    def open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        fd = os.open(self._paths[node], flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        return struct.pack("<QII", fd, 0, 0)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<IIII", body)
        path = self._child(node, body[16:-1])
        fd = os.open(path, flags | os.O_CREAT, mode & ~umask)
        return self._entry(path) + struct.pack("<QII", fd, 0, 0)

    def read(self, node: int, body: bytes) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(fd, size, offset)

    def write(self, node: int, body: bytes) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(fd, body[40 : 40 + size], offset), 0)

    def fsync(self, node: int, body: bytes) -> bytes:
        (fd,) = struct.unpack_from("<Q", body)
        os.fsync(fd)
        return b""

    def release(self, node: int, body: bytes) -> bytes:
        (fd,) = struct.unpack_from("<Q", body)
        os.close(fd)
        return b""

    def flush(self, node: int, body: bytes) -> bytes:
        return b""

    def statfs(self, node: int, body: bytes) -> bytes:
        s = os.statvfs(self._paths[node])
        counts = (s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree)
        return struct.pack("<QQQQQIIII24x", *counts, s.f_bsize, s.f_namemax, s.f_frsize, 0)

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        found = b""
        for index, name in enumerate(sorted(os.listdir(self._paths[node]))):
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", index + 2, index + 1, len(raw), 0) + raw
            entry += bytes(-len(entry) % 8)
            if index >= offset and len(found) + len(entry) <= size:
                found += entry
            elif index >= offset:
                break
        return found


_OPERATIONS: Final = {
    1: "lookup",
    2: "forget",
    3: "getattr",
    4: "setattr",
    9: "mkdir",
    10: "unlink",
    11: "rmdir",
    12: "rename",
    13: "link",
    14: "open",
    15: "read",
    16: "write",
    17: "statfs",
    18: "release",
    20: "fsync",
    25: "flush",
    26: "init",
    27: "open",
    28: "readdir",
    29: "release",
    30: "fsync",
    35: "create",
    42: "forget",
    45: "rename2",
}


def serve(fd: int, answer: Callable[[int, int, bytes], bytes | None]) -> None:
    """Answer requests until it is unmounted."""
    while True:
        try:
            request = os.read(fd, _MOST + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            raise
        _, operation, unique, node, *_ = _HEAD.unpack_from(request)
        try:
            found = answer(operation, node, request[_HEAD.size :])
        except OSError as error:
            os.write(fd, struct.pack("<IiQ", 16, -(error.errno or errno.EIO), unique))
        else:
            if found is not None:
                os.write(fd, struct.pack("<IiQ", 16 + len(found), 0, unique) + found)


if __name__ == "__main__":
    requests = mount(sys.argv[2])
    os.write(1, _READY)
    serve(requests, Server(os.path.realpath(sys.argv[1])).answer)
