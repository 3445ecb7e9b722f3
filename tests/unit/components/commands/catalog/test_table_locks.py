from __future__ import annotations

import asyncio

from components.commands.catalog.names import TableIdentity
from components.commands.catalog.table_locks import TableLocks

A, B = TableIdentity("n", "a"), TableIdentity("n", "b")


async def test_holders_of_one_table_follow_each_other_in_order() -> None:
    locks, seen = TableLocks(10), list[int]()

    async def work(number: int) -> None:
        async with locks.hold([A]):
            seen.append(number)
            await asyncio.sleep(0)
            seen.append(number)

    await asyncio.gather(*(work(number) for number in range(5)))
    assert seen == [number for number in range(5) for _ in range(2)]


async def test_tables_in_any_order_do_not_deadlock() -> None:
    locks = TableLocks(10)

    async def work(*tables: TableIdentity) -> None:
        for _ in range(20):
            async with locks.hold(tables):
                await asyncio.sleep(0)

    await asyncio.wait_for(asyncio.gather(work(A, B), work(B, A), work(A), work(B)), 60)


async def test_waiting_for_a_table_takes_no_slot() -> None:
    locks, release = TableLocks(2), asyncio.Event()

    async def wait_with(table: TableIdentity) -> None:
        async with locks.hold([table]):
            await release.wait()

    waiting = [asyncio.create_task(wait_with(A)) for _ in range(5)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        async with locks.hold([B]):
            pass
    release.set()
    await asyncio.gather(*waiting)


async def test_at_most_so_many_work_at_once() -> None:
    locks, working, most = TableLocks(3), 0, 0

    async def work(number: int) -> None:
        nonlocal working, most
        async with locks.hold([TableIdentity("n", str(number))]):
            working += 1
            most = max(most, working)
            await asyncio.sleep(0)
            working -= 1

    await asyncio.gather(*(work(number) for number in range(20)))
    assert most == 3


async def test_a_cancelled_holder_lets_the_next_one_in() -> None:
    locks = TableLocks(1)

    async def forever() -> None:
        async with locks.hold([A]):
            await asyncio.Event().wait()

    holding, waiting = asyncio.create_task(forever()), asyncio.create_task(forever())
    await asyncio.sleep(0)
    waiting.cancel()
    holding.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)
    async with asyncio.timeout(60), locks.hold([A]):
        pass
