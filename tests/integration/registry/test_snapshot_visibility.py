"""PostgreSQL: which transactions a consistent read contains, by transaction ids and not by positions."""

from __future__ import annotations

import asyncio

import psycopg

from registry.models import Partition, Segment
from registry.position import Position
from tests.fixtures.stores import OpenStore
from tests.waiting import eventually

ANY = Position(0)  # PostgreSQL's visibility ignores positions


async def _moved(connection: psycopg.AsyncConnection, watermark: int) -> int:
    """Writes, and returns the transaction's id as the change stream carries it: 32 bits."""
    await connection.execute("UPDATE partitions SET high_watermark = %s", [watermark])
    cursor = await connection.execute("SELECT pg_current_xact_id()::text")
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0]) % 2**32


async def test_transactions_before_during_and_after_the_snapshot(postgres_url: str, opened: OpenStore) -> None:
    store = await opened(postgres_url)
    await store.create_topic("orders", 1)
    async with await psycopg.AsyncConnection.connect(postgres_url) as writer:
        before = await _moved(writer, 1)
        await writer.commit()
        running = await _moved(writer, 2)  # begun before the snapshot, committed after it
        async with await psycopg.AsyncConnection.connect(postgres_url) as second:
            await second.execute("CREATE TEMPORARY TABLE other (n int)")
            cursor = await second.execute("SELECT pg_current_xact_id()::text")
            row = await cursor.fetchone()
            assert row is not None
            other = int(row[0]) % 2**32
            await second.commit()  # begun after `running`, committed before the snapshot
        async with store.consistent_read() as read:
            await writer.commit()
            after = await _moved(writer, 3)
            await writer.commit()
            (rows,) = [page async for page in read.rows(Partition)]
            assert rows[0].high_watermark == 1
            contained = [read.visibility.contains(xid, ANY) for xid in (before, running, other, after)]
            assert contained == [True, False, True, False]
        async with store.consistent_read() as read:
            assert all(read.visibility.contains(xid, ANY) for xid in (before, running, other, after))


async def _wait_for_lock(url: str) -> None:
    """Returns when a session of this database waits for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watcher:

        async def waits() -> bool:
            return await (await watcher.execute(query)).fetchone() == (1,)

        await eventually(waits, "a session that waits for a lock")


async def test_a_truncation_waits_until_its_table_is_read(postgres_url: str, opened: OpenStore) -> None:
    """PostgreSQL would empty the table in this snapshot too, which does not contain the TRUNCATE."""
    store = await opened(postgres_url)
    await store.create_topic("orders", 1)

    async def truncate() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as writer:
            await writer.execute("TRUNCATE topics CASCADE")

    async with store.consistent_read([Partition.table]) as read:
        truncating = asyncio.create_task(truncate())
        await _wait_for_lock(postgres_url)
        assert await read.count(Partition) == 1
    await truncating
    async with store.consistent_read([Partition.table]) as read:
        assert await read.count(Partition) == 0


async def test_a_snapshot_that_waited_for_a_truncation_contains_it(postgres_url: str, opened: OpenStore) -> None:
    store = await opened(postgres_url)
    await store.create_topic("orders", 1)

    async def contains(xid: int) -> tuple[bool, int]:
        async with store.consistent_read([Partition.table]) as read:
            return read.visibility.contains(xid, ANY), await read.count(Partition)

    async with await psycopg.AsyncConnection.connect(postgres_url) as writer:
        xid = await _moved(writer, 1)
        await writer.execute("TRUNCATE partitions CASCADE")
        reading = asyncio.create_task(contains(xid))
        await _wait_for_lock(postgres_url)
        await writer.commit()
    assert await reading == (True, 0)


async def test_visibility_equals_the_rows_under_concurrent_writers(postgres_url: str, opened: OpenStore) -> None:
    """One row per transaction: the snapshot has the row exactly if its visibility contains the transaction."""
    store = await opened(postgres_url)
    await store.create_topic("orders", 4)
    written: dict[int, int] = {}
    stop = asyncio.Event()

    async def write(partition: int) -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            offset = 0
            while not stop.is_set():
                offset += 1
                await connection.execute(
                    "INSERT INTO segments (topic, partition_id, base_offset, end_offset, record_count, size_bytes, "
                    "s3_bucket, s3_key, byte_offset, created_at) VALUES ('orders', %s, %s, %s, 1, 1, 'b', 'k', 0, 0)",
                    [partition, offset, offset],
                )
                cursor = await connection.execute("SELECT pg_current_xact_id()::text")
                row = await cursor.fetchone()
                assert row is not None
                written[int(row[0])] = partition * 1_000_000 + offset
                await connection.commit()

    writers = [asyncio.create_task(write(partition)) for partition in range(4)]
    snapshots = []
    for _ in range(20):
        async with store.consistent_read() as read:
            held = {row.partition_id * 1_000_000 + row.base_offset async for page in read.rows(Segment) for row in page}
            snapshots.append((read.visibility, held))
    stop.set()
    await asyncio.gather(*writers)
    for visibility, held in snapshots:
        assert {key for xid, key in written.items() if visibility.contains(xid % 2**32, ANY)} == held
    assert len(snapshots[-1][1]) > len(snapshots[0][1])  # they did write meanwhile


async def test_a_position_is_not_below_an_acknowledged_commit(postgres_url: str, opened: OpenStore) -> None:
    store = await opened(postgres_url)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        for number in range(5):
            await store.create_topic(f"topic-{number}", 1)
            cursor = await connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
            row = await cursor.fetchone()
            assert row is not None
            assert await store.position() >= int(row[0])
