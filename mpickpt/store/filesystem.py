"""What the file system under a store can do, tried before the first write, and what is promised there.

The probe uses free names in a fresh directory: with a target that exists even a file system that knows no
no-replace rename answers EEXIST. docs/protocol.md has the table.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mpickpt.errors import StoreError
from mpickpt.native import _native
from mpickpt.store import commit
from mpickpt.store.commit import Way
from mpickpt.store.refusal import store_error


@dataclass(frozen=True)
class _Kind:
    """One row of the table: what is known of a file system before it is tried."""

    name: str
    durable: str
    fence: bool = False
    trust_rename: bool = True
    note: str = ""


_FENCED: Final = "a directory's own sync may do nothing here: a new file is created, synced and removed after it"
_KINDS: Final = {
    0xEF53: _Kind("ext4", "proven"),
    0x58465342: _Kind("xfs", "proven"),
    0x9123683E: _Kind("btrfs", "proven"),
    0x794C7630: _Kind("overlay", "proven", note="as durable as the file system of its upper layer"),
    0x01021994: _Kind("tmpfs", "none", note="memory: not durable, nothing survives a restart of the machine"),
    0x858458F6: _Kind("ramfs", "none", note="memory: not durable, nothing survives a restart of the machine"),
    0x6969: _Kind("nfs", "server", note="durable where the server is exported sync"),
    0x0BD00BD0: _Kind("lustre", "vendor", fence=True, note=_FENCED),
    0x19830326: _Kind("beegfs", "vendor", fence=True, note=_FENCED),
    0x47504653: _Kind("gpfs", "vendor", fence=True, note=_FENCED),
    0x00C36400: _Kind("ceph", "vendor"),
    0x65735546: _Kind(
        "fuse", "server", trust_rename=False, note="some FUSE clients ignore no-replace and replace: link is used"
    ),
    0x01021997: _Kind("9p", "server"),
    0xFE534D42: _Kind("smb2", "server"),
    0xFF534D42: _Kind("cifs", "server"),
    0x2FC12FC1: _Kind("zfs", "vendor"),
    0xF2F52010: _Kind("f2fs", "vendor"),
}
_UNKNOWN: Final = _Kind("unknown", "none", fence=True, note="this file system is not in the table: nothing is promised")

# What "this file system cannot" looks like; everything else is a fault and is told as one.
_CANNOT: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK, errno.ENOTTY})


@dataclass(frozen=True)
class Promise:
    """What holds for one directory.

    Attributes
    ----------
    kind : str
        Name of the file system.
    magic : int
        Its number, as statfs gives it.
    way : Way
        How files are placed without replacing.
    fence : bool
        Whether a directory's sync is followed by that of a new file in it.
    no_replace : bool
        Whether `renameat2` with RENAME_NOREPLACE worked here and left an existing target alone.
    link : bool
        Whether `link` worked here and left an existing target alone.
    durable : str
        ``proven``, ``vendor``, ``server`` or ``none``.
    notes : tuple of str
        What else a person should know.
    """

    kind: str
    magic: int
    way: Way
    fence: bool
    no_replace: bool
    link: bool
    durable: str
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data: what ``mpickpt fsprobe`` prints."""
        return {
            "kind": self.kind,
            "magic": f"0x{self.magic:08X}",
            "way": self.way.value,
            "fence": self.fence,
            "no_replace": self.no_replace,
            "link": self.link,
            "durable": self.durable,
            "notes": list(self.notes),
        }


def _new(path: str) -> tuple[int, int]:
    """Make a small synced file; give its (device, inode)."""
    commit.write_new(path, b"mpickpt probe\n")
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _is(path: str, identity: tuple[int, int]) -> bool:
    found = os.lstat(path)
    return (found.st_dev, found.st_ino) == identity


def _try(place: Callable[[str, str], None], directory: str, keeps_source: bool) -> bool:
    """Tell whether `place` puts a file under a free name and leaves a taken one alone."""
    first, second, target = (os.path.join(directory, uuid.uuid4().hex) for _ in range(3))
    mine, other = _new(first), _new(second)
    try:
        place(first, target)
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    if not _is(target, mine) or os.path.lexists(first) is not keeps_source:
        return False
    try:
        place(second, target)
    except FileExistsError:
        return _is(target, mine) and _is(second, other)
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    return False


def probe(directory: str) -> Promise:
    """Try what this file system does; leaves nothing behind.

    Parameters
    ----------
    directory : str
        An existing directory; a fresh one is made in it and removed again.

    Returns
    -------
    Promise

    Raises
    ------
    StoreError
        If the directory cannot be written, or there is no way to place a file without replacing.
    """
    try:
        magic = _native.statfs_type(directory)
    except OSError as error:
        raise store_error(error, "a look at the file system", directory) from error
    kind = _KINDS.get(magic, _UNKNOWN)
    place = os.path.join(directory, f"{commit.TEMPORARY}probe-{uuid.uuid4().hex}")
    try:
        try:
            os.mkdir(place)
        except OSError as error:
            raise store_error(error, "writing in the store's directory", directory) from error
        renames = _native.have_renameat2 and _try(_native.rename_noreplace, place, keeps_source=False)
        links = _try(_native.link, place, keeps_source=True)
        commit.sync_directory(place, kind.fence)
    except StoreError as error:
        error.path = directory
        raise
    except OSError as error:
        raise store_error(error, "a trial write in the store's directory", directory) from error
    finally:
        with contextlib.suppress(OSError):  # `ignore_errors` does not ignore all
            shutil.rmtree(place, ignore_errors=True)
    return _promise(directory, magic, kind, renames, links)


def _promise(directory: str, magic: int, kind: _Kind, renames: bool, links: bool) -> Promise:
    notes = [kind.note] if kind.note else []
    if renames and kind.trust_rename:
        way = Way.RENAME
    elif links:
        way = Way.LINK
    else:
        raise StoreError(
            "this file system cannot place a file without replacing another",
            errno=errno.EOPNOTSUPP,
            path=directory,
            expected="renameat2 with RENAME_NOREPLACE, or link",
            found=f"{kind.name} (0x{magic:08X}): neither can be relied on",
            unharmed="nothing was written",
            advice="name a directory on another file system for the store",
        )
    return Promise(kind.name, magic, way, kind.fence, renames, links, kind.durable, tuple(notes))
