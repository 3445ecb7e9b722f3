"""The policy for each kind of error, with a hint for the operator."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from astha.errors import LeadershipLost, Reject, Retry
from registry import errors as registry_errors


class Action(StrEnum):
    RETRY = "retry"
    DROP = "drop and refresh"
    BREAK = "break"


class Treatment(msgspec.Struct, frozen=True):
    action: Action
    hint: str


_TREATMENTS: tuple[tuple[type[BaseException], Treatment], ...] = (
    (Reject, Treatment(Action.DROP, "the component rejected this event for good; see its own log")),
    (Retry, Treatment(Action.RETRY, "the component asked for another attempt")),
    (LeadershipLost, Treatment(Action.BREAK, "another daemon leads; this one stands by")),
    (registry_errors.Fenced, Treatment(Action.BREAK, "another daemon leads; this one stands by")),
    (registry_errors.Invalid, Treatment(Action.DROP, "the registry refuses what the component wrote")),
    (registry_errors.PermissionDenied, Treatment(Action.RETRY, "run `astha check`: it names what the role lacks")),
    (registry_errors.ReadOnly, Treatment(Action.RETRY, "the database takes no writes; is it a standby?")),
    (registry_errors.Unavailable, Treatment(Action.RETRY, "the registry does not answer; check the database")),
    (registry_errors.Conflict, Treatment(Action.RETRY, "another writer was first; the next attempt reads again")),
    (TimeoutError, Treatment(Action.RETRY, "too slow: raise delivery_timeout_s, or find what the component waits for")),
    (ConnectionError, Treatment(Action.RETRY, "the component can't reach its service")),
    (OSError, Treatment(Action.RETRY, "the machine refused something: disk full, too many files, network gone?")),
    (MemoryError, Treatment(Action.BREAK, "out of memory; lower max_bytes or give the daemon more")),
    (SystemExit, Treatment(Action.BREAK, "the component tried to end the daemon")),
    (BaseException, Treatment(Action.RETRY, "most likely a bug in the component; the traceback is in the log")),
)  # fmt: skip


def treatment(error: BaseException) -> Treatment:
    """Returns the policy for an error. Unknown errors are retried: they never stop the daemon."""
    return next(found for kind, found in _TREATMENTS if isinstance(error, kind))
