"""How far a save or a resume is, on owner 0's stderr: a line that is drawn over and over, and gone at the end.

Nothing is drawn of what takes less than a second. What other owners have done is known by their beats, one a second.
Where stderr is no terminal, and a bar was asked for all the same, there is a plain line a second.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from mpickpt import units

#: Bytes done, and bytes in all; 0 where that is not known yet.
Far = tuple[int, int]
_AFTER: Final = 1.0
_EVERY: Final = 0.2
_EVERY_LINE: Final = 1.0
_WIDTH: Final = 24


def line(what: str, far: Far, elapsed: float) -> str:
    """Write how far something is.

    Examples
    --------
    >>> line("saving step 5", (1 << 30, 2 << 30), 2.0)
    'saving step 5  [############............]  50 %  1.0 GiB of 2.0 GiB  0.54 GB/s  2 s left'
    """
    done, total = far
    if total <= 0:
        return f"{what}  {elapsed:.0f} s"
    full = _WIDTH * done // total
    shown = f"{what}  [{'#' * full}{'.' * (_WIDTH - full)}]  {100 * done // total} %"
    shown += f"  {units.human(done)} of {units.human(total)}  {units.rate(done / elapsed if elapsed > 0 else 0.0)}"
    return shown + (f"  {elapsed * (total - done) / done:.0f} s left" if 0 < done < total else "")


class Bar:
    """Draws, if that is wanted.

    Parameters
    ----------
    wanted : bool or None
        None: only where stderr is a terminal.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._wanted = wanted

    @contextlib.contextmanager
    def show(self, what: str, far: Callable[[], Far]) -> Iterator[None]:
        """Draw for as long as the with-block runs, in a thread of its own."""
        stream = sys.stderr
        terminal = _is_terminal(stream)
        if stream is None or not (terminal if self._wanted is None else self._wanted):
            yield
            return
        over = threading.Event()
        thread = threading.Thread(
            target=_draw, args=(stream, terminal, what, far, over), name="mpickpt-bar", daemon=True
        )
        with contextlib.suppress(RuntimeError):  # the system gives none: what it would draw is not worth a refusal
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.is_alive():
                thread.join(_EVERY_LINE)  # who holds up stderr does not hold up a save


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _draw(stream: TextIO, terminal: bool, what: str, far: Callable[[], Far], over: threading.Event) -> None:
    began = time.monotonic()
    drawn = False
    with contextlib.suppress(OSError, ValueError):  # nobody listens on stderr any more
        pause = _AFTER
        while not over.wait(pause):
            text = line(what, far(), time.monotonic() - began)
            stream.write(f"\r{text}\x1b[K" if terminal else f"{text}\n")
            stream.flush()
            drawn, pause = True, _EVERY if terminal else _EVERY_LINE
        if drawn and terminal:
            stream.write("\r\x1b[K")
            stream.flush()
