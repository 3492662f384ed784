"""How an error of the operating system becomes a refusal: one place, so that all of them say the same things."""

from __future__ import annotations

import errno
import os

from mpickpt.errors import StoreError

_ADVICE = {
    errno.ENOSPC: "free space on this file system, or lower `keep` or use rotate='before', and save again",
    errno.EDQUOT: "free some of the quota, or lower `keep` or use rotate='before', and save again",
    errno.EACCES: "give this user the right to read and write there, or name another directory",
    errno.EPERM: "give this user the right to read and write there, or name another directory",
    errno.EROFS: "the file system is mounted read-only: name another directory",
    errno.EIO: "look at the kernel log and the state of the disk or server before saving there again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def _free(path: str) -> str | None:
    """Say how much is free where `path` lies; None where that cannot be told."""
    try:
        found = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return None
    return f"{found.f_bavail * found.f_frsize} bytes and {found.f_favail} files free"


def store_error(error: OSError, doing: str, path: str, needed: int | None = None) -> StoreError:
    """Say what the file system refused.

    Parameters
    ----------
    error : OSError
        What the operating system said; its errno is kept.
    doing : str
        What was tried, as a noun: ``sync``, ``creation of a file``.
    path : str
        The file or directory concerned.
    needed : int, optional
        Bytes that the file needs.

    Returns
    -------
    StoreError
        To be raised by the caller. Of a disk or a quota that is full it gives the bytes and files needed and free.
    """
    number = error.errno or errno.EIO
    text = os.strerror(number)
    if number in (errno.ENOSPC, errno.EDQUOT):
        what = "no space left" if number == errno.ENOSPC else "the quota is used up"
        return StoreError(
            f"{what}: {doing} failed ({text})",
            errno=number,
            path=path,
            expected="1 file free" if needed is None else f"{needed} bytes and 1 file free",
            found=_free(path),
            advice=_ADVICE[number],
        )
    return StoreError(
        f"{doing} failed ({text})",
        errno=number,
        path=path,
        expected=None if needed is None else f"{needed} bytes written",
        advice=_ADVICE.get(number),
    )
