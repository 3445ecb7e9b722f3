"""Migrates a registry's schema to the version that this code expects, and tells whether this code can use a version.

On SQLite and PostgreSQL, all steps of a migration are one transaction, and only one process migrates at a time. DDL of
CockroachDB is not transactional: there, each step can be repeated, and an interrupted migration is run again.

Code can use its own schema and newer ones that are compatible with it. A migration names the oldest revision whose code
can still use the schema (``compatible_from``; itself unless it says so), and the version table keeps that name: it is
the only thing that older code can know about a newer schema. See docs/decisions/0023-schema-compatibility.md.
"""

from __future__ import annotations

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

from registry.cockroachdb import dialect as cockroachdb
from registry.cockroachdb import schema
from registry.cockroachdb.schema import Placement
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
    with _connected(parsed, settings or StoreSettings()) as connection:
        return schema_status(connection)


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
    with _connected(parsed, settings or StoreSettings()) as connection:
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
    wanted = _head() if revision == "head" else revision
    if before.state == "missing" and wanted == _head():
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
    config = _alembic(connection)
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


def _alembic(connection: Connection) -> Config:
    config = _config()
    config.attributes["connection"] = connection
    return config


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
