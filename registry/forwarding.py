"""`ForwardingStore`: a store that forwards every verb to another one.

The base of stores that change a few verbs (`CachedStore`) and of test doubles that delay, count or fail some of them.
Every verb is written out, so that mypy and a test fail when the contract gains one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from registry.contract import PAGE, BulkLoad, ConsistentRead, MetadataStore
from registry.inputs import (
    CatalogCommit,
    CompactionDraft,
    CompactionOutcome,
    Fence,
    FileDraft,
    OffsetDraft,
    ProducerDraft,
    Registration,
    SegmentDraft,
    SnapshotDraft,
    TableDraft,
)
from registry.json_text import JsonValue
from registry.models import (
    Agent,
    CatalogRequest,
    CatalogTable,
    Compaction,
    CompactionStatus,
    ConsumerGroup,
    ConsumerOffset,
    DaemonLease,
    DatabaseTime,
    FileAwaitingDeletion,
    FileOperation,
    FileSizes,
    GroupLease,
    LakeTable,
    LedgerEntry,
    LocationName,
    NamespaceChange,
    Partition,
    PartitionLease,
    ProducerSequence,
    RunningDaemon,
    Savings,
    Segment,
    SnapshotStatus,
    SnapshotTrigger,
    SourceIdentity,
    TableDeleteFile,
    TableFile,
    TableInsert,
    TableMetadata,
    TableOrder,
    TablePage,
    TableSnapshot,
    TableStats,
    TableStatus,
    Topic,
    UploadIntent,
)
from registry.position import Position


class ForwardingStore(MetadataStore):
    """Verbs that are not overridden go to ``inner``, arguments and errors unchanged. Closing closes ``inner``."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        *,
        retention_ms: int | None = None,
        config: Mapping[str, JsonValue] | None = None,
    ) -> Topic:
        return await self.inner.create_topic(name, partition_count, retention_ms=retention_ms, config=config)

    async def delete_topic(self, name: str) -> None:
        await self.inner.delete_topic(name)

    async def get_topic(self, name: str) -> Topic | None:
        return await self.inner.get_topic(name)

    async def list_topics(self) -> list[Topic]:
        return await self.inner.list_topics()

    async def update_topic_config(
        self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
    ) -> Topic:
        return await self.inner.update_topic_config(name, config, retention_ms=retention_ms)

    async def get_partition(self, topic: str, partition_id: int) -> Partition | None:
        return await self.inner.get_partition(topic, partition_id)

    async def get_partitions(self, keys: Sequence[tuple[str, int]]) -> list[Partition]:
        return await self.inner.get_partitions(keys)

    async def list_partitions(self, topic: str) -> list[Partition]:
        return await self.inner.list_partitions(topic)

    async def update_high_watermark(self, topic: str, partition_id: int, high_watermark: int) -> Partition:
        return await self.inner.update_high_watermark(topic, partition_id, high_watermark)

    async def add_segment(self, segment: SegmentDraft, *, fence: Fence | None = None) -> None:
        await self.inner.add_segment(segment, fence=fence)

    async def add_segments(
        self,
        segments: Sequence[SegmentDraft],
        *,
        fences: Sequence[Fence] = (),
        producers: Sequence[ProducerDraft] = (),
        intents_of: str | None = None,
    ) -> None:
        await self.inner.add_segments(segments, fences=fences, producers=producers, intents_of=intents_of)

    async def replace_segments(
        self, old: Sequence[Segment], new: Sequence[SegmentDraft], *, intents_of: str | None = None
    ) -> None:
        await self.inner.replace_segments(old, new, intents_of=intents_of)

    async def get_segments(
        self, topic: str, partition_id: int, *, from_offset: int = 0, limit: int = PAGE
    ) -> list[Segment]:
        return await self.inner.get_segments(topic, partition_id, from_offset=from_offset, limit=limit)

    def stream_segments(self, topic: str, partition_id: int, *, from_offset: int = 0) -> AsyncIterator[Segment]:
        return self.inner.stream_segments(topic, partition_id, from_offset=from_offset)

    def stream_segments_backwards(self, topic: str, partition_id: int) -> AsyncIterator[Segment]:
        return self.inner.stream_segments_backwards(topic, partition_id)

    async def find_segment_for_offset(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        return await self.inner.find_segment_for_offset(topic, partition_id, offset)

    async def find_segment_for_timestamp(self, topic: str, partition_id: int, timestamp: int) -> Segment | None:
        return await self.inner.find_segment_for_timestamp(topic, partition_id, timestamp)

    async def find_segment_for_size(self, topic: str, partition_id: int, size_bytes: int) -> Segment | None:
        return await self.inner.find_segment_for_size(topic, partition_id, size_bytes)

    async def get_object_segments(self, s3_bucket: str, s3_key: str) -> list[Segment]:
        return await self.inner.get_object_segments(s3_bucket, s3_key)

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        return await self.inner.delete_segments_before(topic, partition_id, offset, limit=limit)

    async def get_producer_sequences(self, keys: Sequence[tuple[str, int, str]]) -> list[ProducerSequence]:
        return await self.inner.get_producer_sequences(keys)

    async def forget_producers(self, idle_ms: int, *, limit: int = PAGE) -> int:
        return await self.inner.forget_producers(idle_ms, limit=limit)

    async def ensure_consumer_group(self, group_id: str) -> ConsumerGroup:
        return await self.inner.ensure_consumer_group(group_id)

    async def commit_offset(
        self, group_id: str, topic: str, partition_id: int, offset: int, metadata: str | None = None
    ) -> None:
        await self.inner.commit_offset(group_id, topic, partition_id, offset, metadata)

    async def commit_offsets(
        self, group_id: str, offsets: Sequence[OffsetDraft], *, leases: Sequence[GroupLease] = ()
    ) -> None:
        await self.inner.commit_offsets(group_id, offsets, leases=leases)

    async def reset_offsets(self, group_id: str, offsets: Sequence[OffsetDraft]) -> list[OffsetDraft]:
        return await self.inner.reset_offsets(group_id, offsets)

    async def get_committed_offset(self, group_id: str, topic: str, partition_id: int) -> ConsumerOffset | None:
        return await self.inner.get_committed_offset(group_id, topic, partition_id)

    async def get_consumer_offsets(self, group_id: str) -> list[ConsumerOffset]:
        return await self.inner.get_consumer_offsets(group_id)

    async def delete_consumer_group(self, group_id: str) -> None:
        await self.inner.delete_consumer_group(group_id)

    async def acquire_group_leases(
        self, group_id: str, partitions: Sequence[tuple[str, int]], member_id: str, ttl_ms: int
    ) -> list[GroupLease]:
        return await self.inner.acquire_group_leases(group_id, partitions, member_id, ttl_ms)

    async def release_group_lease(self, lease: GroupLease) -> bool:
        return await self.inner.release_group_lease(lease)

    async def list_group_leases(self, group_id: str, *, topic: str | None = None) -> list[GroupLease]:
        return await self.inner.list_group_leases(group_id, topic=topic)

    async def register_agent(
        self,
        agent_id: str,
        address: str,
        *,
        zone: str = "",
        group: str = "",
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Agent:
        return await self.inner.register_agent(agent_id, address, zone=zone, group=group, metadata=metadata)

    async def heartbeat(self, agent_id: str) -> None:
        await self.inner.heartbeat(agent_id)

    async def get_agent(self, agent_id: str) -> Agent | None:
        return await self.inner.get_agent(agent_id)

    async def list_agents(self, *, alive_within_ms: int | None = None, group: str | None = None) -> list[Agent]:
        return await self.inner.list_agents(alive_within_ms=alive_within_ms, group=group)

    async def deregister_agent(self, agent_id: str, *, last_heartbeat: int | None = None) -> None:
        await self.inner.deregister_agent(agent_id, last_heartbeat=last_heartbeat)

    async def acquire_partition_lease(
        self, topic: str, partition_id: int, agent_id: str, ttl_ms: int
    ) -> PartitionLease:
        return await self.inner.acquire_partition_lease(topic, partition_id, agent_id, ttl_ms)

    async def acquire_partition_leases(
        self, partitions: Sequence[tuple[str, int]], agent_id: str, ttl_ms: int
    ) -> list[PartitionLease]:
        return await self.inner.acquire_partition_leases(partitions, agent_id, ttl_ms)

    async def release_partition_lease(self, lease: PartitionLease) -> bool:
        return await self.inner.release_partition_lease(lease)

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None:
        return await self.inner.get_partition_lease(topic, partition_id)

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]:
        return await self.inner.list_partition_leases(topic=topic, agent_id=agent_id)

    async def create_table(self, database: str, name: str, location: str, draft: TableDraft) -> LakeTable:
        return await self.inner.create_table(database, name, location, draft)

    async def get_table(self, database: str, name: str) -> LakeTable | None:
        return await self.inner.get_table(database, name)

    async def get_table_by_id(self, table_id: int) -> LakeTable | None:
        return await self.inner.get_table_by_id(table_id)

    async def list_tables(self, database: str | None = None) -> list[LakeTable]:
        return await self.inner.list_tables(database)

    async def search_tables(
        self,
        text: str = "",
        *,
        order: TableOrder = "name",
        after: tuple[str | int, int] | None = None,
        limit: int = PAGE,
    ) -> TablePage:
        return await self.inner.search_tables(text, order=order, after=after, limit=limit)

    async def alter_table(
        self,
        table_id: int,
        *,
        database: str | None = None,
        name: str | None = None,
        location: str | None = None,
        status: TableStatus | None = None,
        properties: Mapping[str, JsonValue] | None = None,
    ) -> LakeTable:
        return await self.inner.alter_table(
            table_id, database=database, name=name, location=location, status=status, properties=properties
        )

    async def drop_table(self, table_id: int, *, purge: bool = False) -> None:
        await self.inner.drop_table(table_id, purge=purge)

    async def add_schema_version(self, table_id: int, draft: TableDraft, *, expected: int) -> TableMetadata:
        return await self.inner.add_schema_version(table_id, draft, expected=expected)

    async def get_table_metadata(self, table_id: int, schema_version: int | None = None) -> TableMetadata | None:
        return await self.inner.get_table_metadata(table_id, schema_version)

    async def list_table_metadata(self, table_id: int) -> list[TableMetadata]:
        return await self.inner.list_table_metadata(table_id)

    async def add_files(
        self,
        table_id: int,
        files: Sequence[FileDraft],
        *,
        operation: FileOperation = "insert",
        operation_id: str | None = None,
        intents_of: str | None = None,
    ) -> list[TableFile]:
        return await self.inner.add_files(
            table_id, files, operation=operation, operation_id=operation_id, intents_of=intents_of
        )

    async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
        return await self.inner.register_files(registrations)

    async def remove_files(self, table_id: int, files: Sequence[TableFile], *, reason: str) -> None:
        await self.inner.remove_files(table_id, files, reason=reason)

    async def swap_files(
        self,
        table_id: int,
        old: Sequence[TableFile],
        new: Sequence[FileDraft],
        *,
        operation_id: str,
        operation: FileOperation = "compaction",
        intents_of: str | None = None,
        seen_deletes: Sequence[TableDeleteFile] = (),
        removed_deletes: Sequence[TableDeleteFile] = (),
    ) -> list[TableFile]:
        return await self.inner.swap_files(
            table_id,
            old,
            new,
            operation_id=operation_id,
            operation=operation,
            intents_of=intents_of,
            seen_deletes=seen_deletes,
            removed_deletes=removed_deletes,
        )

    async def list_delete_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableDeleteFile]:
        return await self.inner.list_delete_files(table_id, partition_path=partition_path, after=after, limit=limit)

    async def get_files(self, table_id: int, paths: Sequence[str]) -> list[TableFile]:
        return await self.inner.get_files(table_id, paths)

    async def list_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableFile]:
        return await self.inner.list_files(table_id, partition_path=partition_path, after=after, limit=limit)

    def stream_files(self, table_id: int, *, partition_path: str | None = None) -> AsyncIterator[TableFile]:
        return self.inner.stream_files(table_id, partition_path=partition_path)

    async def get_statistics(self, table_id: int) -> list[TableStats]:
        return await self.inner.get_statistics(table_id)

    async def count_file_sizes(self, table_id: int, bounds: Sequence[int]) -> list[FileSizes]:
        return await self.inner.count_file_sizes(table_id, bounds)

    async def recount_statistics(self, table_id: int) -> LakeTable:
        return await self.inner.recount_statistics(table_id)

    async def record_intents(self, paths: Sequence[str], *, purpose: str, owner: str) -> None:
        await self.inner.record_intents(paths, purpose=purpose, owner=owner)

    async def renew_intents(
        self, paths: Sequence[str] | None, *, owner: str, new_owner: str | None = None
    ) -> list[str]:
        return await self.inner.renew_intents(paths, owner=owner, new_owner=new_owner)

    async def complete_intents(self, paths: Sequence[str]) -> None:
        await self.inner.complete_intents(paths)

    async def list_stale_intents(self, older_than_ms: int, *, after: str = "", limit: int = PAGE) -> list[UploadIntent]:
        return await self.inner.list_stale_intents(older_than_ms, after=after, limit=limit)

    async def claim_stale_intents(self, older_than_ms: int, *, owner: str, limit: int = PAGE) -> list[UploadIntent]:
        return await self.inner.claim_stale_intents(older_than_ms, owner=owner, limit=limit)

    async def list_files_awaiting_deletion(
        self, *, table_id: int | None = None, removed_before: int | None = None, after: int = 0, limit: int = PAGE
    ) -> list[FileAwaitingDeletion]:
        return await self.inner.list_files_awaiting_deletion(
            table_id=table_id, removed_before=removed_before, after=after, limit=limit
        )

    async def claim_files_awaiting_deletion(
        self, ids: Sequence[int], *, purpose: str, owner: str
    ) -> list[FileAwaitingDeletion]:
        return await self.inner.claim_files_awaiting_deletion(ids, purpose=purpose, owner=owner)

    async def forget_deleted_files(self, ids: Sequence[int]) -> None:
        await self.inner.forget_deleted_files(ids)

    async def request_snapshot(
        self, table_id: int, *, trigger: SnapshotTrigger = "manual", tag: str | None = None, reason: str | None = None
    ) -> TableSnapshot:
        return await self.inner.request_snapshot(table_id, trigger=trigger, tag=tag, reason=reason)

    async def record_snapshot(self, table_id: int, draft: SnapshotDraft) -> TableSnapshot:
        return await self.inner.record_snapshot(table_id, draft)

    async def update_snapshot(self, row_id: int, draft: SnapshotDraft) -> TableSnapshot:
        return await self.inner.update_snapshot(row_id, draft)

    async def list_snapshots(
        self, table_id: int, *, status: SnapshotStatus | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableSnapshot]:
        return await self.inner.list_snapshots(table_id, status=status, after=after, limit=limit)

    async def record_compactions(self, drafts: Sequence[CompactionDraft]) -> None:
        await self.inner.record_compactions(drafts)

    async def begin_compaction(
        self, draft: CompactionDraft, *, operation_id: str, owner: str, stale_after_ms: int
    ) -> Compaction:
        return await self.inner.begin_compaction(
            draft, operation_id=operation_id, owner=owner, stale_after_ms=stale_after_ms
        )

    async def renew_compactions(self, ids: Sequence[int], *, owner: str) -> list[Compaction]:
        return await self.inner.renew_compactions(ids, owner=owner)

    async def finish_compaction(self, row_id: int, outcome: CompactionOutcome, *, owner: str) -> Compaction:
        return await self.inner.finish_compaction(row_id, outcome, owner=owner)

    async def request_cancel(self, table_id: int, *, partition_path: str | None = None) -> list[Compaction]:
        return await self.inner.request_cancel(table_id, partition_path=partition_path)

    async def get_compaction(self, row_id: int) -> Compaction | None:
        return await self.inner.get_compaction(row_id)

    async def list_compactions(
        self,
        *,
        table_id: int | None = None,
        statuses: Sequence[CompactionStatus] = (),
        started_since: int | None = None,
        before: tuple[int, int] | None = None,
        limit: int = PAGE,
    ) -> list[Compaction]:
        return await self.inner.list_compactions(
            table_id=table_id, statuses=statuses, started_since=started_since, before=before, limit=limit
        )

    async def get_savings(self, *, table_id: int | None = None) -> list[Savings]:
        return await self.inner.get_savings(table_id=table_id)

    async def prune_compactions(
        self, older_than_ms: int, *, statuses: Sequence[CompactionStatus] = ("waiting", "declined"), limit: int = PAGE
    ) -> int:
        return await self.inner.prune_compactions(older_than_ms, statuses=statuses, limit=limit)

    async def take_daemon_lease(
        self, name: str, holder: str, ttl_ms: int, *, dead: DaemonLease | None = None
    ) -> DaemonLease | None:
        return await self.inner.take_daemon_lease(name, holder, ttl_ms, dead=dead)

    async def renew_daemon_lease(self, lease: DaemonLease, ttl_ms: int) -> DaemonLease:
        return await self.inner.renew_daemon_lease(lease, ttl_ms)

    async def release_daemon_lease(self, lease: DaemonLease) -> bool:
        return await self.inner.release_daemon_lease(lease)

    async def get_daemon_lease(self, name: str) -> DaemonLease | None:
        return await self.inner.get_daemon_lease(name)

    async def read_ledger(self, group: str | None = None) -> list[LedgerEntry]:
        return await self.inner.read_ledger(group)

    async def write_ledger(self, entries: Sequence[LedgerEntry], lease: DaemonLease) -> None:
        await self.inner.write_ledger(entries, lease)

    async def forget_component(self, group: str, component: str) -> None:
        await self.inner.forget_component(group, component)

    async def record_daemon(self, daemon: RunningDaemon) -> None:
        await self.inner.record_daemon(daemon)

    async def list_daemons(self) -> list[RunningDaemon]:
        return await self.inner.list_daemons()

    async def forget_daemon(self, holder: str) -> None:
        await self.inner.forget_daemon(holder)

    async def prune_daemons(self, not_seen_for_ms: int) -> int:
        return await self.inner.prune_daemons(not_seen_for_ms)

    async def get_source_identity(self, name: str) -> SourceIdentity | None:
        return await self.inner.get_source_identity(name)

    async def record_source_identity(self, name: str, identity: str) -> None:
        await self.inner.record_source_identity(name, identity)

    async def get_lake_locations(self) -> dict[str, str]:
        return await self.inner.get_lake_locations()

    async def ensure_lake_locations(self, locations: Mapping[LocationName, str]) -> dict[str, str]:
        return await self.inner.ensure_lake_locations(locations)

    async def record_lake_locations(self, locations: Mapping[LocationName, str]) -> None:
        await self.inner.record_lake_locations(locations)

    async def get_insert(self, table_id: int, insert_id: str) -> TableInsert | None:
        return await self.inner.get_insert(table_id, insert_id)

    async def ensure_source_identity(self, name: str, identity: str) -> SourceIdentity:
        return await self.inner.ensure_source_identity(name, identity)

    async def get_catalog_table(self, catalog: str, namespace: str, name: str) -> CatalogTable | None:
        return await self.inner.get_catalog_table(catalog, namespace, name)

    async def list_catalog_tables(
        self, catalog: str, namespace: str, *, after: str = "", limit: int = PAGE
    ) -> list[CatalogTable]:
        return await self.inner.list_catalog_tables(catalog, namespace, after=after, limit=limit)

    async def list_catalog_namespaces(self, catalog: str) -> list[str]:
        return await self.inner.list_catalog_namespaces(catalog)

    async def get_namespace_properties(self, catalog: str, namespace: str) -> dict[str, str]:
        return await self.inner.get_namespace_properties(catalog, namespace)

    async def create_catalog_namespace(
        self,
        catalog: str,
        namespace: str,
        properties: Mapping[str, str],
        *,
        request: CatalogRequest | None = None,
    ) -> None:
        await self.inner.create_catalog_namespace(catalog, namespace, properties, request=request)

    async def update_catalog_namespace(
        self,
        catalog: str,
        namespace: str,
        *,
        set: Mapping[str, str],  # noqa: A002  (the protocol's word)
        remove: Sequence[str],
        request: CatalogRequest | None = None,
    ) -> NamespaceChange:
        return await self.inner.update_catalog_namespace(catalog, namespace, set=set, remove=remove, request=request)

    async def drop_catalog_namespace(
        self, catalog: str, namespace: str, *, request: CatalogRequest | None = None
    ) -> None:
        await self.inner.drop_catalog_namespace(catalog, namespace, request=request)

    async def reserve_table_id(self) -> int:
        return await self.inner.reserve_table_id()

    async def commit_catalog(
        self,
        commits: Sequence[CatalogCommit],
        *,
        request: CatalogRequest | None = None,
        intents_of: str | None = None,
    ) -> None:
        await self.inner.commit_catalog(commits, request=request, intents_of=intents_of)

    async def get_catalog_request(self, request_key: str) -> CatalogRequest | None:
        return await self.inner.get_catalog_request(request_key)

    async def rename_catalog_table(
        self,
        catalog: str,
        namespace: str,
        name: str,
        to_namespace: str,
        to_name: str,
        *,
        table_id: int | None = None,
        request: CatalogRequest | None = None,
    ) -> None:
        await self.inner.rename_catalog_table(
            catalog, namespace, name, to_namespace, to_name, table_id=table_id, request=request
        )

    async def drop_catalog_table(
        self,
        catalog: str,
        namespace: str,
        name: str,
        *,
        purge: bool,
        table_id: int | None = None,
        request: CatalogRequest | None = None,
    ) -> None:
        await self.inner.drop_catalog_table(catalog, namespace, name, purge=purge, table_id=table_id, request=request)

    async def time(self) -> DatabaseTime:
        return await self.inner.time()

    async def position(self) -> Position:
        return await self.inner.position()

    def consistent_read(self, tables: Iterable[str] = ()) -> AbstractAsyncContextManager[ConsistentRead]:
        return self.inner.consistent_read(tables)

    def load(self) -> AbstractAsyncContextManager[BulkLoad]:
        return self.inner.load()

    async def close(self) -> None:
        await self.inner.close()
