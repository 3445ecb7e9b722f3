"""The PostgreSQL publication: whether it carries every change of every published table, and its repair.

A slot brings only what was published when the change was made. So a repair marks the recorded identity of every
source: whatever was written in between is missing from the stream, and the next look at the mark is a gap.
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
"""Of the tables given, those that the publication lacks, or holds with a row filter or a column list."""

WITHOUT_OPERATIONS = """
SELECT NOT (pubinsert AND pubupdate AND pubdelete AND pubtruncate) FROM pg_publication WHERE pubname = %(publication)s
"""

ALL_OPERATIONS = "publish = 'insert, update, delete, truncate'"

REPAIRED = "the publication was repaired"
"""An identity that no server has."""

_MARK = f"UPDATE source_identity SET identity = '{REPAIRED}' WHERE name <> '{LAKE_IDENTITY}'"
_KEYS_ONLY = (
    "SELECT name FROM unnest(%s::text[]) AS t(name) JOIN pg_class ON oid = to_regclass(name) WHERE relreplident <> 'f'"
)


def repair_publication(connection: Connection) -> list[str]:
    """In the caller's transaction; returns what was wrong, for people. Nothing is done to a publication in order."""
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
    for (table,) in connection.exec_driver_sql(_KEYS_ONLY, (tables,)).all():
        connection.exec_driver_sql(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        wrong.append(f"{table} did not publish whole old rows")
    if wrong:
        connection.exec_driver_sql(_MARK)
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
    return [f"publication {PUBLICATION} did not carry all of {', '.join(missing)}"] if missing else []
