"""What is removed, and in which order: rotation of generations, sweeping of attempts that failed.

The root goes first and its removal is made durable; only then do its data go. So a crash leaves data without a root,
which nobody lists, and never a root without its data.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from mpickpt.errors import StateError
from mpickpt.failpoints import reach
from mpickpt.format.names import parse_root_name
from mpickpt.store import commit
from mpickpt.store.files import names_in
from mpickpt.store.lineage import counting
from mpickpt.store.presence import is_directory, there
from mpickpt.store.refusal import store_error

if TYPE_CHECKING:
    from mpickpt.store.directory import Directory

STALE_SECONDS = 3600.0
"""Temporary files younger than this may belong to a publication that is under way."""


def rotate(
    directory: Directory, keep: int | None, keep_every: int | None = None, protect: Container[str] = ()
) -> list[str]:
    """Remove the generations beyond the newest `keep` of the lineage.

    What is off the lineage, pinned, protected, of a step that is a multiple of `keep_every`, or cannot be read stays;
    what cannot be read is not counted as one of the newest either.

    Parameters
    ----------
    directory : Directory
    keep : int or None
        At least 1; None keeps all.
    keep_every : int, optional
        Steps whose multiples are kept for good.
    protect : container of str
        Root names that are never removed: the newest that this process published or verified.

    Returns
    -------
    list of str
        Names of the roots that were removed.

    Raises
    ------
    StateError
        If `keep` or `keep_every` is not a positive whole number.
    StoreError
        If something could not be removed. What was removed stays removed; nothing is half removed and still listed.
    """
    for what, value in (("keep", keep), ("keep_every", keep_every)):
        if value is not None and (type(value) is not int or value < 1):
            raise StateError(f"{what} is no positive whole number", expected="1 or more, or None", found=repr(value))
    if keep is None:
        return []
    readable = [root for root in directory.lineage() if directory.is_root(root.name)]
    pinned = directory.pins()
    doomed = [
        root.name
        for root in readable[:-keep]
        if root.name not in pinned
        and root.name not in protect
        and not (keep_every is not None and root.step % keep_every == 0)
    ]
    remove_roots(directory, doomed)
    return doomed


def remove_roots(directory: Directory, names: Iterable[str]) -> list[str]:
    """Remove roots, make that durable, then remove their data; give the paths that were removed."""
    removed = []
    for name in names:
        path = directory.root_path(name)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise store_error(error, "removal of a root", path) from error
        removed.append(path)
    if not removed:
        return []
    reach("rotate.roots-removed")
    commit.sync_directory(directory.roots_path, directory.fence)
    reach("rotate.directory-synced")
    for path in list(removed):
        data = directory.data_of(os.path.basename(path))
        if _remove_tree(data):
            removed.append(data)
    return removed


def _remove_tree(path: str) -> bool:
    """Remove an attempt's directory; a link in its place is removed, not what it leads to."""
    try:
        if os.path.islink(path):
            os.unlink(path)
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise store_error(error, "removal of an attempt's files", path) from error
    return True


def sweep(directory: Directory, orphans: bool = False) -> list[str]:
    """Remove what failed attempts left behind.

    That is: files of attempts without a root, of epochs below the newest claim that counts; files of voided attempts;
    void records of such epochs; temporary files older than an hour, by the file system's own clock. The newest epoch's
    attempt without a root may be under way and stays, as do its void records.

    Parameters
    ----------
    directory : Directory
    orphans : bool
        Whether to remove generations off the lineage too, but for pinned ones.

    Returns
    -------
    list of str
        Paths that were removed.

    Raises
    ------
    StoreError
        If something could not be removed.
    IntegrityError, FormatError
        If the store is damaged: nothing is removed from one.
    """
    directory.open(write=False)
    claims = directory.claims()
    newest = max((claim.epoch for claim in counting(claims)), default=0)
    names = directory.roots(fresh=is_directory(directory.roots_path))
    kinds = {root.name: directory.is_root(root.name) for root in names}
    pinned = directory.pins()
    removed: list[str] = []
    if orphans:
        off = [root.name for root in directory.off_lineage(claims, names) if kinds[root.name] is not False]
        removed += remove_roots(directory, [name for name in off if name not in pinned])
    removed += _sweep_attempts(directory, kinds, newest)
    # A void goes after the files of its attempt: until then it tells that they are of no more use.
    voids = [root.name for root in names if kinds[root.name] is False and root.epoch < newest]
    removed += remove_roots(directory, voids)
    for place in (directory.path, directory.roots_path, directory.epochs_path, directory.pins_path):
        removed += _sweep_temporary(place)
    return removed


def _sweep_attempts(directory: Directory, kinds: dict[str, bool | None], newest: int) -> list[str]:
    removed = []
    try:
        attempts = sorted(names_in(directory.data_path))
    except FileNotFoundError:
        return []
    for attempt in attempts:
        name = attempt + ".json"
        parsed = parse_root_name(name)
        if parsed is None:
            continue
        unnamed = name not in kinds and parsed[1] < newest and not there(directory.root_path(name))
        dead = unnamed or kinds.get(name) is False
        path = directory.data_of(name)
        if dead and _remove_tree(path):
            removed.append(path)
    return removed


def _sweep_temporary(place: str) -> list[str]:
    """Remove old temporary files of a directory, by the clock that gives files their times."""
    try:
        old = [name for name in names_in(place) if name.startswith(commit.TEMPORARY)]
    except FileNotFoundError:
        return []
    if not old:
        return []
    mark = commit.temporary(place)
    commit.write_new(mark, b"")
    now = os.stat(mark).st_mtime
    commit.remove_quietly(mark)
    removed = []
    for name in old:
        path = os.path.join(place, name)
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if now - found.st_mtime < STALE_SECONDS:
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
            removed.append(path)
    return removed
