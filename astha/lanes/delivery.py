"""Delivers a lane's queue to its subscriber, with retries.

The first attempt is a plain await. Only when it fails does tenacity come in, with that failure as its first attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, TypeAlias, TypeVar

import structlog

from astha.events import Event, EventBatch
from astha.lanes.error_policy import Action, treatment
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from registry.models import Row

log = structlog.get_logger(__name__)

T = TypeVar("T")
OnEvent: TypeAlias = Callable[[Event[Row]], Awaitable[None]]
OnTransaction: TypeAlias = Callable[[list[Event[Row]]], Awaitable[None]]
OnTransactions: TypeAlias = Callable[[list[list[Event[Row]]]], Awaitable[None]]

_CHUNK_EVENTS = 256
"""Events between two checks of lease and time slice."""

LEADERSHIP_POLL_S = 0.05
"""Time between two checks whether the lease is valid again."""

_TRANSACTIONS_EVENTS = 10_000
"""Events per call of a component that takes several transactions in one call."""

_TIME_SLICE_S = 0.005
"""After this time the worker yields to other lanes, if the subscriber itself never waits."""

_QUICK_S = 0.002
_MAX_BATCH_EVENTS = 256
"""Single-event transactions are delivered in batches while the component is quick: progress is then recorded once per
batch. A slower component gets them one by one, so that a crash repeats little."""


class Undeliverable(Exception):
    """The last attempt to deliver this event has failed."""

    def __init__(self, event: Event[Row], error: BaseException, attempts: int) -> None:
        hint = treatment(error).hint
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"{event.operation} of {event.table} at {event.position} failed {times}: {error!r} ({hint})")
        self.error = error


class DeliveryCancelled(Exception):
    """The lane no longer wants this delivery: see `Lane.wants_delivery`."""


class Delivery:
    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._policy = lane.policy
        self._clock = lane.clock
        self._calls = lane.calls
        self._intake = lane.intake
        self._queue = lane.intake.queue
        self._may_deliver = lane.context.may_deliver
        subscriber = lane.subscriber
        self._on_event: OnEvent = getattr(subscriber, "on_event", None)  # type: ignore[assignment]  # not used then
        self._on_transaction: OnTransaction | None = getattr(subscriber, "on_transaction", None)
        self._on_transactions: OnTransactions | None = getattr(subscriber, "on_transactions", None)
        self._call_name = "on_event" if self._on_transaction is None else "on_transaction"
        if self._on_transactions is not None:
            self._call_name = "on_transactions"
        self._spans = lane.spans
        self._deliver = self._deliver_batch if self._spans is None else self._deliver_traced
        self._done = 0  # events done of the batch in progress, if they are delivered one by one
        self._batch_events = 1  # grows while the component is quick
        self._slice_ends = 0.0

    async def deliver_queue(self) -> None:
        """Delivers until the queue is empty or the lane is not live. Raises `Undeliverable` for an event whose attempts
        are exhausted, `DeliveryCancelled` if the lane no longer wants it.
        """
        status, queue, intake = self._lane.status, self._queue, self._intake
        while queue and status.state is LaneState.LIVE and not self._calls.ended:
            batch = self._take(self._batch_events)
            began = intake.progress_at = self._clock.monotonic()
            await self._deliver(batch, queue.delivered)
            if not self._complete(batch):
                return
            quick = self._clock.monotonic() - began < _QUICK_S
            self._batch_events = min(self._batch_events * 2, _MAX_BATCH_EVENTS) if quick else 1

    async def deliver_first(self) -> bool:
        """Delivers the first transaction of the queue, if there is one. Returns False if the lane no longer wants it;
        raises as `deliver_queue`.
        """
        if not self._queue:
            return True
        batch = self._take(1)
        await self._deliver(batch, self._queue.delivered)
        return self._complete(batch)

    def keep_undelivered(self) -> None:
        """After `Undeliverable`: events of the batch that were delivered before it are not delivered again."""
        delivered = self._queue.advance(self._done)
        if delivered is not None:
            self._intake.advance(delivered.position)
            self._lane.counts.count(delivered, self._clock.now_ms())
        self._batch_events = 1

    def start_time_slice(self) -> None:
        """The worker has waited: its next delivery begins a new time slice."""
        self._slice_ends = 0.0

    def _take(self, events: int) -> EventBatch:
        """Returns what is delivered together; `events` limits it for components that take single events."""
        if self._on_transactions is not None:
            return self._queue.gather(_TRANSACTIONS_EVENTS)
        if self._on_transaction is not None:
            return self._queue.head_transaction()
        return self._queue.head(events)

    def _complete(self, batch: EventBatch) -> bool:
        """Returns False if the lane no longer wants the batch; its queue has been discarded then."""
        self._calls.settle()
        if not self._lane.wants_delivery():
            return False
        self._lane.breaker.succeeded()
        self._queue.done()
        self._intake.advance(batch.position)
        self._lane.counts.count(batch, self._clock.now_ms())
        return True

    async def _deliver_traced(self, batch: EventBatch, start: int) -> None:
        if self._spans is None or not batch.traced():
            await self._deliver_batch(batch, start)
            return
        cancelled: DeliveryCancelled | None = None
        with self._spans.delivering(batch) as span:
            try:
                await self._deliver_batch(batch, start)
            except DeliveryCancelled as error:  # no failure
                cancelled = error
                span.event("delivery cancelled", state=str(self._lane.state), reason=str(self._lane.reason))
        if cancelled is not None:
            raise cancelled

    async def _deliver_batch(self, batch: EventBatch, start: int) -> None:
        """Delivers all events in order; to a component that takes single events, those from `start` on."""
        self._done = 0
        if self._clock.monotonic() >= self._slice_ends:
            await self._yield()
        if self._on_transactions is not None:
            transactions = [transaction.events for transaction in batch.transactions]
            await self._deliver_whole(self._on_transactions, transactions, batch.events[0])
        elif self._on_transaction is not None:
            await self._deliver_whole(self._on_transaction, batch.events, batch.events[0])
        else:
            await self._deliver_each(batch.events, start)

    async def _deliver_whole(self, function: Callable[[T], Awaitable[None]], argument: T, event: Event[Row]) -> None:
        """`event` names all of them in the error."""
        if self._calls.check_first or not self._may_deliver():
            await self._check_wanted()
        error = await self._calls.call(function, argument, self._policy.delivery_timeout_s)
        if error is not None:
            await self._retry(function, argument, event, error)

    async def _deliver_each(self, events: list[Event[Row]], start: int) -> None:
        self._done = start
        while self._done < len(events):
            if self._calls.check_first or not self._may_deliver():
                await self._check_wanted()
            stop = min(len(events), self._done + _CHUNK_EVENTS)
            self._done, error = await self._calls.call_each(
                self._on_event, events, self._done, stop, self._policy.delivery_timeout_s
            )
            if error is not None:
                await self._retry(self._on_event, events[self._done], events[self._done], error)
                self._done += 1
            elif self._done < len(events) and self._clock.monotonic() >= self._slice_ends:
                await self._yield()

    async def _check_wanted(self) -> None:
        """Waits until the lease is valid. Raises `DeliveryCancelled` if the next call is no longer wanted."""
        self._calls.check_first = False
        self._calls.settle()
        while self._lane.wants_delivery():
            if self._may_deliver():
                return
            await self._clock.sleep(LEADERSHIP_POLL_S)
        raise DeliveryCancelled

    async def _yield(self) -> None:
        if self._slice_ends:
            self._lane.yielding = not self._intake.behind  # the stream does not wait for a lane that reads again
            try:
                await asyncio.sleep(0)
            finally:
                self._lane.yielding = False
        self._slice_ends = self._clock.monotonic() + _TIME_SLICE_S

    async def _retry(
        self, function: Callable[[Any], Awaitable[None]], argument: object, event: Event[Row], failure: BaseException
    ) -> None:
        """The first attempt has failed with `failure`."""
        with nullcontext() if self._spans is None else self._spans.retrying(event.commit):
            await self._attempt_again(function, argument, event, failure)

    async def _attempt_again(
        self, function: Callable[[Any], Awaitable[None]], argument: object, event: Event[Row], failure: BaseException
    ) -> None:
        retrying = self._lane.backoff.retrying(
            self._clock, retry_on=self._worth_retrying, attempts=self._policy.attempts, on_retry=self._note_retry
        )
        error: BaseException | None = failure
        attempts = 0
        try:
            async for attempt in retrying:
                attempts = attempt.retry_state.attempt_number
                with attempt:
                    if attempts > 1:
                        if self._calls.check_first or not self._may_deliver():
                            await self._check_wanted()
                        error = await self._calls.call(function, argument, self._policy.delivery_timeout_s)
                    if error is not None:
                        self._lane.context.failures.note(self._lane.name, self._call_name, error)
                        raise error
            self._lane.failure = None
        except (asyncio.CancelledError, DeliveryCancelled):
            raise
        except BaseException as last:
            self._lane.failed("delivery", last, attempts, 0.0)
            raise Undeliverable(event, last, attempts) from last

    def _worth_retrying(self, error: BaseException) -> bool:
        """Called once for each failed attempt. A failed trial of a half-open circuit is not repeated."""
        if isinstance(error, (asyncio.CancelledError, DeliveryCancelled)) or not self._lane.wants_delivery():
            return False
        self._lane.counts.failed_deliveries += 1
        opened = self._lane.breaker.failed(error)
        if self._spans is not None:
            self._spans.note_failure(error, circuit_opened=opened)
        return treatment(error).action is Action.RETRY and not opened

    def _note_retry(self, error: BaseException, failures: int, wait_s: float) -> None:
        self._lane.failed("delivery", error, failures, wait_s)
        log.warning(
            "delivery failed, will be retried",
            component=self._lane.name,
            attempt=failures,
            attempts=self._policy.attempts,
            error=repr(error),
            hint=treatment(error).hint,
            wait_s=round(wait_s, 3),
        )
