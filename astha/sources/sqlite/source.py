"""The SQLite change log as a `Source`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator

import structlog
from tenacity import AsyncRetrying

from astha.backoff import Backoff
from astha.clock import LoopClock, SystemLoopClock
from astha.errors import LeadershipLost, SourceLost
from astha.settings.groups import TailSettings as TailSettings
from astha.sources.contract import Batch, Gap, Progress, Replay, SourceStatus, Started
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.acknowledged_mark import AcknowledgedMark
from astha.sources.sqlite.commit_watcher import CommitWatcher, PollIntervals
from astha.sources.sqlite.reader import LogReader, newest, oldest
from astha.sources.sqlite.reader_thread import ReaderThread
from astha.sources.sqlite.trimmer import Trimmer
from astha.tasks import cancel_and_wait, to_completion
from registry.contract import MetadataStore
from registry.engines import parse_url, sqlite_path
from registry.errors import RegistryError
from registry.position import Position
from registry.sqlite_file import FileIdentity

log = structlog.get_logger(__name__)

_START = Position(0)
_RETRY = Backoff(initial_s=0.5, max_s=0.5)


_NAME = "change_log"
"""The key of the file's identity in the registry."""


class SqliteSource:
    """The only tail of one file: two would delete each other's rows.

    A transaction's position is the sequence of its last row; its number is the one that its writer announced, or the
    negative of its first sequence. With a `store` the stream starts at the oldest row in the log, and begins with a Gap
    if the file is not the one whose identity is recorded in the store. Without a store, `acknowledged` and `identity`
    give the start and the file that it belongs to.

    After a Gap, positions belong to the new history, and only such positions may be acknowledged. With a `store`, a
    stream whose file is replaced raises LeadershipLost, and the next one begins with a Gap.
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
        intervals: PollIntervals | None = None,
        clock: LoopClock | None = None,
    ) -> None:
        self._path = sqlite_path(parse_url(url))
        self._store = store
        self._acknowledged = self._received = acknowledged
        self._expected = identity
        self._limits = limits or TransactionLimits()
        self._settings = settings or TailSettings()
        self._intervals = intervals
        self._clock = clock or SystemLoopClock()
        self._trimmer = Trimmer(self._path, acknowledged)
        self._mark = AcknowledgedMark(self._path)
        self._trim_due = asyncio.Event()
        self._tail: ReaderThread | None = None
        self._restarting = False  # between a Gap and the position that follows
        self._file: FileIdentity | None = None  # that positions belong to

    @property
    def identity(self) -> str | None:
        """The identity of the file that positions belong to; None before the first batch."""
        return None if self._file is None else str(self._file)

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        """One stream at a time. Other tables are not decoded; their transactions yield a Progress."""
        if self._tail is not None:
            raise RuntimeError(f"{self._path} is already being streamed")
        if self._store is not None:
            await self._find_start(self._store)
        expected = self.identity or self._expected
        reader = LogReader(self._path, tables, self._limits, self._acknowledged, expected)
        tail = self._tail = ReaderThread(
            reader, CommitWatcher(self._path, self._intervals, inotify=self._settings.inotify)
        )
        self._trim_due.set()  # for rows that an earlier run acknowledged
        started = False
        trimming = asyncio.create_task(self._trim(), name="change log trimming")
        try:
            while True:
                batch = await tail.next()
                if batch is None:
                    return
                if isinstance(batch, Gap):
                    self._require_same_file(batch, tail.reader)
                self._update(batch, tail.reader)
                if isinstance(batch, Progress) and not started:
                    await self._record_identity()
                    batch = Started(batch.position)
                started = not isinstance(batch, Gap)
                yield batch
        finally:
            self._tail = None
            await cancel_and_wait(trimming)
            await tail.stop()
            await asyncio.to_thread(self._trimmer.close)
            await asyncio.to_thread(self._keep_mark)

    async def replay(self, tables: frozenset[str], after: Position) -> Replay:
        """Uses a reader of its own, which deletes nothing. Only acknowledged rows may be missing."""
        if self._file is None:
            raise SourceLost(f"{self._path} is not being read")
        reader = LogReader(self._path, tables, self._limits, after, str(self._file))
        tail = ReaderThread(reader, self._watcher())
        try:
            while (batch := await tail.next()) is not None:
                if isinstance(batch, Gap):
                    raise SourceLost(f"the change log can't be replayed: {batch.reason}")
                if not isinstance(batch, Started):
                    yield batch
            raise SourceLost("the replay has ended")
        finally:
            await to_completion(tail.stop())

    def acknowledge(self, position: Position) -> None:
        if position > self._acknowledged and not self._restarting:
            self._acknowledged = position
            self._trim_due.set()

    def status(self) -> SourceStatus:
        """`retained_bytes` is an estimate: the number of rows in the log times the average size of recent rows."""
        tail, retained, decode_error = self._tail, None, None
        failure: str | None = "not streaming"
        if tail is not None:
            reader, failure, decode_error = tail.reader, tail.failure, tail.reader.decode_error
            retained = int(max(reader.last - self._trimmer.trimmed, 0) * reader.row_bytes)
        return SourceStatus(
            connected=failure is None,
            received=self._received,
            acknowledged=self._acknowledged,
            retained_bytes=retained,
            wal_status=None,
            detail=failure or decode_error,
            server=None if tail is None else tail.reader.last,
            unit="changes",
        )

    async def close(self) -> None:
        """Ends the stream, if there is one: its consumer gets no more batches."""
        if self._tail is not None:
            await self._tail.stop()

    def _watcher(self) -> CommitWatcher:
        return CommitWatcher(self._path, self._intervals, inotify=self._settings.inotify)

    def _require_same_file(self, gap: Gap, reader: LogReader) -> None:
        """Raises LeadershipLost if the file was replaced: position, lease and ledger belong to one file."""
        if self._store is not None and self._file is not None and reader.identity != self._file:
            raise LeadershipLost(f"{gap.reason}: starting over with it")

    def _update(self, batch: Batch, reader: LogReader) -> None:
        """Updates the trimmer's bounds together with what the consumer sees."""
        match batch:
            case Gap():
                self._file, self._expected = reader.identity, None
                self._received = self._acknowledged = Position(0)
                self._restarting = True
            case Progress(position) | Started(position):
                self._file = self._file or reader.identity
                self._received = position
                if self._restarting:  # no component needs the rows before this position
                    self._restarting = False
                    self._acknowledged = self._trimmer.trimmed = position
                    self._trim_due.set()
            case Started():
                pass  # made in `stream`, from the reader's first progress
            case _:
                self._received = batch[-1].position

    async def _find_start(self, store: MetadataStore) -> None:
        """Finds where an earlier run stopped, from the rows that it has not trimmed."""
        async for attempt in self._retrying("registry can't be read", RegistryError, sqlite3.Error, OSError):
            with attempt:
                recorded = await store.get_source_identity(_NAME)
                start = await asyncio.to_thread(oldest, self._path)
                end, marked = await asyncio.to_thread(newest, self._path), await asyncio.to_thread(self._mark.read)
        known = None if recorded is None else recorded.identity
        if self.identity is not None and self.identity != known:
            known = None  # another file was in its place meanwhile, and components have followed that one
        if end < marked:
            log.warning("registry was restored", last_change=end, acknowledged=marked)
            known = None
        self._expected = known or "none: first start, or another file"
        self._acknowledged = self._received = self._trimmer.trimmed = start
        self._file = None

    async def _record_identity(self) -> None:
        """Call after the consumer has taken the Gap: after an earlier crash, the next start finds the gap again."""
        if self._store is None or self.identity is None:
            return
        async for attempt in self._retrying("file identity can't be recorded", RegistryError):
            with attempt:
                await self._store.record_source_identity(_NAME, self.identity)

    def _retrying(self, event: str, *errors: type[Exception]) -> AsyncRetrying:
        def log_retry(error: BaseException, _failures: int, wait_s: float) -> None:
            log.warning(f"{event}, retrying", error=str(error), wait_s=round(wait_s, 3))

        return _RETRY.retrying(self._clock, retry_on=lambda error: isinstance(error, errors), on_retry=log_retry)

    def retained_for(self, position: Position) -> int:
        tail = self._tail
        return 0 if tail is None else int(max(tail.reader.last - position, 0) * tail.reader.row_bytes)

    async def _trim(self) -> None:
        """Trims at most to the acknowledged position, and to what was read of the present file."""
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
                log.info("change log can't be trimmed, retrying later", error=str(error))
                self._trim_due.set()

    def _keep_mark(self) -> None:
        """Only for positions of the file that is there now."""
        if self._store is not None and self._file is not None and not self._restarting:
            self._mark.write(min(self._acknowledged, self._received))

    async def _trim_once(self) -> float | None:
        if self._file is None:
            raise OSError(f"{self._path} has not been read yet")
        await asyncio.to_thread(self._keep_mark)
        return await asyncio.to_thread(self._trimmer.trim, min(self._acknowledged, self._received), self._file)
