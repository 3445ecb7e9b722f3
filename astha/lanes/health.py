"""Checks whether a component is healthy."""

from __future__ import annotations

import asyncio

import structlog

from astha.lanes.calls import HEALTH_CHECK, CallTimeout, SeparateCall, task_name
from astha.lanes.failures import FailureLog
from astha.subscribers.contract import Subscriber

log = structlog.get_logger(__name__)


class HealthCheck:
    """One check at a time: a component that does not answer is not asked again before it does."""

    def __init__(self, name: str, subscriber: Subscriber, timeout_s: float, failures: FailureLog) -> None:
        self._name = name
        self._subscriber = subscriber
        self._timeout_s = timeout_s
        self._failures = failures
        self._call = SeparateCall(task_name(name, HEALTH_CHECK))
        self._answer: object = None
        self.reason: str | None = None

    async def healthy(self) -> bool:
        """Returns True only if `on_health` returns True in time; otherwise `reason` says why not. Logs each change."""
        reason = self._reason(await self._call.call(self._ask, self._timeout_s))
        if reason != self.reason:
            self.reason = reason
            if reason is None:
                log.info("component is healthy again", component=self._name)
            else:
                log.warning("component is not healthy", component=self._name, reason=reason)
        return reason is None

    def _reason(self, error: BaseException | None) -> str | None:
        if error is None:
            return None if self._answer is True else f"on_health returned {self._answer!r}"
        if isinstance(error, CallTimeout):
            return f"on_health gave no answer within {self._timeout_s:g} s"
        if isinstance(error, asyncio.CancelledError):
            return "on_health was cancelled"
        self._failures.note(self._name, "on_health", error)
        return repr(error)

    async def _ask(self) -> None:
        self._answer = await self._subscriber.on_health()
