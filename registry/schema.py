"""The registry's tables: the same schema on every backend, with its constraints in the database.

`registry.models` has the same columns in the same order (a test compares them). Migrations create databases, not this
module; verbs are written against it, and a test requires that migrations result in it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.naming import conv
from sqlalchemy.types import TypeEngine, UserDefinedType

from registry.json_text import JsonText
from registry.models import PUBLISHED, Row

PUBLICATION = "astha"
"""The PostgreSQL publication of all published tables. Migrations create it, so it is older than any slot."""

VERSION_TABLE = "registry_version"
"""The table with the version of the schema."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


class _JsonText(UserDefinedType[str]):
    """PostgreSQL's json, which keeps the text as written (jsonb would normalize it)."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: object) -> str:
        return "JSON"


class JsonTextType(TypeDecorator[JsonText]):
    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        return dialect.type_descriptor(_JsonText() if dialect.name == "postgresql" else Text())

    def process_result_value(self, value: str | None, dialect: Dialect) -> JsonText | None:
        return None if value is None else JsonText(value)


class BooleanType(TypeDecorator[bool]):
    """A boolean; an integer on SQLite, whose strict tables have no boolean type."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[bool] | TypeEngine[int]:
        return Integer() if dialect.name == "sqlite" else Boolean()

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> bool | int | None:
        return int(value) if dialect.name == "sqlite" and value is not None else value

    def process_result_value(self, value: bool | int | None, dialect: Dialect) -> bool | None:
        return None if value is None else bool(value)


BigInt = BigInteger().with_variant(Integer(), "sqlite")

ByteOrderText = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
"""Text that sorts in byte order on every backend, so that pages by key have the same order in every locale."""


def _id() -> Column[int]:
    return Column("id", BigInt, Identity(always=False), primary_key=True)


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, ByteOrderText, nullable=null)


def _big(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, BigInt, nullable=null)


def _int(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=null)


def _json(name: str, *, null: bool = False) -> Column[JsonText]:
    return Column(name, JsonTextType, nullable=null)


def _table(name: str, *items: Column[int] | Column[str] | Column[bool] | Column[JsonText] | CheckConstraint
           | UniqueConstraint | PrimaryKeyConstraint | ForeignKeyConstraint | Index) -> Table:  # fmt: skip
    """A table, strict on SQLite, where JSON columns get the check that PostgreSQL's json type implies."""
    checks = [
        # json_valid(NULL) is 0, not NULL, in older versions of SQLite
        CheckConstraint(
            f"{column.name} IS NULL OR json_valid({column.name})" if column.nullable else f"json_valid({column.name})",
            name=f"{column.name}_json",
        ).ddl_if(dialect="sqlite")
        for column in items
        if isinstance(column, Column) and isinstance(column.type, JsonTextType)
    ]
    has_id = any(isinstance(item, Column) and item.name == "id" for item in items)
    return Table(name, metadata, *items, *checks, sqlite_strict=True, sqlite_autoincrement=has_id)


def _at_least(column: str, minimum: int = 0) -> CheckConstraint:
    return CheckConstraint(f"{column} >= {minimum}", name=column)


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f'"{column}" IN ({listed})', name=column)


def _partition_key() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["topic", "partition_id"], ["partitions.topic", "partitions.partition_id"], ondelete="CASCADE"
    )


def _table_id() -> Column[int]:
    return Column("table_id", BigInt, ForeignKey("tables.id", ondelete="CASCADE"), nullable=False)


COMMIT_COUNTS = (
    "added_files", "removed_files", "added_rows", "removed_rows", "added_delete_files", "removed_delete_files",
)  # fmt: skip

topics = _table(
    "topics",
    Column("name", ByteOrderText, primary_key=True),
    _int("partition_count"),
    _big("retention_ms", null=True),
    _json("config"),
    _big("created_at"),
    _big("updated_at"),
    _at_least("partition_count", 1),
    _at_least("retention_ms"),
    CheckConstraint("name <> ''", name="name"),
)

partitions = _table(
    "partitions",
    Column("topic", ByteOrderText, ForeignKey("topics.name", ondelete="CASCADE"), nullable=False),
    _int("partition_id"),
    _big("high_watermark"),
    _big("created_at"),
    _big("updated_at"),
    PrimaryKeyConstraint("topic", "partition_id"),
    _at_least("partition_id"),
    _at_least("high_watermark"),
)

