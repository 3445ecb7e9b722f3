"""Problems with single subjects, such as one table of the lake, while the component works on all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import msgspec
import structlog

log = structlog.get_logger(__name__)


class Problem(msgspec.Struct, frozen=True):
    """Times are UTC epoch milliseconds. `next_try` is None if the component waits for a change or for an operator."""

    subject: str
    reason: str
    since: int
    attempts: int = 0
    next_try: int | None = None


@runtime_checkable
class ReportsProblems(Protocol):
    """Optional: called for `/status` and `/metrics`. Must not block. A problem makes the component neither unhealthy
    nor unready, because the rest of its work continues.
    """

    def problems(self) -> Iterable[Problem]: ...


def problems_of(component: str, subscriber: object) -> list[Problem]:
    """Returns the component's problems, oldest first; none if it reports none or fails to report."""
    if not isinstance(subscriber, ReportsProblems):
        return []
    try:
        return sorted(subscriber.problems(), key=lambda problem: problem.since)
    except Exception:
        log.exception("component failed to report its problems", component=component)
        return []
