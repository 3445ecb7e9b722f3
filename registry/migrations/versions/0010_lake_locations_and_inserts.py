"""The locations of the lake, and inserts with an id, by which a repetition is recognized."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from registry.schema import BigInt, ByteOrderText

revision = "0010"
down_revision = "0009"
compatible_from = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lake_locations",
        sa.Column("name", ByteOrderText, nullable=False),
        sa.Column("location", ByteOrderText, nullable=False),
        sa.Column("recorded_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lake_locations")),
        sa.CheckConstraint("\"name\" IN ('warehouse', 'streams')", name=op.f("ck_lake_locations_name")),
        sqlite_strict=True,
    )
    op.create_table(
        "table_inserts",
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("insert_id", ByteOrderText, nullable=False),
        sa.Column("row_count", BigInt, nullable=False),
        sa.Column("file_count", BigInt, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("table_id", "insert_id", name=op.f("pk_table_inserts")),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.id"], name=op.f("fk_table_inserts_table_id"), ondelete="CASCADE"
        ),
        sa.CheckConstraint("row_count >= 0", name=op.f("ck_table_inserts_row_count")),
        sa.CheckConstraint("file_count >= 0", name=op.f("ck_table_inserts_file_count")),
        sqlite_strict=True,
    )


def downgrade() -> None:
    for table in ("table_inserts", "lake_locations"):
        op.drop_table(table)
