"""SQLAlchemy connections to a SQLite file that may be replaced at any time. See `registry.sqlite_file`."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from registry.sqlite_file import FileIdentity, OpenFile, set_aside_stale_wal

_FILE = "file"


def open_existing(engine: Engine, path: Path) -> None:
    """Makes connections remember the file they opened, and never create it. Register pragmas before this."""

    @event.listens_for(engine, "do_connect")
    def find(
        _: Dialect, entry: ConnectionPoolEntry, arguments: list[object], options: dict[str, object]
    ) -> DBAPIConnection | None:
        if not path.exists():
            raise OSError(  # not FileNotFoundError, which the lake treats as a missing data file
                f"{path} does not exist: put the registry back, or create an empty one with `astha registry migrate`"
            )
        set_aside_stale_wal(path)
        entry.info[_FILE] = OpenFile(path, FileIdentity.of(path))
        arguments[:1] = [f"{path.absolute().as_uri()}?mode=rw"]
        options["uri"] = True
        return None

    @event.listens_for(engine, "connect")
    def remember(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT count(*) FROM sqlite_master")  # opens the write-ahead log
        cursor.fetchall()
        cursor.close()
        expected: OpenFile = entry.info[_FILE]
        opened = entry.info[_FILE] = OpenFile.of(path)
        if opened.identity != expected.identity:
            raise OSError(f"{path} was replaced while it was being opened")


def opened_file(entry: ConnectionPoolEntry) -> OpenFile:
    """Returns the file that a connection of such an engine has open."""
    found: OpenFile = entry.info[_FILE]
    return found


def follow_file(engine: Engine, path: Path) -> None:
    """`open_existing`, and discards a connection to a replaced file at its next checkout.

    Not for an async engine: a caller that is cancelled while SQLAlchemy discards a connection leaves it in the pool
    with its thread ended, and the next caller waits for that thread forever.
    """
    open_existing(engine, path)

    @event.listens_for(engine, "checkout")
    def compare(_: DBAPIConnection, entry: ConnectionPoolEntry, __: PoolProxiedConnection) -> None:
        opened = opened_file(entry)
        if not opened.current:
            opened.set_aside_wal()
            raise DisconnectionError(f"{path} was replaced or removed")
