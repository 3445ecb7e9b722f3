"""Deleting what everybody has done from the change log, without getting in a writer's way.

Each deletion is a transaction of a few milliseconds, sized by how long the one before took, and between two of them
writers have the file to themselves for several times as long. Nothing is synced for it: a deletion that a power cut
undoes is done again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from astha.sources.sqlite.reader import connect
from registry.position import Position
from registry.sqlite_file import FileIdentity

_BUSY_S = 0.1
_AIM_S = 0.004
_FIRST_ROWS, _MOST_ROWS = 200, 10_000
_REST = 5  # times as long as the deletion took

# A bound beyond the last change is of another history: nothing is deleted by it.
_OLDEST = """
    SELECT CASE WHEN ? <= coalesce(max(seq), 0) THEN (SELECT min(sequence) FROM change_log) END
    FROM sqlite_sequence WHERE name = 'change_log'
"""


class Trimmer:
    """Blocking, from any thread."""

    def __init__(self, path: Path, trimmed: Position) -> None:
        self.trimmed = trimmed  # next to nothing at or below is left in the log
        self._path = path
        self._one = threading.Lock()
        self._rows = _FIRST_ROWS
        self._connection: sqlite3.Connection | None = None
        self._identity: FileIdentity | None = None

    def trim(self, bound: Position, identity: FileIdentity) -> float | None:
        """One deletion at or below `bound`, if the file is still this one. Answers for how long to rest before the
        next, None when there is nothing more to delete. sqlite3.Error or OSError: not now, try later.
        """
        with self._one:
            return self._delete(self._connected(identity), bound)

    def close(self) -> None:
        """Waits for a deletion. Another `trim` opens it again."""
        with self._one:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _delete(self, connection: sqlite3.Connection, bound: Position) -> float | None:
        ((oldest,),) = connection.execute(_OLDEST, (bound,)).fetchall()
        if oldest is None or oldest > bound:
            self.trimmed = bound
            return None
        upper = min(bound, oldest + self._rows - 1)
        connection.execute("BEGIN IMMEDIATE")
        try:
            start = time.monotonic()
            connection.execute("DELETE FROM change_log WHERE sequence <= ?", (upper,))
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        took = time.monotonic() - start
        self.trimmed = Position(upper)
        self._rows = max(1, min(int(self._rows * _AIM_S / max(took, _AIM_S / 4)), _MOST_ROWS))
        return took * _REST if upper < bound else None

    def _connected(self, identity: FileIdentity) -> sqlite3.Connection:
        if self._connection is None or self._identity != identity:
            self._close()
            connection = connect(self._path, _BUSY_S)
            self._connection, self._identity = connection, identity
            connection.execute("PRAGMA synchronous = NORMAL")
        if FileIdentity.of(self._path) != identity:
            raise OSError(f"{self._path} is another file now")
        return self._connection
