"""The refusal table as an exception hierarchy.

Each class is one row, or one branch of rows, of docs/refusals.md. A refusal says what happened, to which
owner, region and file, what was expected and found, what is unharmed, and what to do next. It can be
written as plain data, so that it travels in an abort message or a void record and every owner raises
the same exception.
"""

from __future__ import annotations

import errno as _errno
import socket
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

_HOST = socket.gethostname()


def owner(role: int | None, host: str | None = None) -> str:
    """Name an owner as messages do: ``owner 12 (host n5)``."""
    if role is None:
        return "an owner"
    return f"owner {role} (host {host})" if host else f"owner {role}"


class CheckpointError(Exception):
    """Base of every refusal of mpickpt.

    Parameters
    ----------
    message : str
        What happened, in one sentence.
    role : int, optional
        The owner that it happened to: its rank in the caller's communicator.
    host : str, optional
        That owner's host.
    region : str, optional
        The region's name.
    path : str, optional
        The file or directory.
    expected, found : object, optional
        What was expected and what was found; kept as given on the owner that raised, and as text elsewhere.
    roles : sequence of int, optional
        All owners concerned, where it is more than one.
    unharmed : str, optional
        What is known to be untouched.
    advice : str, optional
        What to do next.
    """

    exit_code: ClassVar[int] = 1
    #: What to do next, where a refusal of this class in a collective call does not say so itself.
    default_advice: ClassVar[str | None] = None
    #: Whether the file that was to be published stands under its name all the same.
    published: bool = False

    def __init__(
        self,
        message: str,
        *,
        role: int | None = None,
        host: str | None = None,
        region: str | None = None,
        path: str | None = None,
        expected: object = None,
        found: object = None,
        roles: Sequence[int] = (),
        unharmed: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.role = role
        self.host = host
        self.region = region
        self.path = None if path is None else str(path)
        self.expected = expected
        self.found = found
        self.roles = tuple(roles)
        self.unharmed = unharmed
        self.advice = advice

    def __str__(self) -> str:
        where = []
        if self.role is not None:
            where.append(owner(self.role, self.host))
        elif self.host is not None:
            where.append(f"host {self.host}")
        if self.roles:
            shown = ", ".join(map(str, self.roles[:20]))
            more = f" and {len(self.roles) - 20} more" if len(self.roles) > 20 else ""
            where.append(f"owner{'s' if len(self.roles) > 1 else ''} {shown}{more}")
        if self.region is not None:
            where.append(f"region {self.region!r}")
        if self.path is not None:
            where.append(f"file {self.path}")
        first, *rest = self.message.split("\n")
        lines = [first + (f" [{'; '.join(where)}]" if where else ""), *rest]
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.found is not None:
            lines.append(f"  found: {self.found}")
        if self.unharmed:
            lines.append(f"  unharmed: {self.unharmed}")
        if self.advice:
            lines.append(f"  next: {self.advice}")
        return "\n".join(lines)

    def at(self, role: int, host: str | None = _HOST) -> CheckpointError:
        """Say at which owner it happened, where that or the owners concerned are not said yet. Returns itself."""
        if self.role is None and not self.roles:
            self.role = role
        if self.role == role and self.host is None:
            self.host = host
        return self

    def complete(self, unharmed: str) -> CheckpointError:
        """Say what is unharmed and what to do next, where that is not said yet. Returns itself."""
        if self.unharmed is None:
            self.unharmed = unharmed
        if self.advice is None:
            self.advice = self.default_advice
        return self

    def to_record(self) -> dict[str, Any]:
        """Give this refusal as plain data: JSON strings, integers and lists only."""
        record: dict[str, Any] = {"class": type(self).__name__, "message": self.message}
        for field in ("role", "host", "region", "path", "unharmed", "advice"):
            value = getattr(self, field)
            if value is not None:
                record[field] = value
        for field in ("expected", "found"):
            value = getattr(self, field)
            if value is not None:
                record[field] = value if type(value) in (int, str) else str(value)
        if self.roles:
            record["roles"] = [int(role) for role in self.roles]
        number = getattr(self, "errno", None)
        if number is not None:
            record["errno"] = int(number)
        return record


class StateError(CheckpointError, ValueError):
    """The state, a box or an argument is not one that can be saved exactly."""

    default_advice = "change what this owner gives"


class SchemaError(CheckpointError, ValueError):
    """The destination has other regions, shapes or dtypes than the checkpoint."""

    exit_code = 4
    default_advice = "give the state in the form that was saved; `mpickpt show RUN` lists it"


class DisagreementError(CheckpointError):
    """Owners called with declarations, contracts, moments or options that may not differ."""


class CoverageError(CheckpointError):
    """Pieces leave a gap, overlap, leave their region, or a copy is missing or doubled."""

    default_advice = "`mpickpt verify RUN --all` says which generations are whole"


class ReplicaError(CheckpointError):
    """Copies that must be equal differ between owners."""


class MomentError(CheckpointError):
    """Another moment than the agreed one, or step or cursor would go back."""

    exit_code = 5


class EpochError(CheckpointError):
    """Another continuation has the run, or none was begun."""

    exit_code = 5


class OvertakenError(EpochError):
    """An older job saved while this one resumed. It can save no more; started again, this one goes on from there."""

    exit_code = 75


class TopologyError(CheckpointError):
    """A message claims another role or another number of roles than the topology prescribes."""


class NonFiniteError(CheckpointError):
    """A NaN or an infinity in a region that refuses them."""

    exit_code = 3


class IntegrityError(CheckpointError):
    """A file is missing, truncated, longer, or not the bytes that its digest names."""

    exit_code = 3
    default_advice = "bring the file back from a copy; `mpickpt verify RUN --all` says which generations are whole"


class FormatError(CheckpointError):
    """A file is malformed, contradicts its manifest, or is of a newer format."""

    exit_code = 3
    default_advice = "bring the file back from a copy; `mpickpt verify RUN --all` says which generations are whole"


class ContractError(CheckpointError):
    """Another learner's checkpoint, other numerics, or another device where it is bound."""

    exit_code = 4


class PlacementError(CheckpointError):
    """Another owner count where the contract forbids it or it was not asked for."""

    exit_code = 4


class _SystemRefusal(CheckpointError, OSError):
    """A refusal that is also an OSError, with its errno."""

    default_errno: ClassVar[int] = _errno.EIO

    def __init__(self, message: str, *, errno: int | None = None, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.errno = self.default_errno if errno is None else errno


class StoreError(_SystemRefusal):
    """The file system refused: no space, quota, input/output error, no rights, no way to publish safely."""

    exit_code = 6
    default_advice = "look at the file system under the store, mend it, and start again"


class NotFoundError(_SystemRefusal, FileNotFoundError):
    """The generation asked for is gone or never was."""

    exit_code = 6
    default_advice = "`mpickpt ls RUN` lists what there is"
    default_errno = _errno.ENOENT


class ExistsError(_SystemRefusal, FileExistsError):
    """The step is already published; what is published never changes."""

    exit_code = 6
    default_errno = _errno.EEXIST


class DeadlineError(_SystemRefusal, TimeoutError):
    """An owner is missing, hung, dead, or makes no progress."""

    exit_code = 7
    default_errno = _errno.ETIMEDOUT


class InDoubtError(CheckpointError):
    """Nobody can tell whether the root was published."""

    exit_code = 7


def _branches(root: type[CheckpointError]) -> dict[str, type[CheckpointError]]:
    found = {root.__name__: root}
    for branch in root.__subclasses__():
        found.update(_branches(branch))
    return found


_CLASSES = {name: cls for name, cls in _branches(CheckpointError).items() if not name.startswith("_")}


def from_record(record: Mapping[str, Any]) -> CheckpointError:
    """Rebuild the refusal that `CheckpointError.to_record` wrote; an unknown class becomes CheckpointError."""
    cls = _CLASSES.get(str(record.get("class")), CheckpointError)
    fields = {
        key: record[key]
        for key in ("role", "host", "region", "path", "expected", "found", "roles", "unharmed", "advice")
        if key in record
    }
    if issubclass(cls, _SystemRefusal) and "errno" in record:
        fields["errno"] = record["errno"]
    return cls(str(record.get("message", "")), **fields)


__all__ = [*_CLASSES, "from_record", "owner"]
