"""A component's circuit breaker: pybreaker, fed with the outcomes of asynchronous calls.

closed      calls are made; `breaker_failures` failures in a row open the circuit
open        no call is made before `breaker_reset_s` have passed
half-open   one trial: the refresh, or of a held component the delivery of its first event

A success is reported only after a failure: a delivery that succeeds at once does not pay for the breaker.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from pybreaker import STATE_CLOSED, CircuitBreaker, CircuitBreakerError, CircuitMemoryStorage

from astha.clock import LoopClock


class Breaker:
    def __init__(self, name: str, failures: int, reset_timeout_s: float, clock: LoopClock) -> None:
        self._storage = _MonotonicStorage(clock)
        self._breaker = CircuitBreaker(
            fail_max=failures,
            reset_timeout=reset_timeout_s,
            state_storage=self._storage,
            name=name,
            throw_new_error_on_trip=False,
        )

    @property
    def closed(self) -> bool:
        return bool(self._breaker.current_state == STATE_CLOSED)

    @property
    def state(self) -> str:
        return str(self._breaker.current_state)

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return int(self._breaker.fail_counter)

    @property
    def reset_in_s(self) -> float:
        """Time until an open circuit may be tried again."""
        return max(0.0, self._breaker.reset_timeout - self._storage.open_for_s)

    def open(self) -> None:
        """Opens the circuit, or restarts the reset timeout of an open one."""
        self._breaker.open()

    def begin_trial(self) -> None:
        """Half-opens a circuit that is not closed: the next outcome closes it or opens it again."""
        if not self.closed:
            self._breaker.half_open()

    def failed(self, error: BaseException) -> bool:
        """Counts a failure. Returns whether the circuit is open now."""

        def fail() -> None:
            raise _Failure from error

        with suppress(_Failure, CircuitBreakerError):
            self._breaker.call(fail)
        return not self.closed

    def succeeded(self) -> None:
        if self._storage.counter or self._storage.state != STATE_CLOSED:
            with suppress(CircuitBreakerError):  # the circuit was opened while the call was in flight
                self._breaker.call(_succeed)


class _MonotonicStorage(CircuitMemoryStorage):
    """Measures the reset timeout by the daemon's monotonic clock. pybreaker compares `opened_at` with the wall clock,
    which may jump.
    """

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(STATE_CLOSED)
        self._clock = clock
        self._opened = clock.monotonic()

    @property
    def open_for_s(self) -> float:
        return self._clock.monotonic() - self._opened

    @property
    def opened_at(self) -> datetime:
        return datetime.now(UTC) - timedelta(seconds=self.open_for_s)

    @opened_at.setter
    def opened_at(self, _: datetime) -> None:
        self._opened = self._clock.monotonic()


class _Failure(Exception):
    """Carries a failure of any kind, SystemExit included, into pybreaker."""


def _succeed() -> None:
    pass
