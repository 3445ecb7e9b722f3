"""The compactor's journal. Not published: the daemon does not follow its own writes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from registry.schema import BigInt, BooleanType, ByteOrderText, JsonTextType

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLE = "compactions"
COUNTS = ("input_files", "input_bytes", "output_files", "output_bytes", "row_count")
PARTIAL = {"running": "status = 'running'", "standing": "status IN ('waiting', 'declined')"}


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("table_name", ByteOrderText, nullable=False),
        sa.Column("partition_path", ByteOrderText, nullable=False),
        sa.Column("status", ByteOrderText, nullable=False),
        sa.Column("trigger", ByteOrderText, nullable=False),
        sa.Column("rule", ByteOrderText, nullable=False),
        sa.Column("strategy", ByteOrderText, nullable=True),
        sa.Column("explanation", JsonTextType, nullable=False),
        sa.Column("position", BigInt, nullable=True),
        *(sa.Column(name, BigInt, nullable=False) for name in COUNTS),
        sa.Column("operation_id", ByteOrderText, nullable=True),
        sa.Column("owner", ByteOrderText, nullable=True),
        sa.Column("cancel_requested", BooleanType, nullable=False),
        sa.Column("reason", ByteOrderText, nullable=True),
        sa.Column("decided_at", BigInt, nullable=False),
        sa.Column("started_at", BigInt, nullable=True),
        sa.Column("ended_at", BigInt, nullable=True),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_compactions")),
        sa.UniqueConstraint("operation_id", name=op.f("uq_compactions_operation_id")),
        *(sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_compactions_{name}")) for name in COUNTS),
        sa.CheckConstraint(
            "\"status\" IN ('waiting', 'declined', 'running', 'done', 'aborted', 'failed', 'cancelled')",
            name=op.f("ck_compactions_status"),
        ),
        sa.CheckConstraint("\"trigger\" IN ('event', 'refresh', 'manual')", name=op.f("ck_compactions_trigger")),
        sa.CheckConstraint(
            "status IN ('waiting', 'declined', 'cancelled') "
            "OR (operation_id IS NOT NULL AND owner IS NOT NULL AND started_at IS NOT NULL)",
            name=op.f("ck_compactions_started"),
        ),
        sa.CheckConstraint("json_valid(explanation)", name=op.f("ck_compactions_explanation_json")).ddl_if(
            dialect="sqlite"
        ),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_compactions_decided_at_id"), TABLE, ["decided_at", "id"])
    op.create_index(op.f("ix_compactions_table_id_decided_at_id"), TABLE, ["table_id", "decided_at", "id"])
    op.create_index(op.f("ix_compactions_started_at"), TABLE, ["started_at"])
    for name, where in PARTIAL.items():
        op.create_index(
            f"uq_compactions_{name}", TABLE, ["table_id", "partition_path"],
            unique=True, postgresql_where=sa.text(where), sqlite_where=sa.text(where),
        )  # fmt: skip


def downgrade() -> None:
    op.drop_table(TABLE)
