"""Migrates a registry's schema to the version that this code expects, and tells whether this code can use a version.

All steps of a migration are one transaction on both backends, and only one process migrates at a time.

Code can use its own schema and newer ones that are compatible with it. A migration names the oldest revision whose code
can still use the schema (``compatible_from``; itself unless it says so), and the version table keeps that name: it is
the only thing that older code can know about a newer schema. See docs/decisions/0023-schema-compatibility.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, inspect
from sqlalchemy.exc import DBAPIError

from registry.dynamodb_url import not_installed
from registry.engines import (
    SQLITE_MINIMUM,
    StoreSettings,
    access_error,
    display_url,
    parse_url,
    sqlite_path,
    sync_engine,
)
from registry.errors import Invalid, SchemaMismatch, SchemaTooNew, Unavailable
from registry.publication import repair_publication
from registry.schema import VERSION_TABLE

SchemaState: TypeAlias = Literal["missing", "old", "current", "compatible", "new"]
"""Of newer schemas, this code can use a compatible one, and can't use a new one."""

_COMPATIBLE_FROM = "compatible_from"
"""A variable of a migration, and a column of the version table."""

_MIGRATIONS = Path(__file__).parent / "migrations"

_LOCK = 0x61737468  # "asth": an advisory lock of PostgreSQL


class SchemaStatus(msgspec.Struct, frozen=True):
    url: str
    state: SchemaState
    found: str | None
    expected: str
    repaired: tuple[str, ...] = ()  # problems of the publication that a migration repaired

    def require_usable(self) -> None:
        """Raises SchemaMismatch unless this code can use the schema."""
        match self.state:
            case "missing":
                raise SchemaMismatch(f"{self.url} holds no registry: run `astha registry migrate`")
            case "old":
                raise SchemaMismatch(
                    f"the registry at {self.url} has schema {self.found}, older than {self.expected}: "
                    "run `astha registry migrate`"
                )
            case "new":
                raise SchemaTooNew(
                    f"the registry at {self.url} has schema {self.found}, which this version of Astha does not "
                    f"know (it knows up to {self.expected}): upgrade Astha"
                )

    def require_current(self) -> None:
        """Raises SchemaMismatch unless the schema is that of this code: it must know every table and column."""
        self.require_usable()
        if self.state == "compatible":
            raise SchemaTooNew(
                f"the registry at {self.url} has schema {self.found}, newer than {self.expected}: this version of "
                "Astha can use it, but does not know all of it; do this with the newer version"
            )


def status(url: str, settings: StoreSettings | None = None) -> SchemaStatus:
    parsed = parse_url(url)
    if parsed.drivername == "sqlite" and not sqlite_path(parsed).exists():
        return SchemaStatus(display_url(parsed), "missing", None, _head())
    if parsed.drivername == "dynamodb":
        return _dynamodb_status(url, settings or StoreSettings())
    with _connected(parsed, settings or StoreSettings()) as connection:
        return schema_status(connection)


def migrate(url: str, settings: StoreSettings | None = None, *, revision: str = "head") -> SchemaStatus:
    """Upgrades the schema, or downgrades it to ``revision`` (``base``: empty). Creates a SQLite file if needed.

    A newer schema that is compatible stays as it is. On PostgreSQL, also repairs a missing or incomplete publication,
    whatever the schema was before.
    """
    parsed = parse_url(url)
    if parsed.drivername == "sqlite" and not sqlite_path(parsed).absolute().parent.is_dir():
        raise Invalid("registry URL", display_url(parsed), "the directory of the file does not exist")
    if parsed.drivername == "dynamodb":
        return _migrate_dynamodb(url, settings or StoreSettings(), revision)
    with _connected(parsed, settings or StoreSettings()) as connection:
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


def _dynamodb_status(url: str, settings: StoreSettings) -> SchemaStatus:
    """Items have no columns, and a version of their own."""
    try:
        from registry.stores.dynamodb.opening import VERSION, find_version
    except ModuleNotFoundError as error:
        raise not_installed(url) from error
    found = asyncio.run(find_version(url, settings))
    state: SchemaState = "missing" if found is None else "current" if found == VERSION else "new"
    shown = None if found is None else f"items {found}"
    return SchemaStatus(display_url(parse_url(url)), state, shown, f"items {VERSION}")


