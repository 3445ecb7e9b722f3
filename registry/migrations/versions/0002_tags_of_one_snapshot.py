"""An Iceberg snapshot may have several tags, with a row of `table_snapshots` each."""

from __future__ import annotations

import re
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLE = "table_snapshots"
NAME = "uq_table_snapshots_table_id_snapshot_id"
UNIQUE = f"CONSTRAINT {NAME} UNIQUE (table_id, snapshot_id)"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint(NAME, TABLE)
    else:
        _rebuild(lambda definition: re.sub(rf",\s*{re.escape(UNIQUE)}", "", definition))


def downgrade() -> None:
    """The database refuses this if a snapshot has two rows."""
    if op.get_bind().dialect.name == "postgresql":
        op.create_unique_constraint(NAME, TABLE, ["table_id", "snapshot_id"])
    else:
        key = f"CONSTRAINT fk_{TABLE}_table_id"
        _rebuild(lambda definition: definition.replace(key, f"{UNIQUE}, \n\t{key}", 1))


def _rebuild(changed: Callable[[str], str]) -> None:
    """SQLite can't change a constraint: creates the table again, with its triggers dropped meanwhile."""
    connection = op.get_bind()
    found = connection.execute(
        sa.text("SELECT type, name, sql FROM sqlite_master WHERE tbl_name = :table AND sql IS NOT NULL ORDER BY name"),
        {"table": TABLE},
    ).all()
    (definition,) = [sql for kind, _, sql in found if kind == "table"]
    new = changed(definition)
    assert new != definition, definition  # noqa: S101  (the text that 0001 or this migration wrote)
    used = sa.text("SELECT seq FROM sqlite_sequence WHERE name = :table")
    last = connection.execute(used, {"table": TABLE}).scalar()
    for kind, name, _ in found:
        if kind == "trigger":
            op.execute(f'DROP TRIGGER "{name}"')
    op.execute(f"ALTER TABLE {TABLE} RENAME TO former_{TABLE}")
    connection.exec_driver_sql(new)
    op.execute(f"INSERT INTO {TABLE} SELECT * FROM former_{TABLE}")
    op.execute(f"DROP TABLE former_{TABLE}")
    for kind, _, sql in found:
        if kind in ("index", "trigger"):
            connection.exec_driver_sql(sql)
    if last is not None:
        connection.execute(
            sa.text("UPDATE sqlite_sequence SET seq = :last WHERE name = :table"), {"last": last, "table": TABLE}
        )
