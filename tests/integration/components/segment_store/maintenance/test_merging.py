"""Merges keep records and offsets, whatever happens concurrently."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from astha.clock import SystemLoopClock
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import StorageUnavailable
from components.segment_store.maintenance.merge_policy import MergePolicy
from components.segment_store.maintenance.merging import Merger
from registry.contract import MetadataStore
from registry.errors import Unavailable
from registry.forwarding import ForwardingStore
from registry.inputs import SegmentDraft
from registry.models import Segment
from tests.integration.components.lib.streams.harness import TOPIC, StreamHarness, numbers
from tests.samples import segment

POLICY = MergePolicy(small_bytes=1 << 20, target_bytes=4 << 20, min_segments=3, min_age_ms=0)
ALL = {(TOPIC, 0): 0, (TOPIC, 1): 0, (TOPIC, 2): 0}


class Interfering(ForwardingStore):
    """Runs another action before a replacement, or loses its response."""

    def __init__(self, inner: MetadataStore, *, retain_from: int | None = None, lose: str = "") -> None:
        super().__init__(inner)
        self._retain_from = retain_from
        self._lose = lose
        self.sizes: list[int] = []

    async def replace_segments(
        self, old: Sequence[Segment], new: Sequence[SegmentDraft], *, intents_of: str | None = None
    ) -> None:
        self.sizes.append(len(old))
        if self._retain_from is not None:
            await self.inner.delete_segments_before(TOPIC, 0, self._retain_from)
            self._retain_from = None
        if self._lose == "call":
            raise Unavailable("the connection was lost")
        await self.inner.replace_segments(old, new, intents_of=intents_of)
        if self._lose == "answer":
            raise Unavailable("the connection was lost")


def merger_of(harness: StreamHarness, store: MetadataStore | None = None, policy: MergePolicy = POLICY) -> Merger:
    location = (harness.directory / "merged").as_uri()
    return Merger(store or harness.store, harness.objects, harness.reader.cache, SystemLoopClock(), location, policy)


async def contents(harness: StreamHarness, partition: int = 0, start: int = 0) -> list[int]:
    """Reads with empty caches."""
    reader = harness.new_reader()
    harness.cached.clear()
    seen: list[int] = []
    offset = start
    while len(found := await reader.read(TOPIC, partition, offset)):
        assert [record.offset for record in found] == numbers([record.value for record in found])
        seen += [record.offset for record in found]
        offset = found.next_offset
    return seen


def there(segments: Sequence[Segment]) -> int:
    """Returns how many of their objects exist."""
    return sum(Path("/", segment.s3_key).exists() for segment in segments)


async def test_small_segments_are_merged_into_one_per_partition(harness: StreamHarness) -> None:
    for partition in range(3):
        await harness.write(*[2] * 10, partition=partition, together=False)
    done = await merger_of(harness).merge(ALL)
    assert (done.old, done.new, done.revisit) == (30, 3, [])
    rows = [(await harness.store.get_segments(TOPIC, partition))[0] for partition in range(3)]
    assert len({row.uri for row in rows}) == 1
    for partition, row in enumerate(rows):
        assert (row.base_offset, row.end_offset, row.record_count) == (0, 19, 20)
        assert row.max_timestamp is not None
        assert await contents(harness, partition) == list(range(20))
    assert (await merger_of(harness).merge(ALL)).old == 0  # nothing left to merge


async def test_the_cleaner_deletes_old_objects_after_the_merge(harness: StreamHarness) -> None:
    old = await harness.write(*[2] * 5, together=False)
    await merger_of(harness).merge(ALL)
    assert there(old) == len(old)
    cleaned = await clean_intents(harness.store, harness.objects, 0, "cleaner")
    assert sorted(cleaned.deleted) == sorted(row.uri for row in old)
    assert there(old) == 0
    assert await contents(harness) == list(range(10))


async def test_adjacent_blocks_of_several_partitions_are_one_request(harness: StreamHarness) -> None:
    """Partitions that share objects must not cost a request per partition and object."""
    for _ in range(4):
        drafts: list[SegmentDraft] = []
        for partition in range(3):
            drafts += await harness.put_object([2], partition, first=harness._ends.get(partition, 0))
        await harness.join_objects(drafts)
    harness.objects.requests.clear()
    done = await merger_of(harness).merge(ALL)
    assert (done.old, done.new) == (12, 3)
    assert len(harness.objects.requests) == 4
    for partition in range(3):
        assert await contents(harness, partition) == list(range(8))


async def test_a_merge_does_not_restore_segments_deleted_meanwhile(harness: StreamHarness) -> None:
    await harness.write(*[2] * 5, together=False)
    await harness.write(*[2] * 5, partition=1, together=False)
    done = await merger_of(harness, Interfering(harness.store, retain_from=4)).merge(ALL)
    assert (done.old, done.new) == (5, 1)  # of the other partition
    assert done.revisit == [(TOPIC, 0)]
    assert await contents(harness, 0, start=4) == list(range(4, 10))
    assert await contents(harness, 1) == list(range(10))


async def test_an_object_without_registered_segments_is_deleted(harness: StreamHarness) -> None:
    await harness.write(*[2] * 5, together=False)
    await merger_of(harness, Interfering(harness.store, retain_from=4)).merge(ALL)
    assert list((harness.directory / "merged").rglob("*.segments")) == []
    assert len(await harness.store.list_stale_intents(0)) == 2  # the objects that retention emptied


@pytest.mark.parametrize("lose", ["call", "answer"])
async def test_a_lost_response_leaves_the_log_intact(harness: StreamHarness, lose: str) -> None:
    await harness.write(*[2] * 5, together=False)
    with pytest.raises(Unavailable):
        await merger_of(harness, Interfering(harness.store, lose=lose)).merge(ALL)
    assert await contents(harness) == list(range(10))
    await clean_intents(harness.store, harness.objects, 0, "cleaner")
    assert await contents(harness) == list(range(10))
    left = {row.uri for row in await harness.store.get_segments(TOPIC, 0)}
    assert {path.as_uri() for path in harness.directory.rglob("*.seg*") if path.is_file()} == left


async def test_failing_storage_leaves_the_log_unchanged(
    harness: StreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await harness.write(*[2] * 5, together=False)

    async def refuse(uri: str, data: bytes) -> None:
        raise StorageUnavailable("no answer")

    monkeypatch.setattr(harness.objects, "put", refuse)
    with pytest.raises(StorageUnavailable):
        await merger_of(harness).merge(ALL)
    assert await harness.store.get_segments(TOPIC, 0) == rows


async def test_a_damaged_segment_does_not_prevent_other_merges(harness: StreamHarness) -> None:
    damaged = await harness.write(*[2] * 5, together=False)
    await harness.write(*[2] * 5, partition=1, together=False)
    harness.damage(damaged[2])
    done = await merger_of(harness).merge(ALL)
    assert (done.old, done.new) == (5, 1)
    assert await harness.store.get_segments(TOPIC, 0) == damaged


async def test_transactions_are_bounded_and_the_rest_is_left_for_the_next_object(harness: StreamHarness) -> None:
    for partition in range(3):
        await harness.write(*[1] * 200, partition=partition)
    interfering = Interfering(harness.store)
    assert (await merger_of(harness, interfering).merge(ALL)).new == 3
    assert interfering.sizes == [200, 200, 200]
    few = MergePolicy(small_bytes=1 << 20, target_bytes=4_000, min_segments=3, min_age_ms=0)
    for partition in range(3):
        await harness.write(*[1] * 20, partition=partition)
    done = await merger_of(harness, policy=few).merge(ALL)
    assert done.new >= 1
    assert (TOPIC, 2) in done.revisit


class CountingRows(ForwardingStore):
    """Counts the segments that are read from the end."""

    rows = 0

    async def stream_segments_backwards(self, topic: str, partition_id: int) -> AsyncIterator[Segment]:
        async for row in self.inner.stream_segments_backwards(topic, partition_id):
            self.rows += 1
            yield row


@pytest.mark.parametrize("earlier", [0, 3_000])
async def test_a_look_reads_what_is_new_and_not_the_history(harness: StreamHarness, earlier: int) -> None:
    large = [segment(n, n, topic=TOPIC) for n in range(earlier)]
    await harness.store.add_segments([msgspec.structs.replace(row, size_bytes=2 << 20) for row in large])
    harness._ends[0] = earlier
    await harness.write(*[2] * 5, together=False)
    store = CountingRows(harness.store)
    done = await merger_of(harness, store).merge({(TOPIC, 0): earlier})
    assert (done.old, done.new) == (5, 1)
    assert store.rows <= 6


async def test_a_look_goes_back_to_all_that_is_new(harness: StreamHarness) -> None:
    """Two runs with a large segment in between. A look that begins above the older run finds only the younger."""
    await harness.write(*[2] * 5, together=False)
    large = msgspec.structs.replace(segment(10, 10, topic=TOPIC), size_bytes=2 << 20)
    await harness.store.add_segments([large])
    harness._ends[0] = 11
    await harness.write(*[2] * 4, together=False)
    assert (await merger_of(harness).merge({(TOPIC, 0): 11})).old == 4
    assert (await merger_of(harness).merge({(TOPIC, 0): 4})).old == 5


async def test_small_segments_at_the_end_are_left_for_the_next_merge(harness: StreamHarness) -> None:
    large = msgspec.structs.replace(segment(0, 0, topic=TOPIC), size_bytes=2 << 20)
    await harness.store.add_segments([large])
    harness._ends[0] = 1
    assert (await merger_of(harness).merge({(TOPIC, 0): 0})).leftovers == {(TOPIC, 0): 0}
    await harness.write(2, 2, together=False)
    assert (await merger_of(harness).merge({(TOPIC, 0): 0})).leftovers == {(TOPIC, 0): 2}
    young = replace(POLICY, min_age_ms=1 << 40)
    assert (await merger_of(harness, policy=young).merge({(TOPIC, 0): 0})).leftovers == {(TOPIC, 0): 2}
    await harness.write(2)
    done = await merger_of(harness, policy=young).merge({(TOPIC, 0): 0})
    assert (done.old, done.revisit, done.leftovers) == (0, [(TOPIC, 0)], {(TOPIC, 0): 0})
