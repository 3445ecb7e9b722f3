"""Segments: registering them, which moves watermarks, and finding the one that contains an offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec

from registry import validation
from registry.contract import PAGE
from registry.errors import Conflict, Invalid
from registry.inputs import Fence, ProducerDraft, SegmentDraft, validate
from registry.models import Partition, PartitionLease, ProducerSequence, Segment, Topic
from registry.stores.dynamodb.reader import Range, Reader
from registry.stores.dynamodb.topics import DynamoTopics
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.producers import check_producers, continues, out_of_sequence
from registry.stores.sql.segment_objects import count_by_object
from registry.stores.sql.segments import (
    OffsetRange,
    SegmentAddition,
    covered_offsets,
    fenced,
    offset_ranges,
    page_sizes,
)
from registry.stores.sql.topics import partition_name

_SIZE_PAGE = 64
"""Segments of one request, when they are added up from the end."""


class DynamoSegments(DynamoTopics):
    async def add_segment(self, segment: SegmentDraft, *, fence: Fence | None = None) -> None:
        await self.add_segments([segment], fences=[] if fence is None else [fence])

    async def add_segments(
        self,
        segments: Sequence[SegmentDraft],
        *,
        fences: Sequence[Fence] = (),
        producers: Sequence[ProducerDraft] = (),
        intents_of: str | None = None,
    ) -> None:
        validate(segments)
        validate(fences)
        validate(producers)
        validation.optional("intents_of", intents_of, validation.non_empty)
        ranges = offset_ranges(segments)
        check_producers(producers, set(ranges))
        if segments:
            addition = SegmentAddition(segments, ranges, fences, producers, intents_of)
            await self._transact(lambda tx: self._add(tx, addition))

    async def _add(self, tx: Transaction, addition: SegmentAddition) -> None:
        drafts, ranges = addition.drafts, addition.ranges
        partitions = await self._partitions(tx, list(ranges))
        await self._require_fences(tx, addition.fences)
        sequences = await self._require_sequences(tx, addition.producers)
        # Every segment ends below its partition's watermark, so only a late one can overlap another.
        late = {key for key, offsets in ranges.items() if offsets.first < partitions[key].high_watermark}
        for draft in drafts:
            if (draft.topic, draft.partition_id) in late:
                await self._require_no_overlap(tx, draft)
        await self._require_own_objects(tx, count_by_object(drafts), addition.intents_of)
        self._insert_segments(tx, drafts)
        self._move_watermarks(tx, partitions, ranges)
        await self._add_to_objects(tx, drafts)
        for producer, old in sequences:
            row = ProducerSequence(
                producer.topic, producer.partition_id, producer.producer_id, producer.epoch, producer.last_sequence,
                producer.base_offset, producer.record_count, tx.now,
            )  # fmt: skip
            if old is None:
                tx.insert(row)
            else:
                tx.update(old, row)

    async def replace_segments(
        self, old: Sequence[Segment], new: Sequence[SegmentDraft], *, intents_of: str | None = None
    ) -> None:
        validate(new)
        validation.optional("intents_of", intents_of, validation.non_empty)
        offset_ranges(new)
        if covered_offsets(old) != covered_offsets(new):
            raise Invalid("new", len(new), "must contain the same offsets as old")
        if not old:
            return

        async def change(tx: Transaction) -> None:
            found = await tx.get_many(Segment, [(row.topic, row.partition_id, row.base_offset) for row in old])
            current = set(found.values())
            gone = [f"{row.topic}/{row.partition_id}/{row.base_offset}" for row in old if row not in current]
            if gone:
                raise Conflict(f"{len(gone)} of the segments to replace are gone or changed, such as {gone[0]}", gone)
            await self._require_own_objects(tx, count_by_object(new), intents_of)
            for row in old:
                tx.delete(row)
            self._insert_segments(tx, new)
            await self._add_to_objects(tx, new)
            await self._remove_from_objects(tx, Counter((row.s3_bucket, row.s3_key) for row in old))

        await self._transact(change)

    def _insert_segments(self, tx: Transaction, drafts: Sequence[SegmentDraft]) -> None:
        for draft in drafts:
            values = msgspec.structs.asdict(draft)
            tx.insert(Segment(id=tx.new_id(Segment), created_at=tx.now, **values))

    def _move_watermarks(
        self,
        tx: Transaction,
        partitions: dict[tuple[str, int], Partition],
        ranges: dict[tuple[str, int], OffsetRange],
    ) -> None:
        for key, offsets in ranges.items():
            if partitions[key].high_watermark <= offsets.last:
                tx.replace(partitions[key], high_watermark=offsets.last + 1, updated_at=tx.now)

    async def _require_fences(self, tx: Transaction, fences: Sequence[Fence]) -> None:
        leases = await tx.get_many(PartitionLease, [(fence.topic, fence.partition_id) for fence in fences])
        lost = [
            (fence.topic, fence.partition_id)
            for fence in fences
            if (lease := leases.get((fence.topic, fence.partition_id))) is None
            or (lease.leader_agent_id, lease.epoch) != (fence.agent_id, fence.epoch)
        ]
        if lost:
            raise fenced(*lost)

    async def _require_sequences(
        self, tx: Transaction, producers: Sequence[ProducerDraft]
    ) -> list[tuple[ProducerDraft, ProducerSequence | None]]:
        keys = [(one.topic, one.partition_id, one.producer_id) for one in producers]
        found = await tx.get_many(ProducerSequence, keys)
        refused = [
            key
            for key, one in zip(keys, producers, strict=True)
            if (row := found.get(key)) is not None and not continues(one, row)
        ]
        if refused:
            raise out_of_sequence(refused)
        return [(one, found.get(key)) for key, one in zip(keys, producers, strict=True)]

    async def _require_no_overlap(self, tx: Transaction, draft: SegmentDraft) -> None:
        nearest = await self._nearest(tx, draft.topic, draft.partition_id, draft.end_offset)
        if nearest is not None and nearest.end_offset >= draft.base_offset:
            topic, number = draft.topic, draft.partition_id
            raise Conflict(
                f"offsets {draft.base_offset}..{draft.end_offset} of {partition_name(topic, number)} are already "
                "registered",
                [f"{topic}/{number}"],
            )

    async def _nearest(self, reader: Reader, topic: str, partition_id: int, offset: int) -> Segment | None:
        """Returns the segment with the highest base offset at or below ``offset``."""
        within = Range(stop=(offset,), backwards=True)
        return next(iter(await reader.rows(Segment, topic, partition_id, within=within, limit=1)), None)

    async def get_segments(
        self, topic: str, partition_id: int, *, from_offset: int = 0, limit: int = PAGE
    ) -> list[Segment]:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("from_offset", from_offset)
        validation.integer("limit", limit, 1)

        async def read(reader: Reader) -> list[Segment]:
            first = await self._nearest(reader, topic, partition_id, from_offset)
            found = [] if first is None or first.end_offset < from_offset else [first]
            if len(found) < limit:
                within = Range(after=(from_offset,))
                found += await reader.rows(Segment, topic, partition_id, within=within, limit=limit - len(found))
            if not found:
                await self._partition(reader, topic, partition_id)
            return found

        return await self._read(read)

    async def stream_segments(self, topic: str, partition_id: int, *, from_offset: int = 0) -> AsyncIterator[Segment]:
        for limit in page_sizes():
            page = await self.get_segments(topic, partition_id, from_offset=from_offset, limit=limit)
            for segment in page:
                yield segment
            if len(page) < limit or page[-1].end_offset == validation.MAX_INT - 1:
                return
            from_offset = page[-1].end_offset + 1

    async def stream_segments_backwards(self, topic: str, partition_id: int) -> AsyncIterator[Segment]:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        stop, any_found = validation.MAX_INT, False
        for limit in page_sizes():
            within = Range(stop=(stop,), backwards=True)
            page = await self._read(
                lambda reader, within=within, limit=limit: reader.rows(  # type: ignore[misc]
                    Segment, topic, partition_id, within=within, limit=limit
                )
            )
            for segment in page:
                any_found = True
                yield segment
            if len(page) < limit or page[-1].base_offset == 0:
                break
            stop = page[-1].base_offset - 1
        if not any_found:
            await self._read(lambda reader: self._partition(reader, topic, partition_id))

    async def find_segment_for_size(self, topic: str, partition_id: int, size_bytes: int) -> Segment | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("size_bytes", size_bytes)

        async def read(reader: Reader) -> Segment | None:
            total, any_found = 0, False
            within = Range(backwards=True, page=_SIZE_PAGE)
            async for page in reader.pages(Segment, topic, partition_id, within=within):
                for segment in page:
                    any_found, total = True, total + segment.size_bytes
                    if total >= size_bytes:
                        return segment
            if not any_found:
                await self._partition(reader, topic, partition_id)
            return None

        return await self._read(read)

    async def find_segment_for_offset(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("offset", offset)

        async def read(reader: Reader) -> Segment | None:
            segment = await self._nearest(reader, topic, partition_id, offset)
            if segment is None:
                await self._partition(reader, topic, partition_id)
            return segment if segment is not None and segment.end_offset >= offset else None

        return await self._read(read)

    async def find_segment_for_timestamp(self, topic: str, partition_id: int, timestamp: int) -> Segment | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.timestamp("timestamp", timestamp)

        async def read(reader: Reader) -> Segment | None:
            async for page in reader.pages(Segment, topic, partition_id):
                for segment in page:
                    if segment.max_timestamp is None or segment.max_timestamp >= timestamp:
                        return segment
            await self._partition(reader, topic, partition_id)
            return None

        return await self._read(read)

    async def get_object_segments(self, s3_bucket: str, s3_key: str) -> list[Segment]:
        validation.bucket("s3_bucket", s3_bucket)
        validation.non_empty_path("s3_key", s3_key)
        return await self._read(lambda reader: reader.pointed(Segment, "object", s3_bucket, s3_key))

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("offset", offset)
        validation.optional("limit", limit, lambda field, value: validation.integer(field, value, 1))

        async def change(tx: Transaction) -> int:
            await self._partition(tx, topic, partition_id)
            old = await tx.rows(
                Segment,
                topic,
                partition_id,
                within=Range(stop=(offset,), page=limit),
                where=lambda row: row.end_offset < offset,
                limit=limit,
            )
            for segment in old:
                tx.delete(segment)
            await self._remove_from_objects(tx, Counter((row.s3_bucket, row.s3_key) for row in old))
            return len(old)

        return await self._transact(change)

    async def get_producer_sequences(self, keys: Sequence[tuple[str, int, str]]) -> list[ProducerSequence]:
        for topic, number, producer in keys:
            validation.name("topic", topic)
            validation.integer32("partition_id", number)
            validation.name("producer_id", producer)
        if not keys:
            return []
        found = await self._read(lambda reader: reader.get_many(ProducerSequence, sorted(set(keys))))
        return list(found.values())

    async def forget_producers(self, idle_ms: int, *, limit: int = PAGE) -> int:
        validation.integer("idle_ms", idle_ms)
        validation.integer("limit", limit, 1)

        async def change(tx: Transaction) -> int:
            until = tx.now - idle_ms
            idle: list[ProducerSequence] = []
            for topic in await tx.rows(Topic):
                idle += await tx.rows(ProducerSequence, topic.name, where=lambda row: row.updated_at <= until)
            oldest = sorted(idle, key=lambda row: row.updated_at)[:limit]
            for row in oldest:
                tx.delete(row)
            return len(oldest)

        return await self._transact(change)
