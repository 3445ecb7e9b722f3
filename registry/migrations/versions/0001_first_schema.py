"""The first schema: tables of streams, of the lake and of the daemon."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from registry import change_log
from registry.schema import BigInt, BooleanType, ByteOrderText, JsonTextType

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

PUBLISHED = (
    "topics",
    "partitions",
    "segments",
    "consumer_groups",
    "consumer_offsets",
    "agents",
    "partition_leases",
    "tables",
    "table_metadata",
    "table_files",
    "table_stats",
    "table_snapshots",
)
TABLES = (
    "agents",
    "consumer_groups",
    "daemon_lease",
    "files_awaiting_deletion",
    "ledger",
    "source_identity",
    "tables",
    "topics",
    "upload_intents",
    "partitions",
    "table_metadata",
    "table_snapshots",
    "table_stats",
    "consumer_offsets",
    "partition_leases",
    "segments",
    "table_files",
)


def upgrade() -> None:
    _create_tables()
    if op.get_bind().dialect.name == "postgresql":
        _publish()
    else:
        _log_changes()


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP PUBLICATION astha")
    else:
        for table in PUBLISHED:
            for statement in change_log.drop_triggers(table):
                op.execute(statement)
        for statement in change_log.DROP:
            op.execute(statement)
    for table in reversed(TABLES):
        op.drop_table(table)


def _publish() -> None:
    """Publishes complete old rows, by a publication that is older than any slot."""
    for table in PUBLISHED:
        op.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    op.execute(f"CREATE PUBLICATION astha FOR TABLE {', '.join(PUBLISHED)}")


def _log_changes() -> None:
    for statement in change_log.CREATE:
        op.execute(statement)
    columns = sa.inspect(op.get_bind()).get_columns
    for table in PUBLISHED:
        for statement in change_log.create_triggers(table, [column["name"] for column in columns(table)]):
            op.execute(statement)


def _create_tables() -> None:
    op.create_table(
        "agents",
        sa.Column("agent_id", ByteOrderText, nullable=False),
        sa.Column("address", ByteOrderText, nullable=False),
        sa.Column("zone", ByteOrderText, nullable=False),
        sa.Column("group", ByteOrderText, nullable=False),
        sa.Column("last_heartbeat", BigInt, nullable=False),
        sa.Column("started_at", BigInt, nullable=False),
        sa.Column("metadata", JsonTextType, nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_agents")),
        sa.CheckConstraint("agent_id <> ''", name=op.f("ck_agents_agent_id")),
        sa.CheckConstraint("json_valid(metadata)", name=op.f("ck_agents_metadata_json")).ddl_if(dialect="sqlite"),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_agents_last_heartbeat"), "agents", ["last_heartbeat"])
    op.create_table(
        "consumer_groups",
        sa.Column("group_id", ByteOrderText, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("group_id", name=op.f("pk_consumer_groups")),
        sa.CheckConstraint("group_id <> ''", name=op.f("ck_consumer_groups_group_id")),
        sqlite_strict=True,
    )
    op.create_table(
        "daemon_lease",
        sa.Column("name", ByteOrderText, nullable=False),
        sa.Column("holder", ByteOrderText, nullable=False),
        sa.Column("epoch", BigInt, nullable=False),
        sa.Column("acquired_at", BigInt, nullable=False),
        sa.Column("expires_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_daemon_lease")),
        sa.CheckConstraint("epoch >= 1", name=op.f("ck_daemon_lease_epoch")),
        sqlite_strict=True,
    )
    op.create_table(
        "files_awaiting_deletion",
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("file_path", ByteOrderText, nullable=False),
        sa.Column("file_size", BigInt, nullable=False),
        sa.Column("reason", ByteOrderText, nullable=False),
        sa.Column("file", JsonTextType, nullable=False),
        sa.Column("removed_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files_awaiting_deletion")),
        sa.UniqueConstraint("table_id", "file_path", name=op.f("uq_files_awaiting_deletion_table_id_file_path")),
        sa.CheckConstraint("json_valid(file)", name=op.f("ck_files_awaiting_deletion_file_json")).ddl_if(
            dialect="sqlite"
        ),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_files_awaiting_deletion_removed_at"), "files_awaiting_deletion", ["removed_at"])
    op.create_table(
        "ledger",
        sa.Column("component", ByteOrderText, nullable=False),
        sa.Column("position", BigInt, nullable=True),
        sa.Column("place", JsonTextType, nullable=True),
        sa.Column("tables", JsonTextType, nullable=False),
        sa.Column("state", ByteOrderText, nullable=False),
        sa.Column("refresh_owed", BooleanType, nullable=False),
        sa.Column("reason", ByteOrderText, nullable=True),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("component", name=op.f("pk_ledger")),
        sa.CheckConstraint("json_valid(tables)", name=op.f("ck_ledger_tables_json")).ddl_if(dialect="sqlite"),
        sa.CheckConstraint("place IS NULL OR json_valid(place)", name=op.f("ck_ledger_place_json")).ddl_if(
            dialect="sqlite"
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "source_identity",
        sa.Column("name", ByteOrderText, nullable=False),
        sa.Column("identity", ByteOrderText, nullable=False),
        sa.Column("recorded_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_source_identity")),
        sqlite_strict=True,
    )
    op.create_table(
        "tables",
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("database", ByteOrderText, nullable=False),
        sa.Column("name", ByteOrderText, nullable=False),
        sa.Column("location", ByteOrderText, nullable=False),
        sa.Column("row_count", BigInt, nullable=False),
        sa.Column("total_size", BigInt, nullable=False),
        sa.Column("file_count", BigInt, nullable=False),
        sa.Column("last_modified", BigInt, nullable=False),
        sa.Column("status", ByteOrderText, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tables")),
        sa.UniqueConstraint("database", "name", name=op.f("uq_tables_database_name")),
        sa.CheckConstraint("total_size >= 0", name=op.f("ck_tables_total_size")),
        sa.CheckConstraint("file_count >= 0", name=op.f("ck_tables_file_count")),
        sa.CheckConstraint("row_count >= 0", name=op.f("ck_tables_row_count")),
        sa.CheckConstraint("\"status\" IN ('active', 'dropping')", name=op.f("ck_tables_status")),
        sa.CheckConstraint("database <> '' AND name <> ''", name=op.f("ck_tables_name")),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_table(
        "topics",
        sa.Column("name", ByteOrderText, nullable=False),
        sa.Column("partition_count", sa.Integer, nullable=False),
        sa.Column("retention_ms", BigInt, nullable=True),
        sa.Column("config", JsonTextType, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_topics")),
        sa.CheckConstraint("name <> ''", name=op.f("ck_topics_name")),
        sa.CheckConstraint("retention_ms >= 0", name=op.f("ck_topics_retention_ms")),
        sa.CheckConstraint("partition_count >= 1", name=op.f("ck_topics_partition_count")),
        sa.CheckConstraint("json_valid(config)", name=op.f("ck_topics_config_json")).ddl_if(dialect="sqlite"),
        sqlite_strict=True,
    )
    op.create_table(
        "upload_intents",
        sa.Column("path", ByteOrderText, nullable=False),
        sa.Column("purpose", ByteOrderText, nullable=False),
        sa.Column("owner", ByteOrderText, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_upload_intents")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_upload_intents_created_at"), "upload_intents", ["created_at"])
    op.create_table(
        "partitions",
        sa.Column("topic", ByteOrderText, nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("high_watermark", BigInt, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("topic", "partition_id", name=op.f("pk_partitions")),
        sa.ForeignKeyConstraint(["topic"], ["topics.name"], name=op.f("fk_partitions_topic"), ondelete="CASCADE"),
        sa.CheckConstraint("partition_id >= 0", name=op.f("ck_partitions_partition_id")),
        sa.CheckConstraint("high_watermark >= 0", name=op.f("ck_partitions_high_watermark")),
        sqlite_strict=True,
    )
    op.create_table(
        "table_metadata",
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("schema", JsonTextType, nullable=False),
        sa.Column("storage_engine", ByteOrderText, nullable=False),
        sa.Column("engine_config", JsonTextType, nullable=False),
        sa.Column("format", ByteOrderText, nullable=False),
        sa.Column("compression", ByteOrderText, nullable=False),
        sa.Column("partition_by", JsonTextType, nullable=False),
        sa.Column("sort_by", JsonTextType, nullable=False),
        sa.Column("properties", JsonTextType, nullable=False),
        sa.Column("last_modified", BigInt, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_table_metadata")),
        sa.UniqueConstraint("table_id", "schema_version", name=op.f("uq_table_metadata_table_id_schema_version")),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.id"], name=op.f("fk_table_metadata_table_id"), ondelete="CASCADE"
        ),
        sa.CheckConstraint("json_valid(engine_config)", name=op.f("ck_table_metadata_engine_config_json")).ddl_if(
            dialect="sqlite"
        ),
        sa.CheckConstraint("json_valid(properties)", name=op.f("ck_table_metadata_properties_json")).ddl_if(
            dialect="sqlite"
        ),
        sa.CheckConstraint("json_valid(schema)", name=op.f("ck_table_metadata_schema_json")).ddl_if(dialect="sqlite"),
        sa.CheckConstraint("json_valid(partition_by)", name=op.f("ck_table_metadata_partition_by_json")).ddl_if(
            dialect="sqlite"
        ),
        sa.CheckConstraint("schema_version >= 1", name=op.f("ck_table_metadata_schema_version")),
        sa.CheckConstraint("json_valid(sort_by)", name=op.f("ck_table_metadata_sort_by_json")).ddl_if(dialect="sqlite"),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_table(
        "table_snapshots",
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("snapshot_id", BigInt, nullable=True),
        sa.Column("timestamp", BigInt, nullable=False),
        sa.Column("manifest_list", ByteOrderText, nullable=True),
        sa.Column("summary", JsonTextType, nullable=False),
        sa.Column("schema_id", sa.Integer, nullable=True),
        sa.Column("trigger", ByteOrderText, nullable=False),
        sa.Column("status", ByteOrderText, nullable=False),
        sa.Column("tag", ByteOrderText, nullable=True),
        sa.Column("reason", ByteOrderText, nullable=True),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_table_snapshots")),
        sa.UniqueConstraint("table_id", "snapshot_id", name=op.f("uq_table_snapshots_table_id_snapshot_id")),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.id"], name=op.f("fk_table_snapshots_table_id"), ondelete="CASCADE"
        ),
        sa.CheckConstraint(
            "\"trigger\" IN ('manual', 'time', 'size', 'query')", name=op.f("ck_table_snapshots_trigger")
        ),
        sa.CheckConstraint("json_valid(summary)", name=op.f("ck_table_snapshots_summary_json")).ddl_if(
            dialect="sqlite"
        ),
        sa.CheckConstraint(
            "\"status\" IN ('requested', 'created', 'failed', 'expired')", name=op.f("ck_table_snapshots_status")
        ),
        sa.CheckConstraint("status <> 'created' OR snapshot_id IS NOT NULL", name=op.f("ck_table_snapshots_created")),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_table_snapshots_table_id_id"), "table_snapshots", ["table_id", "id"])
    op.create_index(
        op.f("uq_table_snapshots_table_id_tag"),
        "table_snapshots",
        ["table_id", "tag"],
        unique=True,
        sqlite_where=sa.text("tag IS NOT NULL AND status IN ('requested', 'created')"),
        postgresql_where=sa.text("tag IS NOT NULL AND status IN ('requested', 'created')"),
    )
    op.create_table(
        "table_stats",
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("partition_path", ByteOrderText, nullable=False),
        sa.Column("row_count", BigInt, nullable=False),
        sa.Column("file_count", BigInt, nullable=False),
        sa.Column("total_size", BigInt, nullable=False),
        sa.Column("last_modified", BigInt, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_table_stats")),
        sa.UniqueConstraint("table_id", "partition_path", name=op.f("uq_table_stats_table_id_partition_path")),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"], name=op.f("fk_table_stats_table_id"), ondelete="CASCADE"),
        sa.CheckConstraint("row_count >= 0", name=op.f("ck_table_stats_row_count")),
        sa.CheckConstraint("total_size >= 0", name=op.f("ck_table_stats_total_size")),
        sa.CheckConstraint("file_count >= 0", name=op.f("ck_table_stats_file_count")),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_table(
        "consumer_offsets",
        sa.Column("group_id", ByteOrderText, nullable=False),
        sa.Column("topic", ByteOrderText, nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("committed_offset", BigInt, nullable=False),
        sa.Column("metadata", ByteOrderText, nullable=True),
        sa.Column("committed_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "topic", "partition_id", name=op.f("pk_consumer_offsets")),
        sa.ForeignKeyConstraint(
            ["group_id"], ["consumer_groups.group_id"], name=op.f("fk_consumer_offsets_group_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["topic", "partition_id"],
            ["partitions.topic", "partitions.partition_id"],
            name=op.f("fk_consumer_offsets_topic_partition_id"),
            ondelete="CASCADE",
        ),
        sa.CheckConstraint("committed_offset >= 0", name=op.f("ck_consumer_offsets_committed_offset")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_consumer_offsets_topic_partition_id"), "consumer_offsets", ["topic", "partition_id"])
    op.create_table(
        "partition_leases",
        sa.Column("topic", ByteOrderText, nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("leader_agent_id", ByteOrderText, nullable=True),
        sa.Column("expires_at", BigInt, nullable=False),
        sa.Column("acquired_at", BigInt, nullable=False),
        sa.Column("epoch", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("topic", "partition_id", name=op.f("pk_partition_leases")),
        sa.ForeignKeyConstraint(
            ["leader_agent_id"],
            ["agents.agent_id"],
            name=op.f("fk_partition_leases_leader_agent_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["topic", "partition_id"],
            ["partitions.topic", "partitions.partition_id"],
            name=op.f("fk_partition_leases_topic_partition_id"),
            ondelete="CASCADE",
        ),
        sa.CheckConstraint("epoch >= 1", name=op.f("ck_partition_leases_epoch")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_partition_leases_leader_agent_id"), "partition_leases", ["leader_agent_id"])
    op.create_table(
        "segments",
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("topic", ByteOrderText, nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("base_offset", BigInt, nullable=False),
        sa.Column("end_offset", BigInt, nullable=False),
        sa.Column("record_count", BigInt, nullable=False),
        sa.Column("size_bytes", BigInt, nullable=False),
        sa.Column("s3_bucket", ByteOrderText, nullable=False),
        sa.Column("s3_key", ByteOrderText, nullable=False),
        sa.Column("byte_offset", BigInt, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        sa.UniqueConstraint(
            "topic", "partition_id", "base_offset", name=op.f("uq_segments_topic_partition_id_base_offset")
        ),
        sa.ForeignKeyConstraint(
            ["topic", "partition_id"],
            ["partitions.topic", "partitions.partition_id"],
            name=op.f("fk_segments_topic_partition_id"),
            ondelete="CASCADE",
        ),
        sa.CheckConstraint("base_offset >= 0", name=op.f("ck_segments_base_offset")),
        sa.CheckConstraint("end_offset >= base_offset", name=op.f("ck_segments_end_offset")),
        sa.CheckConstraint("record_count >= 0", name=op.f("ck_segments_record_count")),
        sa.CheckConstraint("size_bytes >= 0", name=op.f("ck_segments_size_bytes")),
        sa.CheckConstraint("byte_offset >= 0", name=op.f("ck_segments_byte_offset")),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_segments_created_at"), "segments", ["created_at"])
    op.create_index(op.f("ix_segments_s3_bucket_s3_key"), "segments", ["s3_bucket", "s3_key"])
    op.create_table(
        "table_files",
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("file_name", ByteOrderText, nullable=False),
        sa.Column("file_path", ByteOrderText, nullable=False),
        sa.Column("file_size", BigInt, nullable=False),
        sa.Column("file_type", ByteOrderText, nullable=False),
        sa.Column("partition_path", ByteOrderText, nullable=False),
        sa.Column("row_count", BigInt, nullable=False),
        sa.Column("checksum", ByteOrderText, nullable=True),
        sa.Column("is_compressed", BooleanType, nullable=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("column_stats", JsonTextType, nullable=True),
        sa.Column("operation", ByteOrderText, nullable=False),
        sa.Column("operation_id", ByteOrderText, nullable=True),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("modified_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_table_files")),
        sa.UniqueConstraint("table_id", "file_path", name=op.f("uq_table_files_table_id_file_path")),
        sa.ForeignKeyConstraint(
            ["table_id", "schema_version"],
            ["table_metadata.table_id", "table_metadata.schema_version"],
            name=op.f("fk_table_files_table_id_schema_version"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"], name=op.f("fk_table_files_table_id"), ondelete="CASCADE"),
        sa.CheckConstraint("file_size >= 0", name=op.f("ck_table_files_file_size")),
        sa.CheckConstraint(
            "\"operation\" IN ('insert', 'compaction', 'rollback', 'import')", name=op.f("ck_table_files_operation")
        ),
        sa.CheckConstraint(
            "operation <> 'compaction' OR operation_id IS NOT NULL", name=op.f("ck_table_files_operation_id")
        ),
        sa.CheckConstraint("row_count >= 0", name=op.f("ck_table_files_row_count")),
        sa.CheckConstraint(
            "column_stats IS NULL OR json_valid(column_stats)", name=op.f("ck_table_files_column_stats_json")
        ).ddl_if(dialect="sqlite"),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_table_files_table_id_id"), "table_files", ["table_id", "id"])
    op.create_index(
        op.f("ix_table_files_table_id_partition_path_id"), "table_files", ["table_id", "partition_path", "id"]
    )
    op.create_index(op.f("ix_table_files_table_id_schema_version"), "table_files", ["table_id", "schema_version"])
