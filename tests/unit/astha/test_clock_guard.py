"""When the wall clock is trusted."""

from __future__ import annotations

from astha.clock_guard import ClockGuard, ClockSettings
from astha.testing import ManualClock
from registry.models import DatabaseTime

SETTLE_S = 900.0
HOUR_S = 3600.0


class Database:
    """With a clock of its own, or none."""

    def __init__(self, clock: ManualClock, *, newest_s: float | None = None, ahead_s: float | None = None) -> None:
        self._clock = clock
        self.newest = None if newest_s is None else clock.now_ms() + int(newest_s * 1000)
        self._start = None if ahead_s is None else clock.now_ms() - clock.monotonic() * 1000 + ahead_s * 1000

    async def time(self) -> DatabaseTime:
        now = None if self._start is None else int(self._start + self._clock.monotonic() * 1000)
        return DatabaseTime(now, self.newest)


async def guarded(clock: ManualClock, **database: float) -> ClockGuard:
    guard = ClockGuard(clock, ClockSettings(settle_s=SETTLE_S), Database(clock, **database).time)
    await guard.begin()
    return guard


async def test_a_clock_that_follows_the_monotonic_one_is_trusted() -> None:
    clock = ManualClock()
    guard = await guarded(clock)
    for _ in range(100):
        await clock.advance(HOUR_S)
        assert await guard.trusted()
    assert guard.jumps == 0


async def test_after_a_jump_the_new_time_must_be_stable() -> None:
    clock = ManualClock()
    guard = await guarded(clock)
    for by_s in (2 * HOUR_S, -HOUR_S):
        clock.jump(by_s)
        assert not await guard.trusted()
        assert f"jumped by {by_s:+.0f} s" in (guard.reason or "")
        await clock.advance(SETTLE_S - 1)
        assert not guard.steady()
        await clock.advance(1)
        assert guard.steady()
    assert guard.jumps == 2


async def test_a_glitch_is_forgotten_when_the_clock_is_back() -> None:
    clock = ManualClock()
    guard = await guarded(clock)
    clock.jump(2 * HOUR_S)
    assert not guard.steady()
    await clock.advance(5)
    clock.jump(-2 * HOUR_S)
    assert await guard.trusted()


async def test_a_second_jump_restarts_the_wait() -> None:
    clock = ManualClock()
    guard = await guarded(clock)
    for _ in range(10):
        clock.jump(HOUR_S)
        assert not guard.steady()
        await clock.advance(SETTLE_S * 0.9)
        assert not guard.steady()


async def test_a_clock_that_is_adjusted_gradually_is_followed() -> None:
    clock = ManualClock()
    guard = await guarded(clock)
    for _ in range(1_000):
        await clock.advance(300)
        clock.jump(0.15)  # 500 parts in a million, NTP's limit
        assert guard.steady()


async def test_many_small_steps_are_detected() -> None:
    clock = ManualClock()
    guard = await guarded(clock)
    for _ in range(10):
        clock.jump(30)
        await clock.advance(1)
        guard.steady()
    assert not guard.steady()


async def test_the_clock_is_not_trusted_while_it_differs_from_the_databases() -> None:
    """Also from the start, and for as long as it does: no jump is seen by a process that starts with a wrong clock."""
    clock = ManualClock()
    guard = await guarded(clock, ahead_s=-2 * HOUR_S)
    await clock.advance(10 * SETTLE_S)
    assert not await guard.trusted()
    assert "+7200 s off the database's" in (guard.reason or "")
    clock.jump(-2 * HOUR_S)
    assert not await guard.trusted(), "a jump, which has to hold"
    await clock.advance(SETTLE_S)
    assert await guard.trusted()


async def test_a_start_long_after_the_newest_time_in_the_registry_waits() -> None:
    """A wrong clock can't be distinguished from a long stop: both wait once."""
    clock = ManualClock()
    guard = await guarded(clock, newest_s=-2 * HOUR_S)
    assert not await guard.trusted()
    await clock.advance(SETTLE_S)
    assert await guard.trusted()


async def test_a_start_soon_after_the_last_stop_does_not_wait() -> None:
    assert await (await guarded(ManualClock(), newest_s=-30)).trusted()
    assert await (await guarded(ManualClock(), newest_s=3)).trusted(), "the lease of a daemon that was killed"
