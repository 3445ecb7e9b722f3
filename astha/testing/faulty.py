"""A subscriber that misbehaves on request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import StrEnum
from typing import Any

from astha.errors import Reject
from astha.events import Event
from astha.testing.recording import RecordingSubscriber
from registry.contract import ConsistentRead
from registry.models import Row


class Fault(StrEnum):
    REJECT = "reject"  # this event can never be delivered
    FAIL = "fail"  # an error, before any effect
    FAIL_AFTER_EFFECT = "fail after effect"  # the effect happened, the answer is an error
    HANG = "hang"  # never comes back, but can be cancelled
    STUBBORN = "stubborn"  # never comes back and ignores cancellation, until released
    SLOW = "slow"  # takes its time
    BLOCK = "block"  # blocks the event loop
    EXIT = "exit"  # calls sys.exit


class FaultySubscriber(RecordingSubscriber):
    """Works like a `RecordingSubscriber` until told to `misbehave`; with `times`, only so many deliveries are hit.

    `refresh_fault` is the same for refreshes, `refresh_error` is raised by them, `health` replaces the answer.
    """

    def __init__(self, *tables: str, whole_transactions: bool = False) -> None:
        super().__init__(*tables, whole_transactions=whole_transactions)
        self.fault: Fault | None = None
        self.times: int | None = None
        self.seconds = 0.01
        self.hits = 0
        self.released = asyncio.Event()
        self.refresh_error: BaseException | None = None
        self.refresh_fault: Fault | None = None
        self.health: Callable[[], Awaitable[Any]] | None = None

    def misbehave(self, fault: Fault, times: int | None = None, seconds: float = 0.01) -> None:
        self.fault, self.times, self.seconds = fault, times, seconds

    def behave(self) -> None:
        self.fault = self.refresh_fault = self.refresh_error = self.health = None
        self.released.set()

    async def on_event(self, event: Event[Row]) -> None:
        await self._around(self._next_fault(), super().on_event(event))

    async def _on_transaction(self, events: Sequence[Event[Row]]) -> None:
        await self._around(self._next_fault(), super()._on_transaction(events))

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        if self.refresh_error is not None:
            raise self.refresh_error
        await self._around(self.refresh_fault, super().on_refresh(snapshot))

    async def on_health(self) -> bool:
        if self.health is not None:
            answer: bool = await self.health()
            return answer
        return await super().on_health()

    async def _around(self, fault: Fault | None, effect: Coroutine[None, None, None]) -> None:
        try:
            if fault is not None and fault is not Fault.FAIL_AFTER_EFFECT:
                await self._commit(fault)
            await effect
        finally:
            effect.close()
        if fault is Fault.FAIL_AFTER_EFFECT:
            raise RuntimeError("failed after the effect")

    def _next_fault(self) -> Fault | None:
        if self.fault is None or self.times == 0:
            return None
        if self.times is not None:
            self.times -= 1
        self.hits += 1
        return self.fault

    async def _commit(self, fault: Fault) -> None:
        match fault:
            case Fault.REJECT:
                raise Reject("never")
            case Fault.FAIL:
                raise RuntimeError("failed")
            case Fault.HANG:
                await asyncio.Event().wait()
            case Fault.STUBBORN:
                while not self.released.is_set():
                    try:
                        await self.released.wait()
                    except asyncio.CancelledError:
                        continue
            case Fault.SLOW:
                await asyncio.sleep(self.seconds)
            case Fault.BLOCK:
                time.sleep(self.seconds)  # noqa: ASYNC251  (that is the fault)
            case Fault.EXIT:
                raise SystemExit(1)
