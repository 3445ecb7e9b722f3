"""Commits by other engines through the catalog: their markers and delete files (published), and answered requests.

Files that they add have the operation `external`, so the check of that column is widened. Code of 0008 never writes it,
and reads it as any other text.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from registry import change_log
from registry.schema import BigInt, ByteOrderText, JsonTextType

revision = "0009"
down_revision = "0008"
compatible_from = "0008"
branch_labels = None
depends_on = None

PUBLISHED = ("iceberg_commits", "table_delete_files")
COUNTS = ("added_files", "removed_files", "added_rows", "removed_rows", "added_delete_files", "removed_delete_files")
FORMER = "former_table_files"
CHECK = "ck_table_files_operation"
OLD = "'insert', 'compaction', 'rollback', 'import'"
NEW = f"{OLD}, 'external'"


def upgrade() -> None:
    _allow_operations(OLD, NEW)
    _create_commits()
    _create_delete_files()
    op.create_table(
        "catalog_requests",
        sa.Column("request_key", ByteOrderText, nullable=False),
        sa.Column("fingerprint", ByteOrderText, nullable=False),
        sa.Column("response", ByteOrderText, nullable=True),
        sa.Column("created_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("request_key", name=op.f("pk_catalog_requests")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_catalog_requests_created_at"), "catalog_requests", ["created_at"])
    _publish()


def downgrade() -> None:
    for table in ("catalog_requests", "table_delete_files", "iceberg_commits"):
        op.drop_table(table)
    op.execute("UPDATE table_files SET operation = 'import' WHERE operation = 'external'")
    _allow_operations(NEW, OLD)


def _create_commits() -> None:
    op.create_table(
        "iceberg_commits",
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("snapshot_id", BigInt, nullable=True),
        sa.Column("parent_snapshot_id", BigInt, nullable=True),
        sa.Column("operation", ByteOrderText, nullable=False),
        sa.Column("engine", ByteOrderText, nullable=True),
        *(sa.Column(name, BigInt, nullable=False) for name in COUNTS),
        sa.Column("metadata_location", ByteOrderText, nullable=False),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_iceberg_commits")),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.id"], name=op.f("fk_iceberg_commits_table_id"), ondelete="CASCADE"
        ),
        *(sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_iceberg_commits_{name}")) for name in COUNTS),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_iceberg_commits_table_id_id"), "iceberg_commits", ["table_id", "id"])


def _create_delete_files() -> None:
    table = "table_delete_files"
    op.create_table(
        table,
        sa.Column("id", BigInt, sa.Identity(always=False), nullable=False),
        sa.Column("table_id", BigInt, nullable=False),
        sa.Column("file_path", ByteOrderText, nullable=False),
        sa.Column("file_size", BigInt, nullable=False),
        sa.Column("file_type", ByteOrderText, nullable=False),
        sa.Column("content", ByteOrderText, nullable=False),
        sa.Column("row_count", BigInt, nullable=False),
        sa.Column("partition_path", ByteOrderText, nullable=False),
        sa.Column("spec_id", sa.Integer, nullable=False),
        sa.Column("equality_ids", JsonTextType, nullable=True),
        sa.Column("referenced_data_file", ByteOrderText, nullable=True),
        sa.Column("content_offset", BigInt, nullable=False),
        sa.Column("sequence_number", BigInt, nullable=False),
        sa.Column("snapshot_id", BigInt, nullable=True),
        sa.Column("created_at", BigInt, nullable=False),
        sa.Column("updated_at", BigInt, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_table_delete_files")),
        sa.ForeignKeyConstraint(
            ["table_id"], ["tables.id"], name=op.f("fk_table_delete_files_table_id"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint(
            "table_id",
            "file_path",
            "content_offset",
            name=op.f("uq_table_delete_files_table_id_file_path_content_offset"),
        ),
        sa.CheckConstraint("file_size >= 0", name=op.f("ck_table_delete_files_file_size")),
        sa.CheckConstraint("row_count >= 0", name=op.f("ck_table_delete_files_row_count")),
        sa.CheckConstraint("\"content\" IN ('position', 'equality')", name=op.f("ck_table_delete_files_content")),
        sa.CheckConstraint(
            "equality_ids IS NULL OR json_valid(equality_ids)", name=op.f("ck_table_delete_files_equality_ids_json")
        ).ddl_if(dialect="sqlite"),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_table_delete_files_table_id_id"), table, ["table_id", "id"])
    op.create_index(
        op.f("ix_table_delete_files_table_id_partition_path_id"), table, ["table_id", "partition_path", "id"]
    )


def _publish() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        columns = sa.inspect(connection).get_columns
        for table in PUBLISHED:
            for statement in change_log.create_triggers(table, [column["name"] for column in columns(table)]):
                op.execute(statement)
        return
    for table in PUBLISHED:
        op.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    if connection.execute(sa.text("SELECT 1 FROM pg_publication WHERE pubname = 'astha'")).first() is not None:
        op.execute(f"ALTER PUBLICATION astha ADD TABLE {', '.join(PUBLISHED)}")  # a missing one is repaired afterwards


def _allow_operations(old: str, new: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint(op.f(CHECK), "table_files", type_="check")
        op.create_check_constraint(op.f(CHECK), "table_files", f'"operation" IN ({new})')
    else:
        _create_again(old, new)


def _create_again(old: str, new: str) -> None:
    """SQLite can't change a check: the table is created again and filled. The next id stays the same."""
    connection = op.get_bind()
    kept = "SELECT sql FROM sqlite_master WHERE tbl_name = 'table_files' AND type = '{}' AND sql IS NOT NULL"
    names = "SELECT name FROM sqlite_master WHERE tbl_name = 'table_files' AND type = 'index' AND sql IS NOT NULL"
    (definition,) = connection.exec_driver_sql(kept.format("table")).scalars()
    rest = [*connection.exec_driver_sql(kept.format("index")).scalars()]
    rest += [*connection.exec_driver_sql(kept.format("trigger")).scalars()]
    indexes = list(connection.exec_driver_sql(names).scalars())
    last = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = 'table_files'").scalar()
    for statement in (*change_log.drop_triggers("table_files"), *(f'DROP INDEX "{name}"' for name in indexes)):
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql(f"ALTER TABLE table_files RENAME TO {FORMER}")
    connection.exec_driver_sql(definition.replace(old, new))
    connection.exec_driver_sql(f"INSERT INTO table_files SELECT * FROM {FORMER}")
    connection.exec_driver_sql(f"DROP TABLE {FORMER}")
    if last is not None:
        connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = 'table_files'")
        connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('table_files', ?)", (last,))
    for statement in rest:
        connection.exec_driver_sql(statement)
