"""Retention: a topic's bounds, and the deletion of segments beyond them.

Decisions are made from reads without a lock. That is safe: concurrent deletions only delete the same segments, and
concurrent appends are younger. Each batch of deletions is one short transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import structlog

from astha.clock_guard import ClockGuard, may_delete_by_age
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.json_text import JsonValue, parse_json
from registry.models import Partition, Segment, Topic

log = structlog.get_logger(__name__)

RETENTION_BYTES, RETENTION_RECORDS = "retention.bytes", "retention.records"
"""Keys of a topic's configuration, both per partition. The bound on age is `Topic.retention_ms`."""

_RECHECK_MS = 3_600_000
"""The longest time between two checks: appended records may have old timestamps, and counted sizes may be wrong."""


_SIZE_STEPS = 64
"""A partition is looked at again when it has grown by this part of its bound: a look reads all segments that are kept,
so it should find a similar number to delete.
"""


class _Sized(msgspec.Struct, frozen=True):
    """The last look at a partition for its size: for which bound, when, and which counted size needs no other look."""

    bound: int
    at: int
    enough: int


class RetentionPolicy(msgspec.Struct, frozen=True):
    """None means no bound."""

    ms: int | None = None
    size_bytes: int | None = None
    records: int | None = None

    @classmethod
    def of(cls, topic: Topic) -> RetentionPolicy:
        """Raises ValueError, which names the invalid key: such a topic keeps everything."""
        config = parse_json(topic.config)
        given = config if isinstance(config, Mapping) else {}
        return cls(topic.retention_ms, _bound(given, RETENTION_BYTES), _bound(given, RETENTION_RECORDS))

    @property
    def unbounded(self) -> bool:
        return self.ms is None and self.size_bytes is None and self.records is None


