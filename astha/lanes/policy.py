"""Numbers of a lane, and what to do about each kind of error."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from astha.errors import Fenced, Reject, Retry
from registry import errors as registry_errors

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class LanePolicy(BaseModel):
    """Every number of a component's lane. The defaults suit a component that talks to a service on the network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_events: Count = Field(100_000, description="Events that may wait in the lane; beyond, it breaks out.")
    max_bytes: Count = Field(64 * 1024 * 1024, description="Bytes, as received, that may wait in the lane.")
    attempts: Annotated[int, Field(gt=0, le=30)] = Field(30, description="Deliveries of one event, the first included.")
    backoff_initial_s: Seconds = Field(0.1, description="Wait before the second attempt; doubles, with jitter.")
    backoff_max_s: Seconds = Field(30.0, description="Longest wait between attempts.")
    delivery_timeout_s: Seconds = Field(30.0, description="A delivery that takes longer is cancelled and retried.")
    breaker_failures: Count = Field(30, description="Failed attempts in a row that open the circuit breaker.")
    breaker_reset_s: Seconds = Field(10.0, description="How long a broken component is left alone.")
    health_interval_s: Seconds = Field(10.0, description="Time between health checks of a live component.")
    health_timeout_s: Seconds = Field(5.0, description="A health check that takes longer has failed.")
    drain_timeout_s: Seconds = Field(10.0, description="Wait for what a component has in hand before it is cancelled.")
    refresh_timeout_s: Seconds = Field(3600.0, description="A refresh that takes longer is cancelled and tried again.")


class Action(StrEnum):
    RETRY = "retry"
    DROP = "drop and refresh"
    BREAK = "break"


class Treatment(msgspec.Struct, frozen=True):
    action: Action
    hint: str


_TREATMENTS: tuple[tuple[type[BaseException], Treatment], ...] = (
    (Reject, Treatment(Action.DROP, "the component says that this event can never be delivered; see its own log")),
    (Retry, Treatment(Action.RETRY, "the component asked for another attempt")),
    (Fenced, Treatment(Action.BREAK, "another daemon leads; this one stands by")),
    (registry_errors.Fenced, Treatment(Action.BREAK, "another daemon leads; this one stands by")),
    (registry_errors.Invalid, Treatment(Action.DROP, "the registry refuses what the component wrote")),
    (registry_errors.Unavailable, Treatment(Action.RETRY, "the registry does not answer; check the database")),
    (registry_errors.Conflict, Treatment(Action.RETRY, "somebody else was quicker; the next attempt reads anew")),
    (TimeoutError, Treatment(Action.RETRY, "too slow: raise delivery_timeout_s, or find what the component waits for")),
    (ConnectionError, Treatment(Action.RETRY, "the component can't reach its service")),
    (OSError, Treatment(Action.RETRY, "the machine refused something: disk full, too many files, network gone?")),
    (MemoryError, Treatment(Action.BREAK, "out of memory; lower max_bytes or give the daemon more")),
    (SystemExit, Treatment(Action.BREAK, "the component tried to end the daemon")),
    (BaseException, Treatment(Action.RETRY, "a bug in the component, most likely; the traceback is in the log")),
)  # fmt: skip


def treatment(error: BaseException) -> Treatment:
    """What to do about an error. Unknown ones are retried: they never stop the daemon."""
    return next(found for kind, found in _TREATMENTS if isinstance(error, kind))