segments = _table(
    "segments",
    _id(),
    _text("topic"),
    _int("partition_id"),
    _big("base_offset"),
    _big("end_offset"),
    _big("record_count"),
    _big("size_bytes"),
    _text("s3_bucket"),
    _text("s3_key"),
    _big("byte_offset"),
    _big("created_at"),
    _big("min_timestamp", null=True),
    _big("max_timestamp", null=True),
    _text("block_index", null=True),
    _partition_key(),
    UniqueConstraint("topic", "partition_id", "base_offset"),  # also the index for offset lookup
    Index(None, "s3_bucket", "s3_key"),
    Index(None, "created_at"),
    _at_least("base_offset"),
    CheckConstraint("end_offset >= base_offset", name="end_offset"),
    _at_least("record_count"),
    _at_least("size_bytes"),
    _at_least("byte_offset"),
)

consumer_groups = _table(
    "consumer_groups",
    Column("group_id", ByteOrderText, primary_key=True),
    _big("created_at"),
    _big("updated_at"),
    CheckConstraint("group_id <> ''", name="group_id"),
)

consumer_offsets = _table(
    "consumer_offsets",
    Column("group_id", ByteOrderText, ForeignKey("consumer_groups.group_id", ondelete="CASCADE"), nullable=False),
    _text("topic"),
    _int("partition_id"),
    _big("committed_offset"),
    _text("metadata", null=True),
    _big("committed_at"),
    PrimaryKeyConstraint("group_id", "topic", "partition_id"),
    _partition_key(),
    Index(None, "topic", "partition_id"),
    _at_least("committed_offset"),
)

agents = _table(
    "agents",
    Column("agent_id", ByteOrderText, primary_key=True),
    _text("address"),
    _text("zone"),
    _text("group"),
    _big("last_heartbeat"),
    _big("started_at"),
    _json("metadata"),
    Index(None, "last_heartbeat"),
    CheckConstraint("agent_id <> ''", name="agent_id"),
)

partition_leases = _table(
    "partition_leases",
    _text("topic"),
    _int("partition_id"),
    Column("leader_agent_id", ByteOrderText, ForeignKey("agents.agent_id", ondelete="SET NULL"), nullable=True),
    _big("expires_at"),
    _big("acquired_at"),
    _big("epoch"),
    PrimaryKeyConstraint("topic", "partition_id"),
    _partition_key(),
    Index(None, "leader_agent_id"),
    _at_least("epoch", 1),
)

tables = _table(
    "tables",
    _id(),
    _text("database"),
    _text("name"),
    _text("location"),
    _big("row_count"),
    _big("total_size"),
    _big("file_count"),
    _big("last_modified"),
    _text("status"),
    _big("created_at"),
    _big("updated_at"),
    UniqueConstraint("database", "name"),
    _at_least("row_count"),
    _at_least("total_size"),
    _at_least("file_count"),
    _one_of("status", "active", "dropping"),
    CheckConstraint("database <> '' AND name <> ''", name="name"),
)

table_metadata = _table(
    "table_metadata",
    _id(),
    _table_id(),
    _int("schema_version"),
    _json("schema"),
    _text("storage_engine"),
    _json("engine_config"),
    _text("format"),
    _text("compression"),
    _json("partition_by"),
    _json("sort_by"),
    _json("properties"),
    _big("last_modified"),
    _big("created_at"),
    _big("updated_at"),
    UniqueConstraint("table_id", "schema_version"),
    _at_least("schema_version", 1),
)

table_files = _table(
    "table_files",
    _id(),
    _table_id(),
    _text("file_name"),
    _text("file_path"),
    _big("file_size"),
    _text("file_type"),
    _text("partition_path"),
    _big("row_count"),
    _text("checksum", null=True),
    Column("is_compressed", BooleanType, nullable=False),
    _int("schema_version"),
    _json("column_stats", null=True),
    _text("operation"),
    _text("operation_id", null=True),
    _big("created_at"),
    _big("modified_at"),
    ForeignKeyConstraint(
        ["table_id", "schema_version"],
        ["table_metadata.table_id", "table_metadata.schema_version"],
        ondelete="CASCADE",
    ),
    UniqueConstraint("table_id", "file_path"),
    Index(None, "table_id", "partition_path", "id"),
    Index(None, "table_id", "id"),
    Index(None, "table_id", "schema_version"),
    _at_least("file_size"),
    _at_least("row_count"),
    _one_of("operation", "insert", "compaction", "rollback", "import", "external"),
    CheckConstraint("operation <> 'compaction' OR operation_id IS NOT NULL", name="operation_id"),
)

table_stats = _table(
    "table_stats",
    _id(),
    _table_id(),
    _text("partition_path"),
    _big("row_count"),
    _big("file_count"),
    _big("total_size"),
    _big("last_modified"),
    _big("created_at"),
    _big("updated_at"),
    UniqueConstraint("table_id", "partition_path"),
    _at_least("row_count"),
    _at_least("file_count"),
    _at_least("total_size"),
)

