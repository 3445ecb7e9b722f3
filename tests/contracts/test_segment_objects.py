"""Objects that contain segments: in use while one segment is live, then an upload intent for the cleaner."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import Conflict, Invalid, NotFound
from registry.inputs import SegmentDraft
from registry.models import LOCAL_BUCKET, Segment, SegmentObject
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock
from tests.samples import segment


@pytest.fixture(autouse=True)
async def _topic(store: MetadataStore) -> None:
    await store.create_topic("orders", 4)
    await store.create_topic("other", 1)


def held(base: int, key: str = "one", *, partition: int = 0, topic: str = "orders", size: int = 100) -> SegmentDraft:
    draft = segment(base, partition=partition, topic=topic)
    return msgspec.structs.replace(draft, s3_key=key, size_bytes=size)


async def objects(store: MetadataStore) -> dict[str, tuple[int, int]]:
    async with store.consistent_read() as read:
        rows = [row async for page in read.rows(SegmentObject) for row in page]
    return {row.s3_key: (row.live_segments, row.size_bytes) for row in rows}


async def intents(store: MetadataStore) -> list[tuple[str, str]]:
    return [(intent.path, intent.owner) for intent in await store.list_stale_intents(0)]


async def test_an_object_is_in_use_while_it_has_segments(store: MetadataStore) -> None:
    await store.add_segments([held(0), held(10), held(0, partition=1), held(20, "two", size=7)])
    await store.add_segments([held(0, partition=2)])
    assert await objects(store) == {"one": (4, 400), "two": (1, 7)}
    assert await store.delete_segments_before("orders", 0, 20) == 2
    assert await objects(store) == {"one": (2, 400), "two": (1, 7)}
    assert await intents(store) == []
    await store.delete_segments_before("orders", 1, 20)
    await store.delete_segments_before("orders", 2, 20)
    assert await objects(store) == {"two": (1, 7)}
    assert await intents(store) == [("s3://lake/one", "segments")]


async def test_a_limit_deletes_the_first_segments(store: MetadataStore) -> None:
    await store.add_segments([held(base) for base in range(0, 100, 10)])
    assert await store.delete_segments_before("orders", 0, 75, limit=3) == 3
    assert [row.base_offset for row in await store.get_segments("orders", 0)] == list(range(30, 100, 10))
    assert await store.delete_segments_before("orders", 0, 75, limit=100) == 4
    assert await store.delete_segments_before("orders", 0, 75, limit=1) == 0
    assert await objects(store) == {"one": (3, 1_000)}


async def test_the_objects_of_a_deleted_topic_become_upload_intents(store: MetadataStore) -> None:
    await store.add_segments([held(0), held(0, "both", topic="other"), held(10, "both")])
    await store.delete_topic("orders")
    assert await objects(store) == {"both": (1, 200)}
    assert await intents(store) == [("s3://lake/one", "segments")]


async def test_the_last_two_segments_of_an_object_are_deleted_concurrently(
    store: MetadataStore, other: MetadataStore
) -> None:
    """Without the counter, each transaction would see the other's segment."""
    for turn in range(5):
        key = f"turn-{turn}"
        await store.add_segments([held(turn * 10, key, partition=number) for number in range(4)])
        await asyncio.gather(
            *((store, other)[number % 2].delete_segments_before("orders", number, 1_000) for number in range(4))
        )
    assert await objects(store) == {}
    assert [path for path, _ in await intents(store)] == [f"s3://lake/turn-{turn}" for turn in range(5)]


async def test_an_object_on_local_disk(store: MetadataStore) -> None:
    draft = msgspec.structs.replace(held(0, "data/one"), s3_bucket=LOCAL_BUCKET)
    await store.record_intents([draft.uri], purpose="segments", owner="me")
    await store.add_segments([draft], intents_of="me")
    assert await intents(store) == []
    (row,) = await store.get_segments("orders", 0)
    assert row.uri == draft.uri == "file:///data/one"
    await store.delete_segments_before("orders", 0, 10)
    assert await intents(store) == [("file:///data/one", "segments")]


