"""For the segment store: times and blocks of segments, objects in use, and producer sequences."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from registry import change_log
from registry.schema import BigInt, ByteOrderText

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NEW = (("min_timestamp", BigInt), ("max_timestamp", BigInt), ("block_index", ByteOrderText))


def upgrade() -> None:
    with _without_triggers():
        for name, kind in NEW:
            op.add_column("segments", sa.Column(name, kind, nullable=True))
    op.create_table(
        "segment_objects",
        sa.Column("s3_bucket", ByteOrderText, nullable=False),
        sa.Column("s3_key", ByteOrderText, nullable=False),
        sa.Column("live_segments", BigInt, nullable=False),
        sa.Column("size_bytes", BigInt, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("s3_bucket", "s3_key", name=op.f("pk_segment_objects")),
        sa.CheckConstraint("live_segments >= 1", name=op.f("ck_segment_objects_live_segments")),
        sa.CheckConstraint("size_bytes >= 0", name=op.f("ck_segment_objects_size_bytes")),
        sqlite_strict=True,
    )
    op.create_table(
        "producer_sequences",
        sa.Column("topic", ByteOrderText, nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("producer_id", ByteOrderText, nullable=False),
        sa.Column("epoch", BigInt, nullable=False),
        sa.Column("last_sequence", BigInt, nullable=False),
        sa.Column("last_base_offset", BigInt, nullable=False),
        sa.Column("last_count", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("topic", "partition_id", "producer_id", name=op.f("pk_producer_sequences")),
        sa.ForeignKeyConstraint(
            ["topic", "partition_id"],
            ["partitions.topic", "partitions.partition_id"],
            name=op.f("fk_producer_sequences_topic_partition_id"),
            ondelete="CASCADE",
        ),
        sa.CheckConstraint("epoch >= 0", name=op.f("ck_producer_sequences_epoch")),
        sa.CheckConstraint("last_sequence >= 0", name=op.f("ck_producer_sequences_last_sequence")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_producer_sequences_updated_at"), "producer_sequences", ["updated_at"])
    # The objects of existing segments are in use, too.
    op.execute(
        "INSERT INTO segment_objects (s3_bucket, s3_key, live_segments, size_bytes, created_at) "
        "SELECT s3_bucket, s3_key, count(*), sum(size_bytes), min(created_at) FROM segments GROUP BY s3_bucket, s3_key"
    )


def downgrade() -> None:
    op.drop_table("producer_sequences")
    op.drop_table("segment_objects")
    with _without_triggers():
        for name, _ in reversed(NEW):
            op.drop_column("segments", name)


class _without_triggers:  # noqa: N801  (used as a with block)
    """SQLite's triggers name every column: drops them, and creates them again for the new columns."""

    def __enter__(self) -> None:
        if op.get_bind().dialect.name == "sqlite":
            for statement in change_log.drop_triggers("segments"):
                op.execute(statement)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and op.get_bind().dialect.name == "sqlite":
            columns = [column["name"] for column in sa.inspect(op.get_bind()).get_columns("segments")]
            for statement in change_log.create_triggers("segments", columns):
                op.execute(statement)
