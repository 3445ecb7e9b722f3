"""The checks of the PostgreSQL server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import psycopg
from psycopg import sql

from astha.errors import ConfigError, SourceError
from astha.preflight.results import PreflightResult, ok, problem, unknown
from astha.sources.postgres.slot import PLUGIN, Connection, not_published, slot_owner_name, slot_status
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.postgres.stream import ReplicationStream
from registry.areas import Area
from registry.clock import SystemClock
from registry.privileges import needed
from registry.publication import ALL_OPERATIONS, WITHOUT_OPERATIONS

_OLDEST = 140000


class Target(msgspec.Struct, frozen=True):
    """The server to check, and what the daemon needs of it."""

    connection: Connection
    conninfo: str
    source: PostgresSourceSettings
    tables: Sequence[str]  # subscribed ones
    areas: frozenset[Area]  # that components write to
    group: str


async def version(target: Target) -> PreflightResult:
    found = target.connection.info.server_version
    shown = f"PostgreSQL {found // 10000}.{found % 10000}"
    if found < _OLDEST:
        return problem("server version", shown, "upgrade the server to PostgreSQL 14 or newer")
    return ok("server version", shown)


async def wal_level(target: Target) -> PreflightResult:
    found = await _setting(target, "wal_level")
    if found != "logical":
        return problem(
            "wal_level",
            f"wal_level is {found}, so the server can't decode its changes",
            "run `ALTER SYSTEM SET wal_level = logical` and restart the server (a managed one has a parameter for it)",
        )
    return ok("wal_level", "logical")


async def replication_slots(target: Target) -> PreflightResult:
    limit = int(await _setting(target, "max_replication_slots"))
    used, ours = await _numbers(
        target,
        "SELECT count(*), count(*) FILTER (WHERE slot_name = %s) FROM pg_replication_slots",
        [target.source.slot],
    )
    if used >= limit and not ours:
        return problem(
            "max_replication_slots",
            f"all {limit} slots are taken and none is called {target.source.slot}",
            "drop one that is not needed, or raise max_replication_slots and restart the server",
        )
    return ok("max_replication_slots", f"{used} of {limit} in use" + (", including ours" if ours else ""))


async def wal_senders(target: Target) -> PreflightResult:
    limit = int(await _setting(target, "max_wal_senders"))
    (used,) = await _numbers(target, "SELECT count(*) FROM pg_stat_replication")
    if used >= limit:
        return problem("max_wal_senders", f"all {limit} are in use", "raise max_wal_senders and restart the server")
    return ok("max_wal_senders", f"{used} of {limit} in use")


async def publication(target: Target) -> PreflightResult:
    check, name = "publication", target.source.publication
    found = await (await target.connection.execute(WITHOUT_OPERATIONS.encode(), {"publication": name})).fetchone()
    if found is None:
        return problem(check, f"there is no publication {name}", "run `astha registry migrate`")
    if found[0]:
        return problem(
            check,
            f"publication {name} leaves out some operations",
            f"run `astha registry migrate`, or `ALTER PUBLICATION {name} SET ({ALL_OPERATIONS})`",
        )
    missing = await not_published(target.connection, name, target.source.schema_name, target.tables)
    if missing:
        return problem(
            check,
            f"publication {name} does not carry all of {', '.join(missing)}",
            "run `astha registry migrate`, which repairs it",
        )
    return ok(check, f"{name} carries every change of the {len(target.tables)} subscribed tables")


async def replica_identity(target: Target) -> PreflightResult:
    rows = await _rows(
        target,
        """
        SELECT c.relname FROM pg_publication_tables p
        JOIN pg_namespace n ON n.nspname = p.schemaname
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
        WHERE p.pubname = %s AND c.relreplident <> 'f' ORDER BY 1
        """,
        [target.source.publication],
    )
    names = [str(name) for (name,) in rows]
    if names:
        return problem(
            "replica identity",
            f"{', '.join(names)} would send keys instead of whole old rows",
            "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names),
        )
    return ok("replica identity", "FULL on every published table")


async def replication_privilege(target: Target) -> PreflightResult:
    """Opens a replication connection: the role's attribute, a managed server's own role and pg_hba.conf all matter."""
    user = target.connection.info.user
    try:
        stream = await ReplicationStream.open(target.conninfo, SystemClock())
    except ConfigError as error:
        return problem("replication privilege", *str(error).split(": ", 1))
    except SourceError as error:
        text = str(error).strip()
        if "pg_hba" in text or "wal_level" in text:
            remedy = "let pg_hba.conf admit it" if "pg_hba" in text else "set wal_level to logical"
            return problem("replication privilege", f"{user} can't open a replication connection: {text}", remedy)
        return unknown("replication privilege", text)
    try:
        await stream.identify()
    finally:
        await stream.close()
    return ok("replication privilege", f"{user} may stream changes")


async def table_privileges(target: Target) -> PreflightResult:
    user = target.connection.info.user
    wanted = needed(target.areas)
    schema = target.source.schema_name
    rows = await _rows(
        target,
        """
        SELECT w.name, w.privilege FROM unnest(%s::text[], %s::text[]) AS w(name, privilege)
        LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = %s) ON c.relname = w.name
        WHERE NOT coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, w.privilege), false)
        """,
        [[name for name, _ in wanted], [privilege for _, privilege in wanted], schema],
    )
    if rows:
        by_privilege: dict[str, list[str]] = {}
        for name, privilege in wanted:
            if (name, privilege) in rows:
                by_privilege.setdefault(privilege, []).append(name)
        lacks = "; ".join(f"{privilege} on {', '.join(names)}" for privilege, names in by_privilege.items())
        return problem(
            "table privileges",
            f"{user} lacks {lacks}",
            f"as the owner of the tables, run what `astha check --grants {user}` prints",
        )
    writes = f", and write to {' and '.join(sorted(target.areas))}" if target.areas else ""
    return ok("table privileges", f"{user} may read the registry, write the daemon's tables{writes}")


async def slot(target: Target) -> PreflightResult:
    name = target.source.slot
    found = await slot_status(target.connection, name)
    if found is None:
        return ok("slot", f"{name} does not exist yet: the first start creates it and refreshes every component")
    (database,) = (await _rows(target, "SELECT current_database()"))[0]
    if found.plugin != PLUGIN or found.database != database:
        return problem(
            "slot",
            f"{name} belongs to plugin {found.plugin} and database {found.database}",
            f"set source.slot to another name, or drop it: SELECT pg_drop_replication_slot('{name}')",
        )
    if found.lost:
        return problem(
            "slot",
            f"{name} was invalidated: {found.loss}",
            "start the daemon: it creates a new slot and refreshes every component; max_slot_wal_keep_size and, from "
            "PostgreSQL 18 on, idle_replication_slot_timeout limit what the server keeps",
        )
    owner = await _slot_owner(target)
    if found.active and owner not in (None, target.group):
        return problem(
            "slot",
            f"{name} is in use by group {owner}: two groups that share a slot take changes from each other",
            f"set source.slot of group {target.group} to another name, or leave it out",
        )
    use = "in use by a daemon" if found.active else "not in use"
    return ok("slot", f"{name} is {use}, wal_status {found.wal_status}, {found.retained_bytes:,} bytes retained")


async def _slot_owner(target: Target) -> str | None:
    """Returns the group that read the slot last, or None if that is not known."""
    query = sql.SQL("SELECT identity FROM {} WHERE name = %s").format(
        sql.Identifier(target.source.schema_name, "source_identity")
    )
    try:
        row = await (await target.connection.execute(query, [slot_owner_name(target.source.slot)])).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):  # reported by other checks
        return None
    return None if row is None else str(row[0])


async def _setting(target: Target, name: str) -> str:
    return str((await _rows(target, "SELECT current_setting(%s)", [name]))[0][0])


async def _numbers(target: Target, query: str, parameters: Sequence[object] = ()) -> list[int]:
    return [int(str(value)) for value in (await _rows(target, query, parameters))[0]]


async def _rows(target: Target, query: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
    # Queries are constants of this module.
    return await (await target.connection.execute(query.encode(), parameters)).fetchall()


CHECKS: dict[str, Callable[[Target], Awaitable[PreflightResult]]] = {
    "server version": version,
    "wal_level": wal_level,
    "max_replication_slots": replication_slots,
    "max_wal_senders": wal_senders,
    "publication": publication,
    "replica identity": replica_identity,
    "replication privilege": replication_privilege,
    "table privileges": table_privileges,
    "slot": slot,
}

OF_FOLLOWERS = frozenset({"server version", "table privileges"})
"""A daemon that follows another one reads no WAL."""
