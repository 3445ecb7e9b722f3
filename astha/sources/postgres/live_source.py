"""`PostgresLiveSource`: the stream of changes from now on, for a process that keeps caches up to date.

Its slot is temporary: the server drops it with the connection, so a live source that dies leaves nothing behind and
retains no WAL. Changes made while it is not connected are missing: the stream begins with a Gap each time.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator

import psycopg
import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.errors import ConfigError, DecodeError, SourceLost, SourceReset
from astha.sources.contract import Batch, Gap, Progress, Started
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.decode import Decoder
from astha.sources.postgres.slot import connected, protocol_version, require_publication
from astha.sources.postgres.source import PostgresSourceSettings, kinds_of
from astha.sources.postgres.stream import ReplicationStream
from astha.tasks import raise_if_cancelled
from registry.position import Position

log = structlog.get_logger(__name__)


class PostgresLiveSource:
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
            stream: ReplicationStream | None = None
            try:
                stream = await ReplicationStream.open(self._conninfo, self._clock)
                start = await self._start(stream, tables)
                yield Gap(reason)
                yield Started(start)
                async for batch in stream.batches(Decoder(kinds_of(tables), settings.schema_name, limits)):
                    failures = 0
                    stream.confirm(batch.position if isinstance(batch, Progress) else batch[-1].position)
                    yield batch
            except (SourceLost, SourceReset, DecodeError) as error:
                failures += 1
                reason = f"the stream was interrupted: {error}"
                log.warning("live source interrupted", error=str(error), failures=failures)
            finally:
                if stream is not None:
                    await stream.close()
            raise_if_cancelled()
            await self._clock.sleep(backoff.wait_s(failures, self._clock))

    async def _start(self, stream: ReplicationStream, tables: frozenset[str]) -> Position:
        settings = self._settings
        slot = f"astha_live_{os.getpid()}_{secrets.token_hex(4)}"
        await stream.identify()
        async with connected(self._conninfo) as connection:
            await require_publication(connection, settings.publication, settings.schema_name, sorted(tables))
            version = protocol_version(connection.info.server_version)
        try:
            start = await stream.create_temporary_slot(slot)
        except (psycopg.errors.ConfigurationLimitExceeded, psycopg.errors.ObjectNotInPrerequisiteState) as error:
            raise ConfigError(
                f"no replication slot for a live source: {error.diag.message_primary}; each process that follows "
                "needs one: raise max_replication_slots and max_wal_senders, or run `astha check`"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                "no replication slot for a live source: the user needs the REPLICATION attribute"
            ) from error
        except psycopg.Error as error:
            raise SourceLost(f"no replication slot for a live source: {error}") from error
        await stream.start(
            slot, settings.publication, start, version,
            status_interval_s=settings.status_interval_s, silence_s=settings.silence_limit_s,
        )  # fmt: skip
        return start
