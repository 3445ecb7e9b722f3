"""Segments: registering, finding, paging, deleting; watermarks, overlaps and fences."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import Conflict, Fenced, Invalid, NotFound
from registry.inputs import Fence, SegmentDraft
from registry.models import PartitionLease, Segment
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, BAD_PATHS, Refused
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock
from tests.samples import segment


async def _watermark(store: MetadataStore, partition: int = 0) -> int:
    found = await store.get_partition("orders", partition)
    assert found is not None
    return found.high_watermark


async def _spans(store: MetadataStore, partition: int = 0) -> list[tuple[int, int]]:
    return [(row.base_offset, row.end_offset) async for row in store.stream_segments("orders", partition)]


def _fence(lease: PartitionLease) -> Fence:
    assert lease.leader_agent_id is not None
    return Fence(lease.topic, lease.partition_id, lease.leader_agent_id, lease.epoch)


@pytest.fixture(autouse=True)
async def topic(store: MetadataStore) -> None:
    await store.create_topic("orders", 4)


async def test_all_columns_of_a_segment_are_stored(store: MetadataStore, clock: ManualClock) -> None:
    draft = SegmentDraft("orders", 1, 5, 2**62, 3, 2**61, "bucket-1", 'a key/with "quotes", \\ and {}', 2**60)
    await store.add_segment(draft)
    (row,) = await store.get_segments("orders", 1)
    given = {name: getattr(draft, name) for name in draft.__struct_fields__}
    assert msgspec.structs.asdict(row) == {"id": row.id, **given, "created_at": clock.now_ms()}
    assert type(row) is Segment


async def test_adding_moves_the_watermark_past_the_last(store: MetadataStore, clock: ManualClock) -> None:
    clock.advance(10)
    await store.add_segments([segment(0), segment(10), segment(100, partition=2)])
    assert [await _watermark(store, n) for n in range(4)] == [20, 0, 110, 0]
    moved, still = await store.get_partition("orders", 0), await store.get_partition("orders", 1)
    assert moved is not None
    assert still is not None
    assert (moved.updated_at, still.updated_at) == (clock.now_ms(), clock.now_ms() - 10)


async def test_an_empty_call_does_nothing(store: MetadataStore) -> None:
    async with unchanged(store):
        await store.add_segments([])


async def test_segments_of_one_call_may_come_in_any_order(store: MetadataStore) -> None:
    bases = [50, 10, 30, 0, 20, 90]
    await store.add_segments([segment(base) for base in bases])
    assert await _spans(store) == [(base, base + 9) for base in sorted(bases)]
    assert await _watermark(store) == 100


async def test_a_late_segment_fits_between_others(store: MetadataStore) -> None:
    await store.add_segments([segment(0), segment(20)])
    await store.add_segment(segment(10))
    assert await _spans(store) == [(0, 9), (10, 19), (20, 29)]
    assert await _watermark(store) == 30


async def test_a_late_and_a_new_segment_in_one_call(store: MetadataStore) -> None:
    await store.add_segments([segment(0), segment(20), segment(0, partition=1)])
    await store.add_segments([segment(10), segment(30), segment(10, partition=1)])
    assert await _spans(store) == [(0, 9), (10, 19), (20, 29), (30, 39)]
    assert [await _watermark(store), await _watermark(store, 1)] == [40, 20]


async def test_segments_may_be_added_below_a_moved_watermark(store: MetadataStore) -> None:
    await store.update_high_watermark("orders", 0, 1_000)
    await store.add_segments([segment(0), segment(10)])
    assert await _spans(store) == [(0, 9), (10, 19)]
    assert await _watermark(store) == 1_000


@pytest.mark.parametrize(
    ("base", "end"), [(10, 19), (0, 10), (19, 30), (12, 15), (0, 100), (19, 19), (10, 10), (29, 40), (9, 20)]
)
async def test_an_overlap_is_a_conflict(store: MetadataStore, base: int, end: int) -> None:
    await store.add_segments([segment(10), segment(21)])
    async with unchanged(store):
        with pytest.raises(Conflict, match="partition 0 of topic 'orders'") as caught:
            await store.add_segments([segment(0, partition=1), segment(base, end), segment(200)])
        assert caught.value.names == ("orders/0",)


async def test_the_same_segment_twice_is_a_conflict(store: MetadataStore) -> None:
    await store.add_segment(segment(0))
    async with unchanged(store):
        with pytest.raises(Conflict):
            await store.add_segment(segment(0))


async def test_segments_of_one_call_must_not_overlap(store: MetadataStore) -> None:
    async with unchanged(store):
        for drafts in ([segment(0, 10), segment(10, 19)], [segment(10), segment(0, 10)], [segment(5), segment(5)]):
            with pytest.raises(Invalid, match="overlap"):
                await store.add_segments(drafts)
    await store.add_segments([segment(0), segment(0, partition=1)])  # other partitions are no overlap


async def test_an_unknown_partition_is_named_and_nothing_written(store: MetadataStore) -> None:
    async with unchanged(store):
        with pytest.raises(NotFound, match="partition 4 of topic 'orders'"):
            await store.add_segments([segment(0), segment(0, partition=4)])
        with pytest.raises(NotFound, match="'nowhere'"):
            await store.add_segment(segment(0, topic="nowhere"))
        for call in (
            store.get_segments("orders", 4),
            store.find_segment_for_offset("orders", 4, 0),
            store.delete_segments_before("orders", 4, 10),
        ):
            with pytest.raises(NotFound, match="partition 4 of topic 'orders'"):
                await call


async def test_the_segment_that_contains_an_offset_is_found(store: MetadataStore) -> None:
    await store.add_segments([segment(10), segment(20), segment(40), segment(0, partition=1)])
    for offset, base in [
        (9, None),
        (10, 10),
        (19, 10),
        (20, 20),
        (29, 20),
        (30, None),
        (39, None),
        (40, 40),
        (50, None),
    ]:
        found = await store.find_segment_for_offset("orders", 0, offset)
        assert (found.base_offset if found else None) == base, offset
    assert await store.find_segment_for_offset("orders", 2, 0) is None
    assert await store.find_segment_for_offset("orders", 0, 2**63 - 1) is None


async def test_pages_continue_after_the_last_offset(store: MetadataStore) -> None:
    await store.add_segments([segment(base) for base in range(0, 100, 10)])
    first = await store.get_segments("orders", 0, limit=3)
    assert [row.base_offset for row in first] == [0, 10, 20]
    following = await store.get_segments("orders", 0, from_offset=first[-1].end_offset + 1, limit=3)
    assert [row.base_offset for row in following] == [30, 40, 50]
    inside = await store.get_segments("orders", 0, from_offset=85)
    assert [row.base_offset for row in inside] == [80, 90]
    assert await store.get_segments("orders", 0, from_offset=100) == []
    gap = [segment(200), segment(300)]
    await store.add_segments(gap)
    assert [row.base_offset for row in await store.get_segments("orders", 0, from_offset=150)] == [200, 300]


async def test_a_stream_crosses_pages(store: MetadataStore) -> None:
    await store.add_segments([segment(base, base) for base in range(2_500)])
    assert await _spans(store) == [(base, base) for base in range(2_500)]
    assert [row.base_offset async for row in store.stream_segments("orders", 0, from_offset=2_400)] == [
        *range(2_400, 2_500)
    ]


async def test_a_stream_from_the_end(store: MetadataStore) -> None:
    await store.add_segments([segment(base, base) for base in range(2_500)])
    await store.delete_segments_before("orders", 0, 20)
    backwards = [row.base_offset async for row in store.stream_segments_backwards("orders", 0)]
    assert backwards == [*range(2_499, 19, -1)]
    assert [row async for row in store.stream_segments_backwards("orders", 1)] == []
    with pytest.raises(NotFound):
        await anext(store.stream_segments_backwards("orders", 99))


async def test_finds_the_segment_from_which_on_there_are_so_many_bytes(store: MetadataStore) -> None:
    drafts = [msgspec.structs.replace(segment(10 * n), size_bytes=size) for n, size in enumerate((100, 30, 20, 50))]
    await store.add_segments(drafts)
    sizes = (0, 1, 50, 51, 70, 71, 100, 101, 200, 201, 2**63 - 1)
    found = [await store.find_segment_for_size("orders", 0, size) for size in sizes]
    assert [row and row.base_offset for row in found] == [30, 30, 30, 20, 20, 10, 10, 0, 0, None, None]
    assert await store.find_segment_for_size("orders", 1, 1) is None
    with pytest.raises(NotFound):
        await store.find_segment_for_size("orders", 99, 1)


async def test_the_highest_possible_offsets(store: MetadataStore) -> None:
    last = 2**63 - 2
    await store.add_segment(segment(last - 1, last))
    assert await _watermark(store) == 2**63 - 1
    assert await _spans(store) == [(last - 1, last)]
    found = await store.find_segment_for_offset("orders", 0, last)
    assert found is not None
    async with unchanged(store):
        with pytest.raises(Invalid, match="next offset"):
            await store.add_segment(segment(2**63 - 1, 2**63 - 1, partition=1))


async def test_deleting_before_an_offset_keeps_the_segment_that_contains_it(store: MetadataStore) -> None:
    await store.add_segments([segment(0), segment(10), segment(20), segment(0, partition=1)])
    assert await store.delete_segments_before("orders", 0, 9) == 0
    assert await store.delete_segments_before("orders", 0, 15) == 1
    assert await _spans(store) == [(10, 19), (20, 29)]
    assert await store.delete_segments_before("orders", 0, 1_000) == 2
    assert await store.delete_segments_before("orders", 0, 1_000) == 0
    assert await _watermark(store) == 30
    assert await _spans(store, 1) == [(0, 9)]


async def test_adding_completes_the_upload_intents_of_its_objects(store: MetadataStore, clock: ManualClock) -> None:
    kept, done = "s3://lake/orders/0/999", "s3://lake/orders/0/0"
    await store.record_intents([kept, done], purpose="segment", owner="agent-1")
    with pytest.raises(NotFound):
        await store.add_segments([segment(0), segment(0, partition=99)])
    assert len(await store.list_stale_intents(0)) == 2
    await store.add_segment(segment(0))
    assert [intent.path for intent in await store.list_stale_intents(0)] == [kept]
    await store.record_intents(["s3://lake/orders/0/20"], purpose="segment", owner="agent-1")
    await store.add_segment(segment(30))
    await store.add_segment(segment(20))  # late
    assert [intent.path for intent in await store.list_stale_intents(0)] == [kept]


async def test_one_of_many_overlapping_writers_wins(store: MetadataStore, other: MetadataStore) -> None:
    await store.add_segment(segment(0))
    for start in range(10, 70, 10):
        drafts = [segment(start + shift, start + shift + 4) for shift in (0, 1, 2, 3, 4)]
        results = await asyncio.gather(
            *((store, other)[number % 2].add_segment(draft) for number, draft in enumerate(drafts)),
            return_exceptions=True,
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 4
    spans = await _spans(store)
    assert all(one[1] < following[0] for one, following in pairwise(spans))
    assert await _watermark(store) == max(end for _, end in spans) + 1


async def test_concurrent_writers_of_several_partitions_move_every_watermark(
    store: MetadataStore, other: MetadataStore
) -> None:
    """Writers that wait for each other's locks must see the moved watermarks."""

    async def write(owner: MetadataStore, number: int) -> None:
        order = random.Random(number).sample(range(4), 4)
        await owner.add_segments([segment(number * 10, partition=partition) for partition in order])

    await asyncio.gather(*(write((store, other)[number % 2], number) for number in range(24)))
    for partition in range(4):
        assert await _spans(store, partition) == [(base, base + 9) for base in range(0, 240, 10)]
        assert await _watermark(store, partition) == 240


