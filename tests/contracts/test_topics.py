"""Topics and partitions."""

from __future__ import annotations

import asyncio

import pytest

from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Invalid, NotFound
from registry.inputs import OffsetDraft
from registry.json_text import parse_json
from registry.models import Partition, Topic
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, Refused
from tests.contracts.contents import contents, unchanged
from tests.doubles.clock import ManualClock
from tests.samples import segment


async def test_a_topic_comes_with_its_partitions(store: MetadataStore, clock: ManualClock) -> None:
    now = clock.now_ms()
    made = await store.create_topic("orders", 3, retention_ms=5, config={"b": 1, "a": [True, None, "ü"]})
    assert made == Topic("orders", 3, 5, made.config, now, now)
    assert made.config == '{"a":[true,null,"ü"],"b":1}'
    assert await store.get_topic("orders") == made
    assert await store.list_partitions("orders") == [Partition("orders", n, 0, now, now) for n in range(3)]
    assert await store.get_partition("orders", 2) == Partition("orders", 2, 0, now, now)


async def test_missing_things_are_none(store: MetadataStore) -> None:
    await store.create_topic("orders", 1)
    assert await store.get_topic("other") is None
    assert await store.get_partition("orders", 1) is None
    assert await store.get_partition("other", 0) is None


async def test_json_columns_can_be_parsed(store: MetadataStore) -> None:
    await store.create_topic("orders", 1, config={"a": [1, "x"]})
    topic = await store.get_topic("orders")
    assert topic is not None
    assert parse_json(topic.config) == {"a": [1, "x"]}


async def test_topics_are_listed_in_byte_order(store: MetadataStore) -> None:
    names = ["b", "a", "B", "ä", "a-1", "a1", "a_1", "\U0001f600", "\uffee"]
    for name in names:
        await store.create_topic(name, 1)
    assert [topic.name for topic in await store.list_topics()] == sorted(names, key=str.encode)


async def test_a_taken_topic_name_is_refused(store: MetadataStore) -> None:
    await store.create_topic("orders", 2)
    async with unchanged(store):
        with pytest.raises(AlreadyExists, match="orders"):
            await store.create_topic("orders", 5)


async def test_one_of_two_concurrent_creators_wins(store: MetadataStore, other: MetadataStore) -> None:
    results = await asyncio.gather(
        *(owner.create_topic("orders", count) for owner, count in [(store, 3), (other, 4), (store, 5), (other, 6)]),
        return_exceptions=True,
    )
    (winner,) = (result for result in results if isinstance(result, Topic))
    assert sum(isinstance(result, AlreadyExists) for result in results) == 3
    assert await store.get_topic("orders") == winner
    assert len(await store.list_partitions("orders")) == winner.partition_count


async def test_deleting_a_topic_deletes_its_rows(store: MetadataStore) -> None:
    await store.ensure_consumer_group("readers")
    await store.register_agent("agent-1", "host:1")
    await store.create_topic("kept", 1)
    before = await contents(store)
    await store.create_topic("orders", 2)
    await store.add_segments([segment(0), segment(0, partition=1)])
    await store.commit_offsets("readers", [OffsetDraft("orders", 0, 5)])
    await store.acquire_partition_lease("orders", 0, "agent-1", 1_000)
    await store.delete_topic("orders")
    assert {**await contents(store), "upload_intents": []} == before  # its objects are the cleaner's now
    with pytest.raises(NotFound, match="orders"):
        await store.delete_topic("orders")


async def test_configuration_is_replaced(store: MetadataStore, clock: ManualClock) -> None:
    made = await store.create_topic("orders", 1, retention_ms=5, config={"a": 1})
    clock.advance(10)
    changed = await store.update_topic_config("orders", {"b": 2}, retention_ms=7)
    assert (changed.config, changed.retention_ms) == ('{"b":2}', 7)
    assert (changed.created_at, changed.updated_at) == (made.created_at, clock.now_ms())
    assert await store.get_topic("orders") == changed
    assert (await store.update_topic_config("orders", {})).retention_ms is None
    with pytest.raises(NotFound, match="other"):
        await store.update_topic_config("other", {})


async def test_a_configuration_that_is_not_json_is_refused(store: MetadataStore, subtests: pytest.Subtests) -> None:
    await store.create_topic("orders", 1)
    deep: dict[str, object] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    bad = {"lone surrogate": {"a": "\ud800"}, "object": {"a": object()}, "too deep": deep, "not a mapping": [1]}
    async with unchanged(store):
        for name, config in bad.items():
            with subtests.test(name), pytest.raises(Invalid) as caught:
                await store.create_topic("bad", 1, config=config)  # type: ignore[arg-type]
            assert caught.value.field == "config"
            with subtests.test(f"update, {name}"), pytest.raises(Invalid):
                await store.update_topic_config("orders", config)  # type: ignore[arg-type]


async def test_the_watermark_never_moves_backwards(store: MetadataStore, clock: ManualClock) -> None:
    await store.create_topic("orders", 1)
    clock.advance(10)
    moved = await store.update_high_watermark("orders", 0, 100)
    assert (moved.high_watermark, moved.updated_at) == (100, clock.now_ms())
    clock.advance(10)
    assert await store.update_high_watermark("orders", 0, 99) == moved
    assert await store.update_high_watermark("orders", 0, 100) == moved
    assert await store.get_partition("orders", 0) == moved
    assert (await store.update_high_watermark("orders", 0, 2**63 - 1)).high_watermark == 2**63 - 1


async def test_the_highest_of_many_concurrent_watermarks_wins(store: MetadataStore, other: MetadataStore) -> None:
    await store.create_topic("orders", 1)
    marks = [mark * 7919 % 101 for mark in range(40)]
    await asyncio.gather(
        *((store, other)[number % 2].update_high_watermark("orders", 0, mark) for number, mark in enumerate(marks))
    )
    partition = await store.get_partition("orders", 0)
    assert partition is not None
    assert partition.high_watermark == max(marks)


async def test_unknown_partitions_are_named(store: MetadataStore) -> None:
    await store.create_topic("orders", 1)
    async with unchanged(store):
        with pytest.raises(NotFound, match="nowhere"):
            await store.list_partitions("nowhere")
        with pytest.raises(NotFound, match="partition 1 of topic 'orders'"):
            await store.update_high_watermark("orders", 1, 5)
        with pytest.raises(NotFound, match="nowhere"):
            await store.update_high_watermark("nowhere", 0, 5)


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, refused: Refused) -> None:
    await store.create_topic("orders", 1)
    async with unchanged(store):
        for name in BAD_NAMES:
            await refused(store.create_topic(name, 1), "topic", name)
            await refused(store.delete_topic(name), "topic", name)
            await refused(store.get_topic(name), "topic", name)
            await refused(store.update_topic_config(name, {}), "topic", name)
            await refused(store.get_partition(name, 0), "topic", name)
            await refused(store.list_partitions(name), "topic", name)
            await refused(store.update_high_watermark(name, 0, 1), "topic", name)
        for count in [*BAD_COUNTS, 0, 1_000_001]:
            await refused(store.create_topic("new", count), "partition_count", count)
        for number in BAD_COUNTS:
            await refused(store.create_topic("new", 1, retention_ms=number), "retention_ms", number)
            await refused(store.update_topic_config("orders", {}, retention_ms=number), "retention_ms", number)
            await refused(store.get_partition("orders", number), "partition_id", number)
            await refused(store.update_high_watermark("orders", number, 1), "partition_id", number)
            await refused(store.update_high_watermark("orders", 0, number), "high_watermark", number)
        await refused(store.get_partition("orders", 2**31), "partition_id", 2**31)
