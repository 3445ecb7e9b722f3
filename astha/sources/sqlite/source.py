"""The SQLite change log as a `Source`."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import suppress

from astha.errors import Fenced, SourceLost
from astha.settings.groups import TailSettings as TailSettings
from astha.sources.contract import Batch, Gap, Progress, Replay, SourceStatus, Started
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.commit_watcher import Pace, Watch
from astha.sources.sqlite.reader import LogReader, oldest
from astha.sources.sqlite.reader_thread import Tail
from astha.sources.sqlite.trimmer import Trimmer
from registry.contract import MetadataStore
from registry.engines import parse_url, sqlite_path
from registry.errors import RegistryError
from registry.position import Position
from registry.sqlite_file import FileIdentity

log = logging.getLogger(__name__)

_START = Position(0)
_PAUSE_S = 0.5


_NAME = "change_log"
"""Under which the file's identity is recorded in the registry."""


class SqliteSource:
    """One tail of one file: two on the same file would take each other's rows away.

    A transaction's position is the sequence of its last row; its number is the one that its writer announced, or the
    negative of its first sequence if none did. The log is the memory: with a `store` it starts at what has not been
    trimmed yet, and if the file is not the one whose identity is recorded there, the stream begins with a Gap. Without,
    `acknowledged` and `identity` say where to start and which file that position belongs to.

    After a Gap positions are those of the new history, and only such may be acknowledged. With a `store`, a stream
    whose file is replaced raises Fenced, and the next one begins with a Gap.
    """

    def __init__(
        self,
        url: str,
        store: MetadataStore | None = None,
        *,
        acknowledged: Position = _START,
        identity: str | None = None,
        limits: TransactionLimits | None = None,
        settings: TailSettings | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._path = sqlite_path(parse_url(url))
        self._store = store
        self._acknowledged = self._received = acknowledged
        self._expected = identity
        self._limits = limits or TransactionLimits()
        self._settings = settings or TailSettings()
        self._pace = pace
        self._trimmer = Trimmer(self._path, acknowledged)
        self._trim_due = asyncio.Event()
        self._tail: Tail | None = None
        self._anew = False  # between a Gap and the position that follows it
        self._file: FileIdentity | None = None  # that positions and acknowledgements are about

    @property
    def identity(self) -> str | None:
        """Which file the positions are of; None before the first batch."""
        return None if self._file is None else str(self._file)

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        """One at a time. The tables' rows are decoded; of the others only their positions are told (Progress)."""
        if self._tail is not None:
            raise RuntimeError(f"{self._path} is being streamed already")
        if self._store is not None:
            await self._remember(self._store)
        expected = self.identity or self._expected
        reader = LogReader(self._path, tables, self._limits, self._acknowledged, expected)
        tail = self._tail = Tail(reader, Watch(self._path, self._pace, inotify=self._settings.inotify))
        self._trim_due.set()  # what an earlier run left behind
        started = False
        trimming = asyncio.create_task(self._trim(), name="change log trimming")
        try:
            while True:
                batch = await tail.next()
                if batch is None:
                    return
                if isinstance(batch, Gap):
                    self._require_same_file(batch, tail.reader)
                self._note(batch, tail.reader)
                if isinstance(batch, Progress) and not started:
                    await self._record_identity()
                    batch = Started(batch.position)
                started = not isinstance(batch, Gap)
                yield batch
        finally:
            self._tail = None
            trimming.cancel()
            with suppress(asyncio.CancelledError):
                await trimming
            await tail.stop()
            await asyncio.to_thread(self._trimmer.close)

    async def replay(self, tables: frozenset[str], after: Position) -> Replay:
        """A reader of its own, which deletes nothing. Acknowledged rows may be gone, others are not."""
        if self._file is None:
            raise SourceLost(f"{self._path} is not being read")
        reader = LogReader(self._path, tables, self._limits, after, str(self._file))
        tail = Tail(reader, Watch(self._path, self._pace, inotify=self._settings.inotify))
        try:
            while (batch := await tail.next()) is not None:
                if isinstance(batch, Gap):
                    raise SourceLost(f"the change log can't be read again: {batch.reason}")
                if not isinstance(batch, Started):
                    yield batch
            raise SourceLost("reading the change log again has ended")
        finally:
            await asyncio.shield(tail.stop())

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
            server=None if tail is None else tail.reader.last,
            unit="changes",
        )

    async def close(self) -> None:
        """Ends the stream, if there is one: whoever iterates gets no more batches."""
        if self._tail is not None:
            await self._tail.stop()

    def _require_same_file(self, gap: Gap, reader: LogReader) -> None:
        """Positions, lease and ledger of a daemon belong to one file: with another one it starts over."""
        if self._store is not None and self._file is not None and reader.identity != self._file:
            raise Fenced(f"{gap.reason}: starting over with it")

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
            case Started():
                pass  # made here, of the reader's first progress
            case _:
                self._received = batch[-1].position

    async def _remember(self, store: MetadataStore) -> None:
        """Where an earlier run left off, from what it left behind."""
        while True:
            try:
                recorded = await store.get_source_identity(_NAME)
                start = await asyncio.to_thread(oldest, self._path)
            except (RegistryError, sqlite3.Error, OSError) as error:
                log.warning("the registry can't be read, trying again: %s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            known = None if recorded is None else recorded.identity
            if self.identity is not None and self.identity != known:
                known = None  # another file was in its place meanwhile: components have followed that one
            self._expected = known or "none: first start, or another file"
            self._acknowledged = self._received = self._trimmer.trimmed = start
            self._file = None
            return

    async def _record_identity(self) -> None:
        """After a Gap has been taken note of: had we died before, the next start would find it again."""
        while self._store is not None and self.identity is not None:
            try:
                await self._store.record_source_identity(_NAME, self.identity)
                return
            except RegistryError as error:
                log.warning("the file's identity could not be recorded, trying again: %s", error)
                await asyncio.sleep(_PAUSE_S)

    def retained_for(self, position: Position) -> int:
        tail = self._tail
        return 0 if tail is None else int(max(tail.reader.last - position, 0) * tail.reader.row_bytes)

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
