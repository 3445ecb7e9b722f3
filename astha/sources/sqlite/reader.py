"""Reads the change log of one file: blocking, for one thread, in short statements that block no checkpoint.

Every read checks the history. SQLite numbers the log's rows without gaps and keeps the last number after rows are
deleted, so missing rows, and numbers that have gone back, show that this is not the log that was read before. So does
another file under the same name. The result is always a `Gap`, after which reading continues from the log's end at that
moment: a snapshot taken later contains the changes before it.
"""

from __future__ import annotations

import sqlite3
from itertools import takewhile
from pathlib import Path

import structlog

from astha.sources.contract import Batch, Gap, Progress
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.decode import HEADERS, LAST, LogDecoder, LogRow
from registry.position import Position
from registry.sqlite_file import FileIdentity, OpenFile

log = structlog.get_logger(__name__)

_MAX_ROWS = 1_000
_MAX_BYTES = 1024 * 1024
_HEADER_ROWS = 20_000
_BUSY_S = 1.0
_TRANSIENT = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR)  # the file is unchanged


class LogReader:
    """Call `read` in a loop; when the reader has `caught_up`, wait until the log has `changed`. After sqlite3.Error or
    OSError call `suspend`, wait and `read` again: that checks whether the history was broken meanwhile.
    """

    def __init__(
        self, path: Path, tables: frozenset[str], limits: TransactionLimits, start: Position, identity: str | None
    ) -> None:
        self.identity: FileIdentity | None = None
        self.last = start  # position of the log, at the last read
        self.caught_up = False  # whether the last `read` reached `last`
        self.row_bytes = 0.0  # average size of a row of the log
        self._path = path
        self._decoder = LogDecoder(tables, limits)
        self._limits = limits
        self._expected = identity
        self._cursor = start
        self._begun = False
        self._doubt: str | None = None  # why the history may have changed
        self._connection: sqlite3.Connection | None = None
        self._opened: OpenFile | None = None
        self._version = -1

    def _open(self) -> None:
        identity = FileIdentity.of(self._path)
        if self._opened is not None:
            self._opened.set_aside_wal()
        self.close()
        connection = connect(self._path, _BUSY_S)
        connection.execute("PRAGMA query_only = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._limits.size_bytes + _MAX_BYTES)
        self._connection, self._version = connection, -1
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()  # opens the write-ahead log
        self._opened = OpenFile.of(self._path)
        if self._opened.identity != identity:
            raise OSError(f"{self._path} was replaced while it was opened")
        self._opened.hold()
        if self.identity is not None and self.identity != identity:
            self._doubt = f"{self._path} is another file now"
        elif self._expected is not None and self._expected != str(identity):
            self._doubt = f"{self._path} is not the file that was read before this start"
        self.identity, self._expected = identity, None

    @property
    def decode_error(self) -> str | None:
        """The error of the last row that could not be decoded."""
        return self._decoder.decode_error

    def close(self) -> None:
        if self._opened is not None:
            self._opened.release()
            self._opened = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def suspend(self) -> None:
        """Call after a failure. Keeps the connection to a file that is gone, to tell that file's log from another."""
        if self._path.exists():
            self.close()

    def changed(self) -> bool:
        """Returns whether another connection has committed since the last `read`, or the file was replaced."""
        try:
            return self._data_version() != self._version or FileIdentity.of(self._path) != self.identity
        except (sqlite3.Error, OSError):
            return True  # `read` raises it

    def read(self) -> list[Batch]:
        """Returns the transactions that the next rows complete: none if all rows are within one transaction.

        The first call also returns the start as a Progress, or a Gap if reading can't start there.
        """
        try:
            if self._connection is None or FileIdentity.of(self._path) != self.identity:
                self._open()
            self.caught_up = False
            self._version = self._data_version()  # before reading, so that no commit is missed
            start = self._cursor
            batches = self._read()
            if not self._begun and not any(isinstance(batch, Gap) for batch in batches):
                batches.insert(0, Progress(start))
            self._begun = True
            return batches
        except FileNotFoundError:
            self._doubt = f"{self._path} was missing"
            raise
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _TRANSIENT:
                self._doubt = f"{self._path} could not be read for a while: {error}"
            raise

    def _read(self) -> list[Batch]:
        connection = self._connected()
        connection.execute("BEGIN")  # the first read fixes the snapshot
        try:
            ((last,),) = connection.execute(LAST).fetchall()
            self.last = Position(last)
            if self._doubt:
                return self._restart(self._doubt)
            if self.last < self._cursor:
                found = f"its last change is {self.last}, {self._cursor} had been read"
                return self._restart(f"{self._path} has gone back: {found}")
            rows = self._headers(connection) if self._decoder.oversized else self._rows(connection)
        finally:
            connection.execute("COMMIT")
        end = rows[-1][0] if rows else self.last
        if end - self._cursor != len(rows):
            found = f"{end - self._cursor - len(rows)} of those from {self._cursor + 1} to {end} are missing"
            return self._restart(f"{self._path} has lost changes that had not been read: {found}")
        return self._advance(rows)

    def _rows(self, connection: sqlite3.Connection) -> list[LogRow]:
        """Returns at most the rows that may be in memory together."""
        rows: list[LogRow] = []
        size = 0
        cursor = connection.cursor()
        try:
            for row in cursor.execute(self._decoder.statement, (self._cursor, _MAX_ROWS)):
                rows.append(row)
                size += len(row[5] or "") + len(row[6] or "")
                if size > _MAX_BYTES:
                    break
        except sqlite3.DataError as error:  # an image larger than the limit of a transaction
            if not rows:
                rows = connection.execute(HEADERS, (self._cursor, 1)).fetchall()
                log.warning("change too large to load", change=rows[0][0], table=rows[0][3], error=str(error))
        finally:
            cursor.close()
        if rows:
            self.row_bytes += (size / len(rows) - self.row_bytes) / 4
        return rows

    def _headers(self, connection: sqlite3.Connection) -> list[LogRow]:
        rows: list[LogRow] = connection.execute(HEADERS, (self._cursor, _HEADER_ROWS)).fetchall()
        return rows

    def _advance(self, rows: list[LogRow]) -> list[Batch]:
        """A transaction is complete when the next one begins or the log ends: a snapshot contains whole commits."""
        decoder, before, ended = self._decoder, self._decoder.reached, False
        if decoder.oversized:  # the rest of it needs only headers, the next one whole rows
            count = sum(1 for _ in takewhile(decoder.continues, rows))
            rows, ended = rows[:count], count < len(rows)
        done = decoder.feed(rows)
        if rows:
            self._cursor = Position(rows[-1][0])
        self.caught_up = self._cursor >= self.last
        if self.caught_up or ended:
            done += decoder.finish()
        batches: list[Batch] = [done] if done else []
        if decoder.reached is not None and decoder.reached != (done[-1].position if done else before):
            batches.append(Progress(decoder.reached))
        return batches

    def _restart(self, reason: str) -> list[Batch]:
        self._doubt = None
        self._decoder.reset()
        self._cursor = self._decoder.reached = self.last
        self.caught_up = True
        return [Gap(reason), Progress(self.last)]

    def _data_version(self) -> int:
        ((version,),) = self._connected().execute("PRAGMA data_version").fetchall()
        return int(version)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise OSError(f"{self._path} is not open")
        return self._connection


def oldest(path: Path) -> Position:
    """Returns the position just before the oldest change in the log."""
    connection = connect(path, _BUSY_S)
    try:
        ((position,),) = connection.execute(
            "SELECT coalesce((SELECT min(sequence) - 1 FROM change_log), max(seq), 0) "
            "FROM sqlite_sequence WHERE name = 'change_log'"
        ).fetchall()
        return Position(position)
    finally:
        connection.close()


def newest(path: Path) -> Position:
    """Returns the position of the last change ever made, trimmed or not."""
    connection = connect(path, _BUSY_S)
    try:
        ((position,),) = connection.execute(LAST).fetchall()
        return Position(position)
    finally:
        connection.close()


def connect(path: Path, busy_s: float) -> sqlite3.Connection:
    """Never creates the file: creating a registry is up to `astha registry migrate`."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
    )