@pytest.mark.parametrize("late", [False, True])
async def test_only_the_owner_of_an_intent_can_register_its_object(store: MetadataStore, late: bool) -> None:
    if late:
        await store.add_segment(held(1_000, "before"))
    await store.record_intents(["s3://lake/one"], purpose="segments", owner="me")
    async with unchanged(store):
        for keys in (["one"], ["none"]):
            with pytest.raises(Conflict, match="intent") as caught:
                await store.add_segments([held(0, key) for key in keys], intents_of="you")
            assert caught.value.names == (f"s3://lake/{keys[0]}",)
        with pytest.raises(Conflict, match="intent") as caught:
            await store.add_segments([held(0), held(10, "none")], intents_of="me")
        assert caught.value.names == ("s3://lake/none",)
    await store.add_segments([held(0)], intents_of="me")
    assert await intents(store) == []
    await store.add_segments([held(10)], intents_of="me")  # the object is in use: it can't be deleted
    assert (await objects(store))["one"] == (2, 200)


async def test_an_object_claimed_by_the_cleaner_can_not_be_registered(store: MetadataStore, clock: ManualClock) -> None:
    await store.record_intents(["s3://lake/one"], purpose="segments", owner="me")
    clock.advance(1_000)
    assert len(await store.claim_stale_intents(1_000, owner="cleaner")) == 1
    async with unchanged(store):
        with pytest.raises(Conflict, match="intent"):
            await store.add_segments([held(0)], intents_of="me")


async def test_an_emptied_object_accepts_no_segments(store: MetadataStore) -> None:
    await store.record_intents(["s3://lake/one"], purpose="segments", owner="me")
    await store.add_segments([held(0)], intents_of="me")
    await store.delete_segments_before("orders", 0, 10)
    async with unchanged(store):
        with pytest.raises(Conflict, match="intent"):
            await store.add_segments([held(10)], intents_of="me")


async def test_the_live_segments_of_an_object_are_listed(store: MetadataStore) -> None:
    drafts = [msgspec.structs.replace(held(0, partition=number), byte_offset=300 - number) for number in range(3)]
    await store.add_segments([*drafts, held(10, "two")])
    found = await store.get_object_segments("lake", "one")
    assert [(row.partition_id, row.byte_offset) for row in found] == [(2, 298), (1, 299), (0, 300)]
    await store.delete_segments_before("orders", 1, 10)
    assert [row.partition_id for row in await store.get_object_segments("lake", "one")] == [2, 0]
    assert await store.get_object_segments("lake", "none") == []


async def test_times_and_block_indexes_are_stored(store: MetadataStore) -> None:
    draft = msgspec.structs.replace(held(0), min_timestamp=-5, max_timestamp=2**62, block_index="0ab{}|~")
    await store.add_segments([draft, held(10)])
    first, second = await store.get_segments("orders", 0)
    assert (first.min_timestamp, first.max_timestamp, first.block_index) == (-5, 2**62, "0ab{}|~")
    assert (second.min_timestamp, second.max_timestamp, second.block_index) == (None, None, None)
    assert first == Segment(first.id, **{name: getattr(draft, name) for name in draft.__struct_fields__},
                            created_at=first.created_at)  # fmt: skip


async def test_the_first_segment_for_a_timestamp_is_found(store: MetadataStore) -> None:
    times = [(100, 199), (200, 250), (150, 400), (401, 500)]
    await store.add_segments(
        [
            msgspec.structs.replace(held(number * 10), min_timestamp=low, max_timestamp=high)
            for number, (low, high) in enumerate(times)
        ]
    )
    for time, base in [(-1, 0), (199, 0), (200, 10), (251, 20), (400, 20), (401, 30), (500, 30), (501, None)]:
        found = await store.find_segment_for_timestamp("orders", 0, time)
        assert (found.base_offset if found else None) == base, time
    assert await store.find_segment_for_timestamp("orders", 1, 0) is None
    with pytest.raises(NotFound, match="partition 9"):
        await store.find_segment_for_timestamp("orders", 9, 0)
    await store.add_segment(held(40))  # its writer did not say
    found = await store.find_segment_for_timestamp("orders", 0, 501)
    assert found is not None
    assert found.base_offset == 40


