"""Migrates a registry's schema to the version that this code expects.

On SQLite and PostgreSQL, all steps of a migration are one transaction, and only one process migrates at a time. DDL of
CockroachDB is not transactional: there, each step can be repeated, and an interrupted migration is run again.

Code can use its own schema and newer ones that are compatible with it. A migration names the oldest revision whose code
can still use the schema (``compatible_from``; itself unless it says so), and the version table keeps that name: it is
the only thing that older code can know about a newer schema. See docs/decisions/0023-schema-compatibility.md.
"""

from __future__ import annotations

import asyncio

import msgspec
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from registry import cockroachdb, revisions
from registry.cockroachdb import schema
from registry.cockroachdb.schema import Placement
from registry.engines import SQLITE_MINIMUM, StoreSettings, display_url, parse_url, sqlite_path
from registry.errors import Invalid, Unavailable
from registry.publication import repair_publication
from registry.revisions import known_revisions, newest_revision
from registry.schema import VERSION_TABLE
from registry.schema_status import COMPATIBLE_FROM, SchemaStatus, connected, recorded_version, schema_status, status

_LOCK = 0x61737468  # "asth": an advisory lock of PostgreSQL


def migrate(
    url: str,
    settings: StoreSettings | None = None,
    *,
    revision: str = "head",
    placement: Placement | None = None,
) -> SchemaStatus:
    """Upgrades the schema, or downgrades it to ``revision`` (``base``: empty). Creates a SQLite file if needed.

    A newer schema that is compatible stays as it is. On PostgreSQL, also repairs a missing or incomplete publication,
    whatever the schema was before. On CockroachDB, ``placement`` also places the tables in regions.
    """
    parsed = parse_url(url)
    if parsed.drivername == "sqlite" and not sqlite_path(parsed).absolute().parent.is_dir():
        raise Invalid("registry URL", display_url(parsed), "the directory of the file does not exist")
    if placement is not None and parsed.drivername != cockroachdb.NAME:
        raise Invalid("regions", placement.regions, f"{display_url(parsed)} has no regions: only CockroachDB has")
    if parsed.drivername == "dynamodb":
        return _migrate_dynamodb(url, settings or StoreSettings(), revision)
    with connected(parsed, settings or StoreSettings()) as connection:
        if parsed.drivername == cockroachdb.NAME:
            return _migrate_in_steps(connection, revision, placement)
        _require_sqlite_version(connection)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if parsed.drivername == "sqlite" else "BEGIN")
        try:
            if parsed.drivername == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            _run(connection, revision)
            _record_compatibility(connection)
            after = schema_status(connection)
            if parsed.drivername == "postgresql" and after.state in ("current", "compatible"):
                after = msgspec.structs.replace(after, repaired=tuple(repair_publication(connection)))
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")
        return after


def _migrate_in_steps(connection: Connection, revision: str, placement: Placement | None) -> SchemaStatus:
    """Every step is committed by itself, the version last. Interrupted, it is to be run again."""
    schema.require_server(connection)
    require_known(revision)
    before = schema_status(connection)
    wanted = newest_revision() if revision == "head" else revision
    if before.state == "missing" and wanted == newest_revision():
        schema.create_tables(connection)
        command.stamp(_alembic(connection), wanted)
    elif wanted == "base":
        schema.drop_tables(connection)
    elif before.state == "missing" or wanted < schema.FIRST_REVISION:
        why = f"CockroachDB's registries begin with {schema.FIRST_REVISION}: migrate to head, or to base"
        raise Invalid("revision", revision, why)
    else:
        _run(connection, revision)
    _record_compatibility(connection)
    after = schema_status(connection)
    if placement is not None and after.state in ("current", "compatible"):
        for statement in placement.statements(str(connection.engine.url.database)):
            connection.exec_driver_sql(statement)
    return after


def _migrate_dynamodb(url: str, settings: StoreSettings, revision: str) -> SchemaStatus:
    if revision != "head":
        raise Invalid("revision", revision, "a registry in DynamoDB has one version; delete its table to remove it")
    before = status(url, settings)
    if before.state != "missing":
        before.require_usable()
        return before
    from registry.stores.dynamodb.opening import capacity_of, create

    asyncio.run(create(url, capacity_of(settings)))
    return status(url, settings)


def require_known(revision: str) -> None:
    """Raises Invalid if there is no such revision."""
    known = known_revisions()
    if revision not in ("base", "head", *known):
        raise Invalid("revision", revision, f"is unknown; known are {', '.join(known)}, base and head")


def _run(connection: Connection, revision: str) -> None:
    require_known(revision)
    before = schema_status(connection)
    if before.state == "compatible" and revision == "head":
        return
    if before.state in ("compatible", "new"):
        before.require_current()
    config = _alembic(connection)
    known = known_revisions()
    if revision == "base" or (before.found in known and revision in known[: known.index(before.found)]):
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def _record_compatibility(connection: Connection) -> None:
    """For older code, which has neither the migration nor any other way to know. A newer version's record stays."""
    found, recorded = recorded_version(connection)
    scripts = {script.revision: script for script in _scripts().walk_revisions()}
    if found is None or found not in scripts:
        return
    compatible_from = getattr(scripts[found].module, COMPATIBLE_FROM, found)
    if recorded == compatible_from:
        return
    if COMPATIBLE_FROM not in {column["name"] for column in inspect(connection).get_columns(VERSION_TABLE)}:
        connection.exec_driver_sql(f"ALTER TABLE {VERSION_TABLE} ADD COLUMN {COMPATIBLE_FROM} VARCHAR(32)")
    connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET {COMPATIBLE_FROM} = '{compatible_from}'")


def _alembic(connection: Connection) -> Config:
    config = _config()
    config.attributes["connection"] = connection
    return config


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(revisions.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _require_sqlite_version(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        found = connection.dialect.server_version_info or (0,)
        if found < SQLITE_MINIMUM:
            wanted = ".".join(map(str, SQLITE_MINIMUM))
            raise Unavailable(f"SQLite {wanted} or newer is needed, this Python has {'.'.join(map(str, found))}")
