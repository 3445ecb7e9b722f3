"""CockroachDB's store on PostgreSQL at SERIALIZABLE, for runs without a CockroachDB."""

from __future__ import annotations

from sqlalchemy import URL
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import CreateTable

from registry.clock import Clock
from registry.cockroachdb.differences import Differences
from registry.cockroachdb.schema import LOAD, OWN_TABLES, lock_rows
from registry.engines import StoreSettings, async_engine
from registry.models import PUBLISHED, UNPUBLISHED
from registry.position import Position, SnapshotVisibility, XidVisibility
from registry.stores.cockroachdb import CockroachStore
from registry.stores.cockroachdb.retries import Retries

SCHEME = "serializable+postgresql"


class PostgresDifferences(Differences):
    """The same with what PostgreSQL has."""

    begin = f"BEGIN; SELECT 1 FROM registry_locks WHERE name = '{LOAD}' FOR SHARE"
    new_id = "SELECT nextval(pg_get_serial_sequence('tables', 'id'))"

    async def position(self, connection: AsyncConnection) -> Position:
        lsn = await connection.exec_driver_sql("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
        return Position(lsn.scalar_one())

    async def begin_snapshot(self, connection: AsyncConnection) -> SnapshotVisibility:
        await self.begin_list(connection)
        found = await connection.exec_driver_sql("SELECT pg_current_snapshot()::text")
        return XidVisibility.parse(found.scalar_one())

    async def begin_list(self, connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")


class SerializablePostgresStore(CockroachStore):
    """Its URL is that of the tests: PostgreSQL's with a scheme of its own."""

    def __init__(self, url: URL, clock: Clock, settings: StoreSettings, retries: Retries | None = None) -> None:
        options = (
            "-c default_transaction_isolation=serializable -c deadlock_timeout=50ms "
            f"-c lock_timeout={int(settings.busy_timeout_s * 1000)}"
        )
        engine = async_engine(url.update_query_dict({"options": options}), settings)
        super().__init__(engine, clock, retries=retries, differences=PostgresDifferences())

    async def _after_load(self, connection: AsyncConnection) -> None:
        for kind in (*PUBLISHED, *UNPUBLISHED):
            if kind.key == ("id",):
                await connection.exec_driver_sql(
                    f"SELECT setval(pg_get_serial_sequence('{kind.table}', 'id'), max(id)) FROM {kind.table}"
                )


def own_tables() -> list[str]:
    """Returns the statements that create what only CockroachDB's schema has."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    created = [str(CreateTable(table).compile(dialect=dialect)) for table in OWN_TABLES]
    return [*created, *lock_rows()]
