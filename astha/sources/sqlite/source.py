"""The SQLite change log as a `Source`."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from astha.sources.contract import Batch, Gap, Progress, SourceStatus, Started
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.reader import FileIdentity, LogReader
from astha.sources.sqlite.tail import Tail
from astha.sources.sqlite.trim import Trimmer
from astha.sources.sqlite.watch import Pace, Watch
from registry.engines import parse_url, sqlite_path
from registry.position import Position

log = logging.getLogger(__name__)


class TailSettings(msgspec.Struct, frozen=True, kw_only=True):
    trim_every_s: float = 0.5  # acknowledged rows stay in the log about so long
    inotify: bool = True
    pace: Pace = Pace()


class SqliteSource:
    """One tail of one file: two on the same file would take each other's rows away.

    A transaction's position is the sequence of its last row; its number is the one that its writer announced, or the
    negative of its first sequence if none did. `identity` is what `SqliteSource.identity` said when the acknowledged
    position was recorded: if the file is another one now, the stream begins with a Gap.

    After a Gap positions are those of the new history, and only such may be acknowledged.
    """

    def __init__(
        self,
        url: str,
        *,
        acknowledged: Position,
        identity: str | None = None,
        limits: TransactionLimits | None = None,
        settings: TailSettings | None = None,
    ) -> None:
        self._path = sqlite_path(parse_url(url))
        self._acknowledged = self._received = acknowledged
        self._expected = identity
        self._limits = limits or TransactionLimits()
        self._settings = settings or TailSettings()
        self._trimmer = Trimmer(self._path)
        self._trim_due = asyncio.Event()
        self._trimmer.trimmed = acknowledged
        self._tail: Tail | None = None
        self._anew = False  # between a Gap and the position that follows it
        self._file: FileIdentity | None = None  # that positions and acknowledgements are about

    @property
    def identity(self) -> str | None:
        """Which file is being read; None before the first batch."""
        return None if self._file is None else str(self._file)

    async def stream(self, tables: frozenset[str]) -> AsyncIterator[Batch]:
        """One at a time. The tables' rows are decoded; of the others only their positions are told (Progress)."""
        if self._tail is not None:
            raise RuntimeError(f"{self._path} is being streamed already")
        reader = LogReader(self._path, tables, self._limits, self._acknowledged, self._expected)
        settings = self._settings
        tail = self._tail = Tail(reader, Watch(self._path, settings.pace, inotify=settings.inotify))
        self._trim_due.set()  # what an earlier run left behind
        trimming = asyncio.create_task(self._trim(), name="change log trimming")
        try:
            while True:
                batch = await tail.next()
                if batch is None:
                    return
                self._note(batch, tail.reader)
                yield batch
        finally:
            self._tail = None
            trimming.cancel()
            with suppress(asyncio.CancelledError):
                await trimming
            await tail.stop()
            await asyncio.to_thread(self._trimmer.close)

    def acknowledge(self, position: Position) -> None:
        if position > self._acknowledged and not self._anew:
            self._acknowledged = position
            self._trim_due.set()

    def status(self) -> SourceStatus:
        """`retained_bytes` is an estimate from the rows that are in the log and the size of those last seen."""
        tail, retained, complaint = self._tail, None, None
        trouble: str | None = "not streaming"
        if tail is not None:
            reader, trouble, complaint = tail.reader, tail.trouble, tail.reader.complaint
            retained = int(max(reader.last - self._trimmer.trimmed, 0) * reader.row_bytes)
        return SourceStatus(
            connected=trouble is None,
            received=self._received,
            acknowledged=self._acknowledged,
            retained_bytes=retained,
            wal_status=None,
            detail=trouble or complaint,
        )

    async def close(self) -> None:
        """Ends the stream, if there is one: whoever iterates gets no more batches."""
        if self._tail is not None:
            await self._tail.stop()

    def _note(self, batch: Batch, reader: LogReader) -> None:
        """What the trimmer goes by changes together with what the consumer knows."""
        match batch:
            case Gap():
                self._file, self._expected = reader.identity, None
                self._received = self._acknowledged = Position(0)
                self._anew = True
            case Progress(position) | Started(position):
                self._file = self._file or reader.identity
                self._received = position
                if self._anew:  # whatever is before this position is nobody's any more
                    self._anew = False
                    self._acknowledged = self._trimmer.trimmed = position
                    self._trim_due.set()
            case _:
                self._received = batch[-1].position

    async def _trim(self) -> None:
        """Never beyond what has been acknowledged, nor beyond what has been read of the file that is there now."""
        while True:
            await self._trim_due.wait()
            await asyncio.sleep(self._settings.trim_every_s)
            self._trim_due.clear()
            try:
                rest = await self._trim_once()
                while rest is not None:
                    await asyncio.sleep(rest)
                    rest = await self._trim_once()
            except (sqlite3.Error, OSError) as error:
                log.info("the change log could not be trimmed, it will be later: %s", error)
                self._trim_due.set()

    async def _trim_once(self) -> float | None:
        if self._file is None:
            raise OSError(f"{self._path} has not been read yet")
        return await asyncio.to_thread(self._trimmer.trim, min(self._acknowledged, self._received), self._file)
