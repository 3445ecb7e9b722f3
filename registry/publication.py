"""The PostgreSQL publication: whether it contains every change of every published table, and its repair.

A slot delivers only changes that were published when they were made. So a repair overwrites the recorded identity of
every source: changes made before it may be missing from the stream, and a source that reads the mark reports a gap.
"""

from __future__ import annotations

from sqlalchemy import Connection

from registry.models import LAKE_IDENTITY, PUBLISHED
from registry.schema import PUBLICATION

NOT_PUBLISHED = """
SELECT t.name FROM unnest(%(tables)s::text[]) AS t(name)
WHERE NOT EXISTS (
    SELECT FROM pg_publication_tables p
    WHERE p.pubname = %(publication)s AND p.schemaname = %(schema)s AND p.tablename = t.name
) OR EXISTS (
    SELECT FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid
    JOIN pg_class c ON c.oid = r.prrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pubname = %(publication)s AND n.nspname = %(schema)s AND c.relname = t.name
      AND coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL
) ORDER BY 1
"""
"""Selects the given tables that the publication lacks, or contains with a row filter or a column list."""

WITHOUT_OPERATIONS = """
SELECT NOT (pubinsert AND pubupdate AND pubdelete AND pubtruncate) FROM pg_publication WHERE pubname = %(publication)s
"""

ALL_OPERATIONS = "publish = 'insert, update, delete, truncate'"

REPAIRED = "the publication was repaired"
"""Written in place of a source's identity. No server has this identity."""

_MARK_SOURCES = f"UPDATE source_identity SET identity = '{REPAIRED}' WHERE name <> '{LAKE_IDENTITY}'"
_WITHOUT_OLD_ROWS = (
    "SELECT name FROM unnest(%s::text[]) AS t(name) JOIN pg_class ON oid = to_regclass(name) WHERE relreplident <> 'f'"
)


def repair_publication(connection: Connection) -> list[str]:
    """Repairs the publication in the caller's transaction. Returns what was wrong, as text; empty if nothing was."""
    tables = [kind.table for kind in PUBLISHED]
    found = connection.exec_driver_sql(WITHOUT_OPERATIONS, {"publication": PUBLICATION}).first()
    wrong: list[str] = []
    if found is None:
        connection.exec_driver_sql(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(tables)}")
        wrong.append(f"there was no publication {PUBLICATION}")
    else:
        if found[0]:
            connection.exec_driver_sql(f"ALTER PUBLICATION {PUBLICATION} SET ({ALL_OPERATIONS})")
            wrong.append(f"publication {PUBLICATION} left out some operations")
        wrong += _add_missing(connection, tables)
    for (table,) in connection.exec_driver_sql(_WITHOUT_OLD_ROWS, (tables,)).all():
        connection.exec_driver_sql(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        wrong.append(f"{table} did not publish complete old rows")
    if wrong:
        connection.exec_driver_sql(_MARK_SOURCES)
    return wrong


def _add_missing(connection: Connection, tables: list[str]) -> list[str]:
    schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    given = {"tables": tables, "publication": PUBLICATION, "schema": schema}
    missing = [str(name) for (name,) in connection.exec_driver_sql(NOT_PUBLISHED, given)]
    held = "SELECT tablename FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s"
    filtered = {name for (name,) in connection.exec_driver_sql(held, (PUBLICATION, schema))}.intersection(missing)
    for table in sorted(filtered):
        connection.exec_driver_sql(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE {table}")
    if missing:
        connection.exec_driver_sql(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {', '.join(missing)}")
    return [f"publication {PUBLICATION} did not contain all of {', '.join(missing)}"] if missing else []
