"""The registry in a SQLite file: the embedded default.

One writer at a time, across tasks by a lock and across processes by SQLite's own, for which BEGIN IMMEDIATE waits up
to the busy timeout. Readers never wait. Every write transaction announces its number to the change log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import Column, FromClause, Table, bindparam, column, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from registry import change_log
from registry.clock import Clock
from registry.engines import refusal
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, RegistryError, SchemaMismatch, Unavailable
from registry.json_text import to_json_text
from registry.models import DatabaseTime
from registry.position import Position, SequenceVisibility
from registry.stores.sql.agents import SqlAgents
from registry.stores.sql.compactions import SqlCompactions
from registry.stores.sql.consistent_read import SqlConsistentRead, SqlWhole
from registry.stores.sql.daemon_state import SqlDaemonBooks
from registry.stores.sql.files import SqlFiles
from registry.stores.sql.segments import SqlSegments
from registry.stores.sql.snapshots import SqlSnapshots
from registry.stores.sql.upload_intents import SqlIntents
from registry.stores.sqlite_engine import FileEngine
from registry.stores.write_lock import WriterTurns

_NEWEST_TIME = """
    SELECT max(time) FROM (
        SELECT max(expires_at) AS time FROM daemon_lease  -- about now, if a daemon runs or has just stopped
        UNION ALL SELECT max(updated_at) FROM ledger
        UNION ALL SELECT max(last_heartbeat) FROM agents
        UNION ALL SELECT created_at FROM (SELECT created_at FROM table_files ORDER BY id DESC LIMIT 1)
        UNION ALL SELECT created_at FROM (SELECT created_at FROM segments ORDER BY id DESC LIMIT 1)
    )
"""
_LAST_CHANGE = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change_log'"


class SqliteStore(
    SqlSegments,
    SqlAgents,
    SqlFiles,
    SqlSnapshots,
    SqlIntents,
    SqlCompactions,
    SqlDaemonBooks,
    SqlWhole,
):
    def __init__(
        self,
        make_engine: Callable[[], AsyncEngine],
        clock: Clock,
        turns: WriterTurns | None = None,
        *,
        urgent: bool = False,
    ) -> None:
        """``turns`` is shared with other stores of this process over the same file; ``urgent`` ones go first."""
        self._engines = FileEngine(make_engine)
        super().__init__(self._engines.current(), clock)
        self._turns = turns or WriterTurns()
        self._urgent = urgent

    def _connect(self) -> AsyncConnection:
        return self._engines.current().connect()

    async def close(self) -> None:
        await self._engines.dispose()

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        async with self._turns.turn(urgent=self._urgent), self._reading() as connection:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            await connection.exec_driver_sql(change_log.ANNOUNCE)
            yield connection
            await connection.exec_driver_sql(change_log.RETRACT)
            await connection.exec_driver_sql("COMMIT")

    _writing_once = _writing

    def _insert(self, table: Table) -> sqlite.Insert:
        return sqlite.insert(table)

    def _given(self, columns: Sequence[Column[object]], rows: Sequence[Sequence[object]]) -> FromClause:
        each = func.json_each(bindparam(None, to_json_text(rows))).table_valued(column("value"), name="each")
        picked = [
            func.json_extract(each.c.value, f"$[{place}]").label(wanted.name) for place, wanted in enumerate(columns)
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

    async def time(self) -> DatabaseTime:
        async with self._reading() as connection:
            return DatabaseTime(None, (await connection.exec_driver_sql(_NEWEST_TIME)).scalar_one())

    async def position(self) -> Position:
        async with self._reading() as connection:
            return Position((await connection.exec_driver_sql(_LAST_CHANGE)).scalar_one())

    @asynccontextmanager
    async def consistent_read(self) -> AsyncIterator[SqlConsistentRead]:
        async with self._reading() as connection:
            await connection.exec_driver_sql("BEGIN")  # the first read fixes the snapshot
            last = (await connection.exec_driver_sql(_LAST_CHANGE)).scalar_one()
            yield SqlConsistentRead(self, connection, SequenceVisibility(Position(last)))

    async def _before_load(self, connection: AsyncConnection) -> None:
        """There is one writer at a time."""

    async def _after_load(self, connection: AsyncConnection) -> None:
        """AUTOINCREMENT has kept count of the ids itself."""

    def _translated(self, error: DBAPIError) -> RegistryError:
        name = getattr(error.orig, "sqlite_errorname", "")
        message = str(error.orig)
        match name:
            case "SQLITE_CONSTRAINT_UNIQUE" | "SQLITE_CONSTRAINT_PRIMARYKEY":
                return AlreadyExists(message.removeprefix("UNIQUE constraint failed: "))
            case "SQLITE_CONSTRAINT_FOREIGNKEY":
                return NotFound("something that this refers to does not exist")
            # By number: Python 3.11 has no name for a strict table's SQLITE_CONSTRAINT_DATATYPE.
            case _ if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CONSTRAINT:
                field = message.rpartition(" ")[2]
                return Invalid(field, None, message)
            case "SQLITE_BUSY_SNAPSHOT":
                return Conflict(f"{self.url}: {message}")
            case "SQLITE_ERROR" if "no such table" in message:
                return SchemaMismatch(f"{self.url}: {message}: run `astha registry migrate`")
            case _:
                return refusal(self.url, error.orig) or Unavailable(f"{self.url}: {message}")
