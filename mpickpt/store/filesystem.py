"""What the file system under a store can do, tried before the first write, and what is promised there.

The probe uses free names in a fresh directory: with a target that exists even a file system that knows no
no-replace rename answers EEXIST. docs/durability.md has the table, which is made from the one here.
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
class Kind:
    """One row of the table: what is known of a file system before it is tried.

    Attributes
    ----------
    name : str
    durable : str
        ``proven``: tried by us through power cuts; ``vendor``: read in its source or its maker's word; ``server``: up
        to the server and how it is set up; ``none``: nothing is promised.
    rests_on : str
        What a finished save rests on there.
    fence : bool
        Whether a directory's own sync may do nothing.
    trust_rename : bool
        Whether a no-replace rename that has worked in the probe is relied on.
    """

    name: str
    durable: str
    rests_on: str
    fence: bool = False
    trust_rename: bool = True


_TRIED: Final = "the disk keeps what it has flushed; power cuts were tried on images of it"
_FENCED: Final = "a directory's own sync may do nothing: a new file is made, synced and removed in it afterwards"
_MEMORY: Final = "memory: not durable, nothing survives a restart of the machine"
KINDS: Final = {
    0xEF53: Kind("ext4", "proven", _TRIED),
    0x58465342: Kind("xfs", "proven", _TRIED),
    0x9123683E: Kind("btrfs", "proven", _TRIED),
    0x794C7630: Kind("overlay", "proven", "as durable as the file system of its upper layer"),
    0x01021994: Kind("tmpfs", "none", _MEMORY),
    0x858458F6: Kind("ramfs", "none", _MEMORY),
    0x6969: Kind("nfs", "server", "durable where the server exports it sync; its disks are its own affair"),
    0x0BD00BD0: Kind("lustre", "vendor", _FENCED, fence=True),
    0x19830326: Kind("beegfs", "vendor", _FENCED, fence=True),
    0x47504653: Kind("gpfs", "vendor", _FENCED, fence=True),
    0x00C36400: Kind("ceph", "vendor", "its sync waits for the metadata server and the data's replicas"),
    0x65735546: Kind(
        "fuse",
        "server",
        "whatever serves it; some clients ignore no-replace and replace, so link is used",
        trust_rename=False,
    ),
    0x01021997: Kind("9p", "server", "the host's file system, and whether its server passes syncs on"),
    0xFE534D42: Kind("smb2", "server", "the server, and whether it passes syncs on to its disks"),
    0xFF534D42: Kind("cifs", "server", "the server, and whether it passes syncs on to its disks"),
    0x2FC12FC1: Kind("zfs", "vendor", "its intent log; not where the dataset has sync=disabled"),
    0xF2F52010: Kind("f2fs", "vendor", "its log; not where it is mounted with fsync_mode=nobarrier"),
}
UNKNOWN: Final = Kind(
    "unknown", "none", "this file system is not in the table: nothing is promised, and all is done", fence=True
)


def table() -> list[tuple[str, str, str, str, str]]:
    """Give the table of docs/durability.md: name, how files are placed, fence, what is promised, what it rests on."""
    found = {kind.name: kind for kind in (*KINDS.values(), UNKNOWN)}
    return [
        (
            kind.name,
            "renameat2 if it works, or link" if kind.trust_rename else "link",
            "yes" if kind.fence else "no",
            kind.durable,
            kind.rests_on,
        )
        for kind in found.values()
    ]


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
    rests_on : str
        What a finished save rests on, for a person.
    """

    kind: str
    magic: int
    way: Way
    fence: bool
    no_replace: bool
    link: bool
    durable: str
    rests_on: str

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
            "rests_on": self.rests_on,
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
    kind = KINDS.get(magic, UNKNOWN)
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


def _promise(directory: str, magic: int, kind: Kind, renames: bool, links: bool) -> Promise:
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
    return Promise(kind.name, magic, way, kind.fence, renames, links, kind.durable, kind.rests_on)
