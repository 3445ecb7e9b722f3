"""The write lock: one holder at a time, urgent callers first, and no cancellation leaves it locked."""

from __future__ import annotations

import asyncio

import pytest

from registry.stores.write_lock import WriteLock


class Writers:
    def __init__(self) -> None:
        self.lock = WriteLock()
        self.order: list[str] = []
        self.at_work = 0

    async def write(self, name: str, *, urgent: bool = False) -> None:
        async with self.lock.hold(urgent=urgent):
            self.at_work += 1
            try:
                assert self.at_work == 1
                await asyncio.sleep(0)
                self.order.append(name)
            finally:
                self.at_work -= 1


async def test_urgent_writers_go_first_and_the_others_keep_their_order() -> None:
    writers = Writers()
    async with asyncio.TaskGroup() as group, writers.lock.hold(urgent=False):
        for number in range(5):
            group.create_task(writers.write(f"work {number}"))
        await asyncio.sleep(0)
        group.create_task(writers.write("lease", urgent=True))
        await asyncio.sleep(0)
    assert writers.order == ["lease", *(f"work {number}" for number in range(5))]


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_writer_releases_the_lock(steps: int) -> None:
    """At every step: waiting, just granted, writing."""
    writers = Writers()
    tasks = [asyncio.create_task(writers.write(str(number))) for number in range(3)]
    for _ in range(steps):
        await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await asyncio.wait_for(writers.write("after"), 30)
    assert writers.order[-1] == "after"
    assert {"0", "2"} <= set(writers.order)
