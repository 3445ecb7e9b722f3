from __future__ import annotations

import asyncio

import pytest

from astha.byte_semaphore import ByteSemaphore
from components.lib.streams.errors import WriterClosed


async def _waiting(room: ByteSemaphore, size: int) -> asyncio.Task[None]:
    task = asyncio.create_task(room.take(size))
    await asyncio.sleep(0)
    return task


async def test_who_finds_no_room_waits_in_order() -> None:
    room = ByteSemaphore(10)
    await room.take(8)
    large = await _waiting(room, 5)
    small = await _waiting(room, 1)  # would fit, but is not the first
    assert not large.done()
    assert not small.done()
    room.give_back(8)
    await asyncio.gather(large, small)
    assert room.taken == 6


async def test_what_is_larger_than_all_goes_alone() -> None:
    room = ByteSemaphore(10)
    await room.take(50)
    after = await _waiting(room, 1)
    assert not after.done()
    room.give_back(50)
    await after


async def test_who_goes_leaves_no_hole() -> None:
    room = ByteSemaphore(10)
    await room.take(10)
    first, second = await _waiting(room, 10), await _waiting(room, 3)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    room.give_back(7)
    await second
    assert room.taken == 6
    third = await _waiting(room, 10)
    room.give_back(6)
    third.cancel()  # just as its turn has come
    await asyncio.gather(third, return_exceptions=True)
    assert room.taken == 0


async def test_closing_refuses_those_who_wait() -> None:
    room = ByteSemaphore(1)
    await room.take(1)
    waiting = await _waiting(room, 1)
    room.close(WriterClosed("closed"))
    with pytest.raises(WriterClosed):
        await waiting
