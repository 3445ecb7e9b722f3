"""Asking a component whether it would work now."""

from __future__ import annotations

import asyncio

from astha.lanes.failures import FailureLog
from astha.subscribers.contract import Subscriber


class HealthCheck:
    """One question at a time. A component that never answers is not asked again until it does."""

    def __init__(self, name: str, subscriber: Subscriber, timeout_s: float, failures: FailureLog) -> None:
        self._component = name
        self._name = f"{name}: health question"
        self._failures = failures
        self._subscriber = subscriber
        self._timeout_s = timeout_s
        self._asking: asyncio.Task[bool] | None = None
        self.reason: str | None = None

    async def ask(self) -> bool:
        """True only for a plain True in time; otherwise `reason` says why not."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answer(), name=self._name)
        done, _ = await asyncio.wait({self._asking}, timeout=self._timeout_s)
        if not done:
            self._asking.cancel()
            self.reason = f"on_health gave no answer within {self._timeout_s:g} s"
            return False
        if self._asking.cancelled():
            self.reason = "on_health was cancelled"
            return False
        return self._asking.result()

    async def _answer(self) -> bool:
        try:
            answer = await self._subscriber.on_health()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failures.note(self._component, "on_health", error)
            self.reason = repr(error)
            return False
        self.reason = None if answer is True else f"on_health answered {answer!r}"
        return answer is True
