from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from astha.tasks import BackgroundTasks, cancel_and_wait, first_of, raise_if_cancelled, to_completion
from astha.testing import ManualClock


async def forever() -> None:
    await asyncio.Event().wait()


async def test_first_of_ends_the_others() -> None:
    ended = asyncio.Event()

    async def other() -> None:
        try:
            await forever()
        finally:
            ended.set()

    await first_of(other(), asyncio.sleep(0))
    assert ended.is_set()


async def test_first_of_raises_what_the_first_one_raised() -> None:
    async def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await first_of(forever(), fails())


async def test_first_of_cancelled_ends_all() -> None:
    running = [asyncio.ensure_future(forever()) for _ in range(2)]
    waiting = asyncio.create_task(first_of(*running))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(task.cancelled() for task in running)


async def test_cancel_and_wait_waits_through_a_second_cancellation() -> None:
    release, ended = asyncio.Event(), False

    async def slow_to_end() -> None:
        nonlocal ended
        try:
            await forever()
        finally:
            await release.wait()
            ended = True

    task = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)
    ending = asyncio.create_task(cancel_and_wait(task))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.sleep(0)
    assert not ending.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert ended


async def test_what_must_complete_completes_and_then_the_cancellation_is_raised() -> None:
    release, done, told = asyncio.Event(), False, 0

    async def work() -> int:
        nonlocal done
        await release.wait()
        done = True
        return 7

    def cancelled() -> None:
        nonlocal told
        told += 1

    task = asyncio.create_task(to_completion(work(), cancelled))
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done
    assert told == 1
    assert await to_completion(work()) == 7


async def test_an_error_of_what_must_complete_takes_precedence() -> None:
    release = asyncio.Event()

    async def fails() -> None:
        await release.wait()
        raise OSError("disk full")

    task = asyncio.create_task(to_completion(fails()))
    await asyncio.sleep(0)
    task.cancel()
    release.set()
    with pytest.raises(OSError, match="disk full"):
        await task


async def test_one_task_of_a_key_at_a_time() -> None:
    tasks = BackgroundTasks("test", ManualClock())
    assert tasks.start("a", forever())
    assert not tasks.start("a", forever())
    assert "a" in tasks
    assert len(tasks) == 1
    await tasks.stop()
    await asyncio.sleep(0)
    assert "a" not in tasks


async def test_a_failed_task_makes_room_for_the_next() -> None:
    tasks = BackgroundTasks("test", ManualClock())

    async def fails() -> None:
        raise OSError("no")

    tasks.start("a", fails())
    for _ in range(5):
        await asyncio.sleep(0)
    assert tasks.start("a", forever())
    await tasks.stop()


async def test_a_supervised_loop_is_started_again_and_shows_while_it_fails() -> None:
    clock, starts = ManualClock(), 0
    tasks = BackgroundTasks("test", clock)

    async def loop() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise OSError("no")
        if starts == 2:
            return
        await forever()

    tasks.supervise("loop", loop)
    await clock.advance(0)
    assert tasks.failing() == {"loop": "OSError('no')"}
    await clock.advance(0.75)
    assert tasks.failing() == {"loop": "ended unexpectedly"}
    await clock.advance(1.5)
    assert (starts, tasks.failing()) == (3, {})
    await tasks.stop()
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_a_cancellation_that_a_driver_replaces_by_its_own_error_is_raised() -> None:
    """A loop that catches the driver's errors would never end."""
    started = asyncio.Event()

    async def statement() -> None:
        started.set()
        try:
            await forever()
        except asyncio.CancelledError:
            raise OSError("the server's error") from None

    async def loop() -> None:
        while True:
            with suppress(OSError):
                await statement()
            raise_if_cancelled()
            await forever()

    task = asyncio.create_task(loop())
    await started.wait()
    await cancel_and_wait(task)
    assert task.cancelled()
