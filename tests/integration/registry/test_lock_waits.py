"""PostgreSQL: writers that wait for a lock must act on what they find when they get it, not on what they saw before.

Each test holds a row's lock, lets several verbs queue behind it one after the other, and lets go: every verb but the
first then runs with a snapshot that is older than what the ones before it have committed. The first is always first;
those behind it may pass each other, because they queue again for the version of the row that the first has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import psycopg
import pytest

from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict, Fenced, NotFound
from registry.inputs import Fence
from registry.models import LakeTable, PartitionLease
from tests.contracts.contents import assert_counted, contents
from tests.fixtures.stores import OpenStore
from tests.samples import TABLE, file, segment
from tests.waiting import eventually


@pytest.fixture
async def store(postgres_url: str, opened: OpenStore) -> MetadataStore:
    store = await opened(postgres_url)
    await store.create_topic("orders", 3)
    return store


@pytest.fixture
async def table(store: MetadataStore) -> LakeTable:
    return await store.create_table("db", "t", "s3://lake/t", TABLE)


async def _queued(url: str, lock: str, calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Returns the results of calls that all waited for the lock and got it in order."""

    async def waiting() -> int:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watcher:
            row = await (await watcher.execute(query)).fetchone()
            assert row is not None
            return int(row[0])

    tasks: list[asyncio.Future[Any]] = []
    async with await psycopg.AsyncConnection.connect(url) as holder:
        await holder.execute(lock.encode())
        for call in calls:
            tasks.append(asyncio.ensure_future(call))

            async def all_wait() -> bool:
                assert not any(task.done() for task in tasks), "one did not wait"
                return await waiting() >= len(tasks)

            await eventually(all_wait, f"{len(tasks)} calls wait for the lock")
        await holder.commit()
    return await asyncio.gather(*tasks, return_exceptions=True)


PARTITIONS = "SELECT FROM partitions FOR UPDATE"
TABLES = "SELECT FROM tables FOR UPDATE"


class TestSegments:
    async def test_an_overlap_with_an_earlier_writer_is_a_conflict(
        self, store: MetadataStore, postgres_url: str
    ) -> None:
        calls = [
            store.add_segments([segment(0), segment(0, partition=1)]),
            store.add_segments([segment(5), segment(10, partition=1)]),
            store.add_segment(segment(5)),
        ]
        first, second, third = await _queued(postgres_url, PARTITIONS, calls)
        assert first is None
        assert isinstance(second, Conflict)
        assert isinstance(third, Conflict)
        assert len((await contents(store))["segments"]) == 2

    async def test_watermarks_of_all_partitions_follow_all_writers(
        self, store: MetadataStore, postgres_url: str
    ) -> None:
        calls = [store.add_segments([segment(turn * 10, partition=n) for n in (2, 0, 1)]) for turn in range(5)]
        assert await _queued(postgres_url, PARTITIONS, calls) == [None] * 5
        assert [row.high_watermark for row in await store.list_partitions("orders")] == [50, 50, 50]
        assert len((await contents(store))["segments"]) == 15

    async def test_an_earlier_takeover_fences(self, store: MetadataStore, postgres_url: str) -> None:
        for agent in ("agent-1", "agent-2"):
            await store.register_agent(agent, "host:1")
        lease = await store.acquire_partition_lease("orders", 0, "agent-1", 1_000)
        fence = Fence("orders", 0, "agent-1", lease.epoch)
        calls: list[Awaitable[Any]] = [
            store.acquire_partition_lease("orders", 0, "agent-1", 1_000),  # a restarted agent: the next epoch
            store.add_segment(segment(0), fence=fence),
            store.release_partition_lease(lease),
        ]
        taken, added, released = await _queued(postgres_url, "SELECT FROM partition_leases FOR UPDATE", calls)
        assert isinstance(taken, PartitionLease)
        assert isinstance(added, Fenced)
        assert released is False
        assert await store.get_partition_lease("orders", 0) == taken
        assert (await contents(store))["segments"] == []

    async def test_a_topic_deleted_earlier_is_not_found(self, store: MetadataStore, postgres_url: str) -> None:
        calls: list[Awaitable[Any]] = [store.delete_topic("orders"), store.add_segment(segment(0))]
        deleted, added = await _queued(postgres_url, PARTITIONS, calls)
        assert deleted is None
        assert isinstance(added, NotFound)


