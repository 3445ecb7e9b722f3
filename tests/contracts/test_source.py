"""The contract of `astha.sources.contract.Source`: the source of each backend, and followers of it on each transport.

Tests of what only a database or a log can do say so with `direct_only` or `not_live`.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import msgspec
import pytest

from astha.events import Operation, Transaction
from astha.sources.contract import Source
from astha.sources.limits import TransactionLimits
from registry.contract import MetadataStore
from registry.engines import parse_url
from registry.inputs import CatalogCommit, DeleteFileDraft, FileDraft, SegmentDraft, TableDraft
from registry.json_text import JsonText
from registry.models import (
    PUBLISHED,
    ConsumerGroup,
    IcebergCommit,
    LakeTable,
    Partition,
    Row,
    Segment,
    SourceIdentity,
    TableDeleteFile,
    TableFile,
    TableMetadata,
    TableStats,
    Topic,
)
from registry.position import Position
from registry.stores.dynamodb.store import DynamoStore
from registry.stores.dynamodb.transaction import Transaction as DynamoTransaction
from tests.fixtures.followers import FollowDirect
from tests.fixtures.rows import extreme_rows
from tests.fixtures.sources import EVERYTHING, START, Raw, SourceOf, SourceReader, replication_slot
from tests.fixtures.stores import OpenStore
from tests.samples import TABLE, file

direct_only = pytest.mark.parametrize("transport", ["direct"], indirect=True)
not_live = pytest.mark.parametrize("transport", ["direct", "kafka"], indirect=True)


sql_only = pytest.mark.parametrize("registry_url", ["sqlite", "postgres"], indirect=True)
"""What only SQL by hand can do."""


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
def registry_url(request: pytest.FixtureRequest) -> Iterator[str]:
    found: str = request.getfixturevalue(f"{request.param}_url")
    with replication_slot(found) if request.param == "postgres" else nullcontext():
        yield found


@pytest.fixture(params=["direct", "kafka", "mqtt"])
def transport(request: pytest.FixtureRequest) -> FollowDirect | None:
    """How changes reach the source: from the database, or in the stream of a daemon that reads the database."""
    if request.param == "direct":
        return None
    follow: FollowDirect = request.getfixturevalue(f"follow_{request.param}")
    return follow


@pytest.fixture
async def source_of(transport: FollowDirect | None, source_of: SourceOf, opened: OpenStore) -> SourceOf:
    if transport is None:
        return source_of
    follow = transport

    async def make(url: str, acknowledged: Position = START, limits: TransactionLimits | None = None) -> Source:
        direct = await source_of(url, acknowledged)
        return await follow(direct, await opened(url), acknowledged, None if limits is None else limits.size_bytes)

    return make


def insert_group(name: str) -> str:
    return f"INSERT INTO consumer_groups VALUES ('{name}', 0, 0)"


def groups(reader: SourceReader) -> list[str]:
    return [event.data.group_id for event in reader.events if isinstance(event.data, ConsumerGroup)]


def segments(topic: str, count: int) -> list[SegmentDraft]:
    return [SegmentDraft(topic, 0, number, number, 1, 1, "b", f"k{number}") for number in range(count)]


async def test_commits_come_in_order(registry_url: str, writer: MetadataStore, source_of: SourceOf) -> None:
    async with SourceReader(await source_of(registry_url)) as reader:
        for number in range(50):
            await writer.create_topic(f"t{number}", 1)
        await reader.reach(await writer.position())
    topics = [event.data.name for event in reader.events if isinstance(event.data, Topic)]
    assert topics == [f"t{number}" for number in range(50)]
    positions = [transaction.position for transaction in reader.transactions]
    assert positions == sorted(set(positions))
    assert reader.gaps == []


@direct_only
async def test_a_commit_through_the_catalog_begins_with_its_marker(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    table_id = await writer.reserve_table_id()
    created = CatalogCommit(
        catalog="astha", namespace="db", name="t", expected=None, location="1.json", table_id=table_id,
        create=TABLE, table_location="s3://lake/t", operation="metadata",
    )  # fmt: skip
    added = CatalogCommit(
        catalog="astha", namespace="db", name="t", expected="1.json", location="2.json", table_id=table_id,
        version=TABLE, version_expected=1, added=[file("s3://lake/t/a"), file("s3://lake/t/b", version=2)],
        deletes_added=[DeleteFileDraft(file_path="d", file_size=1, content="position", row_count=1, sequence_number=2)],
        snapshot_id=7,
    )  # fmt: skip
    async with SourceReader(await source_of(registry_url)) as reader:
        await writer.commit_catalog([created])
        await writer.commit_catalog([added])
        await reader.reach(await writer.position())
    first, second = reader.transactions
    assert [type(event.data) for event in first.events] == [LakeTable, IcebergCommit, TableMetadata]
    marker = second.events[0].data
    assert isinstance(marker, IcebergCommit)
    assert (marker.table_id, marker.snapshot_id, marker.added_files, marker.added_delete_files) == (table_id, 7, 2, 1)
    kinds = Counter(type(event.data) for event in second.events[1:])
    assert kinds.keys() == {LakeTable, TableMetadata, TableFile, TableStats, TableDeleteFile}
    assert (kinds[TableFile], kinds[TableDeleteFile]) == (2, 1)


async def test_concurrent_writers_keep_their_transactions_whole(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    async with SourceReader(await source_of(registry_url)) as reader:
        await asyncio.gather(*(writer.create_topic(f"t{number}", 3) for number in range(40)))
        await reader.reach(await writer.position())
    joins = parse_url(registry_url).drivername == "cockroachdb"  # transactions that have the same timestamp
    assert joins or len(reader.transactions) == 40
    for transaction in reader.transactions:
        names = {event.data.name for event in transaction.events if isinstance(event.data, Topic)}
        partitions = [event.data.topic for event in transaction.events if isinstance(event.data, Partition)]
        assert joins or len(names) == 1
        assert Counter(partitions) == dict.fromkeys(names, 3)
    assert {event.data.name for event in reader.events if isinstance(event.data, Topic)} == {f"t{n}" for n in range(40)}


async def test_a_verb_is_one_transaction_over_all_its_tables(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    before = time.time_ns() // 1000
    async with SourceReader(await source_of(registry_url)) as reader:
        await writer.create_topic("t", 3)
        await reader.reach(await writer.position())
    (transaction,) = reader.transactions
    assert transaction.tables == {"topics", "partitions"}
    assert transaction.unlisted == frozenset()
    assert transaction.size_bytes > 0
    assert [type(event.data) for event in transaction.events] == [Topic, Partition, Partition, Partition]
    assert [event.index for event in transaction.events] == [0, 1, 2, 3]
    assert [event.last for event in transaction.events] == [False, False, False, True]
    assert {event.position for event in transaction.events} == {transaction.position}
    assert 0 < transaction.position <= await writer.position()
    assert {event.transaction for event in transaction.events} == {transaction.commit.transaction}
    assert abs(transaction.commit.committed_at - before) < 60_000_000


async def test_updates_and_deletes_carry_the_row_before(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    async with SourceReader(await source_of(registry_url), frozenset({"topics"})) as reader:
        created = await writer.create_topic("t", 1, retention_ms=5)
        changed = await writer.update_topic_config("t", {"k": "v"})
        await writer.delete_topic("t")
        await reader.reach(await writer.position())
    insert, update, delete = reader.events
    assert (insert.operation, insert.data, insert.before) == (Operation.INSERT, created, None)
    assert (update.operation, update.data, update.before) == (Operation.UPDATE, changed, created)
    assert (delete.operation, delete.data, delete.before) == (Operation.DELETE, changed, changed)


@sql_only
async def test_a_rolled_back_transaction_is_not_delivered(registry_url: str, raw: Raw, source_of: SourceOf) -> None:
    async with SourceReader(await source_of(registry_url)) as reader:
        await raw(insert_group("never"), end="ROLLBACK")
        await raw(insert_group("after"))
        await reader.until(lambda: "after" in groups(reader), "the commit")
    assert groups(reader) == ["after"]


@sql_only
async def test_savepoints(registry_url: str, raw: Raw, source_of: SourceOf) -> None:
    async with SourceReader(await source_of(registry_url)) as reader:
        await raw(
            insert_group("a"), "SAVEPOINT one", insert_group("b"), "ROLLBACK TO SAVEPOINT one",
            insert_group("c"), "SAVEPOINT two", insert_group("d"), "RELEASE SAVEPOINT two",
        )  # fmt: skip
        await reader.until(lambda: "d" in groups(reader), "the commit")
    assert groups(reader) == ["a", "c", "d"]
    assert len(reader.transactions) == 1
    assert reader.gaps == []


@sql_only
async def test_changes_by_raw_sql_are_delivered(
    registry_url: str, writer: MetadataStore, raw: Raw, source_of: SourceOf
) -> None:
    async with SourceReader(await source_of(registry_url)) as reader:
        for number in range(20):
            await raw(insert_group(f"a{number}"), insert_group(f"b{number}"))
            await writer.create_topic(f"t{number}", 1)
        await reader.reach(await writer.position())
    assert groups(reader) == [f"{letter}{number}" for number in range(20) for letter in "ab"]
    assert len(reader.transactions) == 40
    assert len({transaction.commit.transaction for transaction in reader.transactions}) == 40


async def test_changes_of_unsubscribed_tables_only_move_the_position(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    async with SourceReader(await source_of(registry_url), frozenset({"tables"})) as reader:
        await writer.create_topic("t", 3)
        await reader.reach(await writer.position())
        assert reader.transactions == []
        await writer.create_table("d", "t", "s3://b/t", TableDraft(schema=JsonText("{}")))
        await reader.reach(await writer.position())
    (transaction,) = reader.transactions
    assert transaction.tables == {"tables"}
    assert [event.table for event in transaction.events] == ["tables"]
    assert transaction.commit.count == 1


@direct_only  # the limit on events is the leader's: its sink refreshes, and followers get a gap
async def test_a_transaction_beyond_the_limits_only_names_its_tables(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    await writer.create_topic("t", 1)
    start = await writer.position()
    async with SourceReader(await source_of(registry_url, start, TransactionLimits(events=500))) as reader:
        await writer.add_segments(segments("t", 5_000))
        await writer.create_topic("after", 1)
        await reader.reach(await writer.position())
    large, after = reader.transactions
    assert large.events == []
    assert large.commit.count == 0
    assert large.unlisted == large.tables == {"segments", "partitions"}
    assert after.unlisted == frozenset()
    assert [type(event.data) for event in after.events] == [Topic, Partition]


async def test_limits_count_bytes_too(registry_url: str, writer: MetadataStore, source_of: SourceOf) -> None:
    async with SourceReader(await source_of(registry_url, limits=TransactionLimits(size_bytes=10_000))) as reader:
        await writer.create_topic("large", 1, config={"k": "x" * 20_000})
        await writer.create_topic("small", 1, config={"k": "x" * 2_000})
        await reader.reach(await writer.position())
    large, small = reader.transactions
    assert large.events == []
    assert large.unlisted == {"topics", "partitions"}
    assert len(small.events) == 2
    assert small.unlisted == frozenset()


async def test_transactions_of_many_sizes_are_delivered_completely(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    """Larger and smaller than one read of the source, all committed before it starts."""
    await writer.create_topic("t", 1)
    start = await writer.position()
    sizes, base = [1, 2, 999, 1, 1_000, 1_001, 3, 5_000, 1], 0
    for size in sizes:
        drafts = [
            msgspec.structs.replace(draft, base_offset=base + draft.base_offset, end_offset=base + draft.end_offset)
            for draft in segments("t", size)
        ]
        await writer.add_segments(drafts)
        base += size
    async with SourceReader(await source_of(registry_url, start), frozenset({"segments"})) as reader:
        await reader.reach(await writer.position())
    assert [len(transaction.events) for transaction in reader.transactions] == sizes
    offsets = [event.data.base_offset for event in reader.events if isinstance(event.data, Segment)]
    assert offsets == list(range(base))


async def test_a_restart_continues_after_the_acknowledged_position(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    async with SourceReader(await source_of(registry_url)) as first:
        for number in range(10):
            await writer.create_topic(f"t{number}", 2)
        await first.reach(await writer.position())
        acknowledged = first.transactions[3].position
        first.source.acknowledge(acknowledged)
        assert first.source.status().acknowledged == acknowledged
    async with SourceReader(await source_of(registry_url, acknowledged)) as second:
        await writer.create_topic("t10", 2)
        await second.reach(await writer.position())
    assert described(second.transactions[:6]) == described(first.transactions[4:])
    assert len(second.transactions) == 7
    assert second.gaps == []


@not_live  # nothing is kept for a follower over MQTT: its components refresh
async def test_a_reopened_stream_repeats_unacknowledged_transactions(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    source = await source_of(registry_url)
    async with SourceReader(source) as first:
        await first.until(lambda: bool(first.starts), "the start")  # a follower keeps earlier ones, and repeats them
        await writer.create_topic("a", 1)
        await writer.create_topic("b", 1)
        await first.reach(await writer.position())
        source.acknowledge(first.transactions[0].position)
    async with SourceReader(source) as second:
        await second.reach(await writer.position())
    assert described(second.transactions) == described(first.transactions[1:])


async def test_values_of_a_megabyte(registry_url: str, writer: MetadataStore, source_of: SourceOf) -> None:
    tenth = 15_000 if registry_url.startswith("dynamodb") else 100_000  # an item of DynamoDB has at most 400 KB
    async with SourceReader(await source_of(registry_url), frozenset({"topics"})) as reader:
        wanted = [await writer.create_topic(f"t{n}", 1, config={"k": "ü" * (n * tenth)}) for n in range(11)]
        changed = await writer.update_topic_config("t10", {"k": "x" * 10 * tenth})
        await reader.reach(await writer.position())
    assert [event.data for event in reader.events] == [*wanted, changed]
    assert reader.events[-1].before == wanted[-1]


async def test_every_column_of_every_table_is_as_the_store_reads_it(
    registry_url: str, writer: MetadataStore, raw: Raw, source_of: SourceOf
) -> None:
    wanted = extreme_rows()
    async with SourceReader(await source_of(registry_url)) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        if isinstance(writer, DynamoStore):  # only an empty registry can be loaded
            await writer._transact(forget_identities)
        else:
            await raw("DELETE FROM source_identity")
        async with writer.load() as load:
            for row in wanted:
                await load.add([row])
        await reader.reach(await writer.position())
    found = [event.data for event in reader.events]
    if parse_url(registry_url).drivername == "cockroachdb":  # a transaction's rows have the source's own order
        found, wanted = sorted(found, key=str), sorted(wanted, key=str)
    assert found == wanted
    assert [column_types(row) for row in found] == [column_types(row) for row in wanted]
    assert {type(row) for row in wanted} == set(PUBLISHED)
    async with writer.consistent_read() as snapshot:
        for kind in PUBLISHED:
            stored = [row async for page in snapshot.rows(kind) for row in page]
            told = [event.data for event in reader.events if isinstance(event.data, kind)]
            assert sorted(told, key=keyed) == sorted(stored, key=keyed)


async def forget_identities(tx: DynamoTransaction) -> None:
    for row in await tx.rows(SourceIdentity):
        tx.delete(row)


async def test_a_swap_of_files_is_one_transaction(
    registry_url: str, writer: MetadataStore, source_of: SourceOf
) -> None:
    table = await writer.create_table("d", "t", "s3://b/t", TableDraft(schema=JsonText("{}")))
    drafts = [FileDraft(file_path=f"s3://b/t/{n}", file_size=1, row_count=1, schema_version=1) for n in range(4)]
    old = await writer.add_files(table.id, drafts[:3])
    start = await writer.position()
    async with SourceReader(await source_of(registry_url, start)) as reader:
        (new,) = await writer.swap_files(table.id, old, drafts[3:], operation_id="swap")
        await reader.reach(await writer.position())
    (transaction,) = reader.transactions
    files = [(event.operation, event.data) for event in transaction.events if isinstance(event.data, TableFile)]
    assert sorted(files, key=str) == sorted(
        [(Operation.INSERT, new), *((Operation.DELETE, file) for file in old)], key=str
    )
    assert {"tables", "table_stats"} < transaction.tables


@direct_only  # it is the leader that reads the transaction
@sql_only
@pytest.mark.slow
async def test_a_million_rows_in_one_transaction_are_not_kept_in_memory(
    registry_url: str, writer: MetadataStore, raw: Raw, source_of: SourceOf
) -> None:
    await writer.create_topic("t", 1)
    start = await writer.position()
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999999)"
    async with SourceReader(await source_of(registry_url, start), EVERYTHING) as reader:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await raw(
            "INSERT INTO segments (topic, partition_id, base_offset, end_offset, record_count, size_bytes, s3_bucket, "
            f"s3_key, byte_offset, created_at) {numbers} SELECT 't', 0, i, i, 1, 1, 'b', 'k' || i, 0, 0 FROM n"
        )
        await writer.create_topic("after", 1)
        await reader.reach(await writer.position())
    large, after = reader.transactions
    assert large.events == []
    assert large.unlisted == {"segments"}
    assert len(after.events) == 2
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    assert grown_mb < 192, "100,000 events may be held until the transaction turns out larger than that"


def described(transactions: list[Transaction]) -> list[tuple[Position, int, list[tuple[Operation, Row, Row | None]]]]:
    return [
        (item.position, item.commit.transaction, [(event.operation, event.data, event.before) for event in item.events])
        for item in transactions
    ]


def column_types(row: Row) -> list[type]:
    return [type(value) for value in msgspec.structs.astuple(row)]


def keyed(row: Row) -> str:
    return repr([getattr(row, name) for name in row.key])
