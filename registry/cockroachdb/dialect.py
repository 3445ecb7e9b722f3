"""CockroachDB's dialect for SQLAlchemy: PostgreSQL's over psycopg, without what CockroachDB lacks.

It has a name of its own, so that what is chosen by dialect (column types, conditional constraints) is chosen for it.
The registry is written in SQLAlchemy's portable part, so little more is needed: the version is not PostgreSQL's, and
DDL is that of `registry.cockroachdb.schema`. See docs/decisions/0036-cockroachdb-registry.md.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import URL, Column, Connection, Index, PrimaryKeyConstraint, Table, types
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.base import PGDDLCompiler, PGTypeCompiler
from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg, PGDialect_psycopg, PGDialectAsync_psycopg
from sqlalchemy.engine.interfaces import Dialect, ReflectedColumn
from sqlalchemy.sql.ddl import CreateIndex

from registry.cockroachdb import NAME
from registry.schema import JsonTextType

_VERSION = re.compile(r"CockroachDB \S+ v?(\d+)\.(\d+)\.(\d+)")
_POSTGRESQL = (13,)
"""The version of PostgreSQL whose SQL CockroachDB takes, as far as SQLAlchemy asks."""


_COLUMNS = """
SELECT column_name, is_nullable, column_default FROM information_schema.columns
WHERE table_name = %(table)s AND table_schema = coalesce(%(schema)s, current_schema()) AND is_hidden = 'NO'
ORDER BY ordinal_position
"""


class _Types(PGTypeCompiler):
    """CockroachDB's INTEGER has 64 bits unless a setting says otherwise."""

    def visit_INTEGER(self, type_: types.Integer, **kw: Any) -> str:  # noqa: N802  (SQLAlchemy's name)
        return "INT4"

    def visit_BIGINT(self, type_: types.BigInteger, **kw: Any) -> str:  # noqa: N802
        return "INT8"


class _Statements(PGCompiler_psycopg):
    """SKIP LOCKED is left out: it also skips rows whose last transaction has committed a moment ago (seen on 23.1)."""

    def for_update_clause(self, select: Any, **kw: Any) -> str:
        text: str = super().for_update_clause(select, **kw)  # type: ignore[no-untyped-call]
        return text.removesuffix(" SKIP LOCKED")


class _Tables(PGDDLCompiler):
    """Keys and indexes that grow at one end are sharded by a hash: else one node would take all appends.

    Ids are `unique_rowid()`: unique without a sequence, at which all writers would meet. Nothing depends on their
    order.
    """

    def get_column_specification(self, column: Column[Any], **kw: Any) -> str:
        if column.identity is None:
            return str(super().get_column_specification(column, **kw))  # type: ignore[no-untyped-call]
        return f"{self.preparer.format_column(column)} INT8 NOT NULL DEFAULT unique_rowid()"

    def create_table_constraints(self, table: Table, *args: Any, **kw: Any) -> str:
        """Adds checks that documents are JSON: CockroachDB's own type is binary and changes their text."""
        parts = [super().create_table_constraints(table, *args, **kw)]  # type: ignore[no-untyped-call]
        for column in table.columns:
            if isinstance(column.type, JsonTextType):
                name = self.preparer.format_column(column)
                check = f"CHECK ({name} IS NULL OR {name}::JSONB IS NOT NULL)"
                parts.append(f"CONSTRAINT ck_{table.name}_{column.name}_json {check}")
        return ", \n\t".join(part for part in parts if part)

    def visit_primary_key_constraint(self, constraint: PrimaryKeyConstraint, **kw: Any) -> str:
        text = super().visit_primary_key_constraint(constraint, **kw)  # type: ignore[no-untyped-call]
        return f"{text} USING HASH" if any(column.identity is not None for column in constraint.columns) else text

    def visit_create_index(self, create: CreateIndex, *args: Any, **kw: Any) -> str:
        text = super().visit_create_index(create, *args, **kw)  # type: ignore[no-untyped-call]
        return f"{text} USING HASH" if grows_in_time(create.element) else text


def grows_in_time(index: Index) -> bool:
    """Whether new rows, or changed ones, all go to the end of the index."""
    first = next(iter(index.columns))
    return not index.unique and (first.name.endswith("_at") or first.name == "last_heartbeat")


class _Common(PGDialect_psycopg):
    name = NAME
    statement_compiler = _Statements
    type_compiler = _Types
    ddl_compiler = _Tables
    supports_statement_cache = True

    def __init__(self, **settings: Any) -> None:
        # hstore would be looked up in the server's catalog
        super().__init__(**settings, use_native_hstore=False)  # type: ignore[no-untyped-call]

    def _get_server_version_info(self, connection: Connection) -> tuple[int, ...]:
        return _POSTGRESQL

    def get_columns(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[ReflectedColumn]:
        """Returns names and nullability, which is all that migrations ask: the server lacks functions of the rest."""
        found = connection.exec_driver_sql(_COLUMNS, {"table": table_name, "schema": schema})
        return [
            {"name": name, "type": types.NullType(), "nullable": nullable == "YES", "default": default}
            for name, nullable, default in found
        ]


class CockroachDialectAsync(_Common, PGDialectAsync_psycopg):
    name = NAME
    supports_statement_cache = True


class CockroachDialect(_Common):
    name = NAME
    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, url: URL) -> type[Dialect]:
        return CockroachDialectAsync


def driver(url: URL) -> URL:
    """Returns the URL for SQLAlchemy's engines, to which it makes the dialect known."""
    registry.register(f"{NAME}.psycopg", __name__, CockroachDialect.__name__)
    return url.set(drivername=f"{NAME}+psycopg")


def server_version(text: str) -> tuple[int, ...] | None:
    """Returns the version in the result of ``version()``, None if the server is not CockroachDB."""
    found = _VERSION.match(text)
    return None if found is None else tuple(map(int, found.groups()))
