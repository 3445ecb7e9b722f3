"""The source on DynamoDB: where it continues, and when it must not."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from astha.clock import SystemLoopClock
from astha.errors import ChangesLost, LeadershipLost, SourceLost
from astha.events import Transaction
from astha.settings.groups import TailSettings
from astha.sources.contract import Gap, Progress, Started
from astha.sources.dynamodb.live_source import DynamoLiveSource
from astha.sources.dynamodb.source import DynamoSource
from astha.sources.limits import TransactionLimits
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.dynamodb_url import parse_endpoint
from registry.models import Topic
from registry.position import Position
from registry.stores.dynamodb.client import DynamoClient
from registry.stores.dynamodb.opening import create
from registry.stores.dynamodb.staging import chunk_key
from registry.stores.dynamodb.state import REGISTRY
from registry.stores.dynamodb.transaction import LOG, log_key
from tests.doubles.proxy import TcpProxy
from tests.fixtures.sources import EVERYTHING, SourceReader
from tests.samples import segment
from tests.waiting import eventually

QUICK = TailSettings(trim_every_s=0.01, poll_s=0.05)


@pytest.fixture
async def store(dynamodb_url: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(dynamodb_url)
    yield store
    await store.close()


@pytest.fixture
async def client(dynamodb_url: str) -> AsyncIterator[DynamoClient]:
    client = DynamoClient(parse_endpoint(dynamodb_url))
    yield client
    await client.close()


@asynccontextmanager
async def reading(url: str, group: str = "astha") -> AsyncIterator[SourceReader]:
    async with SourceReader(DynamoSource(url, group, settings=QUICK)) as reader:
        yield reader


async def started(url: str, store: MetadataStore, group: str = "astha") -> None:
    """Reads everything so far, and acknowledges it."""
    async with reading(url, group) as reader:
        end = await store.position()
        await reader.until(lambda: bool(reader.starts) and reader.reached >= end, "the end of the log")
        reader.source.acknowledge(end)


def topics(reader: SourceReader) -> list[str]:
    return [event.data.name for event in reader.events if isinstance(event.data, Topic)]


async def remove_entries(client: DynamoClient, *numbers: int) -> None:
    await client.delete_many([log_key(number) for number in numbers])


async def test_the_first_start_is_a_gap_and_the_next_one_continues(dynamodb_url: str, store: MetadataStore) -> None:
    await store.create_topic("before", 1)
    async with reading(dynamodb_url) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        await store.create_topic("a", 1)
        await reader.reach(await store.position())
    assert ("the first start" in reader.gaps[0], reader.starts, topics(reader)) == (True, [1], ["a"])
    async with reading(dynamodb_url) as reader:
        await reader.reach(await store.position())
    assert (reader.gaps, topics(reader)) == ([], ["a"])


@pytest.mark.long
async def test_two_groups_read_the_same_log(dynamodb_url: str, store: MetadataStore) -> None:
    await started(dynamodb_url, store, "one")
    await started(dynamodb_url, store, "two")
    await store.create_topic("a", 1)
    await started(dynamodb_url, store, "one")
    async with reading(dynamodb_url, "two") as reader:
        await reader.reach(await store.position())
    assert (reader.gaps, topics(reader)) == ([], ["a"])


@pytest.mark.long
async def test_a_position_that_was_acknowledged_while_running_is_stored(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    async with reading(dynamodb_url) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        await store.create_topic("a", 1)
        await reader.reach(Position(1))
        reader.source.acknowledge(Position(1))

        async def stored() -> bool:
            item = await client.get(("source:astha", "="))
            return item is not None and item.attributes["seq"] == 1

        await eventually(stored, "the stored position")


async def test_removed_entries_are_a_gap(dynamodb_url: str, store: MetadataStore, client: DynamoClient) -> None:
    await started(dynamodb_url, store)
    for name in ("a", "b", "c"):
        await store.create_topic(name, 1)
    await remove_entries(client, 1)
    async with reading(dynamodb_url) as reader:
        await reader.until(lambda: 3 in reader.starts, "the new start")
        await store.create_topic("d", 1)
        await reader.reach(await store.position())
    assert ("not in the log any more" in reader.gaps[0], topics(reader)) == (True, ["d"])


async def test_entries_that_were_acknowledged_may_be_removed(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    """After a quiet week nothing is in the log, and nothing is missing."""
    await store.create_topic("a", 1)
    await store.create_topic("b", 1)
    await started(dynamodb_url, store)
    await remove_entries(client, 1, 2)
    await started(dynamodb_url, store)
    await store.create_topic("c", 1)
    async with reading(dynamodb_url) as reader:
        await reader.reach(await store.position())
    assert (reader.gaps, topics(reader)) == ([], ["c"])


@pytest.mark.long
async def test_removed_rows_of_a_large_commit_are_a_gap(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    await store.create_topic("orders", 1)
    await started(dynamodb_url, store)
    await store.add_segments([segment(10 * number) for number in range(120)])
    ((entry,), _) = await client.query(LOG, low=log_key(2)[1])
    await client.delete_many([chunk_key(str(entry.attributes["tx"]), 0)])
    async with reading(dynamodb_url) as reader:
        await reader.until(lambda: 2 in reader.starts, "the new start")
    assert "rows of commit 2" in reader.gaps[0]


async def test_a_sequence_that_went_back_is_a_gap_at_once(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    await store.create_topic("a", 1)
    before = await client.get(REGISTRY.key)
    assert before is not None
    async with reading(dynamodb_url) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        await store.create_topic("lost", 1)
        await reader.reach(Position(2))
        await client.put_many([(REGISTRY.key, before.attributes)])
        await reader.until(lambda: len(reader.starts) == 2, "the new start")
    assert (reader.starts[-1], "the last commit was 2, and is 1 now" in reader.gaps[-1]) == (1, True)


@pytest.mark.long
async def test_another_commit_of_the_same_number_is_a_gap_after_a_restart(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    await store.create_topic("a", 1)
    before = await client.get(REGISTRY.key)
    assert before is not None
    await store.create_topic("lost", 1)
    await started(dynamodb_url, store)
    await client.put_many([(REGISTRY.key, before.attributes)])
    await remove_entries(client, 2)
    await store.create_topic("other", 1)
    await store.create_topic("later", 1)
    async with reading(dynamodb_url) as reader:
        await reader.until(lambda: len(reader.gaps) > 0 and 3 in reader.starts, "the new start")
    assert "commit 2 is another one" in reader.gaps[0]


async def test_a_table_that_was_replaced_is_another_registry(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    await store.create_topic("a", 1)
    source = DynamoSource(dynamodb_url, settings=QUICK)
    async with aclosing(source.stream(EVERYTHING)) as stream:
        assert isinstance(await anext(stream), Gap)
        assert isinstance(await anext(stream), Started)
        await client.call("delete_table")
        await create(dynamodb_url)
        with pytest.raises(LeadershipLost, match="another table"):
            await anext(stream)
    async with SourceReader(source) as reader:
        await reader.until(lambda: 0 in reader.starts, "the start in the new table")
        await store.create_topic("b", 1)
        await reader.reach(Position(1))
    assert (len(reader.gaps), topics(reader)) == (1, ["b"])


@pytest.mark.long
async def test_a_replay_repeats_the_log_beside_the_stream(dynamodb_url: str, store: MetadataStore) -> None:
    source = DynamoSource(dynamodb_url, settings=QUICK)
    with pytest.raises(SourceLost, match="not being read"):
        await anext(source.replay(EVERYTHING, Position(0)))
    async with SourceReader(source) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        for name in ("a", "b", "c"):
            await store.create_topic(name, 1)
        await reader.reach(Position(3))
        async with aclosing(source.replay(EVERYTHING, Position(1))) as replayed:
            batch = await anext(replayed)
            assert not isinstance(batch, Progress)
            assert [transaction.position for transaction in batch] == [2, 3]
            assert [described(each) for each in batch] == [described(each) for each in reader.transactions[1:]]
            await store.create_topic("d", 1)
            later = await anext(replayed)
            assert not isinstance(later, Progress)
            assert later[-1].position == 4


@pytest.mark.long
async def test_a_replay_of_removed_entries_says_that_they_are_lost(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    source = DynamoSource(dynamodb_url, settings=QUICK)
    async with SourceReader(source) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        for name in ("a", "b", "c"):
            await store.create_topic(name, 1)
        await reader.reach(Position(3))
        assert source.retained_for(Position(0)) > source.retained_for(Position(2)) > 0
        await remove_entries(client, 1, 2)
        for after in (0, 1):
            with pytest.raises(ChangesLost, match="not in the log any more"):
                await anext(source.replay(EVERYTHING, Position(after)))


def described(transaction: Transaction) -> list[object]:
    return [(event.operation, event.data, event.before) for event in transaction.events]


@pytest.mark.long
async def test_a_live_source_begins_now_and_after_every_gap(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    await store.create_topic("before", 1)
    source = DynamoLiveSource(dynamodb_url, TransactionLimits(), QUICK, SystemLoopClock())
    async with aclosing(source.stream(frozenset({"topics"}))) as stream:
        assert isinstance(await anext(stream), Gap)
        assert await anext(stream) == Started(Position(1))
        await store.create_topic("a", 1)
        batch = await anext(stream)
        assert not isinstance(batch, Gap | Started | Progress)
        assert [event.data.name for event in batch[0].events if isinstance(event.data, Topic)] == ["a"]
        state = await client.get(REGISTRY.key)
        assert state is not None
        await client.put_many([(REGISTRY.key, {**state.attributes, "seq": 1})])
        assert isinstance(await anext(stream), Gap)
        assert await anext(stream) == Started(Position(1))


@pytest.mark.long
async def test_rows_that_cannot_be_decoded_are_a_refresh_of_their_table(
    dynamodb_url: str, store: MetadataStore, client: DynamoClient
) -> None:
    await started(dynamodb_url, store)
    await store.create_topic("a", 1)
    entry = await client.get(log_key(1))
    assert entry is not None
    body = entry.attributes["body"]
    assert isinstance(body, bytes)
    damaged = zlib.compress(zlib.decompress(body).replace(b'"high_watermark":0', b'"high_watermark":"x"'))
    await client.put_many([(entry.key, {**entry.attributes, "body": damaged})])
    async with reading(dynamodb_url) as reader:
        await reader.reach(Position(1))
        assert "partitions" in str(reader.source.status().detail)
    (transaction,) = reader.transactions
    assert transaction.unlisted == {"partitions"}
    assert (topics(reader), reader.gaps) == (["a"], [])


@pytest.mark.long
async def test_an_outage_loses_nothing(dynamodb_url: str, store: MetadataStore) -> None:
    await started(dynamodb_url, store)
    port = int(dynamodb_url.rpartition(":")[2])
    async with TcpProxy("127.0.0.1", port) as proxy:
        url = dynamodb_url.replace(f":{port}", f":{proxy.port}")
        async with reading(url) as reader:
            await store.create_topic("a", 1)
            await reader.reach(Position(1))
            assert reader.source.status().connected
            proxy.refuse()
            await store.create_topic("b", 1)
            await eventually(lambda: not reader.source.status().connected, "a source without a connection")
            proxy.accept()
            await reader.reach(Position(2))
            status = reader.source.status()
            assert (status.connected, status.server, status.unit) == (True, 2, "changes")
    assert (reader.gaps, topics(reader)) == ([], ["a", "b"])
