"""Consumer groups and committed offsets."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import Invalid, NotFound
from registry.inputs import OffsetDraft
from registry.models import ConsumerGroup, ConsumerOffset
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, Refused
from tests.contracts.contents import contents, unchanged
from tests.doubles.clock import ManualClock
from tests.samples import segment


@pytest.fixture(autouse=True)
async def topic(store: MetadataStore) -> None:
    await store.create_topic("orders", 100)


async def test_a_group_is_created_once(store: MetadataStore, clock: ManualClock) -> None:
    made = await store.ensure_consumer_group("readers")
    assert made == ConsumerGroup("readers", clock.now_ms(), clock.now_ms())
    clock.advance(10)
    async with unchanged(store):
        assert await store.ensure_consumer_group("readers") == made


async def test_concurrent_callers_ensure_one_group(store: MetadataStore, other: MetadataStore) -> None:
    groups = await asyncio.gather(*((store, other)[n % 2].ensure_consumer_group("readers") for n in range(12)))
    assert len(set(groups)) == 1


async def test_the_last_commit_wins_even_with_a_lower_offset(store: MetadataStore, clock: ManualClock) -> None:
    await store.ensure_consumer_group("readers")
    await store.commit_offset("readers", "orders", 0, 100, "first")
    clock.advance(10)
    await store.commit_offset("readers", "orders", 0, 40)
    found = await store.get_committed_offset("readers", "orders", 0)
    assert found == ConsumerOffset("readers", "orders", 0, 40, None, clock.now_ms())


async def test_the_last_of_several_offsets_for_a_partition_wins(store: MetadataStore) -> None:
    await store.ensure_consumer_group("readers")
    await store.commit_offsets("readers", [OffsetDraft("orders", 1, 9), OffsetDraft("orders", 1, 3, "it's \\ {\"}")])
    (row,) = await store.get_consumer_offsets("readers")
    assert (row.committed_offset, row.metadata) == (3, "it's \\ {\"}")


async def test_a_reset_stays_within_the_partition(store: MetadataStore, clock: ManualClock) -> None:
    await store.add_segments([segment(10 * n, partition=number) for number in (0, 1) for n in range(4)])
    await store.delete_segments_before("orders", 0, 20)
    wanted = [OffsetDraft("orders", 1, 40), OffsetDraft("orders", 0, 7, "note"), OffsetDraft("orders", 2, 0)]
    reset = await store.reset_offsets("readers", wanted)
    found = [
        (row.partition_id, row.committed_offset, row.metadata) for row in await store.get_consumer_offsets("readers")
    ]
    assert found == [(0, 20, "note"), (1, 40, None), (2, 0, None)]
    assert reset == [OffsetDraft("orders", 0, 20, "note"), OffsetDraft("orders", 1, 40), OffsetDraft("orders", 2, 0)]
    assert await store.reset_offsets("readers", [OffsetDraft("orders", 0, 25)]) == [OffsetDraft("orders", 0, 25)]
    async with unchanged(store):
        assert await store.reset_offsets("readers", []) == []


async def test_a_reset_beyond_the_end_changes_nothing(store: MetadataStore) -> None:
    await store.add_segments([segment(10 * n) for n in range(4)])
    async with unchanged(store):
        for offset in (41, 100_000_000, 2**63 - 1):
            with pytest.raises(Invalid, match=r"orders/0 has offsets from 0 on and ends at 40: nothing was changed"):
                await store.reset_offsets("new", [OffsetDraft("orders", 0, offset), OffsetDraft("orders", 1, 0)])
        with pytest.raises(Invalid, match=r"orders/5 has offsets from 0 on and ends at 0; .* and 2 more"):
            await store.reset_offsets("new", [OffsetDraft("orders", n, 1) for n in range(5, 12)])
        with pytest.raises(NotFound, match="partition 100 of topic 'orders'"):
            await store.reset_offsets("new", [OffsetDraft("orders", 0, 5), OffsetDraft("orders", 100, 0)])
        with pytest.raises(NotFound, match="'nothing'"):
            await store.reset_offsets("new", [OffsetDraft("nothing", 0, 0)])


async def test_offsets_are_listed_by_topic_and_partition(store: MetadataStore) -> None:
    await store.create_topic("a", 1)
    for group in ("readers", "others"):
        await store.ensure_consumer_group(group)
    await store.commit_offsets("readers", [OffsetDraft("orders", n, n) for n in (10, 2, 0)] + [OffsetDraft("a", 0, 7)])
    found = [(row.topic, row.partition_id, row.committed_offset) for row in await store.get_consumer_offsets("readers")]
    assert found == [("a", 0, 7), ("orders", 0, 0), ("orders", 2, 2), ("orders", 10, 10)]
    assert await store.get_consumer_offsets("others") == []
    assert await store.get_consumer_offsets("unknown") == []
    assert await store.get_committed_offset("readers", "orders", 1) is None
    assert await store.get_committed_offset("unknown", "orders", 0) is None


async def test_a_hundred_tasks_commit_offsets(store: MetadataStore, other: MetadataStore) -> None:
    """Each commits several partitions, in orders that would lock one another out if they were taken as they come."""
    await store.ensure_consumer_group("readers")

    async def commit(task: int) -> None:
        mine = [(task * 37 + step * 11) % 100 for step in range(8)]
        await (store, other)[task % 2].commit_offsets("readers", [OffsetDraft("orders", n, task) for n in mine])
        await (store, other)[task % 2].commit_offset("readers", "orders", task, 1_000 + task)

    await asyncio.gather(*(commit(task) for task in range(100)))
    offsets = {row.partition_id: row.committed_offset for row in await store.get_consumer_offsets("readers")}
    assert set(offsets) == set(range(100))
    writers = {n: {t for t in range(100) for step in range(8) if (t * 37 + step * 11) % 100 == n} for n in range(100)}
    assert all(offset in writers[n] or offset == 1_000 + n for n, offset in offsets.items())


async def test_what_is_missing_is_named_and_nothing_written(store: MetadataStore) -> None:
    await store.ensure_consumer_group("readers")
    async with unchanged(store):
        with pytest.raises(NotFound, match="consumer group 'unknown'"):
            await store.commit_offset("unknown", "orders", 0, 1)
        with pytest.raises(NotFound, match="partition 100 of topic 'orders'"):
            await store.commit_offsets("readers", [OffsetDraft("orders", 0, 1), OffsetDraft("orders", 100, 1)])
        with pytest.raises(NotFound, match="'nowhere'"):
            await store.commit_offset("readers", "nowhere", 0, 1)
        with pytest.raises(NotFound, match="unknown"):
            await store.delete_consumer_group("unknown")
        await store.commit_offsets("readers", [])


async def test_deleting_a_group_deletes_its_offsets(store: MetadataStore) -> None:
    await store.ensure_consumer_group("kept")
    await store.commit_offset("kept", "orders", 0, 1)
    before = await contents(store)
    await store.ensure_consumer_group("readers")
    await store.commit_offset("readers", "orders", 0, 1)
    await store.delete_consumer_group("readers")
    assert await contents(store) == before


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, refused: Refused) -> None:
    await store.ensure_consumer_group("readers")
    good = OffsetDraft("orders", 0, 1)

    async def refuse(field: str, value: Any) -> None:
        bad = msgspec.structs.replace(good, **{field: value})
        await refused(store.commit_offsets("readers", [good, bad]), field, value)

    async with unchanged(store):
        for name in BAD_NAMES:
            await refused(store.ensure_consumer_group(name), "group_id", name)
            await refused(store.commit_offsets(name, [good]), "group_id", name)
            await refused(store.get_committed_offset(name, "orders", 0), "group_id", name)
            await refused(store.get_committed_offset("readers", name, 0), "topic", name)
            await refused(store.get_consumer_offsets(name), "group_id", name)
            await refused(store.delete_consumer_group(name), "group_id", name)
            await refuse("topic", name)
        for number in BAD_COUNTS:
            await refuse("partition_id", number)
            await refuse("committed_offset", number)
            await refused(store.get_committed_offset("readers", "orders", number), "partition_id", number)
        for text in ("nul\0", "\ud800", 5):
            await refuse("metadata", text)
