"""Reads by offset and time: their results, and their requests to storage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astha.events import Operation
from components.lib.lake.storage.objects import ObjectMissing
from components.lib.streams.errors import Corrupt, OffsetBeyondEnd, OffsetTooOld
from components.lib.streams.reader.reader import FetchedRecords
from registry.errors import NotFound
from registry.inputs import SegmentDraft
from registry.models import LOCAL_BUCKET, Segment
from tests.integration.components.lib.streams.harness import START_MS, TOPIC, StreamHarness, numbers
from tests.waiting import eventually


def read_numbers(found: FetchedRecords) -> list[int]:
    return numbers([record.value for record in found])


def delete_objects(*segments: Segment | SegmentDraft) -> None:
    for segment in segments:
        Path("/", segment.s3_key).unlink()


async def test_records_by_offset_across_blocks_segments_and_objects(harness: StreamHarness) -> None:
    await harness.write(10, 7, per_block=3)
    await harness.write(5, 1, together=False)
    for offset in range(23):
        found = await harness.reader.read(TOPIC, 0, offset)
        assert read_numbers(found) == list(range(offset, 23))
        assert [record.offset for record in found] == list(range(offset, 23))
        assert found.next_offset == 23
    assert found.to_arrow().column("value").to_pylist() == [b"000022"]


@pytest.mark.parametrize("max_records", [1, 2, 3, 4, 100])
async def test_small_sequential_reads_return_each_record_once(harness: StreamHarness, max_records: int) -> None:
    await harness.write(10, 7, per_block=3)
    seen: list[int] = []
    offset = 0
    while True:
        found = await harness.reader.read(TOPIC, 0, offset, max_records=max_records)
        assert len(found) <= max_records
        if not len(found):
            break
        seen += read_numbers(found)
        offset = found.next_offset
    assert seen == list(range(17))
    assert len(harness.objects.requests) <= 7  # blocks


async def test_a_cold_read_fetches_only_the_blocks_it_needs(harness: StreamHarness) -> None:
    (segment,) = await harness.write(100, per_block=10)
    found = await harness.reader.read(TOPIC, 0, 45, max_records=10)
    assert read_numbers(found) == list(range(45, 55))
    ((_, start, length),) = harness.objects.requests  # two adjacent blocks, one request
    assert 0 < start < segment.size_bytes / 2
    assert length < segment.size_bytes * 3 / 10
    await harness.reader.read(TOPIC, 0, 40, max_records=20)
    assert len(harness.objects.requests) == 1
    found = await harness.reader.read(TOPIC, 0, 35, max_records=35)
    assert read_numbers(found) == list(range(35, 70))
    assert len(harness.objects.requests) == 3  # a block before the cached ones, and one after them


async def test_a_read_is_bounded_by_bytes_but_returns_at_least_one_record(harness: StreamHarness) -> None:
    await harness.write(100, per_block=10)
    found = await harness.reader.read(TOPIC, 0, 0, max_bytes=1)
    assert read_numbers(found) == [0]
    few = await harness.reader.read(TOPIC, 0, 0, max_bytes=500)
    assert 1 < len(few) < 50
    assert read_numbers(few) == list(range(len(few)))


async def test_invalid_offsets_name_the_valid_ones(harness: StreamHarness) -> None:
    with pytest.raises(OffsetBeyondEnd, match="the next record gets 0"):
        await harness.reader.read(TOPIC, 0, 1)
    assert len(await harness.reader.read(TOPIC, 0, 0)) == 0
    await harness.write(5, 5, 5)
    assert len(await harness.reader.read(TOPIC, 0, 15)) == 0
    with pytest.raises(OffsetBeyondEnd) as beyond:
        await harness.reader.read(TOPIC, 0, 16)
    assert beyond.value.end == 15
    await harness.cached.delete_segments_before(TOPIC, 0, 7)
    with pytest.raises(OffsetTooOld, match="the first retained offset is 5") as old:
        await harness.reader.read(TOPIC, 0, 4)
    assert read_numbers(await harness.reader.read(TOPIC, 0, old.value.start, max_records=2)) == [5, 6]
    bounds = await harness.reader.bounds(TOPIC, 0)
    assert (bounds.start, bounds.end) == (5, 15)
    await harness.cached.delete_segments_before(TOPIC, 0, 15)
    with pytest.raises(OffsetTooOld) as all_gone:
        await harness.reader.read(TOPIC, 0, 14)
    assert all_gone.value.start == 15
    with pytest.raises(NotFound):
        await harness.reader.read(TOPIC, 7, 0)
    with pytest.raises(NotFound):
        await harness.reader.read("nothing", 0, 0)


async def test_a_gap_in_the_offsets_is_skipped(harness: StreamHarness) -> None:
    await harness.write(5)
    await harness.store.update_high_watermark(TOPIC, 0, 8)
    harness._ends[0] = 8
    await harness.write(2)
    seen, offset = [], 0
    while len(found := await harness.reader.read(TOPIC, 0, offset)):
        seen += [record.offset for record in found]
        offset = found.next_offset
    assert seen == [0, 1, 2, 3, 4, 8, 9]


async def test_offset_for_timestamp(harness: StreamHarness) -> None:
    await harness.write(10, 10, per_block=3)
    await harness.write(10)
    reader = harness.reader
    for number in (0, 1, 9, 10, 14, 29):
        assert await reader.offset_for_timestamp(TOPIC, 0, START_MS + number * 1000) == number
        assert await reader.offset_for_timestamp(TOPIC, 0, START_MS + number * 1000 - 1) == number
    assert await reader.offset_for_timestamp(TOPIC, 0, START_MS + 29_001) is None
    assert await reader.offset_for_timestamp(TOPIC, 1, 0) is None


async def test_a_corrupt_block_is_reported_and_the_rest_is_read(harness: StreamHarness) -> None:
    (segment,) = await harness.write(30, per_block=10)
    middle = segment.size_bytes // 2  # in the second of three
    harness.damage(segment, middle)
    assert read_numbers(await harness.reader.read(TOPIC, 0, 0)) == list(range(10))
    with pytest.raises(Corrupt) as corrupt:
        await harness.reader.read(TOPIC, 0, 10)
    assert corrupt.value.uri == segment.uri
    assert 0 < corrupt.value.start <= middle < corrupt.value.start + (corrupt.value.length or 0)
    assert read_numbers(await harness.reader.read(TOPIC, 0, 20)) == list(range(20, 30))


async def test_rows_that_point_at_other_bytes_are_detected(harness: StreamHarness) -> None:
    (mine,) = await harness.write(5)
    (other,) = await harness.write(5, partition=1)
    end = {"base_offset": 5, "end_offset": 9, "record_count": 5, "s3_bucket": LOCAL_BUCKET}
    foreign = SegmentDraft(TOPIC, 0, size_bytes=other.size_bytes, s3_key=other.s3_key, **end)  # type: ignore[arg-type]
    await harness.store.add_segments([foreign])
    with pytest.raises(Corrupt, match="another partition"):
        await harness.reader.read(TOPIC, 0, 5)
    short = SegmentDraft(TOPIC, 1, size_bytes=mine.size_bytes + 9, s3_key=mine.s3_key, **end)  # type: ignore[arg-type]
    await harness.store.add_segments([short])
    with pytest.raises(Corrupt, match="the object ends after"):
        await harness.reader.read(TOPIC, 1, 5)


async def test_a_merge_without_an_event_is_discovered(harness: StreamHarness) -> None:
    old = await harness.write(3, 3, together=False)
    for segment in old:
        harness.cached.index.add(segment)
    draft = await harness.put_object([6], 0, first=0)
    await harness.store.replace_segments(old, draft)
    delete_objects(*old)
    assert read_numbers(await harness.reader.read(TOPIC, 0, 0)) == list(range(6))
    delete_objects(*draft)
    await harness.write(1)
    cold = harness.new_reader()
    with pytest.raises(ObjectMissing):
        await cold.read(TOPIC, 0, 0)
    assert read_numbers(await cold.read(TOPIC, 0, 6)) == [6]


def _reader_waits(harness: StreamHarness) -> bool:
    watches = [watch for watches in harness.change_feed._watches.values() for watch in watches]
    return any(watch._notified._waiters for watch in watches)


async def test_an_event_wakes_a_waiting_reader_which_sends_no_queries_meanwhile(harness: StreamHarness) -> None:
    await harness.write(3)
    waiting = asyncio.create_task(harness.reader.read(TOPIC, 0, 3, wait_s=30))
    await eventually(lambda: _reader_waits(harness), "a reader that waits")
    fetches = harness.cached.index.fetches
    (new,) = await harness.write(2)
    harness.publish([new])
    assert read_numbers(await waiting) == [3, 4]
    assert harness.cached.index.fetches == fetches
    assert not harness.change_feed._watches


async def test_a_waiting_reader_gets_nothing_after_the_timeout(harness: StreamHarness) -> None:
    found = await harness.reader.read(TOPIC, 0, 0, wait_s=0.01)
    assert (len(found), found.next_offset) == (0, 0)


async def test_a_notified_record_that_is_not_visible_yet_is_read_again(harness: StreamHarness) -> None:
    """PostgreSQL sends a commit before other sessions see it."""
    waiting = asyncio.create_task(harness.reader.read(TOPIC, 0, 0, wait_s=30))
    await eventually(lambda: bool(harness.change_feed._watches), "a reader that waits")
    (watch,) = harness.change_feed._watches[TOPIC, 0]
    watch.notify((TOPIC, 0), 5)
    await eventually(lambda: watch.misses > 0, "a reader that tries again")
    await harness.write(5)
    assert read_numbers(await waiting) == list(range(5))


async def test_a_gap_in_the_stream_wakes_waiting_readers(harness: StreamHarness) -> None:
    waiting = asyncio.create_task(harness.reader.read(TOPIC, 0, 0, wait_s=30))
    await eventually(lambda: bool(harness.change_feed._watches), "a reader that waits")
    await harness.write(2)
    harness.change_feed.resume(harness.cached.applied)
    assert read_numbers(await waiting) == [0, 1]


async def test_retention_of_another_process_is_seen_by_its_event(harness: StreamHarness) -> None:
    gone = await harness.write(2, 2)
    assert len(await harness.reader.read(TOPIC, 0, 0)) == 4
    await harness.store.delete_segments_before(TOPIC, 0, 2)
    harness.publish(gone[:1], Operation.DELETE)
    with pytest.raises(OffsetTooOld):
        await harness.reader.read(TOPIC, 0, 0)
