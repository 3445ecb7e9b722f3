"""Deletes acknowledged rows from the change log without delaying writers.

Each deletion is a transaction of a few milliseconds, sized by the duration of the one before. Between two deletions
writers have the file to themselves for several times as long. Deletions are not synced: one that a power cut undoes is
repeated.
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
_TARGET_S = 0.004
_FIRST_ROWS, _MAX_ROWS = 200, 10_000
_REST_FACTOR = 5  # pause after a deletion, in multiples of its duration

# A bound beyond the last change belongs to another history: nothing is deleted.
_OLDEST = """
    SELECT CASE WHEN ? <= coalesce(max(seq), 0) THEN (SELECT min(sequence) FROM change_log) END
    FROM sqlite_sequence WHERE name = 'change_log'
"""


class Trimmer:
    """Blocking; callable from any thread."""

    def __init__(self, path: Path, trimmed: Position) -> None:
        self.trimmed = trimmed  # the log has hardly any row at or below
        self._path = path
        self._lock = threading.Lock()
        self._rows = _FIRST_ROWS
        self._connection: sqlite3.Connection | None = None
        self._identity: FileIdentity | None = None

    def trim(self, bound: Position, identity: FileIdentity) -> float | None:
        """Deletes some rows at or below `bound`, if the file is still this one. Returns the pause before the next
        deletion, or None if nothing is left to delete. Raises sqlite3.Error or OSError if it can't delete now.
        """
        with self._lock:
            return self._delete(self._connected(identity), bound)

    def close(self) -> None:
        """Waits for a running deletion. The next `trim` connects again."""
        with self._lock:
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
        self._rows = max(1, min(int(self._rows * _TARGET_S / max(took, _TARGET_S / 4)), _MAX_ROWS))
        return took * _REST_FACTOR if upper < bound else None

    def _connected(self, identity: FileIdentity) -> sqlite3.Connection:
        if self._connection is None or self._identity != identity:
            self._close()
            connection = connect(self._path, _BUSY_S)
            self._connection, self._identity = connection, identity
            connection.execute("PRAGMA synchronous = NORMAL")
        if FileIdentity.of(self._path) != identity:
            raise OSError(f"{self._path} was replaced by another file")
        return self._connection
