"""`CockroachLiveSource`: the changes from now on, for a process that keeps caches up to date.

It has a changefeed of its own and records nothing. Changes made while it is not connected are missing: the stream
begins with a Gap each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import psycopg
import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.errors import DecodeError, SourceLost, SourceReset
from astha.settings.groups import PostgresSourceSettings
from astha.sources.cockroachdb.changefeed import Changefeed
from astha.sources.cockroachdb.cluster import cluster_status, connected
from astha.sources.cockroachdb.decode import ChangefeedDecoder
from astha.sources.cockroachdb.source import CLOCK_TOLERANCE_NS
from astha.sources.contract import Batch, Gap, Started
from astha.sources.limits import TransactionLimits
from astha.tasks import raise_if_cancelled
from registry.position import Position

log = structlog.get_logger(__name__)


class CockroachLiveSource:
    """Reconnects by itself. Raises only ConfigError, which an operator has to correct."""

    def __init__(self, conninfo: str, settings: PostgresSourceSettings, clock: LoopClock) -> None:
        self._conninfo = conninfo
        self._settings = settings
        self._clock = clock

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        settings = self._settings
        limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
        backoff = Backoff(settings.reconnect_initial_s, settings.reconnect_max_s)
        reason, failures = "the live source starts", 0
        while True:
            feed: Changefeed | None = None
            try:
                start = await self._now(tables)
                feed = await Changefeed.open(self._conninfo, self._clock)
                feed.start(settings.schema_name, start, settings.resolved_interval_s)
                yield Gap(reason)
                yield Started(start)
                async for batch in feed.batches(ChangefeedDecoder(tables, limits, start)):
                    failures = 0
                    yield batch
            except (SourceLost, SourceReset, DecodeError) as error:
                failures += 1
                reason = f"the stream was interrupted: {error}"
                log.warning("live source interrupted", error=str(error), failures=failures)
            finally:
                if feed is not None:
                    await feed.close()
            raise_if_cancelled()
            await self._clock.sleep(backoff.wait_s(failures, self._clock))

    async def _now(self, tables: frozenset[str]) -> Position:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.connect_timeout_s), connected(self._conninfo) as connection:
                found = await cluster_status(connection, settings.schema_name, tables)
        except TimeoutError as error:
            raise SourceLost(f"no connection within {settings.connect_timeout_s:g} s") from error
        except psycopg.Error as error:
            raise SourceLost(str(error)) from error
        return Position(found.now - CLOCK_TOLERANCE_NS)
