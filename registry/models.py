"""The registry's rows as types, with the columns of their tables in order.

They are frozen and cheap (a msgspec struct costs about 0.1 us), because every change event carries one or two of them.
Nothing is validated here: the database has checked the rows. Callers pass drafts (`registry.inputs`), which are
validated. Times are UTC epoch milliseconds.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from registry.json_text import JsonText, JsonValue, json_columns, parse_json

__all__ = [
    # streams
    "Agent", "ConsumerGroup", "ConsumerOffset", "Partition", "PartitionLease", "Segment", "Topic", "object_uri",
    # lake
    "CatalogOperation", "ColumnStats", "DeleteContent", "FileOperation", "FileSizes", "IcebergCommit", "LakeTable",
    "SnapshotStatus", "SnapshotTrigger", "TableDeleteFile", "TableFile", "TableMetadata", "TableOrder", "TablePage",
    "TableSnapshot", "TableStats", "TableStatus",
    # unpublished
    "DaemonLease", "DaemonRole", "FileAwaitingDeletion", "GroupLease", "LedgerEntry", "ProducerSequence",
    "RunningDaemon", "SegmentObject", "LAKE_IDENTITY", "LakeLocation", "LocationName", "SourceIdentity", "TableInsert",
    "UploadIntent",
    # the Iceberg catalog
    "CatalogNamespace", "CatalogRequest", "CatalogTable", "NamespaceChange",
    # the compactor
    "Compaction", "CompactionStatus", "CompactionTrigger", "Savings",
    # all
    "UNPUBLISHED", "PUBLISHED", "Row",
]  # fmt: skip

TableStatus: TypeAlias = Literal["active", "dropping"]
FileOperation: TypeAlias = Literal["insert", "compaction", "rollback", "import", "external"]
CatalogOperation: TypeAlias = Literal["append", "overwrite", "delete", "replace", "metadata"]
DeleteContent: TypeAlias = Literal["position", "equality"]
SnapshotTrigger: TypeAlias = Literal["manual", "time", "size", "query"]
SnapshotStatus: TypeAlias = Literal["requested", "created", "failed", "expired"]
DaemonRole: TypeAlias = Literal["leader", "standby"]
CompactionTrigger: TypeAlias = Literal["event", "refresh", "manual"]
TableOrder: TypeAlias = Literal["name", "files", "size", "rows", "modified"]
CompactionStatus: TypeAlias = Literal["waiting", "declined", "running", "done", "aborted", "failed", "cancelled"]


class Row(msgspec.Struct, frozen=True, gc=False):
    """Base of all rows: ``table`` is the name of the table, ``key`` its primary key."""

    table: ClassVar[str]
    key: ClassVar[tuple[str, ...]]

    def to_builtins(self) -> dict[str, JsonValue]:
        """Returns the row by column, ready for ``json.dumps``, with JSON columns parsed.

        ``msgspec.to_builtins(row)`` and ``msgspec.json.encode(row)`` work too, and leave JSON columns as text.
        """
        found = msgspec.structs.asdict(self)
        for name in json_columns(type(self)):
            if found[name] is not None:
                found[name] = parse_json(found[name])
        return found


class Topic(Row, frozen=True, gc=False):
    table = "topics"
    key = ("name",)

    name: str
    partition_count: int
    retention_ms: int | None  # None: forever
    config: JsonText
    created_at: int
    updated_at: int


class Partition(Row, frozen=True, gc=False):
    table = "partitions"
    key = ("topic", "partition_id")

    topic: str
    partition_id: int
    high_watermark: int  # the next offset to assign
    created_at: int
    updated_at: int


LOCAL_BUCKET = "file:"
"""In place of a bucket: the key is a path on local disk. No bucket can have this name."""


def object_uri(bucket: str, key: str) -> str:
    return f"file:///{key}" if bucket == LOCAL_BUCKET else f"s3://{bucket}/{key}"


class Segment(Row, frozen=True, gc=False):
    """A byte range of an object that contains the records ``base_offset..end_offset``, both inclusive."""

    table = "segments"
    key = ("id",)

    id: int
    topic: str
    partition_id: int
    base_offset: int
    end_offset: int
    record_count: int
    size_bytes: int
    s3_bucket: str
    s3_key: str
    byte_offset: int
    created_at: int
    min_timestamp: int | None = None  # of its records; None if unknown
    max_timestamp: int | None = None
    block_index: str | None = None  # where its blocks are; None: it is one block

    @property
    def uri(self) -> str:
        """The URI of its object."""
        return object_uri(self.s3_bucket, self.s3_key)


class ConsumerGroup(Row, frozen=True, gc=False):
    table = "consumer_groups"
    key = ("group_id",)

    group_id: str
    created_at: int
    updated_at: int


class ConsumerOffset(Row, frozen=True, gc=False):
    table = "consumer_offsets"
    key = ("group_id", "topic", "partition_id")

    group_id: str
    topic: str
    partition_id: int
    committed_offset: int
    metadata: str | None
    committed_at: int


class Agent(Row, frozen=True, gc=False):
    table = "agents"
    key = ("agent_id",)

    agent_id: str
    address: str
    zone: str
    group: str
    last_heartbeat: int
    started_at: int
    metadata: JsonText


class PartitionLease(Row, frozen=True, gc=False):
    """The agent that may write a partition, and in which epoch. The epoch grows with every acquisition.

    `expires_at` is set at the acquisition; heartbeats of the agent extend the lease: see `lease_expiry`.
    """

    table = "partition_leases"
    key = ("topic", "partition_id")

    topic: str
    partition_id: int
    leader_agent_id: str | None  # None: released
    expires_at: int
    acquired_at: int
    epoch: int


class LakeTable(Row, frozen=True, gc=False):
    table = "tables"
    key = ("id",)

    id: int
    database: str
    name: str
    location: str
    row_count: int
    total_size: int
    file_count: int
    last_modified: int
    status: TableStatus
    created_at: int
    updated_at: int


class TablePage(msgspec.Struct, frozen=True):
    """``total`` counts all tables that were found. ``after`` is the key for the next page; None: this is the last."""

    tables: list[LakeTable]
    total: int
    after: tuple[str | int, int] | None


class FileSizes(msgspec.Struct, frozen=True):
    """Live files of at least ``from_bytes``, and below the next bound."""

    from_bytes: int
    compacted: bool  # whether a compaction wrote them
    files: int
    size_bytes: int


class TableMetadata(Row, frozen=True, gc=False):
    """One schema version of a table. The highest is the current one."""

    table = "table_metadata"
    key = ("id",)

    id: int
    table_id: int
    schema_version: int
    schema: JsonText
    storage_engine: str
    engine_config: JsonText
    format: str
    compression: str
    partition_by: JsonText
    sort_by: JsonText
    properties: JsonText
    last_modified: int
    created_at: int
    updated_at: int


class ColumnStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file's statistics of one column, in `TableFile.column_stats` under the column's field id."""

    value_count: int
    null_count: int = 0
    nan_count: int | None = None
    size_bytes: int | None = None
    lower: str | None = None  # Iceberg's single-value binary form, base64
    upper: str | None = None


