"""Runs all checks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterable, Mapping

import psycopg

from astha.client import Client, NoDaemon, Refused
from astha.clock import SystemLoopClock
from astha.daemon import NamedSubscriber
from astha.errors import ConfigError, SourceError
from astha.extras import install, missing_extras
from astha.preflight import postgres_checks as server_checks
from astha.preflight.cockroach_checks import cluster_checks
from astha.preflight.file_modes import file_modes
from astha.preflight.follower_checks import follower_checks
from astha.preflight.groups import change_log_check, group_checks
from astha.preflight.results import PreflightResult, Verdict, ok, problem, unknown
from astha.preflight.tracing import tracing_checks
from astha.routing.subscriptions import Subscription, read_subscriptions
from astha.server.options import listener_options
from astha.settings import Settings
from astha.sources.postgres.slot import connected
from astha.subscribers import Checkable, RegistryWriter
from astha.wiring import BadComponent, context, load_components, selected, source_kind, usable
from registry.areas import Area
from registry.connect import open_store
from registry.engines import parse_url, sqlite_path
from registry.errors import PermissionDenied, RegistryError, SchemaMismatch
from registry.privileges import daemon_grants, reader_grants
from registry.schema_status import status

Subscriptions = Mapping[str, Subscription]

_COMPONENT_CHECK_TIMEOUT_S = 60.0

_ADDRESS_REMEDY = "correct server.token, server.host or the server.tls_* files"


async def preflight(settings: Settings) -> list[PreflightResult]:
    """Returns the results in the order in which problems should be fixed. Stops early if the schema is not current."""
    redact = settings.redactor()
    in_file, subscriptions, file_result = _subscriptions(settings)
    schema = await _schema(settings)
    results = [file_result, _address(settings), schema]
    if schema.verdict is not Verdict.PROBLEM:
        component_results, loaded = await _components(settings, subscriptions)
        areas = _areas(loaded)
        results += [*component_results, *await _own_checks(loaded)]
        if settings.registry.is_postgres:
            results += await _postgres(settings, subscriptions or {}, areas)
        elif settings.registry.backend == "dynamodb":
            from astha.preflight.dynamodb_checks import dynamodb_checks

            results += await dynamodb_checks(settings)
        elif settings.registry.is_file:
            results.append(_registry_file(settings))
        else:
            results += await cluster_checks(
                settings.registry.conninfo(), settings.source, _tables(subscriptions or {}), areas,
                follows=settings.source.address is not None,
            )  # fmt: skip
        results += await follower_checks(settings, _tables(subscriptions or {}))
        if subscriptions is not None:
            results += await _groups(settings, in_file, subscriptions)
        results += file_modes(settings)
        results += await tracing_checks(settings.tracing)
    return [PreflightResult(f.check, f.verdict, redact(" ".join(f.detail.split())), f.remedy) for f in results]


async def grants(settings: Settings, role: str, *, reader: bool = False) -> str:
    """Returns the SQL that lets a role run a daemon with the components of these settings, or only read.

    Raises ConfigError if the registry has no roles, or if a component can't be loaded.
    """
    if settings.registry.backend == "cockroachdb":
        raise ConfigError(
            "no grants are generated for CockroachDB: GRANT SELECT, INSERT, UPDATE, DELETE and CHANGEFEED on the "
            "registry's tables"
        )
    if settings.registry.backend == "dynamodb":
        raise ConfigError("a registry in DynamoDB has no roles: docs/parts/dynamodb.md has the IAM policy")
    if not settings.registry.is_postgres:
        raise ConfigError("a SQLite registry has no roles: set the permissions of its file and directory instead")
    database, schema = parse_url(settings.registry.url.get_secret_value()).database or role, settings.source.schema_name
    if reader:
        return reader_grants(role, database, schema)
    chosen = selected(read_subscriptions(settings.subscriptions), settings)
    loaded = usable(await _loaded(settings, chosen), run_others=False)
    return daemon_grants(role, database, schema, _areas(loaded))


def _subscriptions(settings: Settings) -> tuple[list[str], Subscriptions | None, PreflightResult]:
    """Returns the components of the file, and the subscriptions of those that the daemon runs."""
    check, path = "subscriptions", settings.subscriptions
    try:
        found = read_subscriptions(path)
    except ConfigError as error:
        return [], None, problem(check, str(error), "correct the file, or name another with --subscriptions")
    try:
        chosen = selected(found, settings)
    except ConfigError as error:
        return [], None, problem(check, str(error), "correct --components or daemon.components, or the file")
    names = ", ".join(chosen) if chosen else "no component, so changes are discarded"
    return list(found), chosen, ok(check, f"{path}: {names}")


async def _groups(settings: Settings, in_file: list[str], chosen: Subscriptions) -> list[PreflightResult]:
    clock = SystemLoopClock()
    try:
        store = await open_store(settings.registry.url.get_secret_value(), settings=settings.registry.store)
        try:
            results = await group_checks(store, clock, settings.group, in_file, chosen)
            if source_kind(settings) == "sqlite":
                results += await change_log_check(store, clock, settings.group)
            return results
        finally:
            await store.close()
    except RegistryError as error:
        return [unknown("groups", str(error))]


def _address(settings: Settings) -> PreflightResult:
    server = settings.server
    try:
        listener_options(server)
    except ConfigError as error:
        return problem("server address", str(error), _ADDRESS_REMEDY)
    where = f"{server.host}:{server.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _daemon_answers(settings):
            return ok("server address", f"a daemon already listens on {where}")
        return problem(
            "server address",
            f"can't listen on {where}: {error.strerror or error}",
            "stop the process that listens there, or set server.host and server.port",
        )
    token = "with a token" if server.secret() else "without a token, so it refuses pause, resume and refresh"
    tls = " and TLS" if server.tls_certificate_file else ""
    return ok("server address", f"{where} is free, {token}{tls}")


def _daemon_answers(settings: Settings) -> bool:
    try:
        return bool(Client(settings.server.url, ca_file=settings.server.tls_ca_file).get("/livez")["alive"])
    except (NoDaemon, Refused, ValueError, KeyError, TypeError):
        return False


async def _schema(settings: Settings) -> PreflightResult:
    check = "schema version"
    try:
        found = await asyncio.to_thread(status, settings.registry.url.get_secret_value(), settings.registry.store)
        found.require_usable()
    except SchemaMismatch as error:
        return problem(check, str(error), "run `astha registry migrate`, or upgrade Astha if the registry is newer")
    except PermissionDenied as error:
        user = parse_url(settings.registry.url.get_secret_value()).username or "ROLE"
        remedy = f"as the owner of the tables, run what `astha check --grants {user}` prints"
        return problem(check, str(error), remedy)
    except RegistryError as error:
        return unknown(check, str(error), "check that the database runs and that registry.url is correct")
    if found.state == "compatible":
        return ok(check, f"{found.found}, newer than this Astha's {found.expected} and compatible with it")
    return ok(check, f"{found.found}, the version that this Astha needs")


async def _components(
    settings: Settings, subscriptions: Subscriptions | None
) -> tuple[list[PreflightResult], list[NamedSubscriber]]:
    """Returns one result for each component that can't be used and one for all others, and the loaded components."""
    check, none = "components", list[NamedSubscriber]()
    if subscriptions is None:
        return [unknown(check, "the subscriptions can't be read")], none
    try:
        found = await _loaded(settings, subscriptions)
    except RegistryError as error:
        return [unknown(check, f"components need a store: {error}")], none
    results = [result for each in found if (result := _component(each, subscriptions[each.name])) is not None]
    good = len(found) - len(results)
    if good or not results:
        results.insert(0, ok(check, f"{good} accept their settings and tables" if found else "none are subscribed"))
    return results, [each for each in found if isinstance(each, NamedSubscriber)]


