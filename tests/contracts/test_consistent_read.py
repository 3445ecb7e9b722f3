"""Consistent reads, positions, and loading an empty registry."""

from __future__ import annotations

import asyncio

import msgspec
import psycopg
import pytest

from registry.contract import ConsistentRead, MetadataStore
from registry.engines import StoreSettings
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, RegistryError, Unavailable
from registry.inputs import OffsetDraft
from registry.models import PUBLISHED, UNPUBLISHED, ConsumerOffset, Partition, Row, Segment, Topic, UploadIntent
from registry.schema import table_of
from registry.stores.postgres import consistent_read
from tests.contracts.contents import contents
from tests.fixtures.stores import OpenStore
from tests.samples import ONE_OF_EACH, TABLE, file, segment, snapshot
from tests.waiting import eventually

ROWS_WITHOUT_PARENTS = [row for row in ONE_OF_EACH if not table_of(type(row)).foreign_keys]


async def _rows(read: ConsistentRead, kind: type[Row], page: int = 1_000) -> list[Row]:
    return [row async for rows in read.rows(kind, page=page) for row in rows]


async def _blocked(url: str, hasty: MetadataStore) -> None:
    """Whether a writer waits: PostgreSQL lists it; the others refuse a writer that does not wait."""
    if url.startswith(("sqlite", "dynamodb", "cockroachdb", "serializable")):
        with pytest.raises(Unavailable):
            await hasty.create_topic("hasty", 1)
        return
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watcher:

        async def waiting() -> bool:
            return await (await watcher.execute(query)).fetchone() == (1,)

        await eventually(waiting, "a writer that waits for a lock")


def _read_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's rows are read four at a time."""
    for name in ("_FIRST_ROWS", "_MOST_ROWS"):
        monkeypatch.setattr(consistent_read, name, 4)


