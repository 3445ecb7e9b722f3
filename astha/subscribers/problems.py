"""What a component reports about single subjects, such as one table of the lake, while it works on all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import msgspec
import structlog

log = structlog.get_logger(__name__)


class Problem(msgspec.Struct, frozen=True):
    """Times are UTC epoch milliseconds. `next_try` is None if the component waits for a change or for a person."""

    subject: str
    reason: str
    since: int
    attempts: int = 0
    next_try: int | None = None


@runtime_checkable
class ReportsProblems(Protocol):
    """Optional: read for `/status` and `/metrics`. Must neither wait nor take long. A problem makes the component
    neither unhealthy nor unready: the rest of its work goes on.
    """

    def problems(self) -> Iterable[Problem]: ...


def problems_of(component: str, subscriber: object) -> list[Problem]:
    """The oldest first. Empty if the component reports none, or can't."""
    if not isinstance(subscriber, ReportsProblems):
        return []
    try:
        return sorted(subscriber.problems(), key=lambda problem: problem.since)
    except Exception:
        log.exception("a component's problems can't be read", component=component)
        return []
