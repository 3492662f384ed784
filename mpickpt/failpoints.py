"""Named places in the protocols where a test can stop, kill or fail this process.

Outside tests `hook` is None and `reach` does nothing. A name here, a step of docs/protocol.md and a test
bear the same words.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Tell the test, if there is one, that this process has come to the place called `name`."""
    if hook is not None:
        hook(name)