async def test_a_topic_deleted_during_writes_leaves_no_rows(store: MetadataStore, other: MetadataStore) -> None:
    writers = [other.add_segment(segment(base)) for base in range(0, 100, 10)]
    results = await asyncio.gather(*writers[:5], store.delete_topic("orders"), *writers[5:], return_exceptions=True)
    assert all(result is None or isinstance(result, NotFound) for result in results), results
    with pytest.raises(NotFound):
        await store.get_segments("orders", 0)


async def test_a_current_fence_is_accepted(store: MetadataStore, clock: ManualClock) -> None:
    await store.register_agent("agent-1", "host:1")
    lease = await store.acquire_partition_lease("orders", 0, "agent-1", 1_000)
    await store.add_segment(segment(0), fence=_fence(lease))
    clock.advance(5_000)  # expired, but not taken over
    await store.add_segments([segment(10), segment(0, partition=1)], fences=[_fence(lease)])
    assert await _watermark(store) == 20


async def test_a_paused_holder_is_fenced(store: MetadataStore, clock: ManualClock) -> None:
    await store.register_agent("agent-1", "host:1")
    await store.register_agent("agent-2", "host:2")
    await store.add_segment(segment(100))
    old = await store.acquire_partition_lease("orders", 0, "agent-1", 1_000)
    clock.advance(1_000)
    new = await store.acquire_partition_lease("orders", 0, "agent-2", 1_000)
    async with unchanged(store):
        for base in (0, 200):  # a late segment is fenced as a new one is
            with pytest.raises(Fenced, match="partition 0 of topic 'orders'") as caught:
                await store.add_segment(segment(base), fence=_fence(old))
            assert caught.value.names == ("orders/0",)
        with pytest.raises(Fenced):
            await store.add_segments([segment(200), segment(0, partition=1)], fences=[_fence(new), _fence(old)])
        with pytest.raises(Fenced):  # the right epoch in the wrong hands
            await store.add_segment(segment(200), fence=Fence("orders", 0, "agent-1", new.epoch))
        with pytest.raises(Fenced):  # never leased
            await store.add_segment(segment(0, partition=1), fence=Fence("orders", 1, "agent-1", 1))
    await store.add_segment(segment(200), fence=_fence(new))
    clock.advance(1_000)
    again = await store.acquire_partition_lease("orders", 0, "agent-1", 1_000)
    async with unchanged(store):
        for base in (0, 300):  # the right hands, an older epoch
            with pytest.raises(Fenced):
                await store.add_segment(segment(base), fence=_fence(old))
    await store.add_segment(segment(300), fence=_fence(again))


