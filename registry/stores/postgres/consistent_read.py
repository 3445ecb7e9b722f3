"""Reads whole tables of a PostgreSQL registry: packed by the server, and ahead of the reader.

While rows are unpacked and handled, the server packs the next ones. The event loop is held for a millisecond at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from time import perf_counter
from typing import Any, Generic, TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.contract import PAGE
from registry.models import Row
from registry.position import SnapshotVisibility
from registry.stores.postgres.packed_rows import PackedTable, SeparatorInData, packed_table
from registry.stores.sql.base import SqlBase
from registry.stores.sql.consistent_read import Key, SqlConsistentRead, key_of

R = TypeVar("R", bound=Row)

_FIRST_ROWS, _MOST_ROWS = 256, 2_048
"""Rows per query: at first, and where they are small."""

_SLICE_S = 0.0005
_BYTES = 500_000
"""After a query with more, the next one asks for fewer rows."""


class PostgresConsistentRead(SqlConsistentRead):
    """A connection executes one statement at a time, so reads at the same time wait for each other."""

    def __init__(
        self,
        store: SqlBase,
        connection: AsyncConnection,
        visibility: SnapshotVisibility | None,
        driver: psycopg.AsyncConnection[Any],
    ) -> None:
        super().__init__(store, connection, visibility)
        self._driver = driver
        self._ahead: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Waits for queries whose reader has stopped. Call it before the connection is used otherwise."""
        await asyncio.gather(*self._ahead, return_exceptions=True)

    async def rows(self, kind: type[R], *, page: int = PAGE, table_id: int | None = None) -> AsyncIterator[list[R]]:
        validation.integer("page", page, 1)
        table, found = packed_table(kind), list[R]()
        batch: _Batch[R] | None = await self._read(table, None, _FIRST_ROWS, table_id)
        while batch is not None:
            following = self._read_ahead(table, batch, table_id)
            await asyncio.sleep(0)  # the query is sent before rows are unpacked
            found += await batch.rows()
            while len(found) >= page:
                part, found = found[:page], found[page:]
                yield part
                await asyncio.sleep(0)
            batch = None if following is None else await following
        if found:
            yield found

    def _read_ahead(
        self, table: PackedTable[R], batch: _Batch[R], table_id: int | None
    ) -> asyncio.Task[_Batch[R]] | None:
        if batch.last_key is None:
            return None
        limit = batch.limit // 2 or 1 if batch.size_bytes > _BYTES else min(2 * batch.limit, _MOST_ROWS)
        task = asyncio.create_task(self._read(table, batch.last_key, limit, table_id), name="rows read ahead")
        self._ahead.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._ahead.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the reader may have stopped

    async def _read(self, table: PackedTable[R], after: Key | None, limit: int, table_id: int | None) -> _Batch[R]:
        values = {f"k{place}": value for place, value in enumerate(after or ())}
        query = table.query(limit, filtered=table_id is not None, following=after is not None)
        try:
            async with self._driver.cursor(binary=True) as cursor:
                await cursor.execute(query.encode(), {**values, "table_id": table_id})
                row = await cursor.fetchone()
        except psycopg.Error as error:
            raise self._store._translate_error(DBAPIError(query, None, error)) from error
        assert row is not None  # noqa: S101  (aggregates have one row)
        count, *packed = row
        try:
            table.check(packed, count)
        except SeparatorInData:
            return _Batch(table, limit, count, read=await self._page(table.model, after, limit, table_id))
        return _Batch(table, limit, count, packed=packed)


class _Batch(Generic[R]):
    """Rows of one query: packed, or read one by one. `last_key` is None if there are no more."""

    def __init__(
        self,
        table: PackedTable[R],
        limit: int,
        count: int,
        *,
        packed: Sequence[bytes | str | None] = (),
        read: list[R] | None = None,
    ) -> None:
        self._table = table
        self._count = count
        self._packed = packed
        self._read = read
        self.limit = limit
        self.size_bytes = sum(len(values) for values in packed if values is not None)

    @property
    def last_key(self) -> Key | None:
        if self._count < self.limit:
            return None
        return self._table.last_key(self._packed) if self._read is None else key_of(self._read[-1])

    async def rows(self) -> list[R]:
        """Other tasks run between columns, if they take long."""
        if self._read is not None:
            return self._read
        columns: list[Sequence[object]] = []
        until = perf_counter() + _SLICE_S
        for column, values in zip(self._table.columns, self._packed, strict=True):
            columns.append(column.unpack(values, self._count))
            if perf_counter() > until:
                await asyncio.sleep(0)
                until = perf_counter() + _SLICE_S
        return self._table.rows(columns) if self._count else []
