"""Renames the ledger's column `place` to `refresh_visibility`: which transactions the last refresh contained."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

OLD, NEW = "place", "refresh_visibility"


def upgrade() -> None:
    _rename(OLD, NEW)


def downgrade() -> None:
    _rename(NEW, OLD)


def _rename(old: str, new: str) -> None:
    connection = op.get_bind()
    op.execute(f"ALTER TABLE ledger RENAME COLUMN {old} TO {new}")
    if connection.dialect.name == "postgresql":
        return
    # SQLite renames the column in its check, but can't rename the check: the table is created again and filled.
    (definition,) = connection.execute(sa.text("SELECT sql FROM sqlite_master WHERE name = 'ledger'")).scalars()
    op.execute("ALTER TABLE ledger RENAME TO former_ledger")
    connection.exec_driver_sql(definition.replace(f"ck_ledger_{old}_json", f"ck_ledger_{new}_json"))
    op.execute("INSERT INTO ledger SELECT * FROM former_ledger")
    op.execute("DROP TABLE former_ledger")
