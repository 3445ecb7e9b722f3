"""Pending refreshes are in the registry before the lane acknowledges."""

from __future__ import annotations

import asyncio
from typing import Any

from astha.clock import SystemLoopClock
from components.iceberg_updater.pending_refreshes import PendingRefreshes
from components.iceberg_updater.settings import UpdaterSettings


class SlowStore:
    """Its writes end when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.written: list[str] = []

    async def record_source_identity(self, _name: str, identity: str, **_: Any) -> None:
        await self.gate.wait()
        self.written.append(identity)


async def test_a_save_waits_for_the_one_in_flight() -> None:
    store = SlowStore()
    pending = PendingRefreshes(store, SystemLoopClock(), UpdaterSettings())  # type: ignore[arg-type]
    pending.add(7, "shop.orders", "storage does not answer")
    first, second = asyncio.create_task(pending.save()), asyncio.create_task(pending.save())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not second.done(), "the record is not in the registry yet"
    store.gate.set()
    await asyncio.gather(first, second)
    assert len(store.written) == 1


async def test_a_change_during_a_save_is_saved_by_the_next() -> None:
    store = SlowStore()
    pending = PendingRefreshes(store, SystemLoopClock(), UpdaterSettings())  # type: ignore[arg-type]
    pending.add(7, "shop.orders", "storage does not answer")
    first = asyncio.create_task(pending.save())
    await asyncio.sleep(0)
    pending.add(8, "shop.users", "storage does not answer")
    second = asyncio.create_task(pending.save())
    store.gate.set()
    await asyncio.gather(first, second)
    assert "shop.users" in store.written[-1]
