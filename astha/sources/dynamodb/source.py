"""`DynamoSource`: the commit log of a registry in DynamoDB, from the mark that was last acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock, SystemLoopClock
from astha.errors import ChangesLost, LeadershipLost, SourceLost
from astha.settings.groups import TailSettings
from astha.sources.contract import Batch, Gap, Replay, SourceStatus, Started
from astha.sources.dynamodb.acknowledged_mark import Acknowledged, AcknowledgedMark, WaitingMarks
from astha.sources.dynamodb.decode import EntryDecoder
from astha.sources.dynamodb.log_follower import LogFollower
from astha.sources.limits import TransactionLimits
from astha.tasks import cancel_and_wait, to_completion
from registry.dynamodb_url import parse_endpoint
from registry.errors import RegistryError
from registry.position import Position
from registry.stores.dynamodb.client import DynamoClient
from registry.stores.dynamodb.commit_log import CommitLog, LogBroken, Mark

log = structlog.get_logger(__name__)

T = TypeVar("T")

_RETRY = Backoff(initial_s=0.2, max_s=5.0)
_FIRST_START = "the first start of this group, or it is not known what was received before"
_ANOTHER_TABLE = "the registry is another table than the one that was read before"


class DynamoSource:
    """Any number of groups may read one registry: reading deletes nothing, and each group has its own mark.

    A stream begins with a Gap if the group has no mark in this table, or if the log does not continue after it. A
    stream whose table is replaced raises LeadershipLost, and the next one begins with a Gap.
    """

    def __init__(
        self,
        url: str,
        group: str = "astha",
        *,
        limits: TransactionLimits | None = None,
        settings: TailSettings | None = None,
        clock: LoopClock | None = None,
    ) -> None:
        self._client = DynamoClient(parse_endpoint(url))
        self._log = CommitLog(self._client)
        self._stored = AcknowledgedMark(self._client, group)
        self._limits = limits or TransactionLimits()
        self._settings = settings or TailSettings()
        self._clock = clock or SystemLoopClock()
        self._follower: LogFollower | None = None
        self._waiting = WaitingMarks()
        self._table: str | None = None  # that positions belong to
        self._received = self._acknowledged = Position(0)
        self._mark: Mark | None = None  # acknowledged, to be stored
        self._restarting = False  # between a Gap and the position that follows
        self._due = asyncio.Event()
        self._closed = asyncio.Event()

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        """One stream at a time."""
        if self._follower is not None:
            raise RuntimeError(f"{self._client.where} is already being streamed")
        self._closed.clear()
        follower = self._follower = self._new_follower(tables)
        storing = asyncio.create_task(self._store_marks(), name="acknowledged mark")
        try:
            mark, gap = await self._retrying(self._find_start)
            while True:
                if gap is not None:
                    self._begin_gap()
                    yield Gap(gap)
                    mark = await self._retrying(self._end_gap)
                yield self._started(mark)
                try:
                    async with aclosing(self._batches(follower, mark)) as batches:
                        async for batch in batches:
                            yield batch
                except LogBroken as broken:
                    gap = str(broken)
                    log.warning("changes may be missing: components refresh", reason=gap)
                    await self._retrying(self._require_same_table)
                else:
                    return
        finally:
            await cancel_and_wait(storing)
            await to_completion(self._end_stream())

    async def _batches(self, follower: LogFollower, mark: Mark) -> AsyncGenerator[Batch, None]:
        """Ends when the source is closed."""
        async with aclosing(follower.follow(mark)) as followed:
            while True:
                step = asyncio.ensure_future(anext(followed))
                closed = asyncio.ensure_future(self._closed.wait())
                try:
                    await asyncio.wait({step, closed}, return_when=asyncio.FIRST_COMPLETED)
                    if not step.done():
                        return
                    batch, marks = step.result()
                finally:
                    await cancel_and_wait(closed, step)
                if marks[-1].sequence > self._received:
                    self._waiting.add(marks)
                self._received = Position(marks[-1].sequence)
                yield batch

    async def replay(self, tables: frozenset[str], after: Position) -> Replay:
        """Reads the log once more, beside the stream."""
        if self._table is None:
            raise SourceLost(f"{self._client.where} is not being read")
        try:
            mark = await self._log.mark_at(after)
            if mark is None:
                raise ChangesLost(f"commit {after} is not in the log any more")
            async with aclosing(self._new_follower(tables).follow(mark)) as followed:
                async for batch, _ in followed:
                    yield batch
        except LogBroken as error:
            raise ChangesLost(str(error)) from error
        except RegistryError as error:
            raise SourceLost(f"the commit log can't be replayed: {error}") from error

    def acknowledge(self, position: Position) -> None:
        if position <= self._acknowledged or self._restarting:
            return
        self._acknowledged = position
        mark = self._waiting.acknowledge(position)
        if mark is not None:
            self._mark = mark
            self._due.set()

    def retained_for(self, position: Position) -> int:
        """An estimate. DynamoDB removes entries after a day, whether they were read or not."""
        follower = self._follower
        if follower is None:
            return 0
        return int(max(max(follower.end, self._received) - position, 0) * follower.entry_bytes)

    def status(self) -> SourceStatus:
        """`retained_bytes` is an estimate: the number of unacknowledged entries times their recent average size."""
        follower = self._follower
        end = None if follower is None else max(follower.end, self._received)
        failure = "not streaming" if follower is None else follower.failure
        retained = None if follower is None else self.retained_for(self._acknowledged)
        return SourceStatus(
            connected=failure is None,
            received=self._received,
            acknowledged=self._acknowledged,
            retained_bytes=retained,
            wal_status=None,
            detail=failure or (None if follower is None else follower.decode_error),
            server=end,
            unit="changes",
        )

    async def close(self) -> None:
        """Ends the stream, if there is one: its consumer gets no more batches."""
        self._closed.set()
        if self._follower is None:
            await self._client.close()

    def _new_follower(self, tables: frozenset[str]) -> LogFollower:
        decoder = EntryDecoder(tables, self._limits)
        return LogFollower(self._log, decoder, self._clock, self._settings.poll_s)

    # -- where to start ----------------------------------------------------------------------------------

    async def _find_start(self) -> tuple[Mark, str | None]:
        """Returns the mark to continue from, or why there is none."""
        table, stored = await self._client.table_identity(), await self._stored.read()
        gap = None
        if stored is None or (self._table is not None and table != self._table):
            gap = _FIRST_START
        elif stored.table != table:
            gap = _ANOTHER_TABLE
        self._table, self._mark = table, None
        self._waiting.clear()
        mark = Mark(0, "") if stored is None else stored.mark
        self._received = self._acknowledged = Position(0 if gap else mark.sequence)
        return mark, gap

    def _begin_gap(self) -> None:
        self._restarting, self._mark = True, None
        self._received = self._acknowledged = Position(0)
        self._waiting.clear()

    async def _end_gap(self) -> Mark:
        """The consumer has taken the Gap: the start of the new history is stored. After an earlier crash the next start
        finds the gap again.
        """
        await self._require_same_table()
        assert self._table is not None  # noqa: S101  (found before)
        mark = await self._log.end()
        await self._stored.write(Acknowledged(mark, self._table))
        return mark

    def _started(self, mark: Mark) -> Started:
        position = Position(mark.sequence)
        self._received = self._acknowledged = position
        self._restarting = False
        return Started(position)

    async def _require_same_table(self) -> None:
        """Raises LeadershipLost if the table was replaced: position, lease and ledger belong to one table."""
        if await self._client.table_identity() != self._table:
            raise LeadershipLost(f"{self._client.where} is another table now: starting over with it")

    # -- the acknowledged mark ---------------------------------------------------------------------------

    async def _store_marks(self) -> None:
        while True:
            await self._due.wait()
            await self._clock.sleep(self._settings.trim_every_s)
            self._due.clear()
            try:
                await self._store_mark()
            except RegistryError as error:
                log.info("acknowledged position can't be stored, retrying later", error=str(error))
                self._due.set()

    async def _store_mark(self) -> None:
        mark, table = self._mark, self._table
        if mark is None or table is None or self._restarting:
            return
        await self._stored.write(Acknowledged(mark, table))
        if self._mark == mark:
            self._mark = None

    async def _end_stream(self) -> None:
        try:
            await self._store_mark()
        except RegistryError as error:
            log.info("acknowledged position is not stored; commits after the last one repeat", error=str(error))
        finally:
            self._follower = None
            if self._closed.is_set():
                await self._client.close()

    async def _retrying(self, call: Callable[[], Awaitable[T]]) -> T:
        def log_retry(error: BaseException, _failures: int, wait_s: float) -> None:
            if self._follower is not None:
                self._follower.failure = str(error)
            log.warning("registry can't be read, retrying", error=str(error), wait_s=round(wait_s, 3))

        result: T
        async for attempt in _RETRY.retrying(
            self._clock, retry_on=lambda error: isinstance(error, RegistryError), on_retry=log_retry
        ):
            with attempt:
                result = await call()
        return result
