"""What every call of a Checkpointer looks at before it begins."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpickpt.errors import StateError

if TYPE_CHECKING:
    from mpickpt.background import Saving
    from mpickpt.cluster.channel import Line
    from mpickpt.store.directory import Directory


_Method = TypeVar("_Method", bound=Callable[..., Any])


def one_at_a_time(method: _Method) -> _Method:
    """Refuse a call while another one of the same Checkpointer is under way.

    Two threads would mix their moments, and nothing says in which order those of another owner call.
    """

    @functools.wraps(method)
    def call(self: Calls, *args: Any, **more: Any) -> Any:
        me = object()
        try:
            # No lock: an interrupt between its being taken and the try would leave it taken for good.
            self._calling.append(me)
            if self._calling[0] is me:
                return method(self, *args, **more)
            raise StateError(
                f"{method.__name__} was called while another call of this Checkpointer was under way",
                path=self._directory.path,
                expected="one call after the other",
                found=f"a second one, in thread {threading.current_thread().name}",
                unharmed="the other call, which goes on; the store and all arrays",
                advice="let one thread make all calls, or threads take turns in the same order on all owners",
            )
        finally:
            if me in self._calling:
                self._calling.remove(me)

    return cast(_Method, call)


def collective(name: str) -> Callable[[_Method], _Method]:
    """Make a method one collective call of the line that is called `name`, whatever interrupts it; one at a time."""

    def collective_call(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: Calls, *args: Any, **more: Any) -> Any:
            self._check_open()
            line: Line = getattr(self, name)
            line.count()
            try:
                return method(self, *args, **more)
            except BaseException as error:
                if line.counted is not None:
                    asked = more.get("async_")  # whatever that is
                    if line is self._saves and (self._asynchronous if asked is None else asked is not False):
                        self._saving.missed(error)
                    if not self._saving.in_flight:
                        with line.call():  # it has not begun, and the others wait for this owner
                            raise
                raise
            finally:
                line.counted = None

        return one_at_a_time(cast(_Method, call))

    return collective_call


class Calls:
    """The part of a Checkpointer on which the others stand."""

    _calling: list[object]  # the calls that are under way

    _directory: Directory
    _saving: Saving
    _saves: Line
    _others: Line
    _closed: bool
    _process: int
    _asynchronous: bool

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this Checkpointer is closed", path=self._directory.path)
        if os.getpid() != self._process:
            raise StateError(
                "this Checkpointer was made by another process, and its threads are not in this one",
                path=self._directory.path,
                expected=f"process {self._process}",
                found=f"process {os.getpid()}, forked from it",
                advice="save in the process that made the Checkpointer",
            )