class TableFile(Row, frozen=True, gc=False):
    table = "table_files"
    key = ("id",)

    id: int
    table_id: int
    file_name: str
    file_path: str
    file_size: int
    file_type: str
    partition_path: str  # "" for an unpartitioned table
    row_count: int
    checksum: str | None
    is_compressed: bool
    schema_version: int
    column_stats: JsonText | None  # field id -> ColumnStats
    operation: FileOperation
    operation_id: str | None  # the swap's or rollback's id
    created_at: int
    modified_at: int


class TableStats(Row, frozen=True, gc=False):
    table = "table_stats"
    key = ("id",)

    id: int
    table_id: int
    partition_path: str
    row_count: int
    file_count: int
    total_size: int
    last_modified: int
    created_at: int
    updated_at: int


class TableSnapshot(Row, frozen=True, gc=False):
    table = "table_snapshots"
    key = ("id",)

    id: int
    table_id: int
    snapshot_id: int | None  # None until created
    timestamp: int
    manifest_list: str | None
    summary: JsonText
    schema_id: int | None
    trigger: SnapshotTrigger
    status: SnapshotStatus
    tag: str | None
    reason: str | None
    created_at: int
    updated_at: int


class IcebergCommit(Row, frozen=True, gc=False):
    """A commit by another engine through the REST catalog. Iceberg has the changes of its transaction already."""

    table = "iceberg_commits"
    key = ("id",)

    id: int
    table_id: int
    snapshot_id: int | None  # None: it changed only the schema, the properties or references
    parent_snapshot_id: int | None
    operation: CatalogOperation
    engine: str | None
    added_files: int
    removed_files: int
    added_rows: int
    removed_rows: int
    added_delete_files: int
    removed_delete_files: int
    metadata_location: str
    created_at: int
    updated_at: int


