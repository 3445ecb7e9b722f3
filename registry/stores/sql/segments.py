"""Segments: registering them, which moves watermarks, and finding the one that contains an offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec
from sqlalchemy import ColumnElement, FromClause, Integer, ScalarSelect, bindparam, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, Conflict, Fenced, Invalid, NotFound
from registry.inputs import Fence, ProducerDraft, SegmentDraft, validate
from registry.models import Segment
from registry.schema import BigInt, ByteOrderText, partition_leases, partitions, segments
from registry.stores.sql.producers import SqlProducers, check_producers
from registry.stores.sql.segment_objects import count_by_object
from registry.stores.sql.topics import SqlTopics, partition_name

COLUMNS = (*SegmentDraft.__struct_fields__, "created_at")


def _nearest_base_offset(
    topic: ColumnElement[str], partition_id: ColumnElement[int], offset: ColumnElement[int]
) -> ScalarSelect[int]:
    """The highest base offset at or below ``offset``."""
    nearby = segments.alias("nearby")
    same = (nearby.c.topic == topic) & (nearby.c.partition_id == partition_id)
    return select(func.max(nearby.c.base_offset)).where(same, nearby.c.base_offset <= offset).scalar_subquery()


def _same_partition(one: FromClause, other: FromClause) -> ColumnElement[bool]:
    return (one.c.topic == other.c.topic) & (one.c.partition_id == other.c.partition_id)


_TOPIC, _PARTITION = bindparam("topic", type_=ByteOrderText), bindparam("partition_id", type_=Integer)
_OFFSET = bindparam("offset", type_=BigInt)

FIND_SEGMENT = (
    select(segments)
    .select_from(
        partitions.outerjoin(
            segments,
            _same_partition(segments, partitions)
            & (segments.c.base_offset == _nearest_base_offset(_TOPIC, _PARTITION, _OFFSET)),
        )
    )
    .where(partitions.c.topic == _TOPIC, partitions.c.partition_id == _PARTITION)
)
"""The nearest segment at or below the offset, or NULLs if there is none. No row: the partition does not exist."""

GET_SEGMENTS = (
    select(segments)
    .where(segments.c.topic == _TOPIC, segments.c.partition_id == _PARTITION)
    .where(segments.c.base_offset >= func.coalesce(_nearest_base_offset(_TOPIC, _PARTITION, _OFFSET), _OFFSET))
    .where(segments.c.end_offset >= _OFFSET)
    .order_by(segments.c.base_offset)
    .limit(bindparam("page", type_=Integer))
)


GET_EARLIER_SEGMENTS = (
    select(segments)
    .where(segments.c.topic == _TOPIC, segments.c.partition_id == _PARTITION, segments.c.base_offset < _OFFSET)
    .order_by(segments.c.base_offset.desc())
    .limit(bindparam("page", type_=Integer))
)

_WITH_SIZE_FROM = (
    select(
        segments,
        func.sum(segments.c.size_bytes).over(order_by=segments.c.base_offset.desc(), rows=(None, 0)).label("size_from"),
    )
    .where(segments.c.topic == _TOPIC, segments.c.partition_id == _PARTITION)
    .subquery()
)

FIND_SEGMENT_FOR_SIZE = (
    select(*(_WITH_SIZE_FROM.c[column.name] for column in segments.c))
    .where(_WITH_SIZE_FROM.c.size_from >= bindparam("size_bytes", type_=BigInt))
    .limit(1)
)
"""Both databases return rows in the order of the sum and stop at the first that is large enough. They do not promise
that order, and SQLite would sort the whole partition if it was asked for. Any other row would only keep more.
"""


def page_sizes() -> Iterator[int]:
    """A caller that stops early has read little, one that reads everything makes few queries."""
    yield 32
    yield 256
    while True:
        yield PAGE


class OffsetRange(msgspec.Struct):
    """The offsets that one call adds to one partition."""

    first: int
    last: int


class SegmentAddition(msgspec.Struct, frozen=True):
    """What one call of `add_segments` registers."""

    drafts: Sequence[SegmentDraft]
    ranges: dict[tuple[str, int], OffsetRange]
    fences: Sequence[Fence]
    producers: Sequence[ProducerDraft]
    intents_of: str | None


class SqlSegments(SqlTopics, SqlProducers):
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
        if not segments:
            return
        try:
            await self._register_segments(SegmentAddition(segments, ranges, fences, producers, intents_of))
        except AlreadyExists as error:
            raise AlreadyExists(f"another writer registered the same segment concurrently: {error}") from None

    async def _register_segments(self, addition: SegmentAddition) -> None:
        """Locks the partitions, checks, writes. PostgreSQL overrides this with a single statement."""
        drafts, ranges = addition.drafts, addition.ranges
        async with self._transaction() as connection:
            watermarks = await self._lock_partitions(connection, ranges)
            missing = [key for key in ranges if key not in watermarks]
            if missing:
                raise NotFound(f"{partition_name(*missing[0])} does not exist")
            await self._require_fences(connection, addition.fences)
            known = await self._require_sequences(connection, addition.producers)
            # Every segment ends below its partition's watermark, so only a late one can overlap another.
            late = {key for key, offsets in ranges.items() if offsets.first < watermarks[key]}
            if late:
                await self._require_no_overlap(connection, [d for d in drafts if (d.topic, d.partition_id) in late])
            await self._require_own_objects(connection, count_by_object(drafts), addition.intents_of)
            now = self._clock.now_ms()
            await self._insert_many(connection, segments, COLUMNS, [(*msgspec.structs.astuple(d), now) for d in drafts])
            await self._move_watermarks(connection, ranges, now)
            await self._add_to_objects(connection, drafts, now)
            await self._move_sequences(connection, addition.producers, known, now)

    async def replace_segments(
        self, old: Sequence[Segment], new: Sequence[SegmentDraft], *, intents_of: str | None = None
    ) -> None:
        validate(new)
        validation.optional("intents_of", intents_of, validation.non_empty)
        ranges = offset_ranges(new)
        if covered_offsets(old) != covered_offsets(new):
            raise Invalid("new", len(new), "must contain the same offsets as old")
        if not old:
            return
        async with self._transaction() as connection:
            await self._lock_partitions(connection, ranges)
            given = self._bind_rows([segments.c.id], [(row.id,) for row in old])
            query = select(segments).join_from(segments, given, segments.c.id == given.c.id)
            found = await connection.execute(query.order_by(segments.c.id).with_for_update(of=segments))
            current = {row[0]: Segment(*row) for row in found}
            gone = [f"{row.topic}/{row.partition_id}/{row.base_offset}" for row in old if current.get(row.id) != row]
            if gone:
                raise Conflict(f"{len(gone)} of the segments to replace are gone or changed, such as {gone[0]}", gone)
            await self._require_own_objects(connection, count_by_object(new), intents_of)
            await connection.execute(delete(segments).where(segments.c.id.in_(select(given.c.id))))
            now = self._clock.now_ms()
            await self._insert_many(connection, segments, COLUMNS, [(*msgspec.structs.astuple(d), now) for d in new])
            await self._add_to_objects(connection, new, now)
            await self._remove_from_objects(connection, Counter((row.s3_bucket, row.s3_key) for row in old))

    async def _lock_partitions(
        self, connection: AsyncConnection, ranges: dict[tuple[str, int], OffsetRange]
    ) -> dict[tuple[str, int], int]:
        given = self._bind_rows([partitions.c.topic, partitions.c.partition_id], list(ranges))
        query = (
            select(partitions.c.topic, partitions.c.partition_id, partitions.c.high_watermark)
            .join_from(partitions, given, _same_partition(given, partitions))
            .order_by(partitions.c.topic, partitions.c.partition_id)
            .with_for_update(of=partitions, key_share=True)
        )
        return {(topic, number): watermark for topic, number, watermark in await connection.execute(query)}

    async def _require_fences(self, connection: AsyncConnection, fences: Sequence[Fence]) -> None:
        if not fences:
            return
        leases = partition_leases.c
        given = self._bind_rows([leases.topic, leases.partition_id], [(f.topic, f.partition_id) for f in fences])
        query = (
            select(leases.topic, leases.partition_id, leases.leader_agent_id, leases.epoch)
            .join_from(partition_leases, given, _same_partition(given, partition_leases))
            .order_by(leases.topic, leases.partition_id)  # the order in which leases are acquired, to avoid deadlocks
            .with_for_update(of=partition_leases, read=True)
        )
        current = {(t, p): (agent, epoch) for t, p, agent, epoch in await connection.execute(query)}
        lost = [
            (fence.topic, fence.partition_id)
            for fence in fences
            if current.get((fence.topic, fence.partition_id)) != (fence.agent_id, fence.epoch)
        ]
        if lost:
            raise fenced(*lost)

    async def _require_no_overlap(self, connection: AsyncConnection, drafts: Sequence[SegmentDraft]) -> None:
        columns = [segments.c.topic, segments.c.partition_id, segments.c.base_offset, segments.c.end_offset]
        given = self._bind_rows(columns, [(d.topic, d.partition_id, d.base_offset, d.end_offset) for d in drafts])
        # Registered segments don't overlap: the nearest one that starts at or below the new end is enough.
        nearest = _nearest_base_offset(given.c.topic, given.c.partition_id, given.c.end_offset)
        query = (
            select(given.c.topic, given.c.partition_id, given.c.base_offset, given.c.end_offset)
            .join_from(given, segments, _same_partition(given, segments) & (segments.c.base_offset == nearest))
            .where(segments.c.end_offset >= given.c.base_offset)
            .limit(1)
        )
        clash = (await connection.execute(query)).first()
        if clash is not None:
            topic, number, base, end = clash
            raise Conflict(f"offsets {base}..{end} of {partition_name(topic, number)} are already registered",
                           [f"{topic}/{number}"])  # fmt: skip

    async def _move_watermarks(
        self, connection: AsyncConnection, ranges: dict[tuple[str, int], OffsetRange], now: int
    ) -> None:
        given = self._bind_rows(
            [partitions.c.topic, partitions.c.partition_id, partitions.c.high_watermark],
            [(topic, number, offsets.last + 1) for (topic, number), offsets in ranges.items()],
        )
        await connection.execute(
            update(partitions)
            .where(_same_partition(given, partitions), partitions.c.high_watermark < given.c.high_watermark)
            .values(high_watermark=given.c.high_watermark, updated_at=now)
        )

    async def get_segments(
        self, topic: str, partition_id: int, *, from_offset: int = 0, limit: int = PAGE
    ) -> list[Segment]:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("from_offset", from_offset)
        validation.integer("limit", limit, 1)
        rows = await self._rows(
            Segment, GET_SEGMENTS, topic=topic, partition_id=partition_id, offset=from_offset, page=limit
        )
        if not rows:
            await self._require_partitions([(topic, partition_id)])
        return rows

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
        values: dict[str, object] = {"topic": topic, "partition_id": partition_id, "offset": validation.MAX_INT}
        for limit in page_sizes():
            page = await self._rows(Segment, GET_EARLIER_SEGMENTS, **values, page=limit)
            for segment in page:
                yield segment
            if len(page) < limit:
                break
            values["offset"] = page[-1].base_offset
        if not page:
            await self._require_partitions([(topic, partition_id)])

    async def find_segment_for_size(self, topic: str, partition_id: int, size_bytes: int) -> Segment | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("size_bytes", size_bytes)
        row = await self._row(
            Segment, FIND_SEGMENT_FOR_SIZE, topic=topic, partition_id=partition_id, size_bytes=size_bytes
        )
        if row is None:
            await self._require_partitions([(topic, partition_id)])
        return row

    async def find_segment_for_offset(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("offset", offset)
        async with self._autocommit() as connection:
            values = {"topic": topic, "partition_id": partition_id, "offset": offset}
            row = (await connection.execute(FIND_SEGMENT, values)).first()
        if row is None:
            raise NotFound(f"{partition_name(topic, partition_id)} does not exist")
        segment = None if row[0] is None else Segment(*row)
        return segment if segment is not None and segment.end_offset >= offset else None

    async def find_segment_for_timestamp(self, topic: str, partition_id: int, timestamp: int) -> Segment | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.timestamp("timestamp", timestamp)
        query = (
            select(segments)
            .where(segments.c.topic == topic, segments.c.partition_id == partition_id)
            .where((segments.c.max_timestamp >= timestamp) | segments.c.max_timestamp.is_(None))
            .order_by(segments.c.base_offset)
            .limit(1)
        )
        row = await self._row(Segment, query)
        if row is None:
            await self._require_partitions([(topic, partition_id)])
        return row

    async def get_object_segments(self, s3_bucket: str, s3_key: str) -> list[Segment]:
        validation.bucket("s3_bucket", s3_bucket)
        validation.non_empty_path("s3_key", s3_key)
        query = select(segments).where(segments.c.s3_bucket == s3_bucket, segments.c.s3_key == s3_key)
        return await self._rows(Segment, query.order_by(segments.c.byte_offset, segments.c.id))

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("offset", offset)
        validation.optional("limit", limit, lambda field, value: validation.integer(field, value, 1))
        count = await self._delete_segments(topic, partition_id, offset, limit)
        if not count:
            await self._require_partitions([(topic, partition_id)])
        return count

    async def _delete_segments(self, topic: str, partition_id: int, offset: int, limit: int | None) -> int:
        old = (
            (segments.c.topic == topic)
            & (segments.c.partition_id == partition_id)
            & (segments.c.base_offset < offset)
            & (segments.c.end_offset < offset)
        )
        if limit is not None:
            old &= segments.c.id.in_(select(segments.c.id).where(old).order_by(segments.c.base_offset).limit(limit))
        async with self._transaction() as connection:
            gone = await connection.execute(
                delete(segments).where(old).returning(segments.c.s3_bucket, segments.c.s3_key)
            )
            objects = Counter((bucket, key) for bucket, key in gone)
            await self._remove_from_objects(connection, objects)
        return objects.total()


def fenced(*keys: tuple[str, int]) -> Fenced:
    more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return Fenced(
        f"the lease of {partition_name(*keys[0])}{more} is no longer held in this epoch",
        [f"{topic}/{number}" for topic, number in keys],
    )


def covered_offsets(rows: Iterable[SegmentDraft | Segment]) -> list[list[object]]:
    """Returns the contained offsets, as ranges without a gap."""
    runs: list[list[object]] = []
    for topic, number, base, end in sorted((r.topic, r.partition_id, r.base_offset, r.end_offset) for r in rows):
        if runs and runs[-1][:2] == [topic, number] and runs[-1][3] == base - 1:
            runs[-1][3] = end
        else:
            runs.append([topic, number, base, end])
    return runs


def offset_ranges(drafts: Sequence[SegmentDraft]) -> dict[tuple[str, int], OffsetRange]:
    """Returns the first and last offset per partition. Raises Invalid if the drafts overlap each other."""
    ranges: dict[tuple[str, int], OffsetRange] = {}
    unordered: set[tuple[str, int]] = set()
    for draft in drafts:
        key = (draft.topic, draft.partition_id)
        offsets = ranges.get(key)
        if offsets is None:
            ranges[key] = OffsetRange(draft.base_offset, draft.end_offset)
        elif draft.base_offset > offsets.last:
            offsets.last = draft.end_offset
        else:
            unordered.add(key)
            offsets.first = min(offsets.first, draft.base_offset)
            offsets.last = max(offsets.last, draft.end_offset)
    for key in unordered:
        mine = sorted((d.base_offset, d.end_offset) for d in drafts if (d.topic, d.partition_id) == key)
        for (_, end), (base, _) in pairwise(mine):
            if base <= end:
                raise Invalid("base_offset", base, f"two segments of this call overlap in {partition_name(*key)}")
    return ranges