table_inserts = _table(
    "table_inserts",
    _table_id(),
    _text("insert_id"),
    _big("row_count"),
    _big("file_count"),
    _big("created_at"),
    PrimaryKeyConstraint("table_id", "insert_id"),
    _at_least("row_count"),
    _at_least("file_count"),
)

table_snapshots = _table(
    "table_snapshots",
    _id(),
    _table_id(),
    _big("snapshot_id", null=True),
    _big("timestamp"),
    _text("manifest_list", null=True),
    _json("summary"),
    _int("schema_id", null=True),
    _text("trigger"),
    _text("status"),
    _text("tag", null=True),
    _text("reason", null=True),
    _big("created_at"),
    _big("updated_at"),
    Index(None, "table_id", "id"),
    _one_of("trigger", "manual", "time", "size", "query"),
    _one_of("status", "requested", "created", "failed", "expired"),
    CheckConstraint("status <> 'created' OR snapshot_id IS NOT NULL", name="created"),
)
_LIVE_TAG = text("tag IS NOT NULL AND status IN ('requested', 'created')")
Index(
    "uq_table_snapshots_table_id_tag", table_snapshots.c.table_id, table_snapshots.c.tag,
    unique=True, postgresql_where=_LIVE_TAG, sqlite_where=_LIVE_TAG,
)  # fmt: skip

iceberg_commits = _table(
    "iceberg_commits",
    _id(),
    _table_id(),
    _big("snapshot_id", null=True),
    _big("parent_snapshot_id", null=True),
    _text("operation"),
    _text("engine", null=True),
    *(_big(name) for name in COMMIT_COUNTS),
    _text("metadata_location"),
    _big("created_at"),
    _big("updated_at"),
    Index(None, "table_id", "id"),
    *(_at_least(name) for name in COMMIT_COUNTS),
)

table_delete_files = _table(
    "table_delete_files",
    _id(),
    _table_id(),
    _text("file_path"),
    _big("file_size"),
    _text("file_type"),
    _text("content"),
    _big("row_count"),
    _text("partition_path"),
    _int("spec_id"),
    _json("equality_ids", null=True),
    _text("referenced_data_file", null=True),
    _big("content_offset"),
    _big("sequence_number"),
    _big("snapshot_id", null=True),
    _big("created_at"),
    _big("updated_at"),
    UniqueConstraint("table_id", "file_path", "content_offset"),
    Index(None, "table_id", "partition_path", "id"),
    Index(None, "table_id", "id"),
    _at_least("file_size"),
    _at_least("row_count"),
    _one_of("content", "position", "equality"),
)

ledger = _table(
    "ledger",
    _text("component"),
    _big("position", null=True),
    _json("refresh_visibility", null=True),
    _json("tables"),
    _text("state"),
    Column("refresh_owed", BooleanType, nullable=False),
    _text("reason", null=True),
    _big("updated_at"),
    _text("group"),
    PrimaryKeyConstraint("group", "component"),
)

daemon_lease = _table(
    "daemon_lease",
    Column("name", ByteOrderText, primary_key=True),
    _text("holder"),
    _big("epoch"),
    _big("acquired_at"),
    _big("expires_at"),
    _at_least("epoch", 1),
)

daemons = _table(
    "daemons",
    Column("holder", ByteOrderText, primary_key=True),
    _text("group"),
    _text("host"),
    _big("pid"),
    _text("role"),
    _text("source"),
    _json("components"),
    _text("version"),
    _big("started_at"),
    _big("seen_at"),
    _one_of("role", "leader", "standby"),
)

lake_locations = _table(
    "lake_locations",
    Column("name", ByteOrderText, primary_key=True),
    _text("location"),
    _big("recorded_at"),
    _one_of("name", "warehouse", "streams"),
)

source_identity = _table(
    "source_identity",
    Column("name", ByteOrderText, primary_key=True),
    _text("identity"),
    _big("recorded_at"),
)

upload_intents = _table(
    "upload_intents",
    Column("path", ByteOrderText, primary_key=True),
    _text("purpose"),
    _text("owner"),
    _big("created_at"),
    Index(None, "created_at"),
)

files_awaiting_deletion = _table(
    "files_awaiting_deletion",
    _id(),
    _big("table_id"),  # no foreign key: the row outlives a dropped table
    _text("file_path"),
    _big("file_size"),
    _text("reason"),
    _json("file"),
    _big("removed_at"),
    UniqueConstraint("table_id", "file_path"),
    Index(None, "removed_at"),
)


