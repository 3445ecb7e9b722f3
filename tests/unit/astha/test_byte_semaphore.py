from __future__ import annotations

import asyncio

import pytest

from astha.byte_semaphore import ByteSemaphore


class Closed(Exception):
    pass


async def _waiting(semaphore: ByteSemaphore, size: int) -> asyncio.Task[None]:
    task = asyncio.create_task(semaphore.acquire(size))
    await asyncio.sleep(0)
    return task


async def test_callers_are_granted_in_order_of_arrival() -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(8)
    large = await _waiting(semaphore, 5)
    small = await _waiting(semaphore, 1)  # would fit, but is not the first
    assert not large.done()
    assert not small.done()
    assert not semaphore.try_acquire(1)
    semaphore.release(8)
    await asyncio.gather(large, small)
    assert (semaphore.acquired, semaphore.available) == (6, 4)


async def test_a_request_above_the_limit_is_granted_alone() -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(50)
    assert semaphore.available == 0
    after = await _waiting(semaphore, 1)
    assert not after.done()
    semaphore.release(50)
    await after


async def test_try_acquire_never_waits() -> None:
    semaphore = ByteSemaphore(10)
    assert semaphore.try_acquire(8)
    assert not semaphore.try_acquire(3)
    assert semaphore.try_acquire(2)
    semaphore.release(10)
    assert semaphore.available == 10


async def test_a_cancelled_caller_holds_nothing() -> None:
    semaphore = ByteSemaphore(10)
    await semaphore.acquire(10)
    first, second = await _waiting(semaphore, 10), await _waiting(semaphore, 3)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    semaphore.release(7)
    await second
    assert semaphore.acquired == 6
    third = await _waiting(semaphore, 10)
    semaphore.release(6)
    third.cancel()  # just after it was granted
    await asyncio.gather(third, return_exceptions=True)
    assert semaphore.acquired == 0


async def test_closing_fails_waiting_callers() -> None:
    semaphore = ByteSemaphore(1)
    await semaphore.acquire(1)
    waiting = await _waiting(semaphore, 1)
    semaphore.close(Closed())
    with pytest.raises(Closed):
        await waiting
