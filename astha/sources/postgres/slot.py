"""The server's side of the stream: the publication, the slot, and the WAL that the slot retains.

A slot delivers a change only if its table was published when the change was made, so the publication comes first;
migrations create it.
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
    server: Position
    invalidation_reason: str | None  # from PostgreSQL 17 on

    @property
    def lost(self) -> bool:
        return self.wal_status == "lost"

    @property
    def loss(self) -> str:
        """The reason, for people."""
        if self.invalidation_reason in (None, "wal_removed"):
            return "the server no longer has the WAL it needs"
        return f"the server's reason is {self.invalidation_reason}"


def slot_owner_name(slot: str) -> str:
    """Returns the name under which the registry keeps the group that reads the slot."""
    return f"slot:{slot}"


def shared_slot(slot: str, owner: str, group: str) -> str:
    return (
        f"slot {slot} is in use by group {owner}: two groups that share a slot take changes from each other; set "
        f"source.slot of group {group} to another name, or leave it out"
    )


@asynccontextmanager
async def connected(conninfo: str) -> AsyncIterator[Connection]:
    """Opens a plain connection for queries. Raises SourceLost if it can't be opened or breaks."""
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
                   coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint, wal_status,
                   (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint, to_jsonb(s) ->> 'invalidation_reason'
            FROM pg_replication_slots s WHERE slot_name = %s
            """,
            [slot],
        )
    ).fetchone()
    return None if row is None else SlotStatus(*row)  # type: ignore[arg-type]


async def require_primary(connection: Connection) -> None:
    """Raises SourceLost at a standby: it has to be promoted, or the address has to lead to the primary."""
    (standby,) = await (await connection.execute("SELECT pg_is_in_recovery()")).fetchone() or (True,)
    if standby:
        raise SourceLost("the server is a standby: waiting until it is promoted or the address leads to a primary")


async def require_publication(connection: Connection, publication: str, schema: str, tables: Sequence[str]) -> None:
    """Raises ConfigError if it is missing or does not carry a table completely: waiting would not help."""
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
    """Returns the existing slot. Raises SourceReset if it is missing or unusable: see `create_slot`."""
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
    """Creates the slot, in place of one that can no longer be used, and returns its start."""
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
    assert row is not None  # noqa: S101  (the function returns one row)
    return Position(int(str(row[0])))


async def free_slot(connection: Connection, slot: str) -> bool:
    """Terminates the connection that reads the slot, if it is of the same user. Returns whether there was one.

    For a leader only: another reader of the slot is a daemon that has lost its lease and has not noticed, because it is
    frozen or disconnected. The server itself would wait for it for `wal_sender_timeout`, a minute by default.
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
    """Raises ConfigError if the role lacks REPLICATION. For use after a replication connection was refused: the
    server's message is in the server's language and has no code.
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
    """Returns the newest version that the server knows. They differ only in streaming and two-phase commit, which are
    not used here.
    """
    if server_version >= 160000:
        return 4
    if server_version >= 150000:
        return 3
    return 2 if server_version >= 140000 else 1
