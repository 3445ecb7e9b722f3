"""What all verbs use: connections, transactions, bulk rows, errors."""

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
from registry.engines import display_url
from registry.errors import NotFound, RegistryError, Unavailable
from registry.models import Row
from registry.schema import table_of

R = TypeVar("R", bound=Row)


class SqlBase(abc.ABC):
    def __init__(self, engine: AsyncEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    # -- implemented by each backend ---------------------------------------------------------------------

    @abc.abstractmethod
    def _transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction of several statements. Commits at the end of the block, rolls back if it raises."""

    @abc.abstractmethod
    def _single_statement(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection for a write of a single statement, which is a transaction by itself."""

    @abc.abstractmethod
    def _bind_rows(self, columns: Sequence[Column[object]], rows: Sequence[Sequence[object]]) -> FromClause:
        """Returns a relation of these rows, bound as one parameter per column, with the columns' names."""

    @abc.abstractmethod
    async def _insert_many(
        self, connection: AsyncConnection, table: Table, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        """Inserts rows in one round trip, as fast as the backend can."""

    @abc.abstractmethod
    def _translate_error(self, error: DBAPIError) -> RegistryError:
        """Returns the registry's error for a driver's error."""

    @abc.abstractmethod
    def _insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """Returns the backend's INSERT, which supports ON CONFLICT."""

    @abc.abstractmethod
    async def _lock_locations(self, connection: AsyncConnection) -> None:
        """Waits until no other transaction gives a table a location. Call it before any other lock is taken."""

    # -- used by the verbs -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL for messages, without the password."""
        return display_url(self._engine.url.set(drivername=self._engine.dialect.name))

    def _connect(self) -> AsyncConnection:
        return self._engine.connect()

    @asynccontextmanager
    async def _autocommit(self) -> AsyncIterator[AsyncConnection]:
        """A connection in autocommit mode. Database errors leave the block as errors of the registry."""
        connecting = True
        try:
            with self._translating_errors():
                async with self._connect() as connection:
                    connecting = False
                    yield connection
        except (PoolTimeout, OSError) as error:
            if not connecting:  # raised by the caller's block
                raise
            why = f"all connections are in use: {error}" if isinstance(error, PoolTimeout) else str(error)
            raise Unavailable(f"{self.url}: {why}") from error

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._translate_error(error) from error

    async def _rows(self, kind: type[R], query: Select[Any], **values: object) -> list[R]:
        """Frequent queries are built once, with bind parameters: building one costs more than executing it."""
        async with self._autocommit() as connection:
            return [kind(*row) for row in await connection.execute(query, values)]

    async def _row(self, kind: type[R], query: Select[Any], **values: object) -> R | None:
        async with self._autocommit() as connection:
            row = (await connection.execute(query, values)).first()
            return None if row is None else kind(*row)

    async def _write_one(self, kind: type[R], statement: Executable) -> R | None:
        """Executes a single statement that returns at most one row."""
        async with self._single_statement() as connection:
            row = (await connection.execute(statement)).first()
            return None if row is None else kind(*row)

    async def _write(self, statement: Executable) -> int:
        """Executes a single statement. Returns the number of affected rows."""
        async with self._single_statement() as connection:
            return (await connection.execute(statement)).rowcount

    async def close(self) -> None:
        await self._engine.dispose()


def select_rows(kind: type[Row]) -> Select[Any]:
    """SELECT of all columns, in the model's order."""
    return select(table_of(kind))


def require_row(row: R | None, what: str) -> R:
    if row is None:
        raise NotFound(f"{what} does not exist")
    return row
