"""`ManualClock`: time moves only when a test moves it."""

from __future__ import annotations

import asyncio

from astha.testing import ManualClock


async def test_sleepers_wake_in_order_of_their_time() -> None:
    clock, woken = ManualClock(), list[tuple[float, float]]()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    tasks = [asyncio.create_task(sleep(seconds)) for seconds in (3.0, 1.0, 2.0)]
    await clock.advance(2.5)
    assert woken == [(1.0, 1.0), (2.0, 2.0)]
    await clock.advance(0.5)
    assert woken[-1] == (3.0, 3.0)
    await asyncio.gather(*tasks)


def test_a_jump_changes_wall_time_only() -> None:
    clock = ManualClock()
    before = clock.now_ms()
    clock.jump(-60)
    assert (clock.now_ms() - before, clock.monotonic()) == (-60_000, 0.0)