class TableDeleteFile(Row, frozen=True, gc=False):
    """A delete file that an engine committed: rows that are in data files and no longer in the table."""

    table = "table_delete_files"
    key = ("id",)

    id: int
    table_id: int
    file_path: str
    file_size: int
    file_type: str
    content: DeleteContent
    row_count: int  # deleted positions, or rows to compare with
    partition_path: str  # "" applies to the whole table
    spec_id: int
    equality_ids: JsonText | None  # field ids; None for position deletes
    referenced_data_file: str | None  # None: it may refer to several
    content_offset: int  # of a deletion vector in its Puffin file; 0: the file is one delete file
    sequence_number: int
    snapshot_id: int | None
    created_at: int
    updated_at: int


class LedgerEntry(Row, frozen=True, gc=False):
    """A component's acknowledged position in one group of daemons, and whether it owes a refresh."""

    table = "ledger"
    key = ("group", "component")

    component: str
    position: int | None
    refresh_visibility: JsonText | None  # what its last refresh contained; None once its position has passed that
    tables: JsonText  # its subscribed tables at that time
    state: str
    refresh_owed: bool
    reason: str | None
    updated_at: int
    group: str


class DatabaseTime(msgspec.Struct, frozen=True):
    """``now_ms``: the database's clock; None if it has none. ``newest_ms``: the newest time recorded in a registry
    without a clock; None if nothing is recorded.
    """

    now_ms: int | None
    newest_ms: int | None = None


class DaemonLease(Row, frozen=True, gc=False):
    """Leadership of one group of daemons; ``name`` is the group's."""

    table = "daemon_lease"
    key = ("name",)

    name: str
    holder: str
    epoch: int
    acquired_at: int
    expires_at: int


class RunningDaemon(Row, frozen=True, gc=False):
    """A daemon's process, as it last reported itself. Removed when it stops, or long after it was last seen."""

    table = "daemons"
    key = ("holder",)

    holder: str  # as in `daemon_lease`
    group: str
    host: str
    pid: int
    role: DaemonRole
    source: str  # the kind of its source: postgresql, sqlite, kafka or mqtt
    components: JsonText  # the names of its components
    version: str
    started_at: int
    seen_at: int


class SourceIdentity(Row, frozen=True, gc=False):
    """The history that the ledger's positions belong to. A restored or promoted server has another identity."""

    table = "source_identity"
    key = ("name",)

    name: str
    identity: str
    recorded_at: int


LAKE_IDENTITY = "lake"
"""The row of `source_identity` that distinguishes this registry's Iceberg tables from those of other registries."""


LocationName: TypeAlias = Literal["warehouse", "streams"]


class LakeLocation(Row, frozen=True, gc=False):
    """A location of the lake, absolute, the same for all processes: of new tables, or of the objects of streams."""

    table = "lake_locations"
    key = ("name",)

    name: LocationName
    location: str
    recorded_at: int


class TableInsert(Row, frozen=True, gc=False):
    """An insert that was given an id, so that its repetition is recognized."""

    table = "table_inserts"
    key = ("table_id", "insert_id")

    table_id: int
    insert_id: str
    row_count: int
    file_count: int
    created_at: int = 0  # set by the registry


class UploadIntent(Row, frozen=True, gc=False):
    """Announces an object before its upload. Deleted when the object is registered."""

    table = "upload_intents"
    key = ("path",)

    path: str
    purpose: str
    owner: str
    created_at: int


class FileAwaitingDeletion(Row, frozen=True, gc=False):
    """A file that was removed from its table but that snapshots may still reference."""

    table = "files_awaiting_deletion"
    key = ("id",)

    id: int
    table_id: int
    file_path: str
    file_size: int
    reason: str
    file: JsonText  # the removed row, so that a rollback can restore it
    removed_at: int


