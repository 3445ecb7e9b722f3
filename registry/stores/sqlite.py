"""The registry in a SQLite file: the embedded default.

There is one writer at a time: a lock serializes the tasks of a process, and SQLite's own lock, for which BEGIN
IMMEDIATE waits up to the busy timeout, serializes processes. Readers never wait. Every write transaction announces its
number to the change log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import Column, FromClause, Table, bindparam, column, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from registry import change_log
from registry.clock import Clock
from registry.engines import access_error
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, RegistryError, SchemaMismatch, Unavailable
from registry.json_text import to_json_text
from registry.models import DatabaseTime
from registry.position import Position, SequenceVisibility
from registry.stores.sql.consistent_read import SqlConsistentRead
from registry.stores.sql.verbs import SqlVerbs
from registry.stores.sqlite_engine import ReconnectingEngine
from registry.stores.write_lock import WriteLock

_NEWEST_TIME = """
    SELECT max(time) FROM (
        SELECT max(expires_at) AS time FROM daemon_lease  -- close to now, if a daemon is running or has just stopped
        UNION ALL SELECT max(updated_at) FROM ledger
        UNION ALL SELECT max(last_heartbeat) FROM agents
        UNION ALL SELECT created_at FROM (SELECT created_at FROM table_files ORDER BY id DESC LIMIT 1)
        UNION ALL SELECT created_at FROM (SELECT created_at FROM segments ORDER BY id DESC LIMIT 1)
    )
"""
_LAST_CHANGE = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change_log'"


class SqliteStore(SqlVerbs):
    def __init__(
        self,
        make_engine: Callable[[], AsyncEngine],
        clock: Clock,
        write_lock: WriteLock | None = None,
        *,
        urgent: bool = False,
    ) -> None:
        """``write_lock`` is shared by the stores of this process over the same file; ``urgent`` stores write first."""
        self._engines = ReconnectingEngine(make_engine)
        super().__init__(self._engines.current(), clock)
        self._write_lock = write_lock or WriteLock()
        self._urgent = urgent

    def _connect(self) -> AsyncConnection:
        return self._engines.current().connect()

    async def close(self) -> None:
        await self._engines.dispose()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._write_lock.hold(urgent=self._urgent), self._autocommit() as connection:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            await connection.exec_driver_sql(change_log.ANNOUNCE)
            yield connection
            await connection.exec_driver_sql(change_log.RETRACT)
            await connection.exec_driver_sql("COMMIT")

    _single_statement = _transaction

    def _insert(self, table: Table) -> sqlite.Insert:
        return sqlite.insert(table)

    def _bind_rows(self, columns: Sequence[Column[object]], rows: Sequence[Sequence[object]]) -> FromClause:
        each = func.json_each(bindparam(None, to_json_text(rows))).table_valued(column("value"), name="each")
        picked = [
            func.json_extract(each.c.value, f"$[{index}]").label(wanted.name) for index, wanted in enumerate(columns)
        ]
        return select(*picked).select_from(each).subquery("given")

    async def _insert_many(
        self, connection: AsyncConnection, table: Table, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        if rows:
            names = ", ".join(f'"{name}"' for name in columns)
            marks = ", ".join("?" * len(columns))
            values = [tuple(row) for row in rows]
            await connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", values)

    async def _lock_locations(self, connection: AsyncConnection) -> None:
        """Transactions of several statements have SQLite's only write lock from their beginning."""

    async def reserve_table_id(self) -> int:
        """From AUTOINCREMENT's own counter, above which the next row gets its id."""
        async with self._transaction() as connection:
            await connection.exec_driver_sql(
                "INSERT INTO sqlite_sequence (name, seq) SELECT 'tables', 0 "
                "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'tables')"
            )
            counted = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'tables' RETURNING seq"
            return int((await connection.exec_driver_sql(counted)).scalar_one())

    async def time(self) -> DatabaseTime:
        async with self._autocommit() as connection:
            return DatabaseTime(None, (await connection.exec_driver_sql(_NEWEST_TIME)).scalar_one())

    async def position(self) -> Position:
        async with self._autocommit() as connection:
            return Position((await connection.exec_driver_sql(_LAST_CHANGE)).scalar_one())

    @asynccontextmanager
    async def consistent_read(self, tables: Iterable[str] = ()) -> AsyncIterator[SqlConsistentRead]:
        async with self._autocommit() as connection:
            await connection.exec_driver_sql("BEGIN")  # the first read fixes the snapshot
            last = (await connection.exec_driver_sql(_LAST_CHANGE)).scalar_one()
            yield SqlConsistentRead(self, connection, SequenceVisibility(Position(last)))

    async def _before_load(self, connection: AsyncConnection) -> None:
        """Nothing to do: SQLite has one writer at a time."""

    async def _after_load(self, connection: AsyncConnection) -> None:
        """Nothing to do: AUTOINCREMENT has counted the loaded ids."""

    def _translate_error(self, error: DBAPIError) -> RegistryError:
        name = getattr(error.orig, "sqlite_errorname", "")
        message = str(error.orig)
        match name:
            case "SQLITE_CONSTRAINT_UNIQUE" | "SQLITE_CONSTRAINT_PRIMARYKEY":
                return AlreadyExists(message.removeprefix("UNIQUE constraint failed: "))
            case "SQLITE_CONSTRAINT_FOREIGNKEY":
                return NotFound("a row that this one references does not exist")
            # By number: Python 3.11 has no name for a strict table's SQLITE_CONSTRAINT_DATATYPE.
            case _ if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CONSTRAINT:
                field = message.rpartition(" ")[2]
                return Invalid(field, None, message)
            case "SQLITE_BUSY_SNAPSHOT":
                return Conflict(f"{self.url}: {message}")
            case "SQLITE_ERROR" if "no such table" in message:
                return SchemaMismatch(f"{self.url}: {message}: run `astha registry migrate`")
            case _:
                return access_error(self.url, error.orig) or Unavailable(f"{self.url}: {message}")
