"""Retention: what a topic says it keeps, and which segments may go.

Decided from what is read without a lock; what another process deletes meanwhile is deleted, and what is appended
meanwhile is younger. Each step of the deletion is one short transaction.
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

BYTES, RECORDS = "retention.bytes", "retention.records"
"""Keys of a topic's configuration, both of each partition. Time is `Topic.retention_ms`."""

_LOOK_AGAIN_MS = 3_600_000
"""At the latest: records may come with the times of long ago, and a count of bytes may be wrong."""


class RetentionPolicy(msgspec.Struct, frozen=True):
    """None: no bound."""

    ms: int | None = None
    size_bytes: int | None = None
    records: int | None = None

    @classmethod
    def of(cls, topic: Topic) -> RetentionPolicy:
        """ValueError names a key that can't be read: such a topic keeps everything."""
        config = parse_json(topic.config)
        given = config if isinstance(config, Mapping) else {}
        return cls(topic.retention_ms, _bound(given, BYTES), _bound(given, RECORDS))

    @property
    def unbounded(self) -> bool:
        return self.ms is None and self.size_bytes is None and self.records is None


class PartitionSizes:
    """Bytes of each partition, as far as events have told. The registry may be ahead: good enough to leave a partition
    alone, not to delete anything.
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

    def of(self, topic: str, partition_id: int) -> int:
        return self._sizes[topic, partition_id]


class TopicRetention:
    """Call `enforce` now and then. Two of them at work do no harm. With ``sizes``, only partitions that seem too large
    are added up, and now and then the others.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        step: int,
        sizes: PartitionSizes | None = None,
        guard: ClockGuard | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._step = step  # segments deleted in one transaction
        self._sizes = sizes
        self._guard = guard
        self._due: dict[tuple[str, int], int] = {}  # partitions whose first segment is too young until then
        self._summed: dict[tuple[str, int], int] = {}  # when they were last added up

    async def enforce(self) -> int:
        """One round over all topics; answers how many segments went. By age only if the clock can be trusted."""
        by_age = await may_delete_by_age(self._guard)
        if not by_age:
            self._due.clear()  # made with a time that may be wrong
        topics = {topic.name: topic for topic in await self._store.list_topics()}
        self._due = {key: due for key, due in self._due.items() if key[0] in topics}
        self._summed = {key: when for key, when in self._summed.items() if key[0] in topics}
        gone = 0
        for topic in topics.values():
            try:
                policy = RetentionPolicy.of(topic)
            except ValueError as error:
                log.warning(
                    "a topic's retention can't be read: it keeps everything", topic=topic.name, error=str(error)
                )
                continue
            if not by_age:
                policy = msgspec.structs.replace(policy, ms=None)
            if not policy.unbounded:
                gone += await self._enforce_topic(topic.name, policy)
        return gone

    async def _enforce_topic(self, topic: str, policy: RetentionPolicy) -> int:
        try:
            partitions = await self._store.list_partitions(topic)
            return sum([await self._enforce_partition(partition, policy) for partition in partitions])
        except NotFound:
            return 0  # deleted meanwhile

    async def _enforce_partition(self, partition: Partition, policy: RetentionPolicy) -> int:
        key = (partition.topic, partition.partition_id)
        if self._small_enough(key, policy):
            policy = msgspec.structs.replace(policy, size_bytes=None)
            if policy.unbounded:
                return 0
        by_time_alone = policy.size_bytes is None and policy.records is None
        if by_time_alone and self._clock.now_ms() < self._due.get(key, 0):
            return 0
        cut = await self.cut(partition, policy)
        return await self.delete_before(partition.topic, partition.partition_id, cut) if cut else 0

    async def cut(self, partition: Partition, policy: RetentionPolicy) -> int:
        """Segments that end below this offset may go; 0 if none may."""
        topic, number, end = partition.topic, partition.partition_id, partition.high_watermark
        oldest = None if policy.ms is None else self._clock.now_ms() - policy.ms
        if oldest is not None and self._guard is not None and not self._guard.steady():
            return 0  # a jump since the round began; asked after the time was read
        surplus = 0
        if policy.size_bytes is not None:
            surplus = -policy.size_bytes
            self._summed[topic, number] = self._clock.now_ms()
            async for segment in self._store.stream_segments(topic, number):
                surplus += segment.size_bytes
        cut, due = 0, self._clock.now_ms() + min(policy.ms or 0, _LOOK_AGAIN_MS) + 1
        async for segment in self._store.stream_segments(topic, number):
            too_old = oldest is not None and _time_of(segment) < oldest
            too_many = policy.records is not None and end - segment.end_offset - 1 >= policy.records
            too_large = policy.size_bytes is not None and surplus >= segment.size_bytes
            if not (too_old or too_many or too_large):
                due = min(due, _time_of(segment) + (policy.ms or 0) + 1)
                break
            surplus -= segment.size_bytes
            cut = segment.end_offset + 1
        self._due[topic, number] = due
        return cut

    def _small_enough(self, key: tuple[str, int], policy: RetentionPolicy) -> bool:
        if self._sizes is None or policy.size_bytes is None:
            return False
        summed = self._summed.get(key)
        lately = summed is not None and self._clock.now_ms() < summed + _LOOK_AGAIN_MS
        return lately and self._sizes.of(*key) <= policy.size_bytes

    async def delete_before(self, topic: str, partition_id: int, offset: int) -> int:
        """Everything that ends below the offset, a bounded number in each transaction."""
        gone = 0
        while True:
            deleted = await self._store.delete_segments_before(topic, partition_id, offset, limit=self._step)
            gone += deleted
            if deleted < self._step:
                return gone
            await asyncio.sleep(0)


def _time_of(segment: Segment) -> int:
    """Of its youngest record; of its registration if that record says that it comes from the future."""
    known = segment.max_timestamp
    return segment.created_at if known is None else min(known, segment.created_at)


def _bound(config: Mapping[str, JsonValue], name: str) -> int | None:
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} = {value!r}: write a whole number, or leave it out")
    return value
