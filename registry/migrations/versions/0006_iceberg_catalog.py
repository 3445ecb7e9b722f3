"""The tables of the Iceberg catalog, so that a daemon needs no CREATE privilege. Not published.

Earlier versions let PyIceberg create them, so they may exist, with rows, and without the column that distinguishes
views from tables. The downgrade drops them only if they are empty: only their rows lead to the lake's metadata.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = ("iceberg_tables", "iceberg_namespace_properties")


def upgrade() -> None:
    found = sa.inspect(op.get_bind())
    if not found.has_table("iceberg_tables"):
        op.create_table(
            "iceberg_tables",
            sa.Column("catalog_name", sa.String(255), nullable=False),
            sa.Column("table_namespace", sa.String(255), nullable=False),
            sa.Column("table_name", sa.String(255), nullable=False),
            sa.Column("metadata_location", sa.String(1_000), nullable=True),
            sa.Column("previous_metadata_location", sa.String(1_000), nullable=True),
            sa.Column("iceberg_type", sa.String(5), nullable=True),
            sa.PrimaryKeyConstraint("catalog_name", "table_namespace", "table_name", name=op.f("iceberg_tables_pkey")),
        )
    elif "iceberg_type" not in {column["name"] for column in found.get_columns("iceberg_tables")}:
        op.add_column("iceberg_tables", sa.Column("iceberg_type", sa.String(5), nullable=True))
    if not found.has_table("iceberg_namespace_properties"):
        op.create_table(
            "iceberg_namespace_properties",
            sa.Column("catalog_name", sa.String(255), nullable=False),
            sa.Column("namespace", sa.String(255), nullable=False),
            sa.Column("property_key", sa.String(255), nullable=False),
            sa.Column("property_value", sa.String(1_000), nullable=False),
            sa.PrimaryKeyConstraint(
                "catalog_name", "namespace", "property_key", name=op.f("iceberg_namespace_properties_pkey")
            ),
        )


def downgrade() -> None:
    connection = op.get_bind()
    if not any(connection.execute(sa.text(f"SELECT 1 FROM {name} LIMIT 1")).first() for name in TABLES):
        for name in TABLES:
            op.drop_table(name)