async def test_a_merge_replaces_segments(store: MetadataStore) -> None:
    await store.add_segments([held(0, "a"), held(10, "b"), held(20, "c"), held(0, "b", partition=1)])
    old = [*(await store.get_segments("orders", 0))[:2], *await store.get_segments("orders", 1)]
    assert await store.find_segment_for_offset("orders", 0, 5) == old[0]
    await store.record_intents(["s3://lake/merged"], purpose="segments", owner="me")
    merged = [
        msgspec.structs.replace(held(0, "merged"), end_offset=19, record_count=20),
        held(0, "merged", partition=1),
    ]
    await store.replace_segments(old, merged, intents_of="me")
    assert await objects(store) == {"merged": (2, 200), "c": (1, 100)}
    assert await intents(store) == [("s3://lake/a", "segments"), ("s3://lake/b", "segments")]
    rows = await store.get_segments("orders", 0)
    assert [(row.base_offset, row.end_offset, row.s3_key) for row in rows] == [(0, 19, "merged"), (20, 29, "c")]
    found = await store.find_segment_for_offset("orders", 0, 5)
    assert found == rows[0]
    partition = await store.get_partition("orders", 0)
    assert partition is not None
    assert partition.high_watermark == 30
    async with unchanged(store):
        with pytest.raises(Conflict) as caught:
            await store.replace_segments(old, merged)
        assert caught.value.names == ("orders/0/0", "orders/0/10", "orders/1/0")


async def test_a_merge_keeps_the_offsets(store: MetadataStore) -> None:
    await store.add_segments([held(0), held(10), held(30)])
    old = await store.get_segments("orders", 0)
    wrong = [
        [held(0, "m")],
        [msgspec.structs.replace(held(0, "m"), end_offset=29), held(30, "m")],
        [msgspec.structs.replace(held(0, "m"), end_offset=19), held(31, "m")],
        [msgspec.structs.replace(held(0, "m"), end_offset=19), held(30, "m", partition=1)],
        [],
    ]
    async with unchanged(store):
        for new in wrong:
            with pytest.raises(Invalid, match="the same offsets"):
                await store.replace_segments(old, new)
        with pytest.raises(Conflict, match="intent"):
            await store.replace_segments(old[:1], [held(0, "m")], intents_of="me")
    await store.replace_segments([], [])
    await store.replace_segments(old[:2], [msgspec.structs.replace(held(0, "m"), end_offset=19)])
    halves = [(30, 34), (35, 39)]
    parts = [msgspec.structs.replace(held(base, "m"), end_offset=end) for base, end in halves]
    await store.replace_segments(old[2:], parts)
    assert [row.base_offset for row in await store.get_segments("orders", 0)] == [0, 30, 35]


async def test_concurrent_merges_and_deletions_count_objects_correctly(
    store: MetadataStore, other: MetadataStore
) -> None:
    chance = random.Random(3)
    for number in range(4):
        await store.add_segments(
            [held(base, f"o{chance.randrange(6)}", partition=number) for base in range(0, 200, 10)]
        )

    async def merge(number: int, turn: int) -> None:
        rows = (await store.get_segments("orders", number))[:3]
        if not rows:
            return
        new = msgspec.structs.replace(
            held(rows[0].base_offset, f"m{turn}", partition=number), end_offset=rows[-1].end_offset
        )
        try:
            await (store, other)[turn % 2].replace_segments(rows, [new])
        except Conflict:
            return

    for turn in range(6):
        await asyncio.gather(
            *(merge(number, turn) for number in range(4)),
            *(other.delete_segments_before("orders", number, turn * 25) for number in range(4)),
        )
    live: dict[str, int] = {}
    for number in range(4):
        for row in await store.get_segments("orders", number):
            live[row.s3_key] = live.get(row.s3_key, 0) + 1
    assert {key: count for key, (count, _) in (await objects(store)).items()} == live
    assert not {f"s3://lake/{key}" for key in live} & {path for path, _ in await intents(store)}


async def test_many_partitions_are_read_at_once(store: MetadataStore) -> None:
    await store.add_segments([held(0), held(0, topic="other")])
    rows = await store.get_partitions([("other", 0), ("orders", 3), ("orders", 0), ("orders", 9), ("nowhere", 0)])
    assert [(row.topic, row.partition_id, row.high_watermark) for row in rows] == [
        ("orders", 0, 10), ("orders", 3, 0), ("other", 0, 10),
    ]  # fmt: skip
    assert await store.get_partitions([]) == []