class TestFiles:
    async def test_statistics_of_a_new_partition_count_all_writers(
        self, store: MetadataStore, table: LakeTable, postgres_url: str
    ) -> None:
        drafts = [[file(f"{n}-a", rows=n, partition="a"), file(f"{n}-b", partition=f"b{n % 2}")] for n in range(5)]
        results = await _queued(postgres_url, TABLES, [store.add_files(table.id, new) for new in drafts])
        assert [len(result) for result in results] == [2] * 5
        await assert_counted(store, table.id)

    async def test_a_file_removed_by_an_earlier_writer_is_a_conflict(
        self, store: MetadataStore, table: LakeTable, postgres_url: str
    ) -> None:
        files = await store.add_files(table.id, [file(str(n), partition=str(n % 2)) for n in range(4)])
        calls: list[Awaitable[Any]] = [
            store.swap_files(table.id, files[:2], [file("x")], operation_id="x"),
            store.swap_files(table.id, files[1:3], [file("y")], operation_id="y"),
            store.remove_files(table.id, files[2:], reason="z"),
        ]
        first, second, third = await _queued(postgres_url, TABLES, calls)
        assert [row.file_path for row in first] == ["x"]
        assert isinstance(second, Conflict)
        assert second.names in {("1",), ("1", "2")}  # the last two follow a new version of the row: either may be next
        assert third is None
        assert [row.file_path for row in await store.list_files(table.id)] == ["x"]
        await assert_counted(store, table.id)

    async def test_a_path_removed_by_an_earlier_writer_no_longer_awaits_deletion(
        self, store: MetadataStore, table: LakeTable, postgres_url: str
    ) -> None:
        files = await store.add_files(table.id, [file("1")])
        calls: list[Awaitable[Any]] = [
            store.remove_files(table.id, files, reason="x"),
            store.add_files(table.id, [file("1"), file("2")]),
        ]
        removed, added = await _queued(postgres_url, TABLES, calls)
        assert removed is None
        assert [row.file_path for row in added] == ["1", "2"]
        assert await store.list_files_awaiting_deletion() == []
        await assert_counted(store, table.id)

    async def test_a_path_added_by_an_earlier_writer_already_exists(
        self, store: MetadataStore, table: LakeTable, postgres_url: str
    ) -> None:
        calls = [store.add_files(table.id, [file("1"), file(str(n))]) for n in (2, 3)]
        first, second = await _queued(postgres_url, TABLES, calls)
        assert len(first) == 2
        assert isinstance(second, AlreadyExists)
        await assert_counted(store, table.id)

    async def test_an_earlier_recount_does_not_interfere(
        self, store: MetadataStore, table: LakeTable, postgres_url: str
    ) -> None:
        files = await store.add_files(table.id, [file(str(n), partition=str(n)) for n in range(3)])
        async with await psycopg.AsyncConnection.connect(postgres_url) as stranger:
            await stranger.execute("UPDATE table_stats SET row_count = 1000, total_size = 9999")
            await stranger.execute("DELETE FROM table_stats WHERE partition_path = '2'")
        calls: list[Awaitable[Any]] = [
            store.recount_statistics(table.id),
            store.remove_files(table.id, files[:1], reason="x"),
            store.add_files(table.id, [file("new", partition="2")]),
        ]
        counted, removed, added = await _queued(postgres_url, TABLES, calls)
        assert isinstance(counted, LakeTable)
        assert removed is None
        assert len(added) == 1
        await assert_counted(store, table.id)

    async def test_a_table_dropped_earlier_is_not_found(
        self, store: MetadataStore, table: LakeTable, postgres_url: str
    ) -> None:
        files = await store.add_files(table.id, [file("1")])
        calls: list[Awaitable[Any]] = [
            store.drop_table(table.id, purge=True),
            store.add_files(table.id, [file("1"), file("2")]),
            store.remove_files(table.id, files, reason="x"),
        ]
        dropped, added, removed = await _queued(postgres_url, TABLES, calls)
        assert dropped is None
        assert isinstance(added, NotFound)
        assert isinstance(removed, NotFound)
        assert [row.file_path for row in await store.list_files_awaiting_deletion()] == ["1"]
