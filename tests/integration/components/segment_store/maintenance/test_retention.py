"""Retention: deleted segments, transactions, and the fate of their objects."""

from __future__ import annotations

import pytest

from components.segment_store.maintenance.retention import PartitionSizes, RetentionPolicy, TopicRetention
from registry.contract import MetadataStore
from registry.forwarding import ForwardingStore
from registry.json_text import JsonValue
from registry.models import Segment
from tests.doubles.clock import ManualClock
from tests.integration.components.lib.streams.harness import START_MS, TOPIC, StreamHarness


class Steps(ForwardingStore):
    """Records how many segments each transaction deleted."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.steps: list[int] = []
        self.pages = 0

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        self.steps.append(await self.inner.delete_segments_before(topic, partition_id, offset, limit=limit))
        return self.steps[-1]

    def stream_segments(self, topic: str, partition_id: int, *, from_offset: int = 0):  # type: ignore[no-untyped-def]
        self.pages += 1
        return self.inner.stream_segments(topic, partition_id, from_offset=from_offset)

    async def find_segment_for_size(self, topic: str, partition_id: int, size_bytes: int) -> Segment | None:
        self.pages += 1
        return await self.inner.find_segment_for_size(topic, partition_id, size_bytes)


async def configure(harness: StreamHarness, *, retention_ms: int | None = None, **config: JsonValue) -> None:
    given = {name.replace("_", "."): value for name, value in config.items()}
    await harness.store.update_topic_config(TOPIC, given, retention_ms=retention_ms)


async def bases(harness: StreamHarness, partition: int = 0) -> list[int]:
    return [segment.base_offset for segment in await harness.store.get_segments(TOPIC, partition)]


async def test_retention_by_time_of_the_youngest_record(harness: StreamHarness, clock: ManualClock) -> None:
    """Record n is n seconds after the start."""
    clock.set(START_MS + 30_000)
    await harness.write(10, 10, 10)
    await configure(harness, retention_ms=60_000)
    retention = TopicRetention(harness.store, clock, 100)
    clock.set(START_MS + 9_000 + 60_000)
    assert await retention.enforce() == 0
    clock.advance(1)
    assert await retention.enforce() == 1
    assert await bases(harness) == [10, 20]
    clock.advance(60_000)
    assert await retention.enforce() == 2
    assert await bases(harness) == []
    partition = await harness.store.get_partition(TOPIC, 0)
    assert partition is not None
    assert partition.high_watermark == 30


async def test_retention_by_records_and_by_size(harness: StreamHarness, clock: ManualClock) -> None:
    segments = await harness.write(10, 10, 10, 10)
    retention = TopicRetention(harness.store, clock, 100)
    await configure(harness, retention_records=21)
    assert await retention.enforce() == 1
    await configure(harness, retention_records=20)
    assert await retention.enforce() == 1
    assert await bases(harness) == [20, 30]
    await configure(harness, retention_bytes=segments[-1].size_bytes + 1)
    assert await retention.enforce() == 0
    await configure(harness, retention_bytes=segments[-1].size_bytes)
    assert await retention.enforce() == 1
    assert await bases(harness) == [30]
    await configure(harness, retention_bytes=0)
    assert await retention.enforce() == 1


async def test_deletions_are_bounded_and_the_last_one_leaves_an_intent(
    harness: StreamHarness, clock: ManualClock
) -> None:
    first = await harness.write(1, 1, 1)
    await harness.write(1, 1, 1, 1, 1, together=False)
    steps = Steps(harness.store)
    await configure(harness, retention_records=1)
    assert await TopicRetention(steps, clock, 3).enforce() == 7
    assert steps.steps == [3, 3, 1]
    intents = [intent.path for intent in await harness.store.list_stale_intents(0)]
    assert len(intents) == 5
    assert first[0].uri in intents


async def test_without_valid_bounds_everything_is_kept(harness: StreamHarness, clock: ManualClock) -> None:
    await harness.write(5)
    retention = TopicRetention(harness.store, clock, 3)
    assert await retention.enforce() == 0
    await configure(harness, retention_bytes="little")
    assert await retention.enforce() == 0
    assert await bases(harness) == [0]
    topic = await harness.store.get_topic(TOPIC)
    assert topic is not None
    with pytest.raises(ValueError, match=r"retention\.bytes = 'little'"):
        RetentionPolicy.of(topic)


async def test_a_partition_is_skipped_until_its_first_segment_is_due(
    harness: StreamHarness, clock: ManualClock
) -> None:
    clock.set(START_MS + 9_000)
    for partition in range(3):
        await harness.write(10, partition=partition)
    await configure(harness, retention_ms=60_000)
    steps = Steps(harness.store)
    retention = TopicRetention(steps, clock, 3)
    await retention.enforce()
    looked = steps.pages
    clock.advance(60_000)
    await retention.enforce()
    assert steps.pages == looked
    clock.advance(1)
    assert await retention.enforce() == 3


async def test_retention_by_size_sums_only_partitions_that_seem_too_large(
    harness: StreamHarness, clock: ManualClock
) -> None:
    """Sizes are summed from events. They may be wrong: nothing is deleted because of them; checked hourly."""
    segments = await harness.write(10, 10, 10)
    limit = sum(segment.size_bytes for segment in segments)
    await configure(harness, retention_bytes=limit)
    sizes = PartitionSizes()
    sizes.add(segments)
    steps = Steps(harness.store)
    retention = TopicRetention(steps, clock, 100, sizes)

    async def looks() -> int:
        before = steps.pages
        assert await retention.enforce() == 0
        return steps.pages - before

    assert await looks() > 0  # the first time
    assert await looks() == 0
    sizes.add(segments[:1])
    assert await looks() > 0  # counted twice
    sizes.remove(segments[0])
    assert await looks() == 0
    clock.advance(3_600_001)
    assert await looks() > 0
    new = await harness.write(10)
    assert await looks() == 0  # no event yet
    sizes.add(new)
    assert await retention.enforce() >= 1
    sizes.forget(TOPIC)
    assert sizes.size_of(TOPIC, 0) == 0
