"""The checks of a CockroachDB cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec
import psycopg

from astha.errors import ConfigError, SourceError
from astha.preflight.results import PreflightResult, ok, problem, unknown, warning
from astha.settings.groups import PostgresSourceSettings
from astha.sources.cockroachdb.changefeed import Changefeed
from astha.sources.cockroachdb.cluster import Connection, cluster_status, connected
from astha.sources.cockroachdb.decode import ChangefeedDecoder
from astha.sources.limits import TransactionLimits
from registry.areas import Area
from registry.clock import SystemClock
from registry.cockroachdb.dialect import server_version
from registry.cockroachdb.schema import MINIMUM
from registry.privileges import needed

_RANGEFEEDS = "SET CLUSTER SETTING kv.rangefeed.enabled = true"
_CLOSED = "kv.closed_timestamp.target_duration"
_SLOW_S = 1.0
_SHORT_TTL_S = 3_600
_MARK_TIMEOUT_S = 30.0


class ClusterTarget(msgspec.Struct, frozen=True):
    """The cluster to check, and what the daemon needs of it."""

    connection: Connection
    conninfo: str
    source: PostgresSourceSettings
    tables: frozenset[str]  # subscribed ones
    areas: frozenset[Area]  # that components write to


async def version(target: ClusterTarget) -> PreflightResult:
    text = str((await _rows(target, "SELECT version()"))[0][0])
    found, wanted = server_version(text), ".".join(map(str, MINIMUM))
    if found is None or found < MINIMUM:
        return problem("server version", text, f"upgrade the cluster to CockroachDB {wanted} or newer")
    return ok("server version", "CockroachDB " + ".".join(map(str, found)))


async def rangefeeds(target: ClusterTarget) -> PreflightResult:
    (enabled,) = (await _rows(target, "SHOW CLUSTER SETTING kv.rangefeed.enabled"))[0]
    if enabled not in (True, "true", "t"):
        return problem("rangefeeds", "kv.rangefeed.enabled is false: no changefeeds", f"run `{_RANGEFEEDS}`")
    return ok("rangefeeds", "enabled")


async def closed_timestamp(target: ClusterTarget) -> PreflightResult:
    """A transaction is delivered when its timestamp is closed: see docs/decisions/0037-cockroachdb-changefeed.md."""
    (found,) = (await _rows(target, f"SHOW CLUSTER SETTING {_CLOSED}"))[0]
    seconds = found.total_seconds() if isinstance(found, timedelta) else None
    detail = f"{_CLOSED} is {found}: a change arrives about that much after its commit"
    if seconds is not None and seconds > _SLOW_S:
        faster = f"run `SET CLUSTER SETTING {_CLOSED} = '500ms'`"
        remedy = f"if that is too late, {faster}; longer transactions may be repeated then"
        return warning("closed timestamps", detail, remedy)
    return ok("closed timestamps", detail)


async def history(target: ClusterTarget) -> PreflightResult:
    ttl_s = (await cluster_status(target.connection, target.source.schema_name, target.tables)).gc_ttl_s
    detail = f"the tables' history is kept for {ttl_s:,} s (gc.ttlseconds); after a longer pause all components refresh"
    if ttl_s < _SHORT_TTL_S:
        remedy = "run `ALTER DATABASE ... CONFIGURE ZONE USING gc.ttlseconds = 14400`: refreshes and pauses need it"
        return warning("history", detail, remedy)
    return ok("history", detail)


async def table_privileges(target: ClusterTarget) -> PreflightResult:
    user, lacking = target.connection.info.user, dict[str, list[str]]()
    for name, privilege in needed(target.areas):
        relation = f"{target.source.schema_name}.{name}"
        query = "SELECT coalesce(has_table_privilege(to_regclass(%s)::oid, %s), false)"
        if not (await _rows(target, query, relation, privilege))[0][0]:
            lacking.setdefault(privilege, []).append(name)
    if lacking:
        lacks = "; ".join(f"{privilege} on {', '.join(names)}" for privilege, names in lacking.items())
        remedy = f"as the owner of the tables, run `GRANT {', '.join(lacking)} ON TABLE ... TO {user}`"
        return problem("table privileges", f"{user} lacks {lacks}", remedy)
    return ok("table privileges", f"{user} may read the registry and write the daemon's tables")


async def changefeed(target: ClusterTarget) -> PreflightResult:
    """Opens a changefeed as the daemon does, and waits for its first mark: settings and privileges all matter."""
    check, settings = "changefeed", target.source
    feed = await Changefeed.open(target.conninfo, SystemClock())
    try:
        start = (await cluster_status(target.connection, settings.schema_name, target.tables)).now
        began = time.monotonic()
        feed.start(settings.schema_name, start, settings.resolved_interval_s)
        async with asyncio.timeout(_MARK_TIMEOUT_S):
            async for _ in feed.batches(ChangefeedDecoder(target.tables, TransactionLimits(), start)):
                break
    except ConfigError as error:
        return problem(check, *str(error).split(": ", 1))
    except TimeoutError:
        return problem(check, f"no resolved mark within {_MARK_TIMEOUT_S:g} s", "see the cluster's log, and lower "
                       f"{_CLOSED}")  # fmt: skip
    finally:
        await feed.close()
    return ok(
        check, f"{target.connection.info.user} may read it; its first mark came after {time.monotonic() - began:.1f} s"
    )


async def _rows(target: ClusterTarget, query: str, *parameters: object) -> list[tuple[object, ...]]:
    # Queries are constants of this module.
    return await (await target.connection.execute(query.encode(), parameters)).fetchall()


_CHECKS: dict[str, Callable[[ClusterTarget], Awaitable[PreflightResult]]] = {
    "server version": version,
    "table privileges": table_privileges,
    "rangefeeds": rangefeeds,
    "closed timestamps": closed_timestamp,
    "history": history,
    "changefeed": changefeed,
}

_OF_FOLLOWERS = frozenset({"server version", "table privileges"})


async def cluster_checks(
    conninfo: str, source: PostgresSourceSettings, tables: frozenset[str], areas: frozenset[Area], *, follows: bool
) -> list[PreflightResult]:
    """A daemon that follows another one (`follows`) needs no changefeed."""
    names = [name for name in _CHECKS if not follows or name in _OF_FOLLOWERS]
    results: list[PreflightResult] = []
    try:
        async with connected(conninfo) as connection:
            target = ClusterTarget(connection, conninfo, source, tables, areas)
            for name in names:
                result = await _checked(name, target)
                results.append(result)
    except SourceError as error:
        done = {result.check for result in results}
        results += [unknown(name, str(error)) for name in names if name not in done]
    return results


async def _checked(name: str, target: ClusterTarget) -> PreflightResult:
    try:
        return await _CHECKS[name](target)
    except psycopg.OperationalError as error:
        raise SourceError(str(error)) from error
    except (psycopg.Error, SourceError, ConfigError) as error:
        return unknown(name, str(error))