compactions = _table(
    "compactions",
    _id(),
    _big("table_id"),  # no foreign key: the row outlives a dropped table
    _text("table_name"),
    _text("partition_path"),
    _text("status"),
    _text("trigger"),
    _text("rule"),
    _text("strategy", null=True),
    _json("explanation"),
    _big("position", null=True),
    _big("input_files"),
    _big("input_bytes"),
    _big("output_files"),
    _big("output_bytes"),
    _big("row_count"),
    _text("operation_id", null=True),
    _text("owner", null=True),
    Column("cancel_requested", BooleanType, nullable=False),
    _text("reason", null=True),
    _big("decided_at"),
    _big("started_at", null=True),
    _big("ended_at", null=True),
    _big("updated_at"),
    UniqueConstraint("operation_id"),
    Index(None, "decided_at", "id"),
    Index(None, "table_id", "decided_at", "id"),
    Index(None, "started_at"),
    *(_at_least(name) for name in ("input_files", "input_bytes", "output_files", "output_bytes", "row_count")),
    _one_of("status", "waiting", "declined", "running", "done", "aborted", "failed", "cancelled"),
    _one_of("trigger", "event", "refresh", "manual"),
    CheckConstraint(
        "status IN ('waiting', 'declined', 'cancelled') "
        "OR (operation_id IS NOT NULL AND owner IS NOT NULL AND started_at IS NOT NULL)",
        name="started",
    ),
)
RUNNING = text("status = 'running'")
NOT_STARTED = text("status IN ('waiting', 'declined')")
"""A decision about a partition that was not started."""
Index(
    "uq_compactions_running", compactions.c.table_id, compactions.c.partition_path,
    unique=True, postgresql_where=RUNNING, sqlite_where=RUNNING,
)  # fmt: skip
Index(
    "uq_compactions_standing", compactions.c.table_id, compactions.c.partition_path,
    unique=True, postgresql_where=NOT_STARTED, sqlite_where=NOT_STARTED,
)  # fmt: skip


segment_objects = _table(
    "segment_objects",
    _text("s3_bucket"),
    _text("s3_key"),
    _big("live_segments"),
    _big("size_bytes"),
    _big("created_at"),
    PrimaryKeyConstraint("s3_bucket", "s3_key"),
    _at_least("live_segments", 1),
    _at_least("size_bytes"),
)

producer_sequences = _table(
    "producer_sequences",
    _text("topic"),
    _int("partition_id"),
    _text("producer_id"),
    _big("epoch"),
    _big("last_sequence"),
    _big("last_base_offset"),
    _big("last_count"),
    _big("updated_at"),
    PrimaryKeyConstraint("topic", "partition_id", "producer_id"),
    _partition_key(),
    Index(None, "updated_at"),
    _at_least("epoch"),
    _at_least("last_sequence"),
)

group_leases = _table(
    "group_leases",
    Column("group_id", ByteOrderText, ForeignKey("consumer_groups.group_id", ondelete="CASCADE"), nullable=False),
    _text("topic"),
    _int("partition_id"),
    Column("member_id", ByteOrderText, ForeignKey("agents.agent_id", ondelete="SET NULL"), nullable=True),
    _big("expires_at"),
    _big("acquired_at"),
    _big("epoch"),
    PrimaryKeyConstraint("group_id", "topic", "partition_id"),
    _partition_key(),
    Index(None, "topic", "partition_id"),
    Index(None, "member_id"),
    _at_least("epoch", 1),
)


def _varchar(name: str, length: int, *, null: bool = False) -> Column[str]:
    return Column(name, String(length), nullable=null)


iceberg_tables = Table(
    "iceberg_tables",
    metadata,
    _varchar("catalog_name", 255),
    _varchar("table_namespace", 255),
    _varchar("table_name", 255),
    _varchar("metadata_location", 1_000, null=True),
    _varchar("previous_metadata_location", 1_000, null=True),
    _varchar("iceberg_type", 5, null=True),
    PrimaryKeyConstraint("catalog_name", "table_namespace", "table_name", name=conv("iceberg_tables_pkey")),
)
"""Defined as PyIceberg and Iceberg's JDBC catalog create it, because they read and write it."""

iceberg_namespace_properties = Table(
    "iceberg_namespace_properties",
    metadata,
    _varchar("catalog_name", 255),
    _varchar("namespace", 255),
    _varchar("property_key", 255),
    _varchar("property_value", 1_000),
    PrimaryKeyConstraint("catalog_name", "namespace", "property_key", name=conv("iceberg_namespace_properties_pkey")),
)


catalog_requests = _table(
    "catalog_requests",
    Column("request_key", ByteOrderText, primary_key=True),
    _text("fingerprint"),
    _text("response", null=True),
    _big("created_at"),
    Index(None, "created_at"),
)


def table_of(kind: type[Row]) -> Table:
    return metadata.tables[kind.table]


PUBLISHED_TABLES = tuple(kind.table for kind in PUBLISHED)
