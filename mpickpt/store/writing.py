"""Pieces -> shard file, as a list of file operations that is done in one go (`store/steps.py`).

The same file as `store/writer.py` writes, in the same steps with the same failpoints, where every chunk lies in memory
as it does in the payload and the extension knows the digest: nearly always. The rest is for `ShardWriter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpickpt import digest
from mpickpt.format.layout import Layout
from mpickpt.format.shard import shard_digest
from mpickpt.store import commit, direct
from mpickpt.store.finite import Scan
from mpickpt.store.progress import Progress
from mpickpt.store.source import Source
from mpickpt.store.steps import Steps
from mpickpt.store.writer import Written, pieces_of

if TYPE_CHECKING:
    from mpickpt.state.plan import Piece


class ShardSteps:
    """One shard file, added to a list.

    Parameters
    ----------
    steps : Steps
    path, folder : str
        Its final name; nothing is there yet. The folder is made where it is found missing.
    layout : Layout
    source : Source
        Of the layout, see `flat`. Its arrays may be filled later, but not after the list was begun.
    progress : Progress
    nonfinite : callable
        Tells for a region's name whether NaN and infinities are refused.
    threads : int
        For the chunks.
    """

    def __init__(
        self,
        steps: Steps,
        path: str,
        folder: str,
        layout: Layout,
        source: Source,
        progress: Progress,
        nonfinite: Callable[[str], bool],
        threads: int,
    ) -> None:
        self.path = path
        self._steps = steps
        self._layout = layout
        self._first = len(steps)
        head, size, chunks = layout.head, layout.file_bytes, layout.chunks
        self._tables = bytearray((digest.SIZE + 4) * chunks)
        view = memoryview(self._tables)
        self._digests, self._crcs = view[: digest.SIZE * chunks], view[digest.SIZE * chunks :]
        todo, turn = np.arange(chunks, dtype=np.int64), np.zeros(2, np.int64)
        rows, key = source.rows(nonfinite), digest.key("chunk")

        def arguments(most: int) -> tuple[Any, ...]:
            return (
                len(head), layout.payload, layout.chunk, key, self._digests, self._crcs, progress.watch, turn, todo,
                rows, source, 1 if most else threads, most,
            )  # fmt: skip

        def refuse(where: int) -> BaseException:
            return Scan(layout, nonfinite).refusal(where, source)

        writing = ("write of a shard", path, size)
        steps.check()
        file = steps.create(path, folder)
        steps.reach("writer.created", doing=writing[0])
        steps.reserve(file, size, *writing[:2])
        steps.write(file, head, 0, *writing)
        past = direct.add_again(steps, file, path, layout.payload)
        steps.chunks(file, past, arguments, refuse, writing)
        steps.check()
        steps.write(file, self._tables, layout.tables_offset, *writing)
        steps.reach("writer.written")
        steps.sync(file, "sync of a shard", path, size)
        steps.reach("writer.synced")
        steps.let_go(past)
        steps.close(file, "close of a shard", path, size)

    def written(self) -> Written:
        """Give what a manifest records of it, once the list has been done."""
        layout = self._layout
        name = shard_digest(layout.algorithm, layout.head, self._digests, self._crcs)
        return Written(layout.file_bytes, name, pieces_of(layout))

    def abandon(self) -> None:
        """Remove what the list has made of it, after it has failed."""
        if self._steps.went_behind(self._first + 1):  # behind the check
            commit.remove_quietly(self.path)


def flat(layout: Layout, pieces: Sequence[Piece]) -> Source | None:
    """Give the source of a shard of which all chunks can be written in one go; None where that is not so."""
    if layout.algorithm != "blake3":
        return None
    source = Source(layout, pieces)
    return source if len(source.plain()) == layout.chunks else None


__all__ = ["ShardSteps", "flat"]
