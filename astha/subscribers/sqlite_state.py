"""State of a component in a SQLite file, committed together with the position: each transaction has its effect once.

The daemon delivers at least once: after a crash between an effect and its acknowledgement, a transaction is delivered
again. `SqliteState` recognises it, because the file contains the position of the last transaction that took effect.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from registry.position import Position

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"  # those are its own
_PROGRESS = "CREATE TABLE astha_progress (position INTEGER NOT NULL)"


class SqliteState:
    """`schema` are the statements that create the component's tables. The first refresh creates the file.

    A file that was deleted or is from another version of the component fails deliveries with `sqlite3.Error`; the
    refresh that follows them writes it again. The calls block, so they have to be short.
    """

    def __init__(self, path: str, *schema: str) -> None:
        self._path = path
        self._schema = schema
        self.duplicates = 0  # transactions that were delivered again

    @contextmanager
    def transaction(self, position: Position) -> Iterator[sqlite3.Connection | None]:
        """Yields a connection whose changes are committed with `position`, or rolled back if the block raises.
        Yields None if the transaction at this position has had its effect already.
        """
        with self._exclusive() as database:
            (done,) = database.execute("SELECT position FROM astha_progress").fetchone()
            if position <= done:
                self.duplicates += 1
                yield None
                return
            yield database
            database.execute("UPDATE astha_progress SET position = ?", (position,))

    @contextmanager
    def rebuild(self) -> Iterator[sqlite3.Connection]:
        """Yields a connection to new, empty tables, which replace the old ones when the block ends.

        The position becomes 0: the daemon delivers nothing that the refresh contained, and a replaced registry may
        count positions from the start.
        """
        with self._exclusive() as database:
            for (table,) in database.execute(_TABLES).fetchall():
                database.execute(f'DROP TABLE "{table}"')
            for statement in (*self._schema, _PROGRESS, "INSERT INTO astha_progress VALUES (0)"):
                database.execute(statement)
            yield database

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as database:
            return database.execute(statement, values).fetchall()

    def is_writable(self) -> bool:
        """For `on_health`. Raises `sqlite3.Error`, which says why, if the file can't be written now."""
        with self._exclusive():
            return True

    @contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