async def _own_checks(loaded: Iterable[NamedSubscriber]) -> list[PreflightResult]:
    """Runs the checks that components bring."""
    results: dict[str, PreflightResult] = {}
    for component in loaded:
        if not isinstance(component.subscriber, Checkable):
            continue
        try:
            async with asyncio.timeout(_COMPONENT_CHECK_TIMEOUT_S):
                checked = await component.subscriber.check()
        except Exception as error:
            results.setdefault(component.name, unknown(component.name, f"its own check failed: {error!r}"))
            continue
        for each in checked:
            found = (
                ok(each.check, each.detail) if each.remedy is None else problem(each.check, each.detail, each.remedy)
            )
            results.setdefault(each.check, found)
    return list(results.values())


def _component(found: NamedSubscriber | BadComponent, subscription: Subscription) -> PreflightResult | None:
    """Returns None if the component is usable. A component that loads may still lack packages that its work needs."""
    check = f"component {found.name}"
    if isinstance(found, BadComponent):
        return problem(check, str(found.error), found.remedy)
    package, _, _ = (subscription.use or f"components.{found.name}:create").partition(":")
    missing = missing_extras(package)
    if missing:
        return problem(check, f"packages that it needs are not installed: {', '.join(missing)}", install(missing))
    return None


async def _loaded(settings: Settings, subscriptions: Subscriptions) -> list[NamedSubscriber | BadComponent]:
    store = await open_store(settings.registry.url.get_secret_value(), settings=settings.registry.store)
    try:
        return load_components(subscriptions, context(settings, store, SystemLoopClock()), settings.subscriptions)
    finally:
        await store.close()


def _areas(found: Iterable[NamedSubscriber | BadComponent]) -> frozenset[Area]:
    writers = [each.subscriber for each in found if isinstance(each, NamedSubscriber)]
    return frozenset(area for each in writers if isinstance(each, RegistryWriter) for area in each.written_areas)


def _registry_file(settings: Settings) -> PreflightResult:
    """Checks that the registry's file and its directory are writable, which tailing needs."""
    path = sqlite_path(parse_url(settings.registry.url.get_secret_value()))
    if not path.exists():
        return unknown("registry file", f"{path} does not exist")
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.absolute().parent, os.W_OK):
        return problem(
            "registry file",
            f"{path} or its directory are not writable for this user",
            "give the user write access to both: SQLite keeps its write-ahead log beside the file",
        )
    return ok("registry file", f"{path} can be tailed")


def _tables(subscriptions: Subscriptions) -> frozenset[str]:
    return frozenset(table for subscription in subscriptions.values() for table in subscription.tables)


async def _postgres(settings: Settings, subscriptions: Subscriptions, areas: frozenset[Area]) -> list[PreflightResult]:
    conninfo = settings.registry.conninfo()
    tables = sorted(_tables(subscriptions))
    checks = {
        name: check
        for name, check in server_checks.CHECKS.items()
        if settings.source.address is None or name in server_checks.OF_FOLLOWERS
    }
    results: list[PreflightResult] = []
    try:
        async with connected(conninfo) as connection:
            target = server_checks.Target(connection, conninfo, settings.source, tables, areas, settings.group)
            for name, check in checks.items():
                try:
                    results.append(await check(target))
                except (psycopg.Error, SourceError) as error:
                    results.append(unknown(name, str(error)))
    except SourceError as error:
        done = {result.check for result in results}
        results += [unknown(name, str(error)) for name in checks if name not in done]
    return results
