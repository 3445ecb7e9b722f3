"""The daemon's lease and ledger have reserved connections: other work can't delay them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from registry.connect import Stores, open_stores
from registry.engines import StoreSettings
from registry.errors import Unavailable


@pytest.fixture
async def stores(url: str) -> AsyncIterator[Stores]:
    found = await open_stores(url, settings=StoreSettings(pool_size=1, pool_overflow=0, pool_timeout_s=0.2))
    yield found
    await found.close()


async def test_an_exhausted_pool_does_not_delay_the_lease(stores: Stores) -> None:
    async with stores.main.consistent_read():
        with pytest.raises(Unavailable, match="all connections are in use"):
            await stores.main.list_topics()
        lease = await stores.reserved.take_daemon_lease("astha", "one", 60_000)
        assert lease is not None
        assert await stores.reserved.renew_daemon_lease(lease, 60_000)
        assert await stores.reserved.read_ledger() == []


async def test_the_lease_is_renewed_before_earlier_work(url: str) -> None:
    stores = await open_stores(url, settings=StoreSettings(pool_size=2, pool_overflow=0, pool_timeout_s=60))
    try:
        lease = await stores.reserved.take_daemon_lease("astha", "one", 60_000)
        assert lease is not None
        work = [asyncio.create_task(stores.main.ensure_consumer_group(f"g{number}")) for number in range(300)]
        await asyncio.sleep(0)
        await stores.reserved.renew_daemon_lease(lease, 60_000)
        assert not all(task.done() for task in work), "it did not wait for its turn behind all of them"
        await asyncio.gather(*work)
    finally:
        await stores.close()