class Compaction(Row, frozen=True, gc=False):
    """A decision about a partition, and its outcome. It outlives its table, so it carries the table's name.

    ``waiting`` and ``declined`` are current decisions, at most one row per partition; the other statuses are history.
    """

    table = "compactions"
    key = ("id",)

    id: int
    table_id: int
    table_name: str
    partition_path: str
    status: CompactionStatus
    trigger: CompactionTrigger
    rule: str
    strategy: str | None
    explanation: JsonText
    position: int | None  # of the event that led to the decision
    input_files: int
    input_bytes: int
    output_files: int
    output_bytes: int
    row_count: int
    operation_id: str | None  # the swap's
    owner: str | None  # the compactor that runs or ran it
    cancel_requested: bool
    reason: str | None
    decided_at: int
    started_at: int | None
    ended_at: int | None
    updated_at: int  # while it runs: the last renewal


class Savings(msgspec.Struct, frozen=True):
    """Totals over the compactions of one table."""

    table_id: int
    table_name: str
    compactions: int
    input_files: int
    input_bytes: int
    output_files: int
    output_bytes: int
    row_count: int


class SegmentObject(Row, frozen=True, gc=False):
    """An object with live segments. When the last one is deleted, it becomes an upload intent, for the cleaner."""

    table = "segment_objects"
    key = ("s3_bucket", "s3_key")

    s3_bucket: str
    s3_key: str
    live_segments: int
    size_bytes: int  # of all segments ever registered in it
    created_at: int


class ProducerSequence(Row, frozen=True, gc=False):
    """The last append of a producer to a partition, by which a retry is recognized."""

    table = "producer_sequences"
    key = ("topic", "partition_id", "producer_id")

    topic: str
    partition_id: int
    producer_id: str
    epoch: int
    last_sequence: int
    last_base_offset: int  # of the last append
    last_count: int
    updated_at: int


class GroupLease(Row, frozen=True, gc=False):
    """The member of a consumer group that reads a partition, and in which epoch. Expires as a `PartitionLease` does."""

    table = "group_leases"
    key = ("group_id", "topic", "partition_id")

    group_id: str
    topic: str
    partition_id: int
    member_id: str | None  # an agent; None: released
    expires_at: int
    acquired_at: int
    epoch: int


def lease_expiry(lease: PartitionLease | GroupLease, last_heartbeat: int | None) -> int:
    """Returns when a lease expires: its term after the acquisition, or after its holder's last heartbeat."""
    return max(lease.expires_at, (last_heartbeat or 0) + lease.expires_at - lease.acquired_at)


class CatalogTable(Row, frozen=True, gc=False):
    """The metadata location of an Iceberg table. PyIceberg and other JDBC catalogs read and write these rows."""

    table = "iceberg_tables"
    key = ("catalog_name", "table_namespace", "table_name")

    catalog_name: str
    table_namespace: str
    table_name: str
    metadata_location: str | None
    previous_metadata_location: str | None
    iceberg_type: str | None


class CatalogNamespace(Row, frozen=True, gc=False):
    """A property of a namespace of the Iceberg catalog. A namespace exists if it has at least one."""

    table = "iceberg_namespace_properties"
    key = ("catalog_name", "namespace", "property_key")

    catalog_name: str
    namespace: str
    property_key: str
    property_value: str


class CatalogRequest(Row, frozen=True, gc=False):
    """A request to the catalog that was committed, by its Idempotency-Key, so that a repetition is recognized."""

    table = "catalog_requests"
    key = ("request_key",)

    request_key: str
    fingerprint: str  # of the request: the same key with another one is an error of the client
    response: str | None = None
    created_at: int = 0  # set by the registry


class NamespaceChange(msgspec.Struct, frozen=True):
    """The property keys that an update set, those that it removed, and those to remove that were not there."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


PUBLISHED: tuple[type[Row], ...] = (
    Topic, Partition, Segment, ConsumerGroup, ConsumerOffset, Agent, PartitionLease,
    LakeTable, TableMetadata, TableFile, TableStats, TableSnapshot, IcebergCommit, TableDeleteFile,
)  # fmt: skip
"""Tables whose changes the daemon delivers, parents before children."""

UNPUBLISHED: tuple[type[Row], ...] = (
    LedgerEntry, DaemonLease, RunningDaemon, SourceIdentity, UploadIntent, FileAwaitingDeletion, Compaction,
    SegmentObject, ProducerSequence, GroupLease, CatalogTable, CatalogNamespace, CatalogRequest,
    LakeLocation, TableInsert,
)  # fmt: skip
"""Tables of the daemon and its components. Not published: the daemon does not follow its own writes."""
