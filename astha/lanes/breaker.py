"""A component's circuit breaker: pybreaker's states and counters, driven by what asynchronous calls did.

Success costs nothing unless there was a failure before it: the breaker is not asked about every event.
"""

from __future__ import annotations

from contextlib import suppress

from pybreaker import STATE_CLOSED, CircuitBreaker, CircuitBreakerError


class Breaker:
    def __init__(self, name: str, failures: int) -> None:
        self._breaker = CircuitBreaker(fail_max=failures, name=name, throw_new_error_on_trip=False)
        self._clean = True

    @property
    def closed(self) -> bool:
        return bool(self._breaker.current_state == STATE_CLOSED)

    @property
    def state(self) -> str:
        return str(self._breaker.current_state)

    @property
    def failures(self) -> int:
        return int(self._breaker.fail_counter)

    def failed(self, error: BaseException) -> bool:
        """Count a failure; True if the breaker is open now."""
        self._clean = False

        def fail() -> None:
            raise _Counted from error

        with suppress(_Counted, CircuitBreakerError):
            self._breaker.call(fail)
        return not self.closed

    def succeeded(self) -> None:
        if not self._clean:
            self._breaker.close()
            self._clean = True

    def trip(self) -> None:
        self._clean = False
        self._breaker.open()

    def close(self) -> None:
        self._breaker.close()
        self._clean = True


class _Counted(Exception):
    """Carries a failure of any kind, SystemExit included, into pybreaker."""
