"""Tells whether this code can use the schema of a registry.

Code can use its own schema and newer ones that are compatible with it: see `registry.migrate` and
docs/decisions/0023-schema-compatibility.md. Nothing here needs alembic, because every process checks the schema when it
starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError

from registry.dynamodb_url import not_installed
from registry.engines import StoreSettings, access_error, display_url, parse_url, sqlite_path, sync_engine
from registry.errors import SchemaMismatch, SchemaTooNew, Unavailable
from registry.revisions import known_revisions, newest_revision
from registry.schema import VERSION_TABLE

SchemaState: TypeAlias = Literal["missing", "old", "current", "compatible", "new"]
"""Of newer schemas, this code can use a compatible one, and can't use a new one."""

COMPATIBLE_FROM = "compatible_from"
"""A variable of a migration, and a column of the version table."""

_TABLE_EXISTS = {
    "cockroachdb": "SELECT count(*) FROM information_schema.tables "
    f"WHERE table_name = '{VERSION_TABLE}' AND table_schema = current_schema()",
    "postgresql": f"SELECT to_regclass('{VERSION_TABLE}') IS NOT NULL",
    "sqlite": f"SELECT count(*) FROM sqlite_master WHERE name = '{VERSION_TABLE}'",
}


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
        return SchemaStatus(display_url(parsed), "missing", None, newest_revision())
    if parsed.drivername == "dynamodb":
        return _dynamodb_status(url, settings or StoreSettings())
    with connected(parsed, settings or StoreSettings()) as connection:
        return schema_status(connection)


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


def schema_status(connection: Connection) -> SchemaStatus:
    found, compatible_from = recorded_version(connection)
    expected, known = newest_revision(), known_revisions()
    state: SchemaState
    if found is None:
        state = "missing"
    elif found == expected:
        state = "current"
    elif found in known:
        state = "old"
    else:
        state = "compatible" if compatible_from in known else "new"
    url = display_url(connection.engine.url.set(drivername=connection.dialect.name))
    return SchemaStatus(url, state, found, expected)


def recorded_version(connection: Connection) -> tuple[str | None, str | None]:
    """Returns the revision of the schema, and the oldest revision whose code can use it, as far as they are known."""
    if not connection.exec_driver_sql(_TABLE_EXISTS[connection.dialect.name]).scalar():
        return None, None
    row = connection.exec_driver_sql(f"SELECT * FROM {VERSION_TABLE}").mappings().first()
    return (None, None) if row is None else (row["version_num"], row.get(COMPATIBLE_FROM))


@contextmanager
def connected(url: URL, settings: StoreSettings) -> Iterator[Connection]:
    """Raises Unavailable, or what `access_error` returns."""
    engine = sync_engine(url, settings)
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise access_error(display_url(url), error.orig) or Unavailable(f"{display_url(url)}: {error.orig}") from error
    finally:
        engine.dispose()