async def test_a_released_or_deregistered_holder_is_fenced(store: MetadataStore) -> None:
    await store.register_agent("agent-1", "host:1")
    released = await store.acquire_partition_lease("orders", 0, "agent-1", 1_000)
    assert await store.release_partition_lease(released)
    left = await store.acquire_partition_lease("orders", 1, "agent-1", 1_000)
    await store.deregister_agent("agent-1")
    async with unchanged(store):
        with pytest.raises(Fenced):
            await store.add_segment(segment(0), fence=_fence(released))
        with pytest.raises(Fenced):
            await store.add_segment(segment(0, partition=1), fence=_fence(left))


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, refused: Refused) -> None:
    async def refuse(field: str, value: Any) -> None:
        bad = msgspec.structs.replace(segment(0), **{field: value})
        await refused(store.add_segment(bad), field, value)
        await refused(store.add_segments([segment(0, partition=1), bad]), field, value)

    async with unchanged(store):
        for name in BAD_NAMES:
            await refuse("topic", name)
            await refuse("s3_bucket", name)
            await refused(store.get_segments(name, 0), "topic", name)
            await refused(store.find_segment_for_offset(name, 0, 0), "topic", name)
            await refused(store.delete_segments_before(name, 0, 0), "topic", name)
            await refused(store.add_segment(segment(0), fence=Fence("orders", 0, name, 1)), "agent_id", name)
        for path in BAD_PATHS:
            await refuse("s3_key", path)
        for number in BAD_COUNTS:
            for field in ("partition_id", "base_offset", "end_offset", "record_count", "size_bytes", "byte_offset"):
                await refuse(field, number)
            await refused(store.get_segments("orders", number), "partition_id", number)
            await refused(store.get_segments("orders", 0, from_offset=number), "from_offset", number)
            await refused(store.get_segments("orders", 0, limit=number), "limit", number)
            await refused(store.find_segment_for_offset("orders", 0, number), "offset", number)
            await refused(store.delete_segments_before("orders", 0, number), "offset", number)
        await refuse("partition_id", 2**31)
        await refused(store.get_segments("orders", 0, limit=0), "limit", 0)
        await refused(store.add_segment(segment(10, 9)), "end_offset", 9)


async def test_the_longest_bucket_and_key_fit(store: MetadataStore) -> None:
    """Incompressible, so that an index entry has its full size."""
    letters = random.Random(1)
    bucket = "".join(letters.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=255))
    key = "".join(chr(letters.randrange(0x400, 0x800)) for _ in range(1_024))
    await store.add_segment(msgspec.structs.replace(segment(0), s3_bucket=bucket, s3_key=key))
    (row,) = await store.get_segments("orders", 0)
    assert (row.s3_bucket, row.s3_key) == (bucket, key)


async def test_a_bucket_is_limited_in_bytes(store: MetadataStore) -> None:
    """Bucket and key share an index entry, whose size PostgreSQL limits."""
    async with unchanged(store):
        with pytest.raises(Invalid, match="s3_bucket"):
            await store.add_segment(msgspec.structs.replace(segment(0), s3_bucket="\u0416" * 200))
