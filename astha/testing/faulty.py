"""A subscriber that misbehaves on request."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum

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
    """Works like a `RecordingSubscriber` until `fault` is set; with `times`, only so many deliveries are hit."""

    def __init__(self, *tables: str, whole_transactions: bool = False) -> None:
        super().__init__(*tables, whole_transactions=whole_transactions)
        self.fault: Fault | None = None
        self.times: int | None = None
        self.seconds = 0.01
        self.hits = 0
        self.released = asyncio.Event()
        self.refresh_error: Exception | None = None

    def misbehave(self, fault: Fault, times: int | None = None, seconds: float = 0.01) -> None:
        self.fault, self.times, self.seconds = fault, times, seconds

    def behave(self) -> None:
        self.fault = None
        self.released.set()

    async def on_event(self, event: Event[Row]) -> None:
        fault = self._next_fault()
        if fault is Fault.FAIL_AFTER_EFFECT:
            await super().on_event(event)
            raise RuntimeError("failed after the effect")
        if fault is not None:
            await self._commit(fault)
        await super().on_event(event)

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        if self.refresh_error is not None:
            raise self.refresh_error
        await super().on_refresh(snapshot)

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
