"""Handing transactions to one subscriber, with retries.

The first attempt is a plain await. Only when it fails does tenacity come in, with that failure as its first attempt.
A deadline costs one clock reading: the lane's watchdog looks at it now and then and cancels what is overdue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from astha.clock import LoopClock
from astha.events import Event, Transaction
from astha.lanes.breaker import Breaker
from astha.lanes.policy import Action, treatment
from astha.subscribers.contract import Subscriber
from astha.subscribers.policy import LanePolicy
from registry.models import Row

log = structlog.get_logger(__name__)

_FAIRNESS = 256
"""Events after which other lanes get a turn, if the subscriber itself never waits."""


def backoff(policy: LanePolicy, failures: int, clock: LoopClock) -> float:
    """Exponential with jitter, but never less than half: a retry at once helps nobody."""
    limit: float = min(policy.backoff_max_s, policy.backoff_initial_s * 2 ** min(failures - 1, 30))
    return limit * (0.5 + 0.5 * clock.chance())


class Dropped(Exception):
    """The event was given up: the component owes a refresh."""

    def __init__(self, event: Event[Row], error: BaseException, attempts: int) -> None:
        hint = treatment(error).hint
        super().__init__(
            f"{event.operation} of {event.table} at {event.position} failed {attempts} times: {error!r} ({hint})"
        )
        self.error = error


class Overdue(TimeoutError):
    """A delivery took longer than its timeout."""


class Alarm(Protocol):
    """Who watches the clock while a call runs."""

    def expect(self, deadline: float) -> None: ...

    def relax(self) -> None: ...

    def expired(self) -> bool:
        """Whether the cancellation just caught was the alarm's own. Asking resets it."""
        ...

    def wanted(self) -> bool:
        """Whether anybody still waits for this delivery."""
        ...


class Delivery:
    def __init__(
        self, name: str, subscriber: Subscriber, policy: LanePolicy, clock: LoopClock, breaker: Breaker, alarm: Alarm
    ) -> None:
        self._name = name
        self._policy = policy
        self._clock = clock
        self._breaker = breaker
        self._alarm = alarm
        self._on_event = subscriber.on_event
        self._on_transaction: Callable[[list[Event[Row]]], Awaitable[None]] | None = getattr(
            subscriber, "on_transaction", None
        )
        self.attempts = 0
        self.failures = 0

    async def deliver(self, transaction: Transaction) -> None:
        """All events of it, in order. Raises Dropped for an event that can't be delivered."""
        if self._on_transaction is not None:
            events = transaction.events
            await self._once(self._on_transaction, events, events[0])
        else:
            on_event, once = self._on_event, self._once
            for number, event in enumerate(transaction.events):
                await once(on_event, event, event)
                if number % _FAIRNESS == _FAIRNESS - 1:
                    await asyncio.sleep(0)
        self._breaker.succeeded()

    async def _once(self, call: Callable[[Any], Awaitable[None]], argument: object, event: Event[Row]) -> None:
        self._alarm.expect(self._clock.monotonic() + self._policy.delivery_timeout_s)
        self.attempts += 1
        try:
            await call(argument)
        except asyncio.CancelledError:
            if not self._alarm.expired():
                raise
            failure: BaseException = Overdue(f"no answer within {self._policy.delivery_timeout_s:g} s")
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            failure = error
        else:
            return
        finally:
            self._alarm.relax()
        await self._again(call, argument, event, failure)

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
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise Dropped(event, error, attempts) from error

    async def _attempt(self, call: Callable[[Any], Awaitable[None]], argument: object) -> None:
        self._alarm.expect(self._clock.monotonic() + self._policy.delivery_timeout_s)
        self.attempts += 1
        try:
            await call(argument)
        except asyncio.CancelledError as error:
            if not self._alarm.expired():
                raise
            raise Overdue(f"no answer within {self._policy.delivery_timeout_s:g} s") from error
        finally:
            self._alarm.relax()

    def _worth_another(self, error: BaseException) -> bool:
        """Called once for each failed attempt."""
        if isinstance(error, asyncio.CancelledError) or not self._alarm.wanted():
            return False
        self.failures += 1
        opened = self._breaker.failed(error)
        return treatment(error).action is Action.RETRY and not opened

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
