"""Reads whole tables of a PostgreSQL registry: packed by the server, and ahead of the reader.

While rows are unpacked and handled, the server packs the next ones. The event loop is held for a millisecond at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Any, Generic, TypeVar

import msgspec
import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.contract import PAGE
from registry.models import Row
from registry.position import SnapshotVisibility
from registry.stores.postgres.packed_rows import PackedTable, RangesOfIds, SeparatorInData, packed_table
from registry.stores.sql.base import SqlBase
from registry.stores.sql.consistent_read import Key, SqlConsistentRead, key_of

R = TypeVar("R", bound=Row)

_FIRST_ROWS, _MOST_ROWS = 256, 2_048
"""Rows per batch: at first, and where they are small."""

_RANGES = 4
"""Batches per query, where ids are dense: fewer round trips and executions. The memory of two queries is needed."""

_SLICE_S = 0.0005
_BYTES = 500_000
"""After a larger batch, the next ones have fewer rows."""

_LARGEST_ID = 2**62
"""Ids beyond it are read by key, because ranges of them could overflow."""


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
        read: _Read[R] | None = await self._next_rows(table, None, _FIRST_ROWS, table_id)
        while read is not None:
            following = self._read_ahead(table, read, table_id)
            await asyncio.sleep(0)  # the query is sent before rows are unpacked
            while read.batches:
                found += await self._unpacked(read.batches.pop(0), table_id)
                while len(found) >= page:
                    part, found = found[:page], found[page:]
                    yield part
                    await asyncio.sleep(0)
            read = None if following is None else await following
        if found:
            yield found

    async def _unpacked(self, batch: _Batch[R], table_id: int | None) -> list[R]:
        try:
            return await batch.rows()
        except SeparatorInData:
            return await self._page(batch.table.model, batch.after, batch.count, table_id)

    def _read_ahead(self, table: PackedTable[R], read: _Read[R], table_id: int | None) -> asyncio.Task[_Read[R]] | None:
        if read.after is None:
            return None
        largest = max((batch.size_bytes for batch in read.batches), default=0)
        limit = read.limit // 2 or 1 if largest > _BYTES else min(2 * read.limit, _MOST_ROWS)
        if read.dense_up_to is not None:
            following = self._next_ranges(table, RangesOfIds(read.dense_up_to, limit, _RANGES), table_id)
        else:
            following = self._next_rows(table, read.after, limit, table_id)
        task = asyncio.create_task(following, name="rows read ahead")
        self._ahead.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._ahead.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the reader may have stopped

    async def _next_rows(self, table: PackedTable[R], after: Key | None, limit: int, table_id: int | None) -> _Read[R]:
        """Reads the rows with the next keys."""
        query = table.query(limit, filtered=table_id is not None, following=after is not None)
        values = {f"k{place}": value for place, value in enumerate(after or ())}
        ((count, *packed),) = await self._execute(query, {**values, "table_id": table_id})
        batch = _Batch(table, after, count, packed)
        if count < limit:
            return _Read([batch], limit)
        try:
            last = table.last_key(packed, count)
        except SeparatorInData:
            last = key_of((await self._page(table.model, after, limit, table_id))[-1])
        first_id, last_id = table.first_id(packed), last[0]
        if first_id is None or not isinstance(last_id, int):
            return _Read([batch], limit, last)
        return _Read([batch], limit, last, _if_dense(count, first_id, last_id + 1))

    async def _next_ranges(self, table: PackedTable[R], ranges: RangesOfIds, table_id: int | None) -> _Read[R]:
        query = table.query_of_ranges(ranges, filtered=table_id is not None)
        found = await self._execute(query, {"first": ranges.first, "table_id": table_id})
        found.sort(key=itemgetter(0))
        batches = [_Batch(table, (first - 1,), count, packed) for first, count, *packed in found if count]
        dense = _if_dense(sum(batch.count for batch in batches), ranges.first, ranges.end)
        return _Read(batches, ranges.limit, (ranges.end - 1,), dense)

    async def _execute(self, query: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        try:
            async with self._driver.cursor(binary=True) as cursor:
                await cursor.execute(query.encode(), values)
                return await cursor.fetchall()
        except psycopg.Error as error:
            raise self._store._translate_error(DBAPIError(query, None, error)) from error


def _if_dense(rows: int, first: int, end: int) -> int | None:
    """Returns `end` if most ids of the range exist."""
    return end if 2 * rows > end - first and end < _LARGEST_ID else None


class _Read(msgspec.Struct, Generic[R]):
    """What a query has read. `after` is the key that the next rows follow, which need not exist; None if there are no
    more. `dense_up_to` is the first id that was not read, if most of those before it exist.
    """

    batches: list[_Batch[R]]
    limit: int
    after: Key | None = None
    dense_up_to: int | None = None


class _Batch(Generic[R]):
    """Rows that follow a key, packed."""

    def __init__(
        self, table: PackedTable[R], after: Key | None, count: int, packed: Sequence[bytes | str | None]
    ) -> None:
        self.table = table
        self.after = after
        self.count = count
        self.size_bytes = sum(len(values) for values in packed if values is not None)
        self._packed = packed

    async def rows(self) -> list[R]:
        """Other tasks run between columns, if they take long. Raises `SeparatorInData`."""
        columns: list[Sequence[object]] = []
        until = perf_counter() + _SLICE_S
        for column, values in zip(self.table.columns, self._packed, strict=True):
            columns.append(column.unpack(values, self.count))
            if perf_counter() > until:
                await asyncio.sleep(0)
                until = perf_counter() + _SLICE_S
        return self.table.rows(columns) if self.count else []
