"""Database engines from registry URLs: all knowledge of drivers, pools, pragmas and server settings.

Connections are in the driver's autocommit mode, so a verb of one statement costs one round trip; verbs of several
statements send BEGIN and COMMIT themselves. The pool rolls back what a cancelled or failed verb leaves open.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import msgspec
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from registry import cockroachdb
from registry.dynamodb_url import Endpoint, parse_endpoint
from registry.errors import Invalid, PermissionDenied, ReadOnly, RegistryError
from registry.private_files import FILE, create_file
from registry.sqlite_connections import open_existing

SQLITE_MINIMUM = (3, 37)  # strict tables

_INTEGERS = frozenset(
    ("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
)
_BACKENDS = "sqlite, postgresql, cockroachdb or dynamodb"
_SECRET = ("password", "secret", "scram")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    pool_size: int = 10
    pool_overflow: int = 10
    pool_timeout_s: float = 10.0
    connect_timeout_s: int = 10
    statement_timeout_s: float = 30.0  # PostgreSQL and CockroachDB; 0 for none
    busy_timeout_s: float = 30.0  # SQLite and CockroachDB: how long a writer waits for others
    read_units: int | None = None  # DynamoDB: provisioned capacity of a new table; None: on demand
    write_units: int | None = None
    file_mode: int = FILE  # SQLite: mode of a new file, and of its -wal and -shm


def parse_url(text: str) -> URL:
    """Takes ``sqlite:///file.db``, ``sqlite:////abs/file.db``, a ``postgresql://`` or ``cockroachdb://`` URL with any
    libpq parameters, or ``dynamodb://region/table``.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Neither the text nor the cause is shown: they may contain a password.
        raise Invalid("registry URL", "...", "is not a URL, such as sqlite:///registry.db") from None
    if "@" in (url.host or ""):
        # The part before the last @ belongs to the password, and would be shown as a host.
        raise Invalid("registry URL", "...", "has an @ in its password: write %40, and escape other signs, too")
    kind = url.drivername.partition("+")[0]
    if kind == "sqlite":
        if not url.database or url.database == ":memory:" or "uri" in url.query:
            raise Invalid("registry URL", display_url(url), "SQLite needs a file, not an in-memory database")
        if url.query:
            raise Invalid(
                "registry URL", display_url(url), f"SQLite takes no parameters: remove {', '.join(url.query)}"
            )
        return url.set(drivername="sqlite")
    if kind in ("postgresql", "postgres"):
        _check_parameters(url)
        return url.set(drivername="postgresql")
    if kind == cockroachdb.NAME:
        _check_parameters(url)
        if not url.database:
            raise Invalid("registry URL", display_url(url), "names no database: cockroachdb://user@host:26257/registry")
        return url.set(drivername=cockroachdb.NAME)
    if kind == "dynamodb":
        parse_endpoint(text)
        return url
    raise Invalid("registry URL", display_url(url), f"unknown backend: use {_BACKENDS}")


def _check_parameters(url: URL) -> None:
    """Raises an Invalid that names the parameter that libpq does not know or can't parse."""
    known = _libpq_parameters()
    for name, value in url.query.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f": did you mean {close[0]}?" if close else ": PostgreSQL's manual lists the parameters"
            raise Invalid("registry URL", display_url(url), f"libpq has no parameter {name!r}{hint}")
        if name == "replication":
            raise Invalid("registry URL", display_url(url), "Astha sets replication itself: remove it")
        if name in ("host", "port"):  # repeated for several servers
            continue
        if not isinstance(value, str):
            raise Invalid("registry URL", display_url(url), f"the parameter {name} is given more than once")
        if name in _INTEGERS and not value.removeprefix("-").isdecimal():
            raise Invalid("registry URL", display_url(url), f"the parameter {name} must be an integer, not {value!r}")
    try:
        dialect = url.set(drivername="postgresql+psycopg").get_dialect()()
        dialect.create_connect_args(url)
    except ArgumentError as error:
        raise Invalid("registry URL", display_url(url), str(error)) from None


@cache
def _libpq_parameters() -> frozenset[str]:
    from psycopg import pq

    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())


def display_url(url: URL) -> str:
    """Returns the URL for messages and logs, without the password, in whatever libpq parameter it is given."""
    if url.drivername == "dynamodb":
        return Endpoint(url.host or "", url.database or "", str(url.query.get("endpoint", "")) or None).shown
    secrets = [name for name in url.query if any(word in name for word in _SECRET)]
    return url.difference_update_query(secrets).render_as_string(hide_password=True)


def access_error(where: str, error: BaseException | None) -> RegistryError | None:
    """Returns the registry's error for a driver's error about missing privileges or read-only access, else None."""
    if isinstance(error, sqlite3.Error):
        read_only = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY
        return ReadOnly(f"{where} takes no writes: {error}") if read_only else None
    import psycopg  # here: a process on SQLite does not need it

    if isinstance(error, psycopg.Error):
        message = error.diag.message_primary or str(error).strip()
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return PermissionDenied(f"{where}: {message}: run `astha check`, which names what the role lacks")
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            return ReadOnly(f"{where} takes no writes: {message}")
    return None


