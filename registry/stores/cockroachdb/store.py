from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from registry.clock import Clock
from registry.cockroachdb.differences import Differences
from registry.errors import RegistryError, Unavailable
from registry.models import DatabaseTime, Row
from registry.position import Position
from registry.stores.cockroachdb.consistent_read import CockroachConsistentRead
from registry.stores.cockroachdb.retries import Retries, TransactionFailed, current_verb, repeat_verbs, repeated
from registry.stores.cockroachdb.transactions import CommitAttempts
from registry.stores.postgres.rows import PostgresRows
from registry.stores.sql.consistent_read import SqlConsistentRead
from registry.stores.sql.verbs import SqlVerbs

R = TypeVar("R", bound=Row)

_FAILED = ("40001", "40003", "40P01")
"""The transaction has to be repeated. Only a COMMIT that is answered with 40003 may have happened."""

LISTS = frozenset((
    "list_topics", "list_partitions", "list_tables", "search_tables", "list_table_metadata", "list_files",
    "list_delete_files", "get_statistics", "count_file_sizes", "list_snapshots", "list_compactions", "get_savings",
    "list_stale_intents", "list_files_awaiting_deletion", "list_catalog_tables", "list_catalog_namespaces",
))  # fmt: skip
"""Verbs that read many rows and that nothing is decided by alone: they read as of a time, and wait for no writer."""


@repeat_verbs
class CockroachStore(PostgresRows, SqlVerbs):
    def __init__(
        self,
        engine: AsyncEngine,
        clock: Clock,
        *,
        retries: Retries | None = None,
        differences: Differences | None = None,
    ) -> None:
        super().__init__(engine, clock)
        self.retries = retries or Retries()
        self._differences = differences or Differences()
        self._attempts = CommitAttempts()

    @asynccontextmanager
    async def _autocommit(self) -> AsyncIterator[AsyncConnection]:
        async with super()._autocommit() as connection:
            if current_verb() not in LISTS:
                yield connection
                return
            await self._differences.begin_list(connection)
            yield connection
            await connection.exec_driver_sql("COMMIT")

    def _transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return self._committing(self._differences.begin)

    _single_statement = _transaction

    def _load_transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return self._committing(self._differences.begin_load)

    @asynccontextmanager
    async def _committing(self, begin: str) -> AsyncIterator[AsyncConnection]:
        """A commit whose answer is lost is looked up. Raises TransactionFailed if nothing was written."""
        async with self._autocommit() as connection:
            await self._begin(connection, begin)
            yield connection
            unknown = await self._attempts.commit(connection, self._clock.now_ms())
        if unknown is not None and not await self.retries.run(lambda: self._resolve(unknown)):
            raise TransactionFailed(f"{self.url}: the connection was lost before a transaction was committed")

    async def _begin(self, connection: AsyncConnection, begin: str) -> None:
        """Nothing was read or written before, so this alone can be repeated: a load may have waited for another one."""
        failures = 0
        while True:
            try:
                with self._translating_errors():
                    await connection.exec_driver_sql(begin)
            except TransactionFailed:
                failures += 1
                if connection.invalidated or failures >= self.retries.attempts:  # the verb is repeated, if it is one
                    raise
                await connection.exec_driver_sql("ROLLBACK")
                await asyncio.sleep(self.retries.delay_s(failures))
            else:
                return

    async def _resolve(self, attempt: str) -> bool:
        async with self._autocommit() as connection:
            return await self._attempts.resolve(connection, attempt, self._clock.now_ms())

    @repeated
    async def _rows(self, /, kind: type[R], query: Select[Any], **values: object) -> list[R]:
        return await super()._rows(kind, query, **values)

    async def _lock_locations(self, connection: AsyncConnection) -> None:
        await connection.exec_driver_sql(self._differences.lock_locations)

    async def reserve_table_id(self) -> int:
        async with self._autocommit() as connection:
            return int((await connection.exec_driver_sql(self._differences.new_id)).scalar_one())

    async def time(self) -> DatabaseTime:
        async with self._autocommit() as connection:
            return DatabaseTime((await connection.exec_driver_sql(self._differences.milliseconds)).scalar_one())

    async def position(self) -> Position:
        async with self._autocommit() as connection:
            return await self._differences.position(connection)

    @asynccontextmanager
    async def consistent_read(self, tables: Iterable[str] = ()) -> AsyncIterator[SqlConsistentRead]:
        async with self._autocommit() as connection:
            visibility = await self._differences.begin_snapshot(connection)
            yield CockroachConsistentRead(self, connection, visibility)

    async def _before_load(self, connection: AsyncConnection) -> None:
        """Nothing to do: the transaction began by updating the row that every other one reads first."""

    async def _after_load(self, connection: AsyncConnection) -> None:
        """Nothing to do: new ids are times, and do not depend on loaded ones."""

    def _translate_error(self, error: DBAPIError) -> RegistryError:
        state = error.orig.sqlstate if isinstance(error.orig, psycopg.Error) else None
        if error.connection_invalidated or state in _FAILED:
            return TransactionFailed(f"{self.url}: {error.orig}".strip())
        if state == "55P03":
            return Unavailable(f"{self.url}: other transactions held a lock for longer than registry.busy_timeout_s")
        return super()._translate_error(error)
