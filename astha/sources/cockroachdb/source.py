"""`CockroachSource`: connects, streams, reconnects, and reports gaps in the history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import psycopg
import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.errors import DecodeError, SourceLost, SourceReset
from astha.settings.groups import PostgresSourceSettings
from astha.sources.cockroachdb.acknowledged import AcknowledgedPosition
from astha.sources.cockroachdb.changefeed import Changefeed
from astha.sources.cockroachdb.cluster import ClusterStatus, cluster_status, connected
from astha.sources.cockroachdb.decode import ChangefeedDecoder
from astha.sources.contract import Batch, Gap, Progress, Replay, SourceStatus, Started
from astha.sources.limits import TransactionLimits
from astha.tasks import cancel_and_wait, raise_if_cancelled
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.position import Position

log = structlog.get_logger(__name__)

CLOCK_TOLERANCE_NS = 1_000_000_000
"""A new history begins this much before the cluster's time: the clock of the node that a refresh reads from may be
behind, by at most 0.5 s (--max-offset) on a cluster that works. What the refresh contains is not delivered again.
"""

_FAILURES_BEFORE_RESET = 8
"""Attempts to resume from the same position that the server refused, with whatever error, before components refresh."""


class CockroachSource:
    """Reads one registry through a changefeed, from the position that is recorded in the registry."""

    def __init__(
        self,
        conninfo: str,
        store: MetadataStore,
        settings: PostgresSourceSettings,
        clock: LoopClock,
        group: str = "astha",
    ) -> None:
        self._conninfo = conninfo
        self._settings = settings
        self._clock = clock
        self._recorded = AcknowledgedPosition(store, group)
        self._feed: Changefeed | None = None
        self._decoder: ChangefeedDecoder | None = None
        self._acknowledged = self._received = Position(0)
        self._identity: str | None = None  # of the history that the positions belong to
        self._cluster: ClusterStatus | None = None
        self._reset: SourceReset | None = None  # why the history can't be continued
        self._detail: str | None = "not started"
        self._tasks: list[asyncio.Task[None]] = []

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        backoff = Backoff(self._settings.reconnect_initial_s, self._settings.reconnect_max_s)
        failures, furthest = 0, Position(0)
        while True:
            try:
                gap, feed, decoder = await self._connect(tables)
                if gap is not None:
                    log.warning("source has a gap: all components refresh", reason=gap.reason)
                    furthest = Position(0)
                    yield gap
                    await self._begin_history()  # only now: after a crash, the next start finds the gap again
                yield Started(self._acknowledged)
                self._tasks = [
                    asyncio.create_task(self._watch_cluster(feed, tables), name="changefeed watch"),
                    asyncio.create_task(self._keep_position(), name="acknowledged position"),
                ]
                async for batch in feed.batches(decoder):
                    self._received = batch.position if isinstance(batch, Progress) else batch[-1].position
                    if self._received > furthest:
                        failures = 0
                    yield batch
            except (SourceLost, SourceReset, DecodeError, RegistryError) as error:
                failures += 1
                self._reset = _reset_by(error, failures) or self._reset
                furthest = max(furthest, self._received)
                self._detail = str(error)
                log.warning("source interrupted", error=str(error), failures=failures)
            finally:
                await self._disconnect()
            raise_if_cancelled()
            await self._clock.sleep(backoff.wait_s(failures, self._clock))

    async def replay(self, tables: frozenset[str], after: Position) -> Replay:
        """Reads through a second changefeed."""
        feed = await Changefeed.open(self._conninfo, self._clock)
        try:
            feed.start(self._settings.schema_name, after, self._settings.resolved_interval_s)
            async for batch in feed.batches(self._new_decoder(tables, after)):
                yield batch
            raise SourceLost("the replay has ended")
        finally:
            await feed.close()

    def acknowledge(self, position: Position) -> None:
        """Ignored without a connection: the next one may belong to another history."""
        if self._feed is not None and position > self._acknowledged:
            self._acknowledged = position

    def retained_for(self, position: Position) -> int:
        """Returns 0: history is kept by time, not for a reader. `status` shows how much of that time is left."""
        return 0

    def status(self) -> SourceStatus:
        cluster, decoder = self._cluster, self._decoder
        history, detail = None, self._detail
        if cluster is not None and self._acknowledged:
            history = cluster.history_of(self._acknowledged)
            if history in ("unreserved", "lost"):
                detail = detail or (
                    f"the acknowledged position is {cluster.age_s(self._acknowledged):.0f} s old, and what follows is "
                    f"garbage collected after {cluster.gc_ttl_s} s (gc.ttlseconds): a restart would refresh all "
                    "components; raise gc.ttlseconds, or see which component does not acknowledge"
                )
        return SourceStatus(
            connected=self._feed is not None,
            received=self._received,
            acknowledged=self._acknowledged,
            retained_bytes=None,
            wal_status=history,
            detail=detail or (decoder.decode_error if decoder is not None else None),
            server=cluster.now if cluster is not None else None,
            silent_s=self._feed.silent_s if self._feed is not None else None,
            unit="nanoseconds",
        )

    async def close(self) -> None:
        await self._disconnect()

    async def _connect(self, tables: frozenset[str]) -> tuple[Gap | None, Changefeed, ChangefeedDecoder]:
        """Opens the changefeed, with a Gap if it can't continue from the last position."""
        settings, feed = self._settings, None
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                async with connected(self._conninfo) as connection:
                    cluster = await cluster_status(connection, settings.schema_name, tables)
                gap, start = await self._find_start(cluster)
                feed = await Changefeed.open(self._conninfo, self._clock)
                feed.start(settings.schema_name, start, settings.resolved_interval_s)
        except BaseException as error:
            if feed is not None:
                await feed.close()
            if isinstance(error, TimeoutError):
                raise SourceLost(f"no connection within {settings.connect_timeout_s:g} s") from error
            if isinstance(error, psycopg.Error):
                raise SourceLost(str(error)) from error
            raise
        # No other task runs between here and the yield: an acknowledgement never belongs to another history.
        self._feed, self._cluster, self._identity = feed, cluster, cluster.identity
        self._decoder = decoder = self._new_decoder(tables, start)
        self._acknowledged = start
        self._received = start if gap is not None else max(self._received, start)
        self._detail = None
        log.info("source streaming", position=start, cluster=cluster.identity)
        return gap, feed, decoder

    async def _find_start(self, cluster: ClusterStatus) -> tuple[Gap | None, Position]:
        recorded = await self._recorded.read()
        reason = None
        if recorded.identity is None:
            reason = "first start on this registry"
        elif recorded.identity != cluster.identity:
            reason = f"the registry's identity has changed from {recorded.identity} to {cluster.identity}: restored"
        elif recorded.position is None:
            reason = "the acknowledged position is not recorded"
        elif cluster.now < recorded.position:
            reason = f"the cluster's time is {cluster.now}, the acknowledged position {recorded.position}: restored"
        elif self._reset is not None:
            reason = str(self._reset)
        if reason is not None:
            return Gap(reason), Position(cluster.now - CLOCK_TOLERANCE_NS)
        assert recorded.position is not None  # noqa: S101  (checked above)
        own = self._acknowledged if self._identity == cluster.identity else Position(0)
        return None, max(recorded.position, own)

    async def _begin_history(self) -> None:
        assert self._identity is not None  # noqa: S101  (set by _connect)
        await self._recorded.begin(self._identity, self._acknowledged)
        self._reset = None

    def _new_decoder(self, tables: frozenset[str], after: Position) -> ChangefeedDecoder:
        settings = self._settings
        limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
        return ChangefeedDecoder(tables, limits, after)

    async def _disconnect(self) -> None:
        tasks, self._tasks = self._tasks, []
        feed, self._feed = self._feed, None
        try:
            await cancel_and_wait(*tasks)
            if feed is not None and tasks and self._identity is not None:
                await self._recorded.keep(self._identity, self._acknowledged)
        finally:
            if feed is not None:
                await feed.close()

    async def _keep_position(self) -> None:
        while True:
            await self._clock.sleep(self._settings.status_interval_s)
            if self._identity is not None:
                await self._recorded.keep(self._identity, self._acknowledged)

    async def _watch_cluster(self, feed: Changefeed, tables: frozenset[str]) -> None:
        """Reads what the cluster keeps, and ends a changefeed that is silent or reads tables that were replaced."""
        settings = self._settings
        while True:
            try:
                async with connected(self._conninfo) as connection:
                    while True:
                        if feed.silent_s > settings.silence_limit_s:
                            return feed.fail(SourceLost(f"the server has been silent for {feed.silent_s:.0f} s"))
                        self._cluster = found = await cluster_status(connection, settings.schema_name, tables)
                        if found.identity != self._identity:
                            return feed.fail(SourceLost(f"the registry's identity has changed to {found.identity}"))
                        await self._clock.sleep(settings.slot_check_interval_s)
            except (SourceLost, psycopg.Error) as error:
                log.debug("cluster can't be asked", error=str(error))
                raise_if_cancelled()
                await self._clock.sleep(settings.slot_check_interval_s)


def _reset_by(error: Exception, failures: int) -> SourceReset | None:
    """An error that is not known, from the same position again and again, must not need a person."""
    if isinstance(error, SourceReset):
        return error
    if failures >= _FAILURES_BEFORE_RESET and isinstance(error, SourceLost) and error.__cause__ is not None:
        cause = error.__cause__
        if isinstance(cause, psycopg.Error) and not isinstance(cause, psycopg.OperationalError):
            return SourceReset(f"the changefeed could not be resumed {failures} times: {error}")
    return None
