"""A cancelled caller: its transaction is committed or rolled back, and the store stays usable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from registry.contract import MetadataStore
from registry.engines import StoreSettings
from registry.models import Segment, TableFile
from tests.contracts.contents import assert_counted, contents
from tests.fixtures.stores import OpenStore
from tests.samples import ONE_OF_EACH, TABLE, file, segment

SMALL_POOL = StoreSettings(pool_size=2, pool_overflow=0, pool_timeout_s=20.0)
"""So small that a few leaked connections would leave none."""


@pytest.fixture
async def tight(url: str, opened: OpenStore) -> MetadataStore:
    return await opened(url, SMALL_POOL)


POINTS = [("turns", float(turns)) for turns in range(40)] + [("ms", step / 4) for step in range(1, 40)]
"""When to cancel: after some turns of the loop, or some time, so that every wait of a verb is met."""


async def _cancelled(call: Callable[[], Awaitable[object]], point: tuple[str, float]) -> None:
    async def run() -> None:
        await call()

    task = asyncio.create_task(run())
    unit, amount = point
    if unit == "turns":
        for _ in range(int(amount)):
            await asyncio.sleep(0)
    else:
        await asyncio.wait({task}, timeout=amount / 1000)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_cancelled_at_any_point_a_verb_is_committed_or_rolled_back(
    store: MetadataStore, tight: MetadataStore
) -> None:
    """Creating a topic with partitions, adding late segments and files."""
    await store.create_topic("orders", 2)
    await store.add_segment(segment(1_000_000))  # so that the others are late: the long way on every backend
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    for number, point in enumerate(POINTS):
        await _cancelled(partial(tight.create_topic, f"topic-{number}", 3), point)
        base = number * 100
        drafts = [segment(base), segment(base + 10), segment(base, partition=1)]
        await _cancelled(partial(tight.add_segments, drafts), point)
        files = [file(f"{number}-{n}", partition=f"p{n}") for n in range(3)]
        await _cancelled(partial(tight.add_files, table.id, files), point)
    await asyncio.wait_for(tight.create_topic("last", 1), 30)  # the lock is free, the pool not empty
    found = await contents(store)
    for topic in await store.list_topics():
        assert len(await store.list_partitions(topic.name)) == topic.partition_count
    segments = [row for row in found["segments"] if isinstance(row, Segment)]
    for number in {row.base_offset // 100 for row in segments} - {10_000}:
        assert sum(row.base_offset // 100 == number for row in segments) == 3
    paths = [row.file_path for row in found["table_files"] if isinstance(row, TableFile)]
    assert all(sum(path.startswith(f"{start}-") for path in paths) == 3 for start in {p.split("-")[0] for p in paths})
    await assert_counted(store, table.id)


async def test_many_concurrent_cancellations_return_connections_and_lock(
    store: MetadataStore, tight: MetadataStore
) -> None:
    """Including callers that wait for a connection or for the write lock."""
    await store.create_topic("orders", 1)
    for turn in range(6):
        tasks = [asyncio.create_task(tight.add_segment(segment((turn * 20 + n) * 10))) for n in range(20)]
        for _ in range(turn * 7):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.wait_for(asyncio.gather(*(tight.list_topics() for _ in range(10))), 60)
    await asyncio.wait_for(tight.add_segment(segment(100_000)), 60)
    partition = await store.get_partition("orders", 0)
    assert partition is not None
    assert partition.high_watermark == 100_010
    assert len({row.base_offset for row in await store.get_segments("orders", 0)}) == len(
        await store.get_segments("orders", 0)
    )


async def test_a_cancelled_load_leaves_nothing(store: MetadataStore, tight: MetadataStore) -> None:
    before = await contents(store)
    entered = asyncio.Event()

    async def fill() -> None:
        async with tight.load() as load:
            for row in ONE_OF_EACH:
                await load.add([row])
            entered.set()
            await asyncio.Event().wait()

    for _ in range(4):  # more often than there are connections
        entered.clear()
        task = asyncio.create_task(fill())
        await asyncio.wait_for(entered.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await contents(tight) == before
    await asyncio.wait_for(tight.create_topic("orders", 1), 30)


async def test_a_cancelled_reader_releases_its_snapshot(store: MetadataStore, tight: MetadataStore) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        async with tight.consistent_read():
            entered.set()
            await asyncio.Event().wait()

    for _ in range(4):
        entered.clear()
        task = asyncio.create_task(hold())
        await asyncio.wait_for(entered.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.wait_for(tight.create_topic("orders", 1), 30)