class TestConsistentRead:
    async def test_later_commits_are_not_seen(self, store: MetadataStore, other: MetadataStore) -> None:
        await store.create_topic("orders", 1)
        async with store.consistent_read() as read:
            await other.create_topic("later", 1)
            await store.add_segment(segment(0))
            await store.delete_topic("orders")
            assert [row.name for row in await _rows(read, Topic) if isinstance(row, Topic)] == ["orders"]
            assert await read.count(Topic) == 1
            assert await read.count(Segment) == 0
        async with store.consistent_read() as read:
            assert await read.count(Topic) == 1
            assert [row.name for row in await _rows(read, Topic) if isinstance(row, Topic)] == ["later"]

    async def test_tables_read_later_belong_to_the_same_snapshot(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        """The snapshot is taken when the block begins, not when a table is first read."""
        async with store.consistent_read() as read:
            await other.create_topic("orders", 3)
            assert await read.count(Partition) == 0

    @pytest.mark.parametrize("page", [1, 2, 3, 7, 100])
    async def test_pages_are_complete_and_in_key_order(self, store: MetadataStore, page: int) -> None:
        await store.ensure_consumer_group("g/1".replace("/", "-"))
        for name in ("b", "a", "ä", "B"):
            await store.create_topic(name, 3)
            await store.commit_offsets("g-1", [OffsetDraft(name, number, 1) for number in range(3)])
        async with store.consistent_read() as read:
            pages = [rows async for rows in read.rows(Partition, page=page)]
            assert all(len(rows) == page for rows in pages[:-1])
            keys = [(row.topic, row.partition_id) for rows in pages for row in rows]
            names = sorted(("b", "a", "ä", "B"), key=str.encode)
            assert keys == [(name, number) for name in names for number in range(3)]
            offsets = await _rows(read, ConsumerOffset, page)
            assert len(offsets) == 12
            assert [row async for rows in read.rows(Segment, page=page) for row in rows] == []

    async def test_writers_are_not_blocked(self, store: MetadataStore, other: MetadataStore) -> None:
        await store.create_topic("orders", 1)
        async with store.consistent_read() as read, store.consistent_read() as second:
            for base in range(0, 50, 10):
                await asyncio.wait_for(other.add_segment(segment(base)), 30)
                await asyncio.wait_for(store.commit_offsets("none", []), 30)
            assert await read.count(Segment) == await second.count(Segment) == 0

    async def test_rows_with_and_without_values(self, store: MetadataStore) -> None:
        """Columns that may be NULL, text that is not ASCII, numbers at their limits."""
        whole = msgspec.structs.replace(
            segment(0), s3_key="schlüssel/\t\\n☃", min_timestamp=0, max_timestamp=2**63 - 1, block_index="é"
        )
        await store.create_topic("orders", 1)
        await store.add_segment(whole)
        await store.add_segment(segment(10))
        async with store.consistent_read() as read:
            first, second = [row for row in await _rows(read, Segment) if isinstance(row, Segment)]
        assert [first, second] == await store.get_segments("orders", 0)
        assert (first.s3_key, first.max_timestamp, first.block_index) == (whole.s3_key, 2**63 - 1, "é")
        assert second.block_index is None

    async def test_text_with_control_characters(self, store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """The separator of PostgreSQL's packed rows among them."""
        _read_little(monkeypatch)
        await store.create_topic("orders", 1)
        keys = ["a", "+", "b\x1fc", "\x1f", *(f"k{number}" for number in range(8)), "\x01\t\n\r\x1e\x7f"]
        for number, key in enumerate(keys):
            row = msgspec.structs.replace(segment(10 * number), s3_key=key, block_index=key if number % 2 else None)
            await store.add_segment(row)
        async with store.consistent_read() as read:
            rows = [row for row in await _rows(read, Segment, 5) if isinstance(row, Segment)]
        assert rows == await store.get_segments("orders", 0)
        assert [row.s3_key for row in rows] == keys

    async def test_other_reads_while_one_is_not_at_its_end(
        self, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _read_little(monkeypatch)
        await store.create_topic("orders", 50)
        async with store.consistent_read() as read:
            partitions = 0
            async for rows in read.rows(Partition, page=10):
                partitions += len(rows)
                assert await read.count(Topic) == 1
                assert len([row async for found in read.rows(Partition, page=7) for row in found]) == 50
            assert partitions == 50
            several = [_rows(read, Partition, page) for page in (3, 11, 100)]
            assert [len(rows) for rows in await asyncio.gather(*several)] == [50, 50, 50]

    async def test_reads_that_are_given_up(self, store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
        async def fail() -> None:
            async with store.consistent_read() as read:
                async for _ in read.rows(Partition, page=10):
                    raise ZeroDivisionError

        _read_little(monkeypatch)
        await store.create_topic("orders", 50)
        for _ in range(3):
            async with store.consistent_read() as read:
                async for _ in read.rows(Partition, page=10):
                    break
                assert await read.count(Partition) == 50
                async for _ in read.rows(Partition, page=10):
                    break
            with pytest.raises(ZeroDivisionError):
                await fail()
        await store.create_topic("later", 1)

    async def test_a_page_size_of_zero_is_refused(self, store: MetadataStore) -> None:
        async with store.consistent_read() as read:
            for page in (0, -1):
                with pytest.raises(Invalid, match="page"):
                    await anext(aiter(read.rows(Topic, page=page)))

    async def test_errors_of_the_callers_block_pass_unchanged(self, store: MetadataStore) -> None:
        for mine in (OSError("disk full"), ValueError("x"), asyncio.CancelledError()):
            with pytest.raises(type(mine)) as caught:
                async with store.consistent_read():
                    raise mine
            assert caught.value is mine
        await store.create_topic("orders", 1)


class TestPosition:
    async def test_the_position_grows_with_every_commit(self, store: MetadataStore, other: MetadataStore) -> None:
        positions = [await store.position()]
        await store.create_topic("orders", 1)
        positions.append(await other.position())
        await other.add_segment(segment(0))
        positions.append(await store.position())
        assert positions == sorted(set(positions))


async def _fill(
    store: MetadataStore, rows: tuple[Row, ...] = ONE_OF_EACH, failure: BaseException | None = None
) -> None:
    async with store.load() as load:
        for row in rows:
            await load.add([row])
        if failure is not None:
            raise failure


class TestLoad:
    async def test_rows_are_kept_as_they_are(self, store: MetadataStore) -> None:
        async with store.load() as load:
            for kind in (*PUBLISHED, *UNPUBLISHED):
                rows = [row for row in ONE_OF_EACH if type(row) is kind]
                await load.add(rows)
                assert await load.count(kind) == len(rows)
            await load.add([])
        found = await contents(store)
        assert {row for rows in found.values() for row in rows} == set(ONE_OF_EACH)

    async def test_a_copy_of_a_copy_is_the_same(self, store: MetadataStore, new_store: MetadataStore) -> None:
        await _fill(store)
        async with store.consistent_read() as read, new_store.load() as load:
            for kind in (*PUBLISHED, *UNPUBLISHED):
                async for rows in read.rows(kind):
                    await load.add(rows)
        assert await contents(new_store) == await contents(store)

    async def test_ids_continue_above_the_loaded_ones(self, store: MetadataStore) -> None:
        await _fill(store)
        await store.add_segment(segment(10))
        assert max(row.id for row in await store.get_segments("orders", 0)) > 7
        table = await store.create_table("db", "u", "s3://lake/u", TABLE)
        assert table.id > 11
        version = await store.get_table_metadata(table.id)
        assert version is not None
        assert version.id > 12
        (added,) = await store.add_files(11, [file("new", partition="new")])
        assert added.id > 13
        assert max(row.id for row in await store.get_statistics(11)) > 14
        assert (await store.record_snapshot(11, snapshot(1))).id > 15
        await store.remove_files(11, [added], reason="x")
        assert max(row.id for row in await store.list_files_awaiting_deletion()) > 16

    @pytest.mark.parametrize("row", ROWS_WITHOUT_PARENTS, ids=lambda row: type(row).table)
    async def test_a_registry_with_any_row_is_refused(self, url: str, opened: OpenStore, row: Row) -> None:
        """A row with parents is never alone. The cache passes loads on."""
        store = await opened(url)
        await _fill(store, (row,))
        before = await contents(store)
        with pytest.raises(Conflict, match="not empty"):
            async with store.load():
                raise AssertionError("the block must not be entered")
        assert await contents(store) == before

    async def test_all_or_nothing(self, store: MetadataStore) -> None:
        before = await contents(store)
        for failure in (ValueError("mine"), OSError("disk full"), asyncio.CancelledError()):
            with pytest.raises(type(failure)) as caught:
                await _fill(store, failure=failure)
            assert caught.value is failure
            assert await contents(store) == before
        await _fill(store)

    async def test_bad_rows_are_errors_of_the_registry_and_nothing_is_written(self, store: MetadataStore) -> None:
        topic, partition = ONE_OF_EACH[:2]
        bad: list[tuple[list[Row], type[RegistryError]]] = [
            ([topic, topic], AlreadyExists),
            ([partition], NotFound),
            ([msgspec.structs.replace(topic, partition_count=0)], Invalid),
            ([msgspec.structs.replace(topic, config="{")], Invalid),
        ]
        before = await contents(store)
        for rows, error in bad:
            inside: list[RegistryError] = []

            async def fill(rows: list[Row] = rows, inside: list[RegistryError] = inside) -> None:
                async with store.load() as load:
                    try:
                        await load.add(rows)
                    except RegistryError as failure:
                        inside.append(failure)
                        raise

            with pytest.raises(error) as caught:
                await fill()
            assert inside == [caught.value]  # the registry's own where it happens, too
            assert await contents(store) == before

    async def test_concurrent_loads_do_not_mix(self, store: MetadataStore, other: MetadataStore) -> None:
        async def fill(owner: MetadataStore, name: str) -> None:
            async with owner.load() as load:
                for number in range(20):
                    await load.add([UploadIntent(f"{name}-{number}", "p", name, 1)])

        results = await asyncio.gather(fill(store, "a"), fill(other, "b"), return_exceptions=True)
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 1, results
        found = [row for row in (await contents(store))["upload_intents"] if isinstance(row, UploadIntent)]
        assert len(found) == 20
        assert len({row.owner for row in found}) == 1

    async def test_other_writers_wait_for_a_load(
        self, store: MetadataStore, other: MetadataStore, url: str, opened: OpenStore
    ) -> None:
        hasty = await opened(url, StoreSettings(busy_timeout_s=0.01))
        async with store.load() as load:
            writer = asyncio.create_task(other.create_topic("orders", 1))
            await load.add([UploadIntent("a", "p", "o", 1)])
            await _blocked(url, hasty)
            assert not writer.done()
            assert await other.list_topics() == []  # readers do not
        await asyncio.wait_for(writer, 30)
        assert [topic.name for topic in await store.list_topics()] == ["orders"]
