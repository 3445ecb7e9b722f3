"""Exponential backoff with jitter, by tenacity: the one definition that all retries share."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, stop_never

from astha.clock import LoopClock

_MOST_DOUBLINGS = 30


class Backoff(msgspec.Struct, frozen=True):
    """The wait doubles with each failure, from `initial_s` to `max_s`. Jitter takes off up to half of it, never more:
    an immediate retry rarely succeeds.
    """

    initial_s: float
    max_s: float

    def wait_s(self, failures: int, clock: LoopClock) -> float:
        """Returns the wait after that many failures in a row, counted from 1."""
        limit: float = min(self.max_s, self.initial_s * 2 ** min(max(failures - 1, 0), _MOST_DOUBLINGS))
        return limit * (0.5 + 0.5 * clock.chance())

    def retrying(
        self,
        clock: LoopClock,
        *,
        retry_on: Callable[[BaseException], bool],
        attempts: int | None = None,
        on_retry: Callable[[BaseException, int, float], None] | None = None,
    ) -> AsyncRetrying:
        """Returns tenacity's loop: ``async for attempt in ...: with attempt: ...``. The last error is raised as it is.

        `on_retry` is called before each wait, with the error, the number of failures and the seconds to wait.
        """

        def wait(state: RetryCallState) -> float:
            return self.wait_s(state.attempt_number, clock)

        def before_sleep(state: RetryCallState) -> None:
            error = None if state.outcome is None else state.outcome.exception()
            if on_retry is not None and error is not None:
                on_retry(error, state.attempt_number, state.upcoming_sleep)

        return AsyncRetrying(
            sleep=clock.sleep,
            wait=wait,
            retry=retry_if_exception(retry_on),
            stop=stop_never if attempts is None else stop_after_attempt(attempts),
            before_sleep=before_sleep,
            reraise=True,
        )
