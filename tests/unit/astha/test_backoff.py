from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import AsyncRetrying

from astha.backoff import Backoff
from astha.testing import ManualClock


class Instant(ManualClock):
    """Sleeps are recorded and take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Chance(ManualClock):
    def __init__(self, chance: float) -> None:
        super().__init__()
        self._chance = chance

    def chance(self) -> float:
        return self._chance


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_the_wait_is_between_half_and_all_of_the_limit(failures: int, chance: float) -> None:
    backoff = Backoff(initial_s=0.1, max_s=30.0)
    limit = min(30.0, 0.1 * 2 ** min(failures - 1, 30))
    assert limit / 2 <= backoff.wait_s(failures, Chance(chance)) <= limit


async def test_retries_with_growing_waits_until_it_works() -> None:
    clock, calls = Instant(), 0
    told: list[tuple[str, int, float]] = []
    retrying = Backoff(1.0, 3.0).retrying(
        clock,
        retry_on=lambda error: isinstance(error, OSError),
        on_retry=lambda error, failures, wait_s: told.append((str(error), failures, wait_s)),
    )
    async for attempt in retrying:
        with attempt:
            calls += 1
            if calls < 5:
                raise OSError(f"no {calls}")
    assert calls == 5
    assert clock.slept == [0.75, 1.5, 2.25, 2.25]
    assert told == [("no 1", 1, 0.75), ("no 2", 2, 1.5), ("no 3", 3, 2.25), ("no 4", 4, 2.25)]


async def test_the_last_error_is_raised_as_it_is() -> None:
    clock = Instant()
    with pytest.raises(OSError, match="again"):
        await _failing_with(OSError("again"), Backoff(1.0, 3.0).retrying(clock, retry_on=lambda _: True, attempts=3))
    assert len(clock.slept) == 2


async def test_an_error_that_is_not_to_be_retried_is_raised_at_once() -> None:
    clock = Instant()
    retrying = Backoff(1.0, 3.0).retrying(clock, retry_on=lambda error: isinstance(error, OSError))
    with pytest.raises(ValueError, match="no"):
        await _failing_with(ValueError("no"), retrying)
    assert clock.slept == []


async def _failing_with(error: Exception, retrying: AsyncRetrying) -> None:
    async for attempt in retrying:
        with attempt:
            raise error