class PartitionSizes:
    """Bytes per partition, summed from events. The registry may be ahead: sufficient to skip a partition, not to
    delete.
    """

    def __init__(self) -> None:
        self._sizes: Counter[tuple[str, int]] = Counter()

    def add(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._sizes[segment.topic, segment.partition_id] += segment.size_bytes

    def remove(self, segment: Segment) -> None:
        self._sizes[segment.topic, segment.partition_id] -= segment.size_bytes

    def forget(self, topic: str) -> None:
        for key in [key for key in self._sizes if key[0] == topic]:
            del self._sizes[key]

    def clear(self) -> None:
        self._sizes.clear()

    def size_of(self, topic: str, partition_id: int) -> int:
        return self._sizes[topic, partition_id]


class TopicRetention:
    """Call `enforce` periodically; several instances may run concurrently. With `sizes`, a partition's size is looked
    up only if it seems too large, and otherwise once an hour.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        batch_segments: int,
        sizes: PartitionSizes | None = None,
        guard: ClockGuard | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._batch_segments = batch_segments  # per transaction
        self._sizes = sizes
        self._guard = guard
        self._due: dict[tuple[str, int], int] = {}  # until then the first segment of the partition is too young
        self._sized: dict[tuple[str, int], _Sized] = {}

    async def enforce(self) -> int:
        """Checks all topics once. Returns the number of deleted segments. By age only if the clock is trusted."""
        by_age = await may_delete_by_age(self._guard)
        if not by_age:
            self._due.clear()  # computed with a clock that may be wrong
        topics = {topic.name: topic for topic in await self._store.list_topics()}
        self._due = {key: due for key, due in self._due.items() if key[0] in topics}
        self._sized = {key: sized for key, sized in self._sized.items() if key[0] in topics}
        deleted = 0
        for topic in topics.values():
            try:
                policy = RetentionPolicy.of(topic)
            except ValueError as error:
                log.warning("invalid retention of a topic, keeping everything", topic=topic.name, error=str(error))
                continue
            if not by_age:
                policy = msgspec.structs.replace(policy, ms=None)
            if not policy.unbounded:
                deleted += await self._enforce_topic(topic.name, policy)
        return deleted

    async def _enforce_topic(self, topic: str, policy: RetentionPolicy) -> int:
        try:
            partitions = await self._store.list_partitions(topic)
            return sum([await self._enforce_partition(partition, policy) for partition in partitions])
        except NotFound:
            return 0  # deleted meanwhile

    async def _enforce_partition(self, partition: Partition, policy: RetentionPolicy) -> int:
        key = (partition.topic, partition.partition_id)
        if policy.size_bytes is not None and self._is_small_enough(key, policy.size_bytes):
            policy = msgspec.structs.replace(policy, size_bytes=None)
            if policy.unbounded:
                return 0
        by_time_alone = policy.size_bytes is None and policy.records is None
        if by_time_alone and self._clock.now_ms() < self._due.get(key, 0):
            return 0
        counted = 0 if self._sizes is None else self._sizes.size_of(*key)
        offset = await self.first_kept_offset(partition, policy)
        first = await self._store.get_segments(*key, limit=1) if offset else []
        deletes = bool(first) and first[0].end_offset < offset
        if policy.size_bytes is not None:
            kept = policy.size_bytes if deletes else counted  # events will lower the counted size
            enough = kept + policy.size_bytes // _SIZE_STEPS
            self._sized[key] = _Sized(policy.size_bytes, self._clock.now_ms(), enough)
        return await self.delete_before(*key, offset) if deletes else 0

    async def first_kept_offset(self, partition: Partition, policy: RetentionPolicy) -> int:
        """Returns the offset below which whole segments may be deleted; 0 if none may."""
        if policy.ms is not None and self._guard is not None and not self._guard.steady():
            return 0  # the clock jumped during the round
        offset = 0
        if policy.records is not None:
            offset = max(offset, partition.high_watermark - policy.records)
        if policy.size_bytes is not None:
            offset = max(offset, await self._first_offset_by_size(partition, policy.size_bytes))
        if policy.ms is not None:
            offset = max(offset, await self._first_offset_by_age(partition, policy.ms, offset))
        return offset

    async def _first_offset_by_size(self, partition: Partition, size_bytes: int) -> int:
        if not size_bytes:
            return partition.high_watermark
        topic, number = partition.topic, partition.partition_id
        segment = await self._store.find_segment_for_size(topic, number, size_bytes)
        return 0 if segment is None else segment.base_offset

    async def _first_offset_by_age(self, partition: Partition, ms: int, offset: int) -> int:
        """Segments below ``offset`` are deleted for other reasons. Reads up to the first segment that is kept."""
        key = (partition.topic, partition.partition_id)
        now = self._clock.now_ms()
        if self._guard is not None and not self._guard.steady():
            return 0  # checked after the time was read
        due = now + min(ms, _RECHECK_MS) + 1
        async for segment in self._store.stream_segments(*key, from_offset=offset):
            if _youngest_ms(segment) >= now - ms:
                due = min(due, _youngest_ms(segment) + ms + 1)
                break
            offset = segment.end_offset + 1
        self._due[key] = due
        return offset

    def _is_small_enough(self, key: tuple[str, int], size_bytes: int) -> bool:
        last = self._sized.get(key)
        if self._sizes is None or last is None or last.bound != size_bytes:
            return False
        lately = self._clock.now_ms() < last.at + _RECHECK_MS
        return lately and self._sizes.size_of(*key) <= max(size_bytes, last.enough)

    async def delete_before(self, topic: str, partition_id: int, offset: int) -> int:
        """Deletes segments that end below the offset, in bounded transactions. Returns their number."""
        deleted = 0
        while True:
            count = await self._store.delete_segments_before(topic, partition_id, offset, limit=self._batch_segments)
            deleted += count
            if count < self._batch_segments:
                return deleted
            await asyncio.sleep(0)


def _youngest_ms(segment: Segment) -> int:
    """Returns the timestamp of the youngest record, or of the registration if that is earlier."""
    known = segment.max_timestamp
    return segment.created_at if known is None else min(known, segment.created_at)


def _bound(config: Mapping[str, JsonValue], name: str) -> int | None:
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} = {value!r}: write a whole number, or omit it")
    return value
