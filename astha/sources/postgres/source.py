"""`PostgresSource`: connects, streams, reconnects, and reports gaps in the history."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping

import psycopg
import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.errors import ConfigError, DecodeError, SlotInUse, SourceError, SourceLost, SourceReset
from astha.settings.groups import PostgresSourceSettings as PostgresSourceSettings
from astha.sources.contract import Batch, Gap, Replay, SourceStatus, Started
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.decode import Decoder
from astha.sources.postgres.slot import (
    Connection,
    SlotStatus,
    connected,
    create_slot,
    free_slot,
    prepare_slot,
    protocol_version,
    require_primary,
    require_publication,
    shared_slot,
    slot_owner_name,
    slot_status,
)
from astha.sources.postgres.stream import ReplicationStream
from astha.tasks import cancel_and_wait, raise_if_cancelled
from registry.contract import MetadataStore
from registry.errors import RegistryError, SchemaMismatch
from registry.models import PUBLISHED, Row
from registry.position import Position
from registry.publication import REPAIRED

log = structlog.get_logger(__name__)

_ATTEMPTS_BEFORE_EVICTION = 4
"""Attempts that find the slot in use before the connection that uses it is terminated: a second or two."""

_INCOMPLETE = "the publication was incomplete for a while: the stream lacks the changes made meanwhile"

_KINDS: Mapping[str, type[Row]] = {kind.table: kind for kind in PUBLISHED}


def kinds_of(tables: frozenset[str]) -> dict[str, type[Row]]:
    return {table: _KINDS[table] for table in tables}


class PostgresSource:
    """Reads one registry through one slot, from the position that the slot last acknowledged."""

    def __init__(
        self,
        conninfo: str,
        store: MetadataStore,
        settings: PostgresSourceSettings,
        clock: LoopClock,
        group: str = "astha",
    ) -> None:
        self._group = group
        self._conninfo = conninfo
        self._store = store
        self._settings = settings
        self._clock = clock
        self._stream: ReplicationStream | None = None
        self._acknowledged = Position(0)
        self._received = Position(0)
        self._slot: SlotStatus | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._identity = ""
        self._reset: SourceReset | None = None  # why the existing slot can't be used any more
        self._detail: str | None = "not started"

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        kinds = kinds_of(tables)
        limits = TransactionLimits(self._settings.transaction_limit_events, self._settings.transaction_limit_bytes)
        backoff = Backoff(self._settings.reconnect_initial_s, self._settings.reconnect_max_s)
        failures, blocked, furthest = 0, 0, Position(0)
        while True:
            try:
                gap, stream = await self._connect(tables, evict=blocked >= _ATTEMPTS_BEFORE_EVICTION)
                if gap is not None:
                    log.warning("source has a gap: all components refresh", reason=gap.reason)
                    furthest = Position(0)
                    yield gap
                    await self._record_identity()  # only now: after a crash, the next start finds the gap again
                yield Started(self._acknowledged)
                self._watch_task = asyncio.create_task(self._watch_server(stream, tables), name="replication slot")
                try:
                    async for batch in stream.batches(Decoder(kinds, self._settings.schema_name, limits)):
                        self._received = stream.received
                        if self._received > furthest:  # events repeated from before the last failure are no progress
                            failures = 0
                        yield batch
                finally:
                    self._watch_task.cancel()
            except (SourceLost, SourceReset, DecodeError) as error:
                failures += 1
                self._reset = error if isinstance(error, SourceReset) else self._reset
                blocked = blocked + 1 if isinstance(error, SlotInUse) else 0
                furthest = max(furthest, self._received)
                self._detail = str(error)
                log.warning("source interrupted", error=str(error), failures=failures)
            finally:
                await self._disconnect()
            raise_if_cancelled()
            await self._clock.sleep(backoff.wait_s(failures, self._clock))

    async def replay(self, tables: frozenset[str], after: Position) -> Replay:
        """Reads through a temporary copy of the slot, which the server drops with the connection."""
        settings = self._settings
        limits = TransactionLimits(settings.transaction_limit_events, settings.transaction_limit_bytes)
        stream = await ReplicationStream.open(self._conninfo, self._clock)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                copy = f"{settings.slot[:40]}_replay_{secrets.token_hex(4)}"
                await stream.copy_slot(settings.slot, copy)
                async with connected(self._conninfo) as connection:
                    version = protocol_version(connection.info.server_version)
                await stream.start(
                    copy, settings.publication, after, version,
                    status_interval_s=settings.status_interval_s, silence_s=settings.silence_limit_s,
                )  # fmt: skip
            async for batch in stream.batches(Decoder(kinds_of(tables), settings.schema_name, limits)):
                yield batch
            raise SourceLost("the replay has ended")
        except TimeoutError as error:
            raise SourceLost(f"no second connection within {settings.connect_timeout_s:g} s") from error
        finally:
            await stream.close()

    def acknowledge(self, position: Position) -> None:
        """Ignored without a connection: the next one may belong to another history."""
        if self._stream is not None and position > self._acknowledged:
            self._acknowledged = position
            self._stream.confirm(position)

    def retained_for(self, position: Position) -> int:
        return max(self._received - position, 0)

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
            silent_s=self._stream.silent_s if self._stream is not None else None,
        )

    async def close(self) -> None:
        await self._disconnect()
        if self._watch_task is not None:
            await cancel_and_wait(self._watch_task)

    async def _connect(self, tables: frozenset[str], *, evict: bool) -> tuple[Gap | None, ReplicationStream]:
        """Opens the stream, with a Gap if it can't continue from the last position."""
        stream = None
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                stream = await ReplicationStream.open(self._conninfo, self._clock)
                self._identity = "{}/{}".format(*await stream.identify())
                gap, start = await self._prepare(stream, tables, evict=evict)
        except BaseException as error:
            if stream is not None:
                await stream.close()
            if isinstance(error, TimeoutError):
                raise SourceLost(f"no connection within {self._settings.connect_timeout_s:g} s") from error
            if isinstance(error, SchemaMismatch):
                raise ConfigError(str(error)) from error
            if isinstance(error, (psycopg.Error, RegistryError)):
                raise SourceLost(str(error)) from error
            raise
        # No other task runs between here and the yield: an acknowledgement never belongs to another history.
        self._stream = stream
        self._acknowledged = start
        if gap is not None:
            self._received = start
        self._detail = None
        log.info("source streaming", slot=self._settings.slot, position=start, server=self._identity)
        return gap, stream

    async def _prepare(
        self, stream: ReplicationStream, tables: frozenset[str], *, evict: bool
    ) -> tuple[Gap | None, Position]:
        settings = self._settings
        async with connected(self._conninfo) as connection:
            await require_primary(connection)
            await self._require_publication(connection, tables)
            await self._claim_slot(connection)
            gap = await self._compare_identity()
            if evict and await free_slot(connection, settings.slot):
                log.warning("terminated the connection that was reading the slot", slot=settings.slot)
            try:
                if self._reset is not None:
                    raise self._reset
                status = await prepare_slot(connection, settings.slot)
                start = status.confirmed
                if status.server < self._received:
                    gap = gap or Gap(
                        f"the server is at {status.server}, the stream was at {self._received}: it was restored"
                    )
            except SourceReset as reset:
                start = await create_slot(connection, settings.slot)
                self._reset = None
                gap = gap or Gap(str(reset))
            if gap is None:
                start = max(start, self._acknowledged)
            version = protocol_version(connection.info.server_version)
        await stream.start(
            settings.slot, settings.publication, start, version,
            status_interval_s=settings.status_interval_s, silence_s=settings.silence_limit_s,
        )  # fmt: skip
        return gap, start

    async def _claim_slot(self, connection: Connection) -> None:
        """Raises ConfigError if another group reads the slot: each would take changes from the other."""
        name, group = slot_owner_name(self._settings.slot), self._group
        owner = (await self._store.ensure_source_identity(name, group)).identity
        if owner == group:
            return
        status = await slot_status(connection, self._settings.slot)
        if status is not None and status.active:
            raise ConfigError(shared_slot(self._settings.slot, owner, group))
        log.warning("slot changes its group", slot=self._settings.slot, previous=owner, group=group)
        await self._store.record_source_identity(name, group)

    async def _require_publication(self, connection: Connection, tables: frozenset[str]) -> None:
        """Raises ConfigError if it is incomplete. Records that first, for a gap at the start after its repair."""
        settings = self._settings
        try:
            await require_publication(connection, settings.publication, settings.schema_name, sorted(tables))
        except ConfigError:
            if await self._store.get_source_identity(settings.slot) is not None:
                await self._store.record_source_identity(settings.slot, REPAIRED)
            raise

    async def _compare_identity(self) -> Gap | None:
        """Returns a Gap if the server was restored, cloned or promoted: positions belong to one history."""
        recorded = await self._store.get_source_identity(self._settings.slot)
        if recorded is None:
            return Gap("first start on this registry")
        if recorded.identity == REPAIRED:
            return Gap(_INCOMPLETE)
        if recorded.identity != self._identity:
            return Gap(f"the server's identity and timeline have changed from {recorded.identity} to {self._identity}")
        return None

    async def _record_identity(self) -> None:
        try:
            await self._store.record_source_identity(self._settings.slot, self._identity)
        except RegistryError as error:
            raise SourceLost(f"the server's identity could not be recorded: {error}") from error

    async def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.send_status()  # so that acknowledged transactions are not sent again
            except SourceError:
                log.debug("source connection lost before the last status update")
            await stream.close()

    async def _watch_server(self, stream: ReplicationStream, tables: frozenset[str]) -> None:
        """Reads what the slot retains, and checks that the publication still has every table: the stream itself does
        not show that a table is missing from it.
        """
        while True:
            try:
                async with connected(self._conninfo) as connection:
                    while True:
                        self._slot = await slot_status(connection, self._settings.slot)
                        await self._require_publication(connection, tables)
                        recorded = await self._store.get_source_identity(self._settings.slot)
                        if recorded is not None and recorded.identity == REPAIRED:
                            return stream.fail(SourceReset(_INCOMPLETE))
                        await self._clock.sleep(self._settings.slot_check_interval_s)
            except ConfigError as error:
                return stream.fail(SourceReset(str(error)))
            except (SourceLost, psycopg.Error, RegistryError) as error:
                log.debug("slot status can't be read", error=str(error))
                raise_if_cancelled()
                await self._clock.sleep(self._settings.slot_check_interval_s)
