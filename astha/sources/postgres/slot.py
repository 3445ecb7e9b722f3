"""The server's side of the stream: publication, slot, and what the server keeps on our account.

A slot only ever sees what was published when the change was made, so the publication comes first; migrations make it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from astha.errors import ConfigError, SlotInUse, SourceLost, SourceReset
from registry.position import Position
from registry.publication import NOT_PUBLISHED

PLUGIN = "pgoutput"

Connection = psycopg.AsyncConnection[tuple[object, ...]]


class SlotStatus(msgspec.Struct, frozen=True):
    plugin: str
    database: str
    active: bool
    confirmed: Position
    retained_bytes: int
    wal_status: str | None
    safe_wal_size: int | None
    server: Position
    invalidation_reason: str | None  # from PostgreSQL 17 on

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost"

    @property
    def loss(self) -> str:
        """Why, for a person."""
        if self.invalidation_reason in (None, "wal_removed"):
            return "the server no longer has the WAL it needs"
        return f"the server's reason is {self.invalidation_reason}"


@asynccontextmanager
async def connected(conninfo: str) -> AsyncIterator[Connection]:
    """A plain connection for questions; trouble with it is SourceLost."""
    try:
        connection = await psycopg.AsyncConnection.connect(
            make_conninfo(conninfo, application_name="astha source"), autocommit=True
        )
    except psycopg.OperationalError as error:
        raise SourceLost(f"can't connect: {error}") from error
    try:
        async with connection:
            yield connection
    except psycopg.OperationalError as error:
        raise SourceLost(f"the connection broke: {error}") from error


async def slot_status(connection: Connection, slot: str) -> SlotStatus | None:
    row = await (
        await connection.execute(
            """
            SELECT plugin, database, active, (coalesce(confirmed_flush_lsn, '0/0') - '0/0'::pg_lsn)::bigint,
                   coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint, wal_status, safe_wal_size,
                   (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint, to_jsonb(s) ->> 'invalidation_reason'
            FROM pg_replication_slots s WHERE slot_name = %s
            """,
            [slot],
        )
    ).fetchone()
    return None if row is None else SlotStatus(*row)  # type: ignore[arg-type]


async def require_primary(connection: Connection) -> None:
    """SourceLost at a standby: promoted or replaced by the primary, it will do. Until then its slots are not ours."""
    (standby,) = await (await connection.execute("SELECT pg_is_in_recovery()")).fetchone() or (True,)
    if standby:
        raise SourceLost("the server is a standby: waiting until it is promoted or the address leads to a primary")


async def require_publication(connection: Connection, publication: str, schema: str, tables: Sequence[str]) -> None:
    """ConfigError if it is missing or does not carry a table whole: waiting would not mend that."""
    missing = await not_published(connection, publication, schema, tables)
    if missing:
        raise ConfigError(
            f"publication {publication} is missing or does not carry all of {', '.join(missing)}: "
            "run `astha registry migrate`, which repairs it"
        )


async def not_published(connection: Connection, publication: str, schema: str, tables: Sequence[str]) -> list[str]:
    given = {"tables": list(tables), "publication": publication, "schema": schema}
    rows = await (await connection.execute(NOT_PUBLISHED.encode(), given)).fetchall()
    return [str(name) for (name,) in rows]


async def prepare_slot(connection: Connection, slot: str) -> SlotStatus:
    """The existing slot. SourceReset if there is none, or none that can be used: see `create_slot`."""
    status = await slot_status(connection, slot)
    if status is None:
        raise SourceReset(f"slot {slot} does not exist")
    database = str((await (await connection.execute("SELECT current_database()")).fetchone() or ("",))[0])
    if status.plugin != PLUGIN or status.database != database:
        raise ConfigError(
            f"slot {slot} belongs to plugin {status.plugin} and database {status.database}, not to {PLUGIN} and "
            f"{database}: choose another slot name, or drop it with `SELECT pg_drop_replication_slot('{slot}')`"
        )
    if status.lost:
        raise SourceReset(f"slot {slot} was invalidated: {status.loss}")
    return status


async def create_slot(connection: Connection, slot: str) -> Position:
    """A new slot of this name, in place of one that can no longer be used; answers where it starts."""
    status = await slot_status(connection, slot)
    try:
        if status is not None:
            await connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        version = connection.info.server_version
        failover = sql.SQL(", failover => true") if version >= 170000 else sql.SQL("")
        row = await (
            await connection.execute(
                sql.SQL(
                    "SELECT (lsn - '0/0'::pg_lsn)::bigint FROM pg_create_logical_replication_slot({}, {}{})"
                ).format(slot, PLUGIN, failover)
            )
        ).fetchone()
    except psycopg.errors.ObjectInUse as error:
        raise SlotInUse(f"slot {slot} is in use by another connection") from error
    except (psycopg.errors.ConfigurationLimitExceeded, psycopg.errors.ObjectNotInPrerequisiteState) as error:
        raise ConfigError(f"can't create slot {slot}: {error.diag.message_primary}; run `astha check`") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(_no_replication(connection.info.user)) from error
    assert row is not None  # noqa: S101  (the function answers one row)
    return Position(int(str(row[0])))


async def free_slot(connection: Connection, slot: str) -> bool:
    """End the connection that reads our slot, if it is one of our own user's; True if there was one.

    For a leader only: whoever reads the slot beside it is a daemon that has lost its lease and does not know it yet,
    because it is frozen or cut off. The server itself would wait for it for `wal_sender_timeout`, a minute.
    """
    ended = await connection.execute(
        """
        SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid
        WHERE slot_name = %s AND usename = current_user
        """,
        [slot],
    )
    return bool(await ended.fetchall())


async def require_replication_role(conninfo: str) -> None:
    """ConfigError if the role lacks REPLICATION. To be asked when a replication connection was refused: the server's
    own message comes in the server's language and without a code.
    """
    async with connected(conninfo) as connection:
        row = await (
            await connection.execute("SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")
        ).fetchone()
        if row is not None and not row[0]:
            raise ConfigError(_no_replication(connection.info.user))


def _no_replication(user: str) -> str:
    return (
        f"{user} may not stream changes: run `ALTER ROLE {user} REPLICATION` as a superuser "
        "(a managed server has a role or a parameter for it), and let pg_hba.conf admit it"
    )


def protocol_version(server_version: int) -> int:
    """The newest that both speak; they differ in streaming and two-phase only, which we don't ask for."""
    if server_version >= 160000:
        return 4
    if server_version >= 150000:
        return 3
    return 2 if server_version >= 140000 else 1
