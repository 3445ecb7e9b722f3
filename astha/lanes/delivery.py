"""Handing transactions to one subscriber, with retries.

The first attempt is a plain await. Only when it fails does tenacity come in, with that failure as its first attempt.
Nobody reads a clock for each event: the lane's watchdog looks now and then whether it is still the same call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, TypeVar

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from astha.clock import LoopClock
from astha.events import Event, EventBatch
from astha.lanes.breaker import Breaker
from astha.lanes.error_policy import Action, treatment
from astha.lanes.queue import LaneQueue
from astha.subscribers.contract import Subscriber
from astha.subscribers.lane_policy import LanePolicy
from registry.models import Row

log = structlog.get_logger(__name__)

T = TypeVar("T")
Whole: TypeAlias = Callable[[list[Event[Row]]], Awaitable[None]]
Batch: TypeAlias = Callable[[list[list[Event[Row]]]], Awaitable[None]]

_PIECE = 256
"""Events between two looks at the clock."""

_DOUBT_S = 0.05
"""Between two looks whether leadership is certain again."""

_BATCH = 10_000
"""Events handed over together to a component that takes several transactions in one call."""

_TURN_S = 0.005
"""After so long the other lanes get a turn, if the subscriber itself never waits."""


def backoff(policy: LanePolicy, failures: int, clock: LoopClock) -> float:
    """Exponential with jitter, but never less than half: a retry at once helps nobody."""
    limit: float = min(policy.backoff_max_s, policy.backoff_initial_s * 2 ** min(failures - 1, 30))
    return limit * (0.5 + 0.5 * clock.chance())


class Undeliverable(Exception):
    """The event was given up: the component owes a refresh."""

    def __init__(self, event: Event[Row], error: BaseException, attempts: int) -> None:
        hint = treatment(error).hint
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"{event.operation} of {event.table} at {event.position} failed {times}: {error!r} ({hint})")
        self.error = error


class CallTimeout(TimeoutError):
    """A delivery took longer than its timeout."""


class DeliveryCancelled(Exception):
    """Nobody waits for this delivery any more: the lane has been broken out, paused or ended."""


class LaneControl(Protocol):
    """The lane, as a delivery sees it."""

    def returned(self, error: BaseException | None) -> BaseException | None:
        """A call has come back, however it ended. Answers what to make of its error; raises it if the lane itself is
        being cancelled.
        """
        ...

    def wanted(self) -> bool:
        """Whether anybody still waits for this delivery."""
        ...

    def may_deliver(self) -> bool:
        """False once leadership is in doubt."""
        ...

    def failed(self, call: str, error: BaseException) -> None:
        """A call of the component has raised, or was cancelled because it took too long."""
        ...


class Delivery:
    """`calls` counts the calls made, `calling` says that one is under way: all that a watchdog needs to see.

    `halted` makes it stop after the call under way and ask the lane before the next one.
    """

    def __init__(
        self,
        name: str,
        subscriber: Subscriber,
        policy: LanePolicy,
        clock: LoopClock,
        breaker: Breaker,
        lane: LaneControl,
    ) -> None:
        self._name = name
        self._policy = policy
        self._clock = clock
        self._breaker = breaker
        self._lane = lane
        self._may_deliver = lane.may_deliver
        self._on_event = subscriber.on_event
        self._on_transaction: Whole | None = getattr(subscriber, "on_transaction", None)
        self._on_transactions: Batch | None = getattr(subscriber, "on_transactions", None)
        whole = "on_event" if self._on_transaction is None else "on_transaction"
        self._call = whole if self._on_transactions is None else "on_transactions"
        self.calls = 0
        self.calling = False
        self.halted = False
        self.failures = 0
        self.done = 0  # events of the run that `deliver` was given; only of a component that gets them one by one
        self.once = False  # no retries: the lane itself waits between attempts
        self.out_of_breath = False  # has more to do at once, but lets others go first
        self._turn_ends = 0.0

    def take(self, queue: LaneQueue, quick: int) -> EventBatch:
        """What may be handed over together; `quick` events to who does not see where a transaction ends."""
        if self._on_transactions is not None:
            return queue.gather(_BATCH)
        return queue.head(quick if self._on_transaction is None else 1)

    async def deliver(self, batch: EventBatch, start: int = 0) -> None:
        """All events, in order; a component that gets them one by one, only those from `start` on. Raises Undeliverable for
        an event that can't be delivered, DeliveryCancelled if the lane was left meanwhile.
        """
        self.done = 0
        if self._clock.monotonic() >= self._turn_ends:
            await self._breathe()
        if self._on_transactions is not None:
            await self._whole(
                self._on_transactions, [transaction.events for transaction in batch.transactions], batch.events[0]
            )
        elif self._on_transaction is not None:
            await self._whole(self._on_transaction, batch.events, batch.events[0])
        else:
            events = batch.events
            self.done = start
            while self.done < len(events):
                if self.halted or not self._may_deliver():
                    await self._ask()
                self.done += await self._each(events, self.done)
        self._breaker.succeeded()

    async def _whole(self, call: Callable[[T], Awaitable[None]], argument: T, event: Event[Row]) -> None:
        """`event` stands for all of them if they are given up."""
        if self.halted or not self._may_deliver():
            await self._ask()
        self.calls += 1
        self.calling = True
        try:
            await call(argument)
        except BaseException as error:
            failure = self._failure(error)
        else:
            return
        finally:
            self.calling = False
        await self._again(call, argument, event, failure)

    async def _each(self, events: list[Event[Row]], start: int) -> int:
        """From `start` on, until one fails and has been retried, or a turn is over; answers how many are done."""
        on_event = self._on_event
        place = start
        stop = min(len(events), start + _PIECE)
        self.calling = True
        try:
            while place < stop and not self.halted:
                self.calls += 1
                await on_event(events[place])
                place += 1
        except BaseException as error:
            failure = self._failure(error)
        else:
            self.calling = False
            if place < len(events) and self._clock.monotonic() >= self._turn_ends:
                await self._breathe()
            return place - start
        finally:
            self.calling = False
        self.done = place
        await self._again(on_event, events[place], events[place], failure)
        self.done = start
        return place + 1 - start

    async def _ask(self) -> None:
        """Whether the next call is still wanted, and still ours to make."""
        self.halted = False
        self._lane.returned(None)
        while self._lane.wanted():
            if self._may_deliver():
                return
            await self._clock.sleep(_DOUBT_S)
        raise DeliveryCancelled

    def _failure(self, error: BaseException) -> BaseException:
        self.calling = False
        failure = self._lane.returned(error) or error
        if failure is not error:
            failure.__cause__ = error  # where it was when it was cancelled
        self._lane.failed(self._call, failure)
        return failure

    async def _breathe(self) -> None:
        if self._turn_ends:
            self.out_of_breath = True
            try:
                await asyncio.sleep(0)
            finally:
                self.out_of_breath = False
        self._turn_ends = self._clock.monotonic() + _TURN_S

    def rested(self) -> None:
        """The lane has waited for something: a new turn begins with the next delivery."""
        self._turn_ends = 0.0

    async def _again(
        self, call: Callable[[Any], Awaitable[None]], argument: object, event: Event[Row], failure: BaseException
    ) -> None:
        first: BaseException | None = failure
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._policy.attempts),
            wait=self._wait,
            sleep=self._clock.sleep,
            retry=retry_if_exception(self._worth_another),
            before_sleep=self._say,
            reraise=True,
        )
        attempts = 0
        try:
            async for attempt in retrying:
                attempts = attempt.retry_state.attempt_number
                with attempt:
                    if first is not None:
                        failure, first = first, None
                        raise failure
                    await self._attempt(call, argument)
        except (asyncio.CancelledError, DeliveryCancelled):
            raise
        except BaseException as error:
            raise Undeliverable(event, error, attempts) from error

    async def _attempt(self, call: Callable[[Any], Awaitable[None]], argument: object) -> None:
        if self.halted or not self._may_deliver():
            await self._ask()
        self.calls += 1
        self.calling = True
        try:
            await call(argument)
        except BaseException as error:
            failure = self._failure(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            self.calling = False

    def _worth_another(self, error: BaseException) -> bool:
        """Called once for each failed attempt."""
        if isinstance(error, (asyncio.CancelledError, DeliveryCancelled)) or not self._lane.wanted():
            return False
        self.failures += 1
        opened = self._breaker.failed(error)
        return treatment(error).action is Action.RETRY and not opened and not self.once

    def _wait(self, state: RetryCallState) -> float:
        return backoff(self._policy, state.attempt_number, self._clock)

    def _say(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert error is not None  # noqa: S101  (tenacity sleeps only after a failure)
        log.warning(
            "delivery failed, will retry",
            component=self._name,
            attempt=state.attempt_number,
            of=self._policy.attempts,
            error=repr(error),
            hint=treatment(error).hint,
            wait_s=round(state.upcoming_sleep, 3),
        )
