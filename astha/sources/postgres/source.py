"""`PostgresSource`: connects, streams, reconnects, and says when history has a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import psycopg
import structlog
from pydantic import BaseModel, ConfigDict, Field

from astha.clock import LoopClock
from astha.errors import DecodeError, SourceError, SourceLost, SourceReset
from astha.sources.contract import Batch, Gap, SourceStatus, Started
from astha.sources.postgres.decode import Decoder, TransactionLimits
from astha.sources.postgres.slot import (
    SlotStatus,
    connected,
    create_slot,
    prepare_slot,
    protocol_version,
    require_publication,
    slot_status,
)
from astha.sources.postgres.stream import ReplicationStream
from registry.contract import MetadataStore
from registry.models import PUBLISHED, Row
from registry.position import Position
from registry.schema import PUBLICATION

log = structlog.get_logger(__name__)

_KINDS: Mapping[str, type[Row]] = {kind.table: kind for kind in PUBLISHED}


class PostgresSourceSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    slot: str = Field("astha", pattern="^[a-z0-9_]{1,63}$", description="Name of the replication slot.")
    publication: str = Field(PUBLICATION, description="Name of the publication; migrations create it.")
    schema_name: str = Field("public", description="Schema of the registry's tables.")
    status_interval_s: float = Field(5.0, gt=0, description="Time between status updates to the server.")
    slot_check_interval_s: float = Field(5.0, gt=0, description="Time between looks at the slot's wal_status.")
    reconnect_initial_s: float = Field(0.2, gt=0, description="First wait before reconnecting; doubles.")
    reconnect_max_s: float = Field(15.0, gt=0, description="Longest wait before reconnecting.")
    transaction_limit_events: int = Field(100_000, gt=0, description="Larger transactions become refreshes.")
    transaction_limit_bytes: int = Field(64 * 1024 * 1024, gt=0, description="Larger transactions become refreshes.")


class PostgresSource:
    """Reads one registry through one slot. The slot is the memory: it starts where it was last acknowledged."""

    def __init__(self, conninfo: str, store: MetadataStore, settings: PostgresSourceSettings, clock: LoopClock) -> None:
        self._conninfo = conninfo
        self._store = store
        self._settings = settings
        self._clock = clock
        self._stream: ReplicationStream | None = None
        self._acknowledged = Position(0)
        self._received = Position(0)
        self._slot: SlotStatus | None = None
        self._detail: str | None = "not started"

    async def stream(self, tables: frozenset[str]) -> AsyncIterator[Batch]:
        failures = 0
        kinds = {table: _KINDS[table] for table in tables}
        limits = TransactionLimits(self._settings.transaction_limit_events, self._settings.transaction_limit_bytes)
        while True:
            try:
                gap = await self._connect(tables)
                if gap is not None:
                    log.warning("the stream has a gap: everybody refreshes", reason=gap.reason)
                    yield gap
                assert self._stream is not None  # noqa: S101  (_connect opened it)
                yield Started(self._acknowledged)
                watch = asyncio.create_task(self._watch_slot(), name="replication slot")
                try:
                    async for batch in self._stream.batches(Decoder(kinds, self._settings.schema_name, limits)):
                        failures = 0
                        self._received = self._stream.received
                        yield batch
                finally:
                    watch.cancel()
            except (SourceLost, SourceReset, DecodeError) as error:
                failures += 1
                self._detail = str(error)
                log.warning("source interrupted", error=str(error), failures=failures)
            finally:
                await self._disconnect()
            wait = min(self._settings.reconnect_max_s, self._settings.reconnect_initial_s * 2 ** min(failures - 1, 16))
            await self._clock.sleep(wait * (0.5 + 0.5 * self._clock.chance()))

    def acknowledge(self, position: Position) -> None:
        if position > self._acknowledged:
            self._acknowledged = position
            if self._stream is not None:
                self._stream.confirm(position)

    def status(self) -> SourceStatus:
        slot = self._slot
        return SourceStatus(
            connected=self._stream is not None,
            received=self._received,
            acknowledged=self._acknowledged,
            retained_bytes=slot.retained_bytes if slot else None,
            wal_status=slot.wal_status if slot else None,
            detail=self._detail,
            server=slot.server if slot else None,
            silent_s=self._clock.monotonic() - self._stream.heard_at if self._stream is not None else None,
        )

    async def close(self) -> None:
        await self._disconnect()

    async def _connect(self, tables: frozenset[str]) -> Gap | None:
        """Open the stream; a Gap if it can't go on from where we were."""
        settings = self._settings
        stream = await ReplicationStream.open(self._conninfo, self._clock)
        try:
            identity = "{}/{}".format(*await stream.identify())
            async with connected(self._conninfo) as connection:
                await require_publication(connection, settings.publication, sorted(tables))
                gap = await self._compare_identity(identity)
                try:
                    start = await prepare_slot(connection, settings.slot)
                except SourceReset as reset:
                    start = await create_slot(connection, settings.slot)
                    gap = gap or Gap(str(reset))
                if gap is not None:
                    # Recorded only now: had we died before, the next start would find the gap again.
                    await self._store.record_source_identity(settings.slot, identity)
                    self._acknowledged = start
                version = protocol_version(connection.info.server_version)
            self._acknowledged = max(self._acknowledged, start)
            await stream.start(
                settings.slot, settings.publication, self._acknowledged, version, settings.status_interval_s
            )
        except psycopg.Error as error:
            await stream.close()
            raise SourceLost(str(error)) from error
        except BaseException:
            await stream.close()
            raise
        self._stream = stream
        self._detail = None
        log.info("streaming", slot=settings.slot, position=self._acknowledged, server=identity)
        return gap

    async def _compare_identity(self, identity: str) -> Gap | None:
        """A restored, cloned or promoted server has another history than the one our positions belong to."""
        recorded = await self._store.get_source_identity(self._settings.slot)
        if recorded is None:
            return Gap("first start on this registry")
        if recorded.identity != identity:
            return Gap(f"the server's identity and timeline were {recorded.identity} and are {identity} now")
        return None

    async def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.send_status()  # what is acknowledged need not come again
            except SourceError:
                log.debug("connection was gone before the last status update")
            await stream.close()

    async def _watch_slot(self) -> None:
        while True:
            try:
                async with connected(self._conninfo) as connection:
                    while True:
                        self._slot = await slot_status(connection, self._settings.slot)
                        await self._clock.sleep(self._settings.slot_check_interval_s)
            except (SourceLost, psycopg.Error) as error:
                log.debug("can't look at the slot", error=str(error))
                await self._clock.sleep(self._settings.slot_check_interval_s)
