"""Merges: the same records under the same offsets, whoever interferes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
from tests.integration.components.segment_store.harness import TOPIC, Bench, numbers

POLICY = MergePolicy(small_bytes=1 << 20, target_bytes=4 << 20, fewest=3, settled_ms=0)
ALL = [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)]


class Interfering(ForwardingStore):
    """Before a replacement, somebody else does something; or its answer is lost."""

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


def merger_of(bench: Bench, store: MetadataStore | None = None, policy: MergePolicy = POLICY) -> Merger:
    location = (bench.directory / "merged").as_uri()
    return Merger(store or bench.store, bench.objects, bench.reader.cache, SystemLoopClock(), location, policy)


async def contents(bench: Bench, partition: int = 0, start: int = 0) -> list[int]:
    """Read by somebody with nothing in memory."""
    reader = bench.new_reader()
    bench.cached.clear()
    seen: list[int] = []
    offset = start
    while len(found := await reader.read(TOPIC, partition, offset)):
        assert [record.offset for record in found] == numbers([record.value for record in found])
        seen += [record.offset for record in found]
        offset = found.next_offset
    return seen


def there(segments: Sequence[Segment]) -> int:
    """How many objects of theirs exist."""
    return sum(Path("/", segment.s3_key).exists() for segment in segments)


async def test_many_small_segments_become_one_of_each_partition(bench: Bench) -> None:
    for partition in range(3):
        await bench.write(*[2] * 10, partition=partition, together=False)
    done = await merger_of(bench).merge(ALL)
    assert (done.old, done.new, done.again) == (30, 3, [])
    rows = [(await bench.store.get_segments(TOPIC, partition))[0] for partition in range(3)]
    assert len({row.uri for row in rows}) == 1
    for partition, row in enumerate(rows):
        assert (row.base_offset, row.end_offset, row.record_count) == (0, 19, 20)
        assert row.max_timestamp is not None
        assert await contents(bench, partition) == list(range(20))
    assert (await merger_of(bench).merge(ALL)).old == 0  # nothing left that is worth it


async def test_the_old_objects_are_deleted_by_the_cleaner_and_not_before(bench: Bench) -> None:
    old = await bench.write(*[2] * 5, together=False)
    await merger_of(bench).merge(ALL)
    assert there(old) == len(old)
    cleaned = await clean_intents(bench.store, bench.objects, 0, "cleaner")
    assert sorted(cleaned.deleted) == sorted(row.uri for row in old)
    assert there(old) == 0
    assert await contents(bench) == list(range(10))


async def test_neighbours_of_several_partitions_in_an_object_are_one_request(bench: Bench) -> None:
    """A hundred partitions that share objects must not cost a hundred requests for each of these."""
    for _ in range(4):
        drafts: list[SegmentDraft] = []
        for partition in range(3):
            drafts += await bench.put_object([2], partition, first=bench._ends.get(partition, 0))
        await bench.join_objects(drafts)
    bench.objects.requests.clear()
    done = await merger_of(bench).merge(ALL)
    assert (done.old, done.new) == (12, 3)
    assert len(bench.objects.requests) == 4
    for partition in range(3):
        assert await contents(bench, partition) == list(range(8))


async def test_what_retention_takes_meanwhile_is_not_brought_back(bench: Bench) -> None:
    await bench.write(*[2] * 5, together=False)
    await bench.write(*[2] * 5, partition=1, together=False)
    done = await merger_of(bench, Interfering(bench.store, retain_from=4)).merge(ALL)
    assert (done.old, done.new) == (5, 1)  # the other partition's
    assert done.again == [(TOPIC, 0)]
    assert await contents(bench, 0, start=4) == list(range(4, 10))
    assert await contents(bench, 1) == list(range(10))


async def test_an_object_in_which_nothing_was_registered_is_removed(bench: Bench) -> None:
    await bench.write(*[2] * 5, together=False)
    await merger_of(bench, Interfering(bench.store, retain_from=4)).merge(ALL)
    assert list((bench.directory / "merged").rglob("*.segments")) == []
    assert len(await bench.store.list_stale_intents(0)) == 2  # the objects that retention emptied


@pytest.mark.parametrize("lose", ["call", "answer"])
async def test_a_lost_answer_leaves_the_log_whole(bench: Bench, lose: str) -> None:
    await bench.write(*[2] * 5, together=False)
    with pytest.raises(Unavailable):
        await merger_of(bench, Interfering(bench.store, lose=lose)).merge(ALL)
    assert await contents(bench) == list(range(10))
    await clean_intents(bench.store, bench.objects, 0, "cleaner")
    assert await contents(bench) == list(range(10))
    left = {row.uri for row in await bench.store.get_segments(TOPIC, 0)}
    assert {path.as_uri() for path in bench.directory.rglob("*.seg*") if path.is_file()} == left


async def test_storage_that_refuses_leaves_the_log_as_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = await bench.write(*[2] * 5, together=False)

    async def refuse(uri: str, data: bytes) -> None:
        raise StorageUnavailable("no answer")

    monkeypatch.setattr(bench.objects, "put", refuse)
    with pytest.raises(StorageUnavailable):
        await merger_of(bench).merge(ALL)
    assert await bench.store.get_segments(TOPIC, 0) == rows


async def test_a_damaged_segment_does_not_keep_the_other_partitions(bench: Bench) -> None:
    damaged = await bench.write(*[2] * 5, together=False)
    await bench.write(*[2] * 5, partition=1, together=False)
    bench.damage(damaged[2])
    done = await merger_of(bench).merge(ALL)
    assert (done.old, done.new) == (5, 1)
    assert await bench.store.get_segments(TOPIC, 0) == damaged


async def test_transactions_are_bounded_and_more_is_left_for_the_next_object(bench: Bench) -> None:
    for partition in range(3):
        await bench.write(*[1] * 200, partition=partition)
    interfering = Interfering(bench.store)
    assert (await merger_of(bench, interfering).merge(ALL)).new == 3
    assert interfering.sizes == [200, 200, 200]
    few = MergePolicy(small_bytes=1 << 20, target_bytes=4_000, fewest=3, settled_ms=0)
    for partition in range(3):
        await bench.write(*[1] * 20, partition=partition)
    done = await merger_of(bench, policy=few).merge(ALL)
    assert done.new >= 1
    assert (TOPIC, 2) in done.again
