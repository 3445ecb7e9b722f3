"""Group leases: which member of a consumer group reads which partition. Not published."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from registry.schema import BigInt, ByteOrderText

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLE = "group_leases"


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("group_id", ByteOrderText, nullable=False),
        sa.Column("topic", ByteOrderText, nullable=False),
        sa.Column("partition_id", sa.Integer, nullable=False),
        sa.Column("member_id", ByteOrderText, nullable=True),
        sa.Column("expires_at", BigInt, nullable=False),
        sa.Column("acquired_at", BigInt, nullable=False),
        sa.Column("epoch", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "topic", "partition_id", name=op.f("pk_group_leases")),
        sa.ForeignKeyConstraint(
            ["group_id"], ["consumer_groups.group_id"], name=op.f("fk_group_leases_group_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["topic", "partition_id"],
            ["partitions.topic", "partitions.partition_id"],
            name=op.f("fk_group_leases_topic_partition_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["member_id"], ["agents.agent_id"], name=op.f("fk_group_leases_member_id"), ondelete="SET NULL"
        ),
        sa.CheckConstraint("epoch >= 1", name=op.f("ck_group_leases_epoch")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_group_leases_topic_partition_id"), TABLE, ["topic", "partition_id"])
    op.create_index(op.f("ix_group_leases_member_id"), TABLE, ["member_id"])


def downgrade() -> None:
    op.drop_table(TABLE)