def url_secrets(text: str) -> Iterator[str]:
    """Yields the passwords in a URL."""
    url = parse_url(text)
    if url.password:
        yield str(url.password)
    for name, value in url.query.items():
        if any(word in name for word in _SECRET):
            yield from (value,) if isinstance(value, str) else value


def sync_engine(url: URL, settings: StoreSettings) -> Engine:
    """Returns an engine for migrations, which create the file of a new registry. It has no pool."""
    if url.drivername == "sqlite":
        engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        _create_file_on_connect(engine, settings.file_mode)
        return _set_pragmas_on_connect(engine, settings)
    options = _server_options(url, settings, statement_timeout_s=0)
    return create_engine(
        server_driver(url),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        connect_args=options,
    )


def async_engine(url: URL, settings: StoreSettings) -> AsyncEngine:
    if url.drivername == "sqlite":
        engine = create_async_engine(
            url.set(drivername="sqlite+aiosqlite"),
            isolation_level="AUTOCOMMIT",
            pool_size=settings.pool_size,
            max_overflow=settings.pool_overflow,
            pool_timeout=settings.pool_timeout_s,
        )
        _set_pragmas_on_connect(engine.sync_engine, settings)
        open_existing(engine.sync_engine, sqlite_path(url))
        _roll_back_on_invalidate(engine.sync_engine)
        return engine
    return create_async_engine(
        server_driver(url),
        isolation_level="AUTOCOMMIT",
        pool_size=settings.pool_size,
        max_overflow=settings.pool_overflow,
        pool_timeout=settings.pool_timeout_s,
        pool_use_lifo=True,
        json_deserializer=_as_text,
        connect_args=_server_options(url, settings, settings.statement_timeout_s),
    )


def server_driver(url: URL) -> URL:
    """Returns the URL for SQLAlchemy's engines, with the dialect of this server over psycopg."""
    if url.drivername == cockroachdb.NAME:
        from registry.cockroachdb import dialect  # here: it imports PostgreSQL's, which processes on SQLite don't need

        return dialect.driver(url)
    return url.set(drivername="postgresql+psycopg")


def sqlite_path(url: URL) -> Path:
    assert url.database is not None  # noqa: S101  (parse_url checked it)
    return Path(url.database)


def _create_file_on_connect(engine: Engine, mode: int) -> None:
    path = sqlite_path(engine.url)

    @event.listens_for(engine, "do_connect")
    def create(*_: object) -> None:
        with contextlib.suppress(OSError):  # the connection attempt reports it
            create_file(path, mode)


def _set_pragmas_on_connect(engine: Engine, settings: StoreSettings) -> Engine:
    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(settings.busy_timeout_s * 1000)}")
        _switch_to_wal(cursor, settings.busy_timeout_s)
        cursor.execute("PRAGMA synchronous = FULL")  # an acknowledged commit survives a power cut
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    return engine


def _switch_to_wal(cursor: DBAPICursor, limit_s: float) -> None:
    """Retries, because SQLite's busy timeout does not apply when two processes open a new file together."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _roll_back_on_invalidate(engine: Engine) -> None:
    """Rolls back before a connection is discarded, as happens when its user is cancelled.

    Closing is not enough: an unfinished statement keeps SQLite from closing the connection, and so the transaction and
    its lock stay until Python collects the statement.
    """

    @event.listens_for(engine, "invalidate")
    def roll_back(connection: DBAPIConnection, _: ConnectionPoolEntry, __: BaseException | None) -> None:
        # An error here is not useful: the one that led to the invalidation is already being raised.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            connection.rollback()


def _server_options(url: URL, settings: StoreSettings, statement_timeout_s: float) -> dict[str, str | int]:
    options = [url.query.get("options"), f"-c statement_timeout={int(statement_timeout_s * 1000)}"]
    if url.drivername == cockroachdb.NAME:
        options.append(f"-c lock_timeout={int(settings.busy_timeout_s * 1000)}")
    else:
        # The registry's pages are in memory or on an SSD: with the server's default, 4.0, the planner would rather scan
        # a whole table than look up two hundred rows by key.
        options.insert(0, "-c random_page_cost=1.1")
    defaults: dict[str, str | int] = {
        "application_name": "astha",
        "connect_timeout": settings.connect_timeout_s,
        # To notice a host that stopped responding: statement_timeout is enforced by the server, not here.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
    missing = {name: value for name, value in defaults.items() if name not in url.query}
    return {**missing, "options": " ".join(str(option) for option in options if option)}


def _as_text(value: str | bytes) -> str:
    """Leaves JSON columns as text: see `registry.json_text`."""
    return value if isinstance(value, str) else bytes(value).decode()
