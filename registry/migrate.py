"""Migrates a registry's schema to the version that this code expects, and refuses any other version.

All steps of a migration are one transaction on both backends, and only one process migrates at a time.
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

from registry.engines import (
    SQLITE_MINIMUM,
    StoreSettings,
    access_error,
    display_url,
    parse_url,
    sqlite_path,
    sync_engine,
)
from registry.errors import Invalid, SchemaMismatch, Unavailable
from registry.publication import repair_publication
from registry.schema import VERSION_TABLE

SchemaState: TypeAlias = Literal["missing", "old", "current", "new"]

_LOCK = 0x61737468  # "asth": an advisory lock of PostgreSQL


class SchemaStatus(msgspec.Struct, frozen=True):
    url: str
    state: SchemaState
    found: str | None
    expected: str
    repaired: tuple[str, ...] = ()  # problems of the publication that a migration repaired

    def require_current(self) -> None:
        """Raises SchemaMismatch unless the database has the schema of this code."""
        match self.state:
            case "missing":
                raise SchemaMismatch(f"{self.url} holds no registry: run `astha registry migrate`")
            case "old":
                raise SchemaMismatch(
                    f"the registry at {self.url} has schema {self.found}, older than {self.expected}: "
                    "run `astha registry migrate`"
                )
            case "new":
                raise SchemaMismatch(
                    f"the registry at {self.url} has schema {self.found}, which this version of Astha does not "
                    f"know (it knows up to {self.expected}): upgrade Astha"
                )


def status(url: str, settings: StoreSettings | None = None) -> SchemaStatus:
    parsed = parse_url(url)
    if parsed.drivername == "sqlite" and not sqlite_path(parsed).exists():
        return SchemaStatus(display_url(parsed), "missing", None, _head())
    with _connected(parsed, settings or StoreSettings()) as connection:
        return schema_status(connection)


def migrate(url: str, settings: StoreSettings | None = None, *, revision: str = "head") -> SchemaStatus:
    """Upgrades the schema, or downgrades it to ``revision`` (``base``: empty). Creates a SQLite file if needed.

    On PostgreSQL, also repairs a missing or incomplete publication, whatever the schema was before.
    """
    parsed = parse_url(url)
    if parsed.drivername == "sqlite" and not sqlite_path(parsed).absolute().parent.is_dir():
        raise Invalid("registry URL", display_url(parsed), "the directory of the file does not exist")
    with _connected(parsed, settings or StoreSettings()) as connection:
        _require_sqlite_version(connection)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if parsed.drivername == "sqlite" else "BEGIN")
        try:
            if parsed.drivername == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            _run(connection, revision)
            after = schema_status(connection)
            if parsed.drivername == "postgresql" and after.state == "current":
                after = msgspec.structs.replace(after, repaired=tuple(repair_publication(connection)))
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")
        return after


def require_known(revision: str) -> None:
    """Raises Invalid if there is no such revision."""
    known = [script.revision for script in _scripts().walk_revisions()]  # newest first
    if revision not in ("base", "head", *known):
        raise Invalid("revision", revision, f"is unknown; known are {', '.join(reversed(known))}, base and head")


def schema_status(connection: Connection) -> SchemaStatus:
    found: str | None = None
    if inspect(connection).has_table(VERSION_TABLE):
        found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()
    head, known = _head(), {script.revision for script in _scripts().walk_revisions()}
    state: SchemaState
    if found is None:
        state = "missing"
    elif found == head:
        state = "current"
    else:
        state = "old" if found in known else "new"
    return SchemaStatus(display_url(connection.engine.url.set(drivername=connection.dialect.name)), state, found, head)


def _run(connection: Connection, revision: str) -> None:
    require_known(revision)
    before = schema_status(connection)
    if before.state == "new":
        before.require_current()
    config = _config()
    config.attributes["connection"] = connection
    known = [script.revision for script in _scripts().walk_revisions()]  # newest first
    if revision == "base" or (before.found in known and revision in known[known.index(before.found) + 1 :]):
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
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
