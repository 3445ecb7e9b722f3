"""Many rows as one array parameter per column, and what the server's errors mean: PostgreSQL and CockroachDB alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    FromClause,
    Integer,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from registry.engines import access_error
from registry.errors import AlreadyExists, Invalid, NotFound, RegistryError, SchemaMismatch, Unavailable
from registry.schema import BooleanType, JsonTextType
from registry.stores.postgres.arrays import array_literal
from registry.stores.sql.base import SqlBase


class PostgresRows(SqlBase):
    def _insert(self, table: Table) -> postgresql.Insert:
        return postgresql.insert(table)

    def _bind_rows(self, columns: Sequence[Column[object]], rows: Sequence[Sequence[object]]) -> FromClause:
        arrays = [
            cast(bindparam(None, array_literal(values), Text), postgresql.ARRAY(_array_item_type(wanted.type)))
            for wanted, values in zip(columns, zip(*rows, strict=True), strict=True)
        ]
        named = [column(wanted.name, wanted.type) for wanted in columns]
        return func.unnest(*arrays).table_valued(*named, name="given").render_derived()

    async def _insert_many(
        self, connection: AsyncConnection, table: Table, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        if rows:
            given = self._bind_rows([table.c[name] for name in columns], rows)
            picked = [cast(given.c[name], table.c[name].type) for name in columns]
            await connection.execute(table.insert().from_select(columns, select(*picked)))

    def _translate_error(self, error: DBAPIError) -> RegistryError:
        cause = error.orig
        if not isinstance(cause, psycopg.Error):
            return Unavailable(f"{self.url}: {cause}")
        state = cause.sqlstate or ""
        detail = cause.diag.message_detail or cause.diag.message_primary or str(cause).strip()
        match state[:2], state:
            case _, "23505":
                return AlreadyExists(f"{cause.diag.constraint_name}: {detail}")
            case _, "23503":
                return NotFound(detail)
            case "22" | "23" | "54", _:
                field = cause.diag.column_name or cause.diag.constraint_name or "value"
                return Invalid(field, None, cause.diag.message_primary or detail)
            case _, "57014":
                return Unavailable(f"{self.url}: the statement was cancelled or took longer than its timeout")
            case _, "42P01" | "42703":
                return SchemaMismatch(f"{self.url}: {cause.diag.message_primary}: run `astha registry migrate`")
            case _:
                return access_error(self.url, cause) or Unavailable(f"{self.url}: {detail}")


def _array_item_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Returns the SQL type of an array's items, without what only matters in columns."""
    if isinstance(kind, JsonTextType):
        return postgresql.JSON().with_variant(Text(), "cockroachdb")  # which has no arrays of json
    if isinstance(kind, BooleanType):
        return Boolean()
    if isinstance(kind, BigInteger):
        return BigInteger()
    return Integer() if isinstance(kind, Integer) else Text()
