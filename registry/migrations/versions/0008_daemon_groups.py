"""Groups of daemons: the ledger has rows per group, and each running daemon has a row in `daemons`. Not published.

Existing rows of the ledger belong to the default group. The downgrade keeps only those: a component of another group
then starts with a refresh.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from registry.schema import BigInt, BooleanType, ByteOrderText, JsonTextType

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

DEFAULT_GROUP = "astha"
FORMER = "former_ledger"
COLUMNS = "component, position, refresh_visibility, tables, state, refresh_owed, reason, updated_at"


def upgrade() -> None:
    op.create_table(
        "daemons",
        sa.Column("holder", ByteOrderText, nullable=False),
        sa.Column("group", ByteOrderText, nullable=False),
        sa.Column("host", ByteOrderText, nullable=False),
        sa.Column("pid", BigInt, nullable=False),
        sa.Column("role", ByteOrderText, nullable=False),
        sa.Column("source", ByteOrderText, nullable=False),
        sa.Column("components", JsonTextType, nullable=False),
        sa.Column("version", ByteOrderText, nullable=False),
        sa.Column("started_at", BigInt, nullable=False),
        sa.Column("seen_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("holder", name=op.f("pk_daemons")),
        sa.CheckConstraint("\"role\" IN ('leader', 'standby')", name=op.f("ck_daemons_role")),
        sa.CheckConstraint("json_valid(components)", name=op.f("ck_daemons_components_json")).ddl_if(dialect="sqlite"),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        # The column is added, not the table created again: roles keep their privileges.
        op.add_column("ledger", sa.Column("group", ByteOrderText, nullable=False, server_default=DEFAULT_GROUP))
        op.alter_column("ledger", "group", server_default=None)
        _change_key("group", "component")
    else:
        op.rename_table("ledger", FORMER)
        _create_ledger(sa.Column("group", ByteOrderText, nullable=False), key=["group", "component"])
        op.execute(f"INSERT INTO ledger SELECT {COLUMNS}, '{DEFAULT_GROUP}' FROM {FORMER}")
        op.drop_table(FORMER)


def downgrade() -> None:
    op.drop_table("daemons")
    op.execute(f"DELETE FROM ledger WHERE \"group\" <> '{DEFAULT_GROUP}'")
    if op.get_bind().dialect.name == "postgresql":
        _change_key("component")
        op.drop_column("ledger", "group")
    else:
        op.rename_table("ledger", FORMER)
        _create_ledger(key=["component"])
        op.execute(f"INSERT INTO ledger SELECT {COLUMNS} FROM {FORMER}")
        op.drop_table(FORMER)


def _change_key(*columns: str) -> None:
    op.drop_constraint("pk_ledger", "ledger", type_="primary")
    op.create_primary_key(op.f("pk_ledger"), "ledger", list(columns))


def _create_ledger(*further: sa.Column[str], key: list[str]) -> None:
    """SQLite can't change a primary key."""
    op.create_table(
        "ledger",
        sa.Column("component", ByteOrderText, nullable=False),
        sa.Column("position", BigInt, nullable=True),
        sa.Column("refresh_visibility", JsonTextType, nullable=True),
        sa.Column("tables", JsonTextType, nullable=False),
        sa.Column("state", ByteOrderText, nullable=False),
        sa.Column("refresh_owed", BooleanType, nullable=False),
        sa.Column("reason", ByteOrderText, nullable=True),
        sa.Column("updated_at", BigInt, nullable=False),
        *further,
        sa.PrimaryKeyConstraint(*key, name=op.f("pk_ledger")),
        sa.CheckConstraint("json_valid(tables)", name=op.f("ck_ledger_tables_json")),
        sa.CheckConstraint(
            "refresh_visibility IS NULL OR json_valid(refresh_visibility)",
            name=op.f("ck_ledger_refresh_visibility_json"),
        ),
        sqlite_strict=True,
    )
