"""What both transports of a transaction stream share: from payloads to batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeAlias

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.events import Transaction
from astha.events.traceparent import TraceParent
from astha.sources.continuity import Continuity
from astha.sources.contract import Batch, Gap, PositionUnit, Progress, SourceStatus, Started
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.position import Position

log = structlog.get_logger(__name__)

StreamPayload: TypeAlias = tuple[int, bytes, TraceParent | None]
"""A record's offset, content and trace context."""

_RETRY = Backoff(initial_s=0.2, max_s=5.0)
_SLICE_BYTES = 256 * 1024
"""Decoded at once: about two milliseconds. Then other tasks run."""

_ASK_EVERY_S = 1.0
_QUIET_S = 5.0
"""Without a heartbeat for this long the leader is reported as silent: it sends one every second by default."""


class Follower:
    """One stream of one group. The history that the components' positions belong to is kept in the registry."""

    def __init__(self, store: MetadataStore, group: str, tables: frozenset[str], clock: LoopClock) -> None:
        self._store = store
        self._clock = clock
        self._name = f"follower:{group}"
        self.continuity = Continuity(tables)
        self._heard = clock.monotonic()
        self._asked = float("-inf")
        self._records = 0

    async def recorded_history(self) -> str | None:
        async for attempt in _RETRY.retrying(self._clock, retry_on=_is_registry_error, on_retry=_log_retry):
            with attempt:
                found = await self._store.get_source_identity(self._name)
        return None if found is None else found.identity

    async def deliver(
        self, records: Iterable[StreamPayload], taken: Callable[[int], None] = lambda offset: None
    ) -> AsyncGenerator[Batch, None]:
        """Yields what the records allow to pass on. Calls `taken` with each record's offset after it."""
        continuity = self.continuity
        ready: list[Transaction] = []
        progress: Progress | None = None
        size = 0
        for offset, payload, trace in records:
            stale = continuity.stale
            for batch in _traced(continuity.take(payload), trace):
                if isinstance(batch, Progress):
                    progress = batch
                    continue
                if not isinstance(batch, (Gap, Started)):
                    ready += batch
                    progress = None
                    continue
                if ready:
                    yield ready
                    ready = []
                progress = None  # of before: a gap may begin at a lower position
                yield batch
                if isinstance(batch, Gap):
                    await self._record_history()
            taken(offset)
            if continuity.stale > stale:
                await self._check_registry()
            size += len(payload)
            if size > _SLICE_BYTES and ready:
                yield ready
                ready, size = [], 0
        self._note_records()
        if ready:
            yield ready
        if progress is not None:
            yield progress

    @property
    def received(self) -> Position:
        return self.continuity.position or Position(0)

    @property
    def silent_s(self) -> float:
        """Seconds since the leader's last record."""
        return self._clock.monotonic() - self._heard

    @property
    def trouble(self) -> str | None:
        """Returns what keeps the follower from delivering, although it is connected."""
        continuity = self.continuity
        if self.silent_s > _QUIET_S:
            return (
                f"no heartbeat of the leader for {self.silent_s:.0f} s: start it, with a sink that sends transactions "
                "to this address, or correct source.url"
            )
        if continuity.synchronising and continuity.records:
            return "waits for a heartbeat: everything that was not received has to be visible in the registry"
        return None

    def _note_records(self) -> None:
        if self.continuity.records != self._records:
            self._records, self._heard = self.continuity.records, self._clock.monotonic()

    async def _record_history(self) -> None:
        """After the consumer has taken the Gap: a crash before finds it again."""
        history = self.continuity.history
        if history is None:
            return
        async for attempt in _RETRY.retrying(self._clock, retry_on=_is_registry_error, on_retry=_log_retry):
            with attempt:
                await self._store.record_source_identity(self._name, history)

    async def _check_registry(self) -> None:
        """A record of an earlier epoch is that of a deposed leader, unless the registry was restored."""
        continuity, now = self.continuity, self._clock.monotonic()
        if continuity.group is None or now - self._asked < _ASK_EVERY_S:
            return
        self._asked = now
        try:
            lease = await self._store.get_daemon_lease(continuity.group)
        except RegistryError as error:
            log.warning("lease of the leader can't be read; asked again at the next record", error=str(error))
            return
        if lease is not None and lease.epoch < continuity.epoch:
            log.warning("registry was restored: its lease is older than the stream", epoch=lease.epoch)
            continuity.restart(lease.epoch, "the registry was restored to an earlier state")


def follower_status(
    follower: Follower | None, failure: str | None, acknowledged: Position, unit: PositionUnit
) -> SourceStatus:
    """`failure` says why nothing can be received now. The broker retains by its own rules."""
    connected = failure is None and follower is not None
    return SourceStatus(
        connected=connected,
        received=Position(0) if follower is None else follower.received,
        acknowledged=acknowledged,
        retained_bytes=None,
        wal_status=None,
        detail=failure or (follower.trouble if follower else None),
        server=None if follower is None else follower.continuity.sent,
        silent_s=follower.silent_s if connected and follower is not None else None,
        unit=unit,
    )


def _traced(batches: list[Batch], trace: TraceParent | None) -> list[Batch]:
    """Sets the context of a record's own commit, which is the last. What had to wait for a heartbeat has none."""
    if trace is not None and batches and isinstance(batches[-1], list):
        batches[-1][-1].commit.trace = trace
    return batches


def _is_registry_error(error: BaseException) -> bool:
    return isinstance(error, RegistryError)


def _log_retry(error: BaseException, _failures: int, wait_s: float) -> None:
    log.warning("history of the stream can't be kept in the registry, retrying", error=str(error), wait_s=wait_s)
