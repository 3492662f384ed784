"""Why a call cannot go on with a neighbour: it has gone on alone, is silent or dead, or is in another call."""

from __future__ import annotations

from typing import Final

from mpickpt.cluster.mailbox import Mailbox
from mpickpt.cluster.messages import Kind
from mpickpt.errors import DeadlineError, DisagreementError, owner

SAME_CALLS: Final = "see that every owner makes the same calls (save, resume, due, close, ... are collective)"


def missed(call: Mailbox, role: int) -> DeadlineError:
    """Say that a neighbour has left this call."""
    return DeadlineError(
        f"this owner missed the end of a collective call: {owner(role)} is at a later one",
        role=call.place.role,
        host=call.line.host,
        advice="go on: the next call takes part again",
    )


def silence(call: Mailbox, role: int) -> DeadlineError:
    """Say that a neighbour gives no sign of life."""
    dead = role in call.line.transport.dead()
    return DeadlineError(
        "an owner has died" if dead else "an owner is silent",
        role=role,
        host=call.line.transport.hosts.get(role),
        expected=f"a sign of life within {call.line.deadline:g} s",
        # No measured time: owners that see the same silence raise the same refusal.
        found="its process is gone" if dead else "none",
        advice=f"{SAME_CALLS}, then look at that owner's process and node; the next start resumes from the newest "
        "generation",
    )


def another_call(call: Mailbox, role: int) -> DisagreementError:
    """Say that a neighbour is in `due` and this owner is not, or the other way round."""
    here = call.place.role
    due, other = (here, role) if call.opening is Kind.WORD else (role, here)
    return DisagreementError(
        f"owners made different calls: due at owner {due}, another one at owner {other}",
        role=role,
        host=call.line.transport.hosts.get(role),
        roles=[here, role],
        expected="the same calls in the same order at every owner",
        found=f"due at owner {due} alone",
        advice=SAME_CALLS,
    )
