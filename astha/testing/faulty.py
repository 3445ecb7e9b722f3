"""Subscribers that misbehave on request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import StrEnum
from typing import Any, cast

from astha.errors import Reject
from astha.events import Event
from astha.subscribers.contract import BatchSubscriber, EventSubscriber, Subscriber, TransactionSubscriber
from astha.testing.recording import RecordingSubscriber
from registry.contract import ConsistentRead
from registry.models import Row

_DELEGATED = ("durable", "start", "stop", "metrics", "problems", "work", "check", "written_areas")


class Fault(StrEnum):
    REJECT = "reject"  # raises Reject: this event can never be delivered
    FAIL = "fail"  # raises before any effect
    FAIL_AFTER_EFFECT = "fail after effect"  # raises after the effect, as a crash before the acknowledgement would
    HANG = "hang"  # never returns, but can be cancelled
    STUBBORN = "stubborn"  # never returns and ignores cancellation, until released
    SLOW = "slow"  # returns late
    BLOCK = "block"  # blocks the event loop
    EXIT = "exit"  # calls sys.exit


class Faults:
    """`misbehave` makes deliveries fail, with `times` only that many of them; `behave` ends all faults.

    `refresh_fault` does the same to refreshes, `refresh_error` is raised by them, `health` replaces `on_health`. `hits`
    counts the deliveries that were hit.
    """

    def __init__(self) -> None:
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

    async def _delivering(self, effect: Coroutine[Any, Any, None]) -> None:
        await self._around(self._next_fault(), effect)

    async def _refreshing(self, effect: Coroutine[Any, Any, None]) -> None:
        if self.refresh_error is not None:
            effect.close()
            raise self.refresh_error
        await self._around(self.refresh_fault, effect)

    async def _around(self, fault: Fault | None, effect: Coroutine[Any, Any, None]) -> None:
        try:
            if fault is not None and fault is not Fault.FAIL_AFTER_EFFECT:
                await self._inject(fault)
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

    async def _inject(self, fault: Fault) -> None:
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


class FaultySubscriber(Faults, RecordingSubscriber):
    """Works like a `RecordingSubscriber` until told to `misbehave`."""

    def __init__(self, *tables: str, whole_transactions: bool = False) -> None:
        Faults.__init__(self)
        RecordingSubscriber.__init__(self, *tables, whole_transactions=whole_transactions)

    async def on_event(self, event: Event[Row]) -> None:
        await self._delivering(super().on_event(event))

    async def _on_transaction(self, events: Sequence[Event[Row]]) -> None:
        await self._delivering(super()._on_transaction(events))

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        await self._refreshing(super().on_refresh(snapshot))

    async def on_health(self) -> bool:
        if self.health is not None:
            answer: bool = await self.health()
            return answer
        return await super().on_health()


class FaultInjector(Faults):
    """A component that works like the one inside until told to `misbehave`: for drills of your own components.

    It takes events at the same granularity and reports what the component reports, so a daemon can run it.
    """

    def __init__(self, component: Subscriber) -> None:
        super().__init__()
        self.component = component
        self.subscribed_tables = component.subscribed_tables
        for name in _DELEGATED:
            if hasattr(component, name):
                setattr(self, name, getattr(component, name))
        if isinstance(component, BatchSubscriber):
            self.on_transactions = self._delivery(component.on_transactions)
        elif isinstance(component, TransactionSubscriber):
            self.on_transaction = self._delivery(component.on_transaction)
        else:
            self.on_event = self._delivery(cast("EventSubscriber", component).on_event)

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        await self._refreshing(self.component.on_refresh(snapshot))

    async def on_health(self) -> bool:
        answer: bool = await (self.health or self.component.on_health)()
        return answer

    def _delivery(self, call: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Coroutine[Any, Any, None]]:
        async def delivery(argument: object) -> None:
            await self._delivering(cast("Coroutine[Any, Any, None]", call(argument)))

        return delivery
