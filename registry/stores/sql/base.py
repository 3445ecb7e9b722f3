"""The ground that the verbs stand on: connections, transactions, bulk rows, errors."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from sqlalchemy import Column, FromClause, Select, Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql import Executable

from registry.clock import Clock
from registry.engines import shown
from registry.errors import NotFound, RegistryError, Unavailable
from registry.models import Row
from registry.schema import table_of

R = TypeVar("R", bound=Row)


class SqlBase(abc.ABC):
    def __init__(self, engine: AsyncEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    # -- what a backend provides -------------------------------------------------------------------------

    @abc.abstractmethod
    def _writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction for several statements: commits at the end of the block."""

    @abc.abstractmethod
    def _writing_once(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """For a write that is a single statement, and so a transaction by itself."""

    @abc.abstractmethod
    def _given(self, columns: Sequence[Column[object]], rows: Sequence[Sequence[object]]) -> FromClause:
        """Many rows as one bind parameter a column, to select from under the columns' names."""

    @abc.abstractmethod
    async def _insert_many(
        self, connection: AsyncConnection, table: Table, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        """As fast as the backend can, in one round trip."""

    @abc.abstractmethod
    def _translated(self, error: DBAPIError) -> RegistryError:
        """The registry's word for a driver's error."""

    @abc.abstractmethod
    def _insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """The backend's INSERT, which knows ON CONFLICT."""

    # -- what verbs use ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """For messages: without a password."""
        return shown(self._engine.url.set(drivername=self._engine.dialect.name))

    def _connect(self) -> AsyncConnection:
        return self._engine.connect()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection in autocommit. Whatever goes wrong with it leaves as an error of the registry."""
        connecting = True
        try:
            with self._translating():
                async with self._connect() as connection:
                    connecting = False
                    yield connection
        except (PoolTimeout, OSError) as error:
            if not connecting:  # the caller's own
                raise
            why = f"all connections are in use: {error}" if isinstance(error, PoolTimeout) else str(error)
            raise Unavailable(f"{self.url}: {why}") from error

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._translated(error) from error

    async def _rows(self, kind: type[R], query: Select[Any], **values: object) -> list[R]:
        """The queries that are asked all day are built once, with bind parameters: building costs more than asking."""
        async with self._reading() as connection:
            return [kind(*row) for row in await connection.execute(query, values)]

    async def _row(self, kind: type[R], query: Select[Any], **values: object) -> R | None:
        async with self._reading() as connection:
            row = (await connection.execute(query, values)).first()
            return None if row is None else kind(*row)

    async def _write_one(self, kind: type[R], statement: Executable) -> R | None:
        """A single statement that returns at most one whole row."""
        async with self._writing_once() as connection:
            row = (await connection.execute(statement)).first()
            return None if row is None else kind(*row)

    async def _write(self, statement: Executable) -> int:
        """A single statement; answers how many rows it touched."""
        async with self._writing_once() as connection:
            return (await connection.execute(statement)).rowcount

    async def close(self) -> None:
        await self._engine.dispose()


def select_rows(kind: type[Row]) -> Select[Any]:
    """All columns in the model's order."""
    return select(table_of(kind))


def found(row: R | None, what: str) -> R:
    if row is None:
        raise NotFound(f"{what} does not exist")
    return row
