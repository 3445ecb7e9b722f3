"""Offsets of consumer groups: committed, where to resume, lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.inputs import OffsetDraft
from registry.models import ConsumerGroup, ConsumerOffset

OffsetReset: TypeAlias = Literal["earliest", "latest"]


class PartitionLag(msgspec.Struct, frozen=True):
    """`committed` is the next offset that the group reads; None if it has never committed."""

    topic: str
    partition_id: int
    committed: int | None
    start: int
    end: int
    committed_at: int | None

    @property
    def lag(self) -> int:
        """Retained records that the group has not committed."""
        return self.end - max(self.start, self.committed or 0)

    @property
    def lost(self) -> int:
        """Records that were deleted before the group had read them."""
        return 0 if self.committed is None else max(0, self.start - self.committed)


class GroupOffsets:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list_groups(self) -> list[ConsumerGroup]:
        """Returns all groups, by name."""
        async with self._store.consistent_read() as snapshot:
            return [group async for page in snapshot.rows(ConsumerGroup) for group in page]

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commits the next offset to read per partition. All of them or none; the last commit wins."""
        await self._store.ensure_consumer_group(group)
        await self._store.commit_offsets(
            group, [OffsetDraft(topic, partition_id, offset) for partition_id, offset in offsets.items()]
        )

    async def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Moves the group to other offsets. Returns the committed offset per partition; changes all partitions or none.

        Raises Invalid if an offset is beyond its partition's end. An offset below the first retained one becomes that
        one.
        """
        drafts = [OffsetDraft(topic, partition_id, offset) for partition_id, offset in offsets.items()]
        return {draft.partition_id: draft.committed_offset for draft in await self._store.reset_offsets(group, drafts)}

    async def resume_offsets(
        self, group: str, topic: str, partitions: Sequence[int], otherwise: OffsetReset = "earliest"
    ) -> dict[int, int]:
        """Returns where to read on: the committed offset, else one end of the partition."""
        committed = {row.partition_id: row.committed_offset for row in await self._offsets(group, topic)}
        new = [partition_id for partition_id in partitions if partition_id not in committed]
        ends = await boundary_offsets(self._store, topic, new, otherwise)
        return {partition_id: committed.get(partition_id, ends.get(partition_id, 0)) for partition_id in partitions}

    async def lag(self, group: str, topic: str | None = None) -> list[PartitionLag]:
        """Returns the lag per partition of every topic with commits of the group, or of one topic."""
        rows = {(row.topic, row.partition_id): row for row in await self._offsets(group, topic)}
        topics = sorted({name for name, _ in rows}) if topic is None else [topic]
        found = []
        for name in topics:
            for partition in await self._store.list_partitions(name):
                row = rows.get((name, partition.partition_id))
                start = await first_retained_offset(self._store, name, partition.partition_id, partition.high_watermark)
                found.append(
                    PartitionLag(
                        name, partition.partition_id, None if row is None else row.committed_offset,
                        start, partition.high_watermark, None if row is None else row.committed_at,
                    )
                )  # fmt: skip
        return found

    async def _offsets(self, group: str, topic: str | None) -> list[ConsumerOffset]:
        try:
            rows = await self._store.get_consumer_offsets(group)
        except NotFound:
            return []
        return [row for row in rows if topic is None or row.topic == topic]


async def boundary_offsets(
    store: MetadataStore, topic: str, partitions: Sequence[int], which: OffsetReset
) -> dict[int, int]:
    """Returns the first retained offset per partition ("earliest"), or the next to be written ("latest")."""
    rows = await store.get_partitions([(topic, partition_id) for partition_id in partitions])
    if which == "latest":
        return {row.partition_id: row.high_watermark for row in rows}
    return {
        row.partition_id: await first_retained_offset(store, topic, row.partition_id, row.high_watermark)
        for row in rows
    }


async def first_retained_offset(store: MetadataStore, topic: str, partition_id: int, end: int) -> int:
    first = await store.get_segments(topic, partition_id, limit=1)
    return first[0].base_offset if first else end