def _migrate_dynamodb(url: str, settings: StoreSettings, revision: str) -> SchemaStatus:
    if revision != "head":
        raise Invalid("revision", revision, "a registry in DynamoDB has one version; delete its table to remove it")
    before = _dynamodb_status(url, settings)
    if before.state != "missing":
        before.require_usable()
        return before
    from registry.stores.dynamodb.opening import capacity_of, create

    asyncio.run(create(url, capacity_of(settings)))
    return _dynamodb_status(url, settings)


def require_known(revision: str) -> None:
    """Raises Invalid if there is no such revision."""
    known = [script.revision for script in _scripts().walk_revisions()]  # newest first
    if revision not in ("base", "head", *known):
        raise Invalid("revision", revision, f"is unknown; known are {', '.join(reversed(known))}, base and head")


def schema_status(connection: Connection) -> SchemaStatus:
    found, compatible_from = _version(connection)
    head, known = _head(), {script.revision for script in _scripts().walk_revisions()}
    state: SchemaState
    if found is None:
        state = "missing"
    elif found == head:
        state = "current"
    elif found in known:
        state = "old"
    else:
        state = "compatible" if compatible_from in known else "new"
    return SchemaStatus(display_url(connection.engine.url.set(drivername=connection.dialect.name)), state, found, head)


def _version(connection: Connection) -> tuple[str | None, str | None]:
    """Returns the revision of the schema, and the oldest revision whose code can use it, as far as they are known."""
    tables = inspect(connection)
    if not tables.has_table(VERSION_TABLE):
        return None, None
    columns = {column["name"] for column in tables.get_columns(VERSION_TABLE)}
    compatible_from = _COMPATIBLE_FROM if _COMPATIBLE_FROM in columns else "NULL"
    row = connection.exec_driver_sql(f"SELECT version_num, {compatible_from} FROM {VERSION_TABLE}").first()
    return (None, None) if row is None else (row[0], row[1])


def _run(connection: Connection, revision: str) -> None:
    require_known(revision)
    before = schema_status(connection)
    if before.state == "compatible" and revision == "head":
        return
    if before.state in ("compatible", "new"):
        before.require_current()
    config = _config()
    config.attributes["connection"] = connection
    known = [script.revision for script in _scripts().walk_revisions()]  # newest first
    if revision == "base" or (before.found in known and revision in known[known.index(before.found) + 1 :]):
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def _record_compatibility(connection: Connection) -> None:
    """For older code, which has neither the migration nor any other way to know. A newer version's record stays."""
    found, recorded = _version(connection)
    scripts = {script.revision: script for script in _scripts().walk_revisions()}
    if found is None or found not in scripts:
        return
    compatible_from = getattr(scripts[found].module, _COMPATIBLE_FROM, found)
    if recorded == compatible_from:
        return
    if _COMPATIBLE_FROM not in {column["name"] for column in inspect(connection).get_columns(VERSION_TABLE)}:
        connection.exec_driver_sql(f"ALTER TABLE {VERSION_TABLE} ADD COLUMN {_COMPATIBLE_FROM} VARCHAR(32)")
    connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET {_COMPATIBLE_FROM} = '{compatible_from}'")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _head() -> str:
    head = _scripts().get_current_head()
    assert head is not None  # noqa: S101  (there is at least one migration)
    return head


@contextmanager
def _connected(url: URL, settings: StoreSettings) -> Iterator[Connection]:
    engine = sync_engine(url, settings)
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise access_error(display_url(url), error.orig) or Unavailable(f"{display_url(url)}: {error.orig}") from error
    finally:
        engine.dispose()


def _require_sqlite_version(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        found = connection.dialect.server_version_info or (0,)
        if found < SQLITE_MINIMUM:
            wanted = ".".join(map(str, SQLITE_MINIMUM))
            raise Unavailable(f"SQLite {wanted} or newer is needed, this Python has {'.'.join(map(str, found))}")
