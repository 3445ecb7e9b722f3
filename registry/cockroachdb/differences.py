"""What PostgreSQL has and CockroachDB has not, and what stands in for it.

    PostgreSQL                           CockroachDB
    LSN (pg_current_wal_insert_lsn)      the cluster's HLC time; a position is its nanoseconds (registry.hlc)
    pg_current_snapshot, xids            a read AS OF SYSTEM TIME; visibility is a comparison of positions
    advisory locks, LOCK TABLE           rows of `registry_locks`, updated or locked FOR UPDATE
    sequences in order of insertion      unique_rowid(): unique, in no order that anything depends on
    json, which keeps its text           text with a check (registry.cockroachdb.dialect)
    arrays of json; int8send and others  text; rows are read one by one
    transactional DDL                    statements that can be repeated (registry.cockroachdb.schema)
    publication, replica identity, slot  a changefeed, which needs none of them (astha.sources.cockroachdb)
    txid_status                          a row per transaction (registry.stores.cockroachdb.transactions)
    several changes of one table in      statements one after the other (registry.stores.sql)
    one statement
    SKIP LOCKED                          waiting: it skips rows that were committed a moment ago, too (dialect)
    READ COMMITTED                       SERIALIZABLE, so every verb may have to be repeated

Nothing else in the store depends on which of the two it runs on: the tests run it on both.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from registry.cockroachdb.schema import LOAD, LOCATIONS
from registry.hlc import position_of, timestamp_of
from registry.position import Position, SnapshotVisibility, TimestampVisibility

_NOW = "SELECT cluster_logical_timestamp()::STRING"
"""The gateway's clock, which is above the time of every commit that it has acknowledged."""


class Differences:
    """The statements of a transaction that PostgreSQL would not take. Tests replace them, to run the store there."""

    begin = f"BEGIN; SELECT 1 FROM registry_locks WHERE name = '{LOAD}'"
    """Begins a write. The read waits for a transaction that updates the row: for a load."""

    begin_load = f"BEGIN; UPDATE registry_locks SET used_at = 0 WHERE name = '{LOAD}'"
    lock_locations = f"SELECT 1 FROM registry_locks WHERE name = '{LOCATIONS}' FOR UPDATE"
    new_id = "SELECT unique_rowid()"
    milliseconds = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::INT8"

    async def position(self, connection: AsyncConnection) -> Position:
        """Returns a position at or above every commit that was acknowledged before."""
        return position_of(await _now(connection))

    async def begin_snapshot(self, connection: AsyncConnection) -> SnapshotVisibility:
        """Begins to read a snapshot that contains all commits of its position or none."""
        position = position_of(await _now(connection))
        await connection.exec_driver_sql(f"BEGIN AS OF SYSTEM TIME '{timestamp_of(position)}'")
        return TimestampVisibility(position)

    async def begin_list(self, connection: AsyncConnection) -> None:
        """Begins to read what is committed now: several statements see the same, without waiting for writers."""
        await connection.exec_driver_sql(f"BEGIN AS OF SYSTEM TIME '{await _now(connection)}'")


async def _now(connection: AsyncConnection) -> str:
    return str((await connection.exec_driver_sql(_NOW)).scalar_one())
