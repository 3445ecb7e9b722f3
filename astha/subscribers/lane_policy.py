"""The limits of a component's lane: queue, retries, timeouts and circuit breaker."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class LanePolicy(BaseModel):
    """`lane` of an entry in subscriptions.yaml. The defaults suit a component that uses a service on the network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_events: Count = Field(100_000, description="Events that may be queued; more open the circuit.")
    max_bytes: Count = Field(64 * 1024 * 1024, description="Bytes, as received, that may be queued.")
    attempts: Annotated[int, Field(gt=0, le=30)] = Field(30, description="Attempts per event, including the first.")
    on_exhausted: Literal["refresh", "hold"] = Field(
        "refresh",
        description="After the last attempt: drop the event and refresh, or hold its position and keep retrying.",
    )
    backoff_initial_s: Seconds = Field(0.1, description="Wait before the second attempt; doubles, with jitter.")
    backoff_max_s: Seconds = Field(30.0, description="Longest wait between attempts.")
    delivery_timeout_s: Seconds = Field(30.0, description="A delivery that takes longer is cancelled and retried.")
    breaker_failures: Count = Field(30, description="Failed attempts in a row that open the circuit breaker.")
    breaker_reset_s: Seconds = Field(10.0, description="Seconds that an open circuit waits before the next trial.")
    health_interval_s: Seconds = Field(10.0, description="Time between health checks of a live component.")
    health_timeout_s: Seconds = Field(5.0, description="A health check that takes longer has failed.")
    drain_timeout_s: Seconds = Field(10.0, description="How long a call in flight may finish before it is cancelled.")
    refresh_timeout_s: Seconds = Field(3600.0, description="A refresh that takes longer is cancelled and retried.")
