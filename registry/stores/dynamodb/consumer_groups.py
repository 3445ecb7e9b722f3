"""Consumer groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from registry import validation
from registry.errors import NotFound
from registry.inputs import Advance, OffsetDraft, validate
from registry.models import ConsumerGroup, ConsumerOffset, GroupLease, Partition, Segment
from registry.stores.dynamodb.agents import DynamoAgents
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.consumer_groups import beyond_end, offsets_moved
from registry.stores.sql.group_leases import check_leases
from registry.stores.sql.topics import partition_name


class DynamoConsumerGroups(DynamoAgents):
    async def ensure_consumer_group(self, group_id: str) -> ConsumerGroup:
        validation.name("group_id", group_id)
        return await self._transact(lambda tx: self._ensure_group(tx, group_id))

    async def _ensure_group(self, tx: Transaction, group_id: str) -> ConsumerGroup:
        found = await tx.get(ConsumerGroup, group_id)
        return tx.insert(ConsumerGroup(group_id, tx.now, tx.now)) if found is None else found

    async def commit_offset(
        self, group_id: str, topic: str, partition_id: int, offset: int, metadata: str | None = None
    ) -> None:
        await self.commit_offsets(group_id, [OffsetDraft(topic, partition_id, offset, metadata)])

    async def commit_offsets(
        self, group_id: str, offsets: Sequence[OffsetDraft], *, leases: Sequence[GroupLease] = ()
    ) -> None:
        validation.name("group_id", group_id)
        validate(offsets)
        check_leases(leases, group_id)
        last = {(draft.topic, draft.partition_id): draft for draft in offsets}

        async def change(tx: Transaction) -> None:
            await self._require_group_leases(tx, leases)
            await self._require_group(tx, group_id)
            await self._partitions(tx, sorted(last))
            await self._commit_drafts(tx, group_id, last)

        if last:
            await self._transact(change)

    async def _require_group(self, tx: Transaction, group_id: str) -> None:
        if await tx.get(ConsumerGroup, group_id) is None:
            raise NotFound(f"consumer group {group_id!r} does not exist")

    async def _commit_drafts(
        self, tx: Transaction, group_id: str, drafts: Mapping[tuple[str, int], OffsetDraft]
    ) -> None:
        found = await tx.get_many(ConsumerOffset, [(group_id, *key) for key in drafts])
        for key, draft in drafts.items():
            row = ConsumerOffset(group_id, *key, draft.committed_offset, draft.metadata, tx.now)
            old = found.get((group_id, *key))
            if old is None:
                tx.insert(row)
            else:
                tx.update(old, row)

    async def reset_offsets(self, group_id: str, offsets: Sequence[OffsetDraft]) -> list[OffsetDraft]:
        validation.name("group_id", group_id)
        validate(offsets)
        wanted = {(draft.topic, draft.partition_id): draft for draft in offsets}
        keys = sorted(wanted)

        async def change(tx: Transaction) -> list[OffsetDraft]:
            ranges = await self._ranges(tx, keys)
            beyond = [wanted[key] for key in keys if key in ranges and wanted[key].committed_offset > ranges[key][1]]
            if beyond:
                raise beyond_end(beyond, ranges)
            missing = next((key for key in keys if key not in ranges), None)
            if missing is not None:
                raise NotFound(f"{partition_name(*missing)} does not exist")
            reset = {
                key: msgspec.structs.replace(draft, committed_offset=max(draft.committed_offset, ranges[key][0]))
                for key, draft in wanted.items()
            }
            await self._ensure_group(tx, group_id)
            await self._commit_drafts(tx, group_id, reset)
            return [reset[key] for key in keys]

        return await self._transact(change) if wanted else []

    async def _ranges(self, tx: Transaction, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Returns the first retained offset and the next one to be written, for each partition that exists."""
        ranges = {}
        for partition in (await tx.get_many(Partition, keys)).values():
            key = (partition.topic, partition.partition_id)
            first = await tx.rows(Segment, *key, limit=1)
            start = first[0].base_offset if first else partition.high_watermark
            ranges[key] = (start, partition.high_watermark)
        return ranges

    async def get_committed_offset(self, group_id: str, topic: str, partition_id: int) -> ConsumerOffset | None:
        validation.name("group_id", group_id)
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        return await self._get(ConsumerOffset, group_id, topic, partition_id)

    async def get_consumer_offsets(self, group_id: str) -> list[ConsumerOffset]:
        validation.name("group_id", group_id)
        return await self._read(lambda reader: reader.rows(ConsumerOffset, group_id))

    async def delete_consumer_group(self, group_id: str) -> None:
        validation.name("group_id", group_id)

        async def change(tx: Transaction) -> None:
            group = await tx.get(ConsumerGroup, group_id)
            if group is None:
                raise NotFound(f"consumer group {group_id!r} does not exist")
            tx.delete(group)
            for kind in (ConsumerOffset, GroupLease):
                for row in await tx.rows(kind, group_id):
                    tx.delete(row)

        await self._transact(change)

    async def _advance(self, tx: Transaction, advances: Sequence[Advance]) -> None:
        """Compares and moves offsets."""
        for step in advances:
            await self._require_group(tx, step.group_id)
            await self._partition(tx, step.topic, step.partition_id)
        found = await tx.get_many(ConsumerOffset, [step.key for step in advances])
        offsets = {(row.group_id, row.topic, row.partition_id): row.committed_offset for row in found.values()}
        if any(offsets.get(step.key) != step.expected for step in advances):
            raise offsets_moved(advances, offsets)
        for step in advances:
            row = ConsumerOffset(*step.key, step.committed_offset, step.metadata, tx.now)
            old = found.get(step.key)
            if old is None:
                tx.insert(row)
            else:
                tx.update(old, row)
