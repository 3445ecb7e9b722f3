"""SQLite's change log: the counterpart of PostgreSQL's logical replication.

Triggers write one row per changed row, in the writer's own transaction: no uncommitted change is visible, and no
committed one is missing, whatever program wrote it. SQLite has no transaction ids, so the registry's own writers
announce a number in the single row of `change_clock` and clear it before they commit. Rows changed by other programs
(such as a shell) carry no number; the source treats consecutive ones as one transaction, which may join two commits but
never splits one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

CREATE = (
    """
    CREATE TABLE change_log (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        transaction_number INTEGER,
        changed_at INTEGER NOT NULL,
        table_name TEXT NOT NULL,
        operation TEXT NOT NULL CHECK (operation IN ('INSERT', 'UPDATE', 'DELETE')),
        before TEXT,
        after TEXT
    ) STRICT
    """,
    """
    CREATE TABLE change_clock (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        last_transaction INTEGER NOT NULL,
        transaction_number INTEGER
    ) STRICT
    """,
    "INSERT INTO change_clock VALUES (1, 0, NULL)",
)
DROP = ("DROP TABLE change_log", "DROP TABLE change_clock")

ANNOUNCE = "UPDATE change_clock SET last_transaction = last_transaction + 1, transaction_number = last_transaction + 1"
RETRACT = "UPDATE change_clock SET transaction_number = NULL"

# unixepoch('subsec') would need SQLite 3.42.
_NOW_MS = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


def create_triggers(table: str, columns: Sequence[str]) -> Iterator[str]:
    """Yields the statements that create the three triggers of a published table."""
    for operation, before, after in (("INSERT", None, "NEW"), ("UPDATE", "OLD", "NEW"), ("DELETE", "OLD", None)):
        yield (
            f'CREATE TRIGGER "{_name(table, operation)}" AFTER {operation} ON "{table}" BEGIN '
            "INSERT INTO change_log (transaction_number, changed_at, table_name, operation, before, after) "
            f"SELECT transaction_number, {_NOW_MS}, '{table}', '{operation}', "
            f"{_row(before, columns)}, {_row(after, columns)} FROM change_clock; END"
        )


def drop_triggers(table: str) -> Iterator[str]:
    for operation in ("INSERT", "UPDATE", "DELETE"):
        yield f'DROP TRIGGER "{_name(table, operation)}"'


def _name(table: str, operation: str) -> str:
    return f"change_log_{table}_{operation.lower()}"


def _row(image: str | None, columns: Sequence[str]) -> str:
    if image is None:
        return "NULL"
    return "json_object(" + ", ".join(f"'{column}', {image}.\"{column}\"" for column in columns) + ")"
