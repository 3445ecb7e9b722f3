"""The schema of a database, in a form that can be compared."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TypeAlias

import psycopg

from registry.engines import parse_url, sqlite_path

Catalog: TypeAlias = dict[str, list[tuple[object, ...]]]

_QUERIES = {
    "columns": """
        SELECT c.relname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname,
               format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               co.collname, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        LEFT JOIN pg_collation co ON co.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY 1, 2""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
    "replica identity": """
        SELECT relname, relreplident FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1""",
    "publications": "SELECT pubname, schemaname, tablename FROM pg_publication_tables ORDER BY 1, 2, 3",
    "triggers": "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1, 2",
}


def catalog(url: str) -> Catalog:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(parse_url(url)))) as connection:
            found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
        kinds: Catalog = {}
        for kind, name, table, sql in found:
            kinds.setdefault(kind, []).append((name, table, _spelling(sql or "")))
        return kinds
    with psycopg.connect(url) as connection_:
        return {name: connection_.execute(query.encode()).fetchall() for name, query in _QUERIES.items()}


def _spelling(sql: str) -> str:
    """Without spaces, and with a table's constraints (not its columns) in one order."""
    sql = re.sub(r"\s+", "", sql)
    match = re.fullmatch(r"(CREATETABLE\w+\()(.*)(\)\w*)", sql)
    if match is None:
        return sql
    items, depth = [""], 0
    for letter in match[2]:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    columns = [item for item in items if not item.startswith("CONSTRAINT")]
    constraints = sorted(item for item in items if item.startswith("CONSTRAINT"))
    return match[1] + ",".join([*columns, *constraints]) + match[3]


def without(found: Catalog, *names: str) -> Catalog:
    """Returns the schema without these tables."""
    return {kind: [row for row in rows if not {*map(str, row[:2])} & {*names}] for kind, rows in found.items()}
