"""Reading the change log of one file: blocking, for one thread, in short statements that hold up no checkpoint.

History is checked at each step. SQLite numbers the log's rows without gaps and remembers the last number after rows
are deleted, so rows that are missing, and numbers that have gone back, show that this is no longer the log that was
read before. So does another file under the same name. The answer is always a `Gap`, after which reading goes on from
the log's end at that moment: a snapshot taken later contains it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from astha.errors import DecodeError
from astha.sources.contract import Batch, Gap, Progress
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.changelog import HEADERS, Header, LogDecoder, RowChange, Stretch, decode_headers
from astha.sources.sqlite.transactions import Assembler
from registry.position import Position

log = logging.getLogger(__name__)

_STRETCH_ROWS = 1_000  # decoding them holds the interpreter lock for a millisecond or two
_STRETCH_BYTES = 1024 * 1024
_LARGEST_TEXT = 8 * 1024 * 1024  # for several rows together; then fewer are tried
_HEADER_ROWS = 20_000
_BUSY_S = 1.0
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR)  # nothing happened to the file


class FileIdentity(msgspec.Struct, frozen=True):
    """Which file it is, whatever its name. A copy or a restored backup is another file."""

    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        """OSError if there is none."""
        found = path.stat()
        return cls(found.st_dev, found.st_ino)

    def __str__(self) -> str:
        return f"{self.device:x}:{self.inode:x}"


class LogReader:
    """`read` again and again; when it has `caught_up`, wait until it has `changed`. After sqlite3.Error or OSError,
    `close`, wait a little and `read` again: whether history was broken meanwhile is found out then.
    """

    def __init__(
        self, path: Path, tables: frozenset[str], limits: TransactionLimits, start: Position, identity: str | None
    ) -> None:
        self.identity: FileIdentity | None = None
        self.last = start  # of the log, when it was last looked at
        self.caught_up = False  # whether the last `read` has read it to there
        self.row_bytes = 0.0  # a row of the log, about
        self.complaint: str | None = None  # of the last row that could not be decoded
        self._path = path
        self._decoder = LogDecoder(tables)
        self._assembler = Assembler(tables, limits)
        self._limits = limits
        self._expected = identity
        self._cursor = start
        self._begun = False
        self._suspicion: str | None = None  # why history may be another
        self._rows = _STRETCH_ROWS
        self._connection: sqlite3.Connection | None = None
        self._version = -1

    def _open(self) -> None:
        identity = FileIdentity.of(self._path)
        connection = connect(self._path, _BUSY_S)
        connection.execute("PRAGMA query_only = ON")
        self._connection, self._version = connection, -1
        if FileIdentity.of(self._path) != identity:
            raise OSError(f"{self._path} was replaced while it was opened")
        if self.identity is not None and self.identity != identity:
            self._suspicion = f"{self._path} is another file now"
        elif self._expected is not None and self._expected != str(identity):
            self._suspicion = f"{self._path} is not the file that was read before this start"
        self.identity, self._expected = identity, None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def changed(self) -> bool:
        """Whether another connection has committed since the last `read`, or the file is no longer this one."""
        try:
            return self._data_version() != self._version or FileIdentity.of(self._path) != self.identity
        except (sqlite3.Error, OSError):
            return True  # `read` will say what it is

    def read(self) -> list[Batch]:
        """What the next stretch of the log completes: nothing, if it lies within one transaction or is empty.

        The first time also the position that reading starts from, to say that it does.
        """
        try:
            if self._connection is None or FileIdentity.of(self._path) != self.identity:
                self.close()
                self._open()
            self.caught_up = False
            self._version = self._data_version()  # before the reading, so that no commit falls in between
            start = self._cursor
            batches = self._read_on() if self._assembler.oversized else self._read()
            if not self._begun:
                self._begun = True
                batches.insert(0, Progress(start))
            return batches
        except FileNotFoundError:
            self._suspicion = f"{self._path} had vanished"
            raise
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _PASSING:
                self._suspicion = f"{self._path} could not be read for a while: {error}"
            raise

    def _read(self) -> list[Batch]:
        try:
            stretch = self._select(self._decoder.statement, self._rows)
            reason = self._suspicion or self._break(stretch)
            if reason:
                return self._begin_anew(reason)
            changes = self._decoder.decode(stretch)
        except (DecodeError, sqlite3.DataError) as error:
            return self._read_less(error)
        self._adapt(stretch)
        return self._advance(changes, stretch.reaches_the_end)

    def _read_on(self) -> list[Batch]:
        """The rest of a transaction that is too large to hold: its headers, and no row of the next."""
        stretch = self._select(HEADERS, _HEADER_ROWS)
        reason = self._suspicion or self._break(stretch)
        if reason:
            return self._begin_anew(reason)
        headers = list(takewhile(self._assembler.continues, decode_headers(stretch)))
        return self._advance(headers, len(headers) < stretch.count or stretch.reaches_the_end)

    def _read_less(self, error: Exception) -> list[Batch]:
        """Next time fewer rows. A single one that can't be held or understood goes on without its images, which
        means that who subscribes to its table refreshes.
        """
        if self._rows > 1:
            self._rows = max(self._rows // 8, 1)
            return []
        stretch = self._select(HEADERS, 1)
        headers = decode_headers(stretch)
        for header in headers:
            self.complaint = f"change {header.sequence} of {header.table} can't be read, a refresh replaces it: {error}"
            log.warning("%s", self.complaint)
        return self._advance(headers, stretch.reaches_the_end)

    def _advance(self, changes: Sequence[RowChange | Header], complete: bool) -> list[Batch]:
        """`complete`: after these rows no more of their transaction can come."""
        before = self._assembler.reached
        done = self._assembler.feed(changes)
        if changes:
            self._cursor = Position(changes[-1].sequence)
        self.caught_up = self._cursor >= self.last
        if complete:
            done += self._assembler.finish()
        reached = self._assembler.reached
        batches: list[Batch] = [done] if done else []
        if reached is not None and reached != (done[-1].position if done else before):
            batches.append(Progress(reached))
        return batches

    def _break(self, stretch: Stretch) -> str | None:
        if stretch.last < self._cursor:
            return f"{self._path} has gone back: its last change is {stretch.last}, {self._cursor} had been read"
        if stretch.last > self._cursor and stretch.first != self._cursor + 1:
            return f"{self._path} has lost changes after {self._cursor} that had not been read"
        if stretch.has_holes:
            return f"{self._path} has lost changes between {stretch.first} and {stretch.end}"
        return None

    def _begin_anew(self, reason: str) -> list[Batch]:
        self._suspicion = None
        self._assembler.reset()
        self._cursor = self._assembler.reached = self.last
        self.caught_up = True
        return [Gap(reason), Progress(self.last)]

    def _adapt(self, stretch: Stretch) -> None:
        if stretch.entries is not None:
            average = len(stretch.entries) / stretch.count
            self.row_bytes = average if not self.row_bytes else 0.9 * self.row_bytes + 0.1 * average
            self._rows = min(self._rows * 8, max(int(_STRETCH_BYTES / average), 1), _STRETCH_ROWS)

    def _select(self, statement: str, rows: int) -> Stretch:
        connection = self._connected()
        largest = _LARGEST_TEXT if rows > 1 else self._limits.size_bytes + _STRETCH_BYTES
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, largest)
        (row,) = connection.execute(statement, (self._cursor, rows)).fetchall()
        stretch = Stretch(*row)
        self.last = Position(stretch.last)
        return stretch

    def _data_version(self) -> int:
        ((version,),) = self._connected().execute("PRAGMA data_version").fetchall()
        return int(version)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise OSError(f"{self._path} is not open")
        return self._connection


def oldest(path: Path) -> Position:
    """What comes just before the oldest change that the log still has."""
    connection = connect(path, _BUSY_S)
    try:
        ((position,),) = connection.execute(
            "SELECT coalesce((SELECT min(sequence) - 1 FROM change_log), max(seq), 0) "
            "FROM sqlite_sequence WHERE name = 'change_log'"
        ).fetchall()
        return Position(position)
    finally:
        connection.close()


def connect(path: Path, busy_s: float) -> sqlite3.Connection:
    """Never creates the file: a registry that is not there yet is somebody else's to make."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
    )
