"""Registers the segments of an uploaded object with their next offsets, or establishes that none is registered.

A refusal names partitions: their appends fail, and the rest is registered without them. After `Unavailable` the outcome
is unknown. The registration is sent again; if that is refused, the object's segments are looked up before the refusal
is trusted. This is sound because every registration locks what it checks: if the first one is not visible when the
second one is refused, the first one was refused too, or will be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from components.lib.streams.errors import AppendFailed, AppendUnknown
from components.lib.streams.writer.object_builder import PackedSegment
from components.lib.streams.writer.settings import WriterSettings, WriterStatistics
from registry.contract import MetadataStore
from registry.errors import Conflict, NotFound, RegistryError, Unavailable
from registry.models import object_uri

log = structlog.get_logger(__name__)

T = TypeVar("T")

_BACKOFF = Backoff(initial_s=0.02, max_s=2.0)


class SegmentRegistrar:
    """Calls `mark_lost` for each segment whose lease must be acquired again before the partition is written."""

    def __init__(
        self,
        store: MetadataStore,
        clock: LoopClock,
        owner: str,
        settings: WriterSettings,
        statistics: WriterStatistics,
        mark_lost: Callable[[PackedSegment], None],
    ) -> None:
        self.store = store
        self.clock = clock
        self.owner = owner
        self.timeout_s = settings.registration_timeout_s
        self.slots = asyncio.Semaphore(settings.parallel_registrations)
        self.statistics = statistics
        self.mark_lost = mark_lost

    async def register(self, bucket: str, key: str, packed: Sequence[PackedSegment]) -> bool | None:
        """Completes every append. Returns False if nothing of the object is or will be registered, None if unknown."""
        registration = _Registration(self, bucket, key, packed)
        try:
            return await registration.run()
        except BaseException as error:
            for item in registration.pending:
                self.mark_lost(item)
                item.part.fail(AppendUnknown(f"{registration.uri}: interrupted during registration: {error!r}"))
            raise


class _Registration:
    def __init__(self, registrar: SegmentRegistrar, bucket: str, key: str, packed: Sequence[PackedSegment]) -> None:
        self._store = registrar.store
        self._clock = registrar.clock
        self._owner = registrar.owner
        self._slots = registrar.slots
        self._statistics = registrar.statistics
        self._mark_lost = registrar.mark_lost
        self._deadline = self._clock.monotonic() + registrar.timeout_s
        self._failures = 0
        self._outcome_unknown = False  # sent once without a response
        self._location = (bucket, key)
        self._registered = False
        self.uri = object_uri(bucket, key)
        self.pending = list(packed)

    async def run(self) -> bool | None:
        self._refuse([item for item in self.pending if item.part.lease.lost], "its lease was lost before")
        while self.pending:
            try:
                await self._send()
            except Unavailable as error:
                self._outcome_unknown = True
                if not await self._back_off():
                    self._give_up(error)
                    return None
            except RegistryError as error:
                try:
                    await self._handle_refusal(error)
                except Unavailable as lost:
                    self._give_up(lost)
                    return None
            else:
                self._succeed({item.part.lease.key: item.part.lease.next_offset for item in self.pending})
        return self._registered

    async def _send(self) -> None:
        drafts = [item.draft(*self._location) for item in self.pending]
        fences = [item.part.lease.fence for item in self.pending]
        producers = [draft for item in self.pending for draft in item.part.producers(item.part.lease.next_offset)]
        async with self._slots:
            started = self._clock.monotonic()
            await self._store.add_segments(drafts, fences=fences, producers=producers, intents_of=self._owner)
        self._statistics.register_s.append(self._clock.monotonic() - started)

    async def _handle_refusal(self, error: RegistryError) -> None:
        """The registry refused some segments, or all of them, or what an earlier attempt has registered."""
        found = await self._retry_unavailable(self._find_registered)
        if found:
            self._succeed(found)
            return
        self._outcome_unknown = False
        refused = await self._retry_unavailable(lambda: self._refused_segments(error))
        self._refuse(refused, str(error))

    async def _find_registered(self) -> dict[tuple[str, int], int]:
        """Returns the base offsets of this object's registered segments."""
        if not self._outcome_unknown:
            return {}
        rows = await self._store.get_object_segments(*self._location)
        return {(row.topic, row.partition_id): row.base_offset for row in rows}

    async def _refused_segments(self, error: RegistryError) -> list[PackedSegment]:
        if isinstance(error, Conflict):
            names = set(error.names)
            refused = [item for item in self.pending if "{}/{}".format(*item.part.lease.key) in names]
        elif isinstance(error, NotFound):
            known = {
                (row.topic, row.partition_id)
                for row in await self._store.get_partitions([item.part.lease.key for item in self.pending])
            }
            refused = [item for item in self.pending if item.part.lease.key not in known]
        else:
            refused = []
        return refused or list(self.pending)

    async def _retry_unavailable(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except Unavailable:
                if not await self._back_off():
                    raise

    async def _back_off(self) -> bool:
        """Returns False if the deadline would pass during the wait."""
        self._failures += 1
        self._statistics.retries += 1
        wait_s = _BACKOFF.wait_s(self._failures, self._clock)
        if self._clock.monotonic() + wait_s > self._deadline:
            return False
        await self._clock.sleep(wait_s)
        return True

    def _succeed(self, base_offsets: dict[tuple[str, int], int]) -> None:
        registered, self.pending = self.pending, []
        for item in registered:
            base = base_offsets.get(item.part.lease.key)
            if base is None:
                self._refuse([item], "the object was registered without it")
                continue
            self._registered = True
            item.part.lease.next_offset = base + item.segment.records
            item.part.succeed(base)
            self._statistics.segments += 1
        self._statistics.objects += 1

    def _refuse(self, refused: Sequence[PackedSegment], why: str) -> None:
        for item in refused:
            self._mark_lost(item)
            item.part.fail(AppendFailed(f"{item.part.lease!r}: nothing was written: {why}"))
        refused_ids = set(map(id, refused))
        self.pending = [item for item in self.pending if id(item) not in refused_ids]

    def _give_up(self, error: RegistryError) -> None:
        log.warning("outcome of a registration is unknown", uri=self.uri, error=str(error))
        for item in self.pending:
            self._mark_lost(item)
            unknown = AppendUnknown(f"{item.part.lease!r}: the registry is unavailable, it may be written: {error}")
            unknown.__cause__ = error
            item.part.fail(unknown)
        self.pending = []
