"""Reading the whole registry consistently, and loading an empty one."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import msgspec
from sqlalchemy import Select, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.contract import PAGE
from registry.errors import Conflict, Unavailable
from registry.models import PUBLISHED, UNPUBLISHED, Row
from registry.position import Position, SnapshotVisibility
from registry.schema import table_of
from registry.stores.sql.base import SqlBase, select_rows

R = TypeVar("R", bound=Row)

Key: TypeAlias = tuple[object, ...]
"""The values of a row's primary key."""


class SqlConsistentRead:
    def __init__(self, store: SqlBase, connection: AsyncConnection, visibility: SnapshotVisibility | None) -> None:
        self._store = store
        self._connection = connection
        self._visibility = visibility

    @property
    def visibility(self) -> SnapshotVisibility:
        if self._visibility is None:
            raise Unavailable(f"{self._store.url}: a standby can't tell what its snapshots contain: use the primary")
        return self._visibility

    async def count(self, kind: type[Row]) -> int:
        with self._store._translating_errors():
            return await _count(self._connection, kind)

    async def rows(self, kind: type[R], *, page: int = PAGE, table_id: int | None = None) -> AsyncIterator[list[R]]:
        validation.integer("page", page, 1)
        after: Key | None = None
        while True:
            rows = await self._page(kind, after, page, table_id)
            if rows:
                yield rows
            if len(rows) < page:
                return
            after = key_of(rows[-1])

    async def _page(self, kind: type[R], after: Key | None, limit: int, table_id: int | None) -> list[R]:
        """Returns the rows with the next keys."""
        key = [table_of(kind).c[name] for name in kind.key]
        query: Select[Any] = select_rows(kind).order_by(*key).limit(limit)
        if table_id is not None:
            query = query.where(table_of(kind).c.table_id == table_id)
        if after is not None:
            query = query.where(tuple_(*key) > after)
        with self._store._translating_errors():
            return [kind(*row) for row in await self._connection.execute(query)]


def key_of(row: Row) -> Key:
    return tuple(getattr(row, name) for name in row.key)


class SqlBulkLoad:
    def __init__(self, store: SqlBase, connection: AsyncConnection) -> None:
        self._store = store
        self._connection = connection

    async def add(self, rows: Sequence[Row]) -> None:
        if rows:
            kind = type(rows[0])
            values = [msgspec.structs.astuple(row) for row in rows]
            with self._store._translating_errors():
                await self._store._insert_many(self._connection, table_of(kind), kind.__struct_fields__, values)

    async def count(self, kind: type[Row]) -> int:
        with self._store._translating_errors():
            return await _count(self._connection, kind)


class SqlReadAndLoad(SqlBase):
    @abc.abstractmethod
    async def position(self) -> Position: ...

    @abc.abstractmethod
    def consistent_read(self, tables: Iterable[str] = ()) -> AbstractAsyncContextManager[SqlConsistentRead]: ...

    @asynccontextmanager
    async def load(self) -> AsyncIterator[SqlBulkLoad]:
        async with self._load_transaction() as connection:
            await self._before_load(connection)
            for kind in (*PUBLISHED, *UNPUBLISHED):
                if await _count(connection, kind):
                    raise Conflict(f"the registry at {self.url} is not empty: it has {kind.table}", [kind.table])
            yield SqlBulkLoad(self, connection)
            await self._after_load(connection)

    def _load_transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return self._transaction()

    @abc.abstractmethod
    async def _before_load(self, connection: AsyncConnection) -> None:
        """Keeps other writers out until the end of the load, so that the registry stays empty."""

    @abc.abstractmethod
    async def _after_load(self, connection: AsyncConnection) -> None:
        """Moves the id generators above the loaded ids."""


async def _count(connection: AsyncConnection, kind: type[Row]) -> int:
    return int((await connection.execute(select(func.count()).select_from(table_of(kind)))).scalar_one())
